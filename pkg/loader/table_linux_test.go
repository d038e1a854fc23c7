package loader

import (
	"crypto/sha256"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"github.com/thenforce/thenforce/pkg/engine"
)

// enumOf gives the names of an enum in the object file, by value.
func enumOf(t *testing.T, name string) map[int]string {
	t.Helper()
	spec, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName(name, &enum); err != nil {
		t.Fatal(err)
	}
	values := map[int]string{}
	for _, v := range enum.Values {
		values[int(v.Value)] = v.Name
	}
	return values
}

// The names that people read are those of the C side, id by id: an id added there without a name here is a failure.
func TestNamesFollowTheObjectFile(t *testing.T) {
	for _, table := range []struct {
		enum, prefix string
		names        []string
		odd          map[string]string // C names that say the same in other words
	}{
		{"tf_code", "TF_", codeNames[:], map[string]string{"too-deep": "depth"}},
		{"tf_hook", "TF_HOOK_", hookNames[:], nil},
		{"tf_op_id", "TF_OP_", opNames[:], nil},
	} {
		values := enumOf(t, table.enum)
		for id, name := range table.names {
			want := strings.ToLower(strings.TrimPrefix(values[id], table.prefix))
			if table.enum == "tf_code" {
				want = strings.ReplaceAll(want, "_", "-")
			}
			if odd, ok := table.odd[want]; ok {
				want = odd
			}
			if name != want {
				t.Errorf("%s %d is %q here and %s in the object file", table.enum, id, name, values[id])
			}
		}
		count := 0
		for _, name := range values {
			if name != "TF_HOOKS" && name != "TF_OPS" {
				count++
			}
		}
		if count != len(table.names) {
			t.Errorf("%s has %d values, %d names here", table.enum, count, len(table.names))
		}
	}
	if len(codeReasons) != len(codeNames) {
		t.Errorf("%d codes, %d reasons", len(codeNames), len(codeReasons))
	}
}

// Rights cross the border as bits.
func TestRightsAreTheEngines(t *testing.T) {
	values := enumOf(t, "tf_right")
	for bit, want := range map[engine.Rights]string{
		engine.Read: "TF_READ", engine.Write: "TF_WRITE", engine.Create: "TF_CREATE",
		engine.Delete: "TF_DELETE", engine.Exec: "TF_EXEC", engine.Connect: "TF_CONNECT",
	} {
		if values[int(bit)] != want {
			t.Errorf("%d is %v here and %s there", bit, bit, values[int(bit)])
		}
	}
	if len(values) != 6 {
		t.Errorf("%d rights in the object file: %v", len(values), values)
	}
}

// Every struct that crosses the border has the layout the object's own type information gives it.
func TestLayoutFollowsTheObjectFile(t *testing.T) {
	spec, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]any{
		"tf_jail": enforcerTfJail{}, "tf_member": enforcerTfMember{}, "tf_grant_key": enforcerTfGrantKey{},
		"tf_grant": enforcerTfGrant{}, "tf_expansion": enforcerTfExpansion{}, "tf_expanded": enforcerTfExpanded{},
		"tf_judging": enforcerTfJudging{}, "tf_identity": enforcerTfIdentity{}, "tf_learning": enforcerTfLearning{},
		"tf_canary_count": enforcerTfCanaryCount{}, "tf_event": enforcerTfEvent{}, "tf_proof": enforcerTfProof{},
		"tf_global": enforcerTfGlobal{}, "tf_pty_key": enforcerTfPtyKey{},
	} {
		var want *btf.Struct
		if err := spec.Types.TypeByName(name, &want); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		typ := reflect.TypeOf(value)
		if typ.Size() != uintptr(want.Size) {
			t.Errorf("%s: %d bytes here, %d there", name, typ.Size(), want.Size)
		}
		// Field 0 is structs.HostLayout, which has no size.
		for i, m := range want.Members {
			if got := typ.Field(i + 1); got.Offset != uintptr(m.Offset.Bytes()) {
				t.Errorf("%s.%s: offset %d here, %d there", name, m.Name, got.Offset, m.Offset.Bytes())
			}
		}
	}
	if got := int(enforcerTfLimitTF_MAX_ATTACHED); len(attachments) > got {
		t.Errorf("%d attachments, a proof has room for %d", len(attachments), got)
	}
}

func TestObjectDigest(t *testing.T) {
	if buildDigest() != sha256.Sum256(_EnforcerBytes) {
		t.Error("objectDigest is not the digest of the object file: make generate")
	}
}

// Every hook has a canary, in both directions.
func TestEveryHookHasACanary(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range canaries {
		seen[c.hook] = true
		for _, operation := range []string{c.deny, c.allow} {
			word, _, _ := strings.Cut(operation, " ")
			if _, known := operations[word]; !known && operation != "" {
				t.Errorf("%s: no operation %q", c.hook, word)
			}
		}
		if c.deny == "" || c.deny == c.allow && c.before == nil {
			t.Errorf("%s: not a pair: %q, %q", c.hook, c.deny, c.allow)
		}
	}
	for _, name := range hookNames {
		if !seen[name] {
			t.Errorf("%s has no canary", name)
		}
	}
}

func rawEvent(head enforcerTfEvent, path string) []byte {
	head.PathLen = uint32(len(path))
	raw := append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(&head)), eventHead)...)
	return append(append(raw, path...), make([]byte, 64)...) // a record is longer than what it holds
}

func TestParseEvent(t *testing.T) {
	now := time.Unix(1000, 0).UTC()
	head := enforcerTfEvent{Time: 5e9, Jail: 0xabc, Cgroup: 7, Ino: 9, Dev: 8<<20 | 1, Pid: 3, Tid: 4, Error: -13, Code: 1}
	copy(head.Comm[:], []int8{'s', 'h'})
	for _, test := range []struct {
		name  string
		path  string
		flags uint16
		want  string
	}{
		{"names come last first", "secret\x00outside\x00", 0, "/outside/secret"},
		{"the root", "", 0, "/"},
		{"a newline and bytes that are no UTF-8", "a\n\xff\x00", 0, "/a\n\xff"},
		{"mounted nowhere", "f\x00", uint16(enforcerTfEventFlagTF_EVENT_UNREACHABLE), "(unreachable)/f"},
		{"longer than a record", "f\x00", uint16(enforcerTfEventFlagTF_EVENT_CUT), ".../f"},
	} {
		head.Flags = test.flags
		e, err := parseEvent(rawEvent(head, test.path), now, 7e9)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if e.Path != test.want {
			t.Errorf("%s: %q, want %q", test.name, e.Path, test.want)
		}
		if e.Time != now.Add(-2*time.Second) || e.Jail != "000000000abc" || e.Device != "8:1" || e.Comm != "sh" ||
			e.Errno != "EACCES" || e.Code != "no-grant" || e.Hook != "file_open" || e.Mode != "enforce" {
			t.Errorf("%s: %+v", test.name, e)
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Event
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, back); diff != "" {
			t.Errorf("%s: JSON and back: %s", test.name, diff)
		}
	}
}

const flagsOffset = unsafe.Offsetof(enforcerTfEvent{}.Flags)

// Whatever the kernel may have written, decoding it errors or succeeds.
func FuzzParseEvent(f *testing.F) {
	f.Add(rawEvent(enforcerTfEvent{}, "a\x00b\x00"))
	f.Add([]byte{})
	f.Add(make([]byte, eventHead))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := parseEvent(raw, time.Unix(0, 0), 0)
		if err != nil {
			return
		}
		flags := uint16(raw[flagsOffset]) | uint16(raw[flagsOffset+1])<<8
		if noObject := flags&uint16(enforcerTfEventFlagTF_EVENT_NO_OBJECT) != 0; e.Path == "" && !noObject {
			t.Error("an event about an object without a path")
		}
	})
}

func TestFindJail(t *testing.T) {
	jails := []*Jail{{ID: "aaaa00000001", Name: "web"}, {ID: "aaaa00000002", Name: "aaaa"}, {ID: "bbbb00000001"}}
	for ref, want := range map[string]string{
		"web": "aaaa00000001", "bb": "bbbb00000001", "aaaa00000001": "aaaa00000001",
		"aaaa": "aaaa00000002", // a name goes before a prefix
		"aaa":  "", "": "", "c": "",
	} {
		j, err := find(jails, ref)
		if (err == nil) != (want != "") || err == nil && j.ID != want {
			t.Errorf("%q: %v, %v, want %q", ref, j, err, want)
		}
	}
}
