package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := Install(dir, "/usr/bin/thenforce"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "thenforce.json"))
	if err != nil {
		t.Fatal(err)
	}
	// The file that packages have.
	want, err := os.ReadFile("../../contrib/containers/thenforce.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Error(diff)
	}
	if err := Install(filepath.Join(dir, "nowhere"), "/x"); err == nil {
		t.Error("a missing folder is no error")
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) != 0 {
		t.Errorf("left behind: %q", names)
	}
}

func TestInject(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "config.json")
	const before = `{"ociVersion":"1.2.0","newer":{"field":[1,2.50]},"hooks":{"createRuntime":[{"path":"/other","newer":1}],"prestart":[{"path":"/old"}]}}`
	if err := os.WriteFile(name, []byte(before), 0o640); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Inject(dir, "/usr/bin/thenforce"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var have map[string]any
	if err := json.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	own := map[string]any{"path": "/usr/bin/thenforce", "args": []any{"thenforce", "hook"}, "timeout": 60.0}
	want := map[string]any{
		"ociVersion": "1.2.0", "newer": map[string]any{"field": []any{1.0, 2.5}},
		"hooks": map[string]any{
			"createRuntime": []any{map[string]any{"path": "/other", "newer": 1.0}, own},
			"prestart":      []any{map[string]any{"path": "/old"}},
			"poststop":      []any{own},
		},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, broken := range []string{"", "[]", "null", "{", `{"hooks":[]}`, `{"hooks":{"createRuntime":{}}}`} {
		if _, err := inject([]byte(broken), hook("/x")); err == nil {
			t.Errorf("%q passes", broken)
		}
	}
	if err := Inject(t.TempDir(), "/x"); err == nil {
		t.Error("a bundle without config.json is no error")
	}
}

// Whatever a config.json has, it has afterwards too, and the hook in both stages.
func FuzzInject(f *testing.F) {
	f.Add(`{"hooks":null,"a":1}`)
	f.Add(`{"hooks":{"poststop":[]},"process":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		out, err := inject([]byte(text), hook("/x"))
		if err != nil {
			return
		}
		var before, after map[string]any
		if json.Unmarshal([]byte(text), &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%q became %q", text, out)
		}
		var spec struct{ Hooks specs.Hooks }
		if err := json.Unmarshal(out, &spec); err == nil {
			for _, list := range [][]specs.Hook{spec.Hooks.CreateRuntime, spec.Hooks.Poststop} {
				if !slices.ContainsFunc(list, func(h specs.Hook) bool { return h.Path == "/x" }) {
					t.Errorf("%q has no hook in %q", text, out)
				}
			}
		}
		delete(before, "hooks")
		delete(after, "hooks")
		if len(before)+len(after) > 0 && !reflect.DeepEqual(before, after) {
			t.Errorf("%q became %q", text, out)
		}
	})
}

func TestNewBundle(t *testing.T) {
	for _, c := range []struct{ call, want, err string }{
		{"--root /r --log /l --log-format json create --bundle /b --pid-file /p id", "/b", ""},
		{"--root=/r --systemd-cgroup create -b /b id", "/b", ""},
		{"--cgroup-manager cgroupfs run --bundle=/b id", "/b", ""},
		{"create id", ".", ""},
		{"run --console-socket /s --bundle", ".", ""},
		{"start id", "", ""},
		{"delete --force id", "", ""},
		{"exec id create --bundle /b", "", ""},
		{"--root create start id", "", ""},
		{"--version", "", ""},
		{"", "", ""},
		{"--root", "", ""},
		{"--new-flag create id", "", "--new-flag"},
		{"-x create id", "", "-x"},
		{"restore --bundle /b id", "", "restored"},
	} {
		got, err := NewBundle(strings.Fields(c.call))
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q: %q, %v, want %q, %q", c.call, got, err, c.want, c.err)
		}
	}
}

func TestJailName(t *testing.T) {
	hex64 := strings.Repeat("0123456789abcdef", 4)
	for id, want := range map[string]string{
		"web-1": "web-1", hex64: hex64[:63], "Web": "oci-", hex64 + "0": "oci-", "a/b": "oci-",
	} {
		if got := JailName(id); got != want && !(want == "oci-" && strings.HasPrefix(got, want) && len(got) == 36) {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
	if JailName("Web") == JailName("wEb") {
		t.Error("two ids have one name")
	}
}
