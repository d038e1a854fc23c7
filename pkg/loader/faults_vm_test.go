//go:build vm

package loader

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// wantReason checks that the state is unverified for a reason, whoever asks and however, and that no jail is made.
func wantReason(t *testing.T, code engine.EnforcementCode, detail string) {
	t.Helper()
	has := func(how string, status engine.EnforcementStatus) {
		t.Helper()
		for _, r := range status.Reasons {
			if r.Code == code && r.Blocking && strings.Contains(r.Detail, detail) && r.Fix != "" && status.State != engine.Verified {
				return
			}
		}
		t.Errorf("%s: want %s with %q: %v %v", how, code, detail, status.State, status.Reasons)
	}
	has("inspect", Inspect(Options{}))
	status, err := Verify(Options{})
	if err != nil {
		t.Fatal(err)
	}
	has("verify", status)
	e, status, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if e != nil {
		e.Close()
	}
	has("open", status)

	// And so do the commands.
	dir := t.TempDir()
	for _, c := range []struct {
		code int
		args []string
	}{
		{5, []string{"status"}},
		{125, []string{"run", "--workspace", dir, "--", "touch", filepath.Join(dir, "ran")}},
	} {
		cmd := exec.Command("thenforce", c.args...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), string(code)) {
			t.Errorf("%v: want exit code %d and %s: %v\n%s", c.args, c.code, code, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command ran")
	}
}

func TestLostLink(t *testing.T) {
	e := openVerified(t)
	names := []string{"cgroup_mkdir"}
	if inFull() {
		names = append(names, "file_open")
	}
	for _, name := range names {
		at := -1
		for i, a := range attachments {
			if a.name == name {
				at = i
			}
		}
		pin := filepath.Join(e.opts.pins(), linkPin(attachments[at]))
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		wantReason(t, engine.LinkLost, name)
	}
	// The fix that the reason gives works.
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	openVerified(t)
}

// A link that is lost is missed after an upgrade that was cut short too, when what is to be attached is found out anew; also
// one of a hook that not every kernel has.
func TestLostLinkAfterUpgrade(t *testing.T) {
	e := openVerified(t)
	lost := -1
	for i, a := range attachments {
		if e.expected(i) && (lost < 0 || a.newer) {
			lost = i
		}
	}
	t.Logf("%s", attachments[lost].name)
	if err := os.Mkdir(e.opts.staging(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(e.opts.pins(), linkPin(attachments[lost]))); err != nil {
		t.Fatal(err)
	}
	if status, err := Verify(Options{}); err != nil || status.State == engine.Verified || !hasCode(status, engine.LinkLost) {
		t.Errorf("%v %v, %v", status.State, status.Reasons, err)
	}
	if _, err := os.Stat(e.opts.staging()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staging folder is left: %v", err)
	}
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	openVerified(t)
}

func TestPinsOfAnotherABI(t *testing.T) {
	e := openVerified(t)
	other := filepath.Join(e.opts.PinRoot, "v0")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	again, err := e.runs.Clone() // a map that is pinned already would be moved
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Pin(filepath.Join(other, "tf_runs")); err != nil {
		t.Fatal(err)
	}
	status := Inspect(Options{})
	if status.State != engine.Verified || !hasCode(status, engine.OldPinsUnused) {
		t.Errorf("unused pins: %v %v", status.State, status.Reasons)
	}
	// A program of it that is attached.
	object, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	spec := object.Programs["tf_capable"].Copy()
	spec.Instructions = allowing
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	l, err := attach(attachment{name: "capable", kind: lsmHook}, program)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Pin(filepath.Join(other, "whatever_it_is_called")); err != nil {
		t.Fatal(err)
	}
	wantReason(t, engine.StalePins, other)
	// What that version knows of its jails, and is not to lose.
	record := filepath.Join(e.opts.StateDir, "jails", "0123456789ab.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o700), os.WriteFile(record, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := Unload(Options{}, false); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("unload: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, "whatever_it_is_called")); err != nil {
		t.Errorf("it was removed all the same: %v", err)
	}
	if _, err := os.Stat(record); err != nil {
		t.Errorf("its jails' records were removed: %v", err)
	}
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{other, record} {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left: %s: %v", name, err)
		}
	}
	openVerified(t)
}

// A hook takes a limited number of programs, of whoever: 38 (BPF_MAX_TRAMP_LINKS of linux/bpf.h).
func TestHookIsBusy(t *testing.T) {
	openVerified(t).Close()
	if inSoak() { // else ours is among those that the hook has, and one more stands for it
		if err := Unload(Options{}, false); err != nil {
			t.Fatal(err)
		}
	}
	object, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	spec := object.Programs["tf_capable"].Copy()
	spec.Instructions = allowing
	var others []link.Link
	defer func() {
		for _, l := range others {
			l.Close()
		}
		openVerified(t)
	}()
	for {
		program, err := ebpf.NewProgram(spec)
		if err != nil {
			t.Fatal(err)
		}
		l, err := attach(attachment{name: "capable", kind: lsmHook}, program)
		program.Close()
		if err != nil {
			if code := reasonForLoad(err); code != engine.AttachBusy || len(others) < 30 {
				t.Errorf("after %d programs: %s: %v", len(others), code, err)
			}
			break
		}
		if others = append(others, l); len(others) > 100 {
			t.Fatal("there is no limit")
		}
	}
	if !inSoak() {
		return
	}
	status, err := Verify(Options{})
	if err != nil || !hasCode(status, engine.AttachBusy) {
		t.Errorf("%v %v, %v", status.State, status.Reasons, err)
	}
	if _, err := os.Stat(Options{}.withDefaults().pins()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half of it is pinned: %v", err)
	}
}

func TestIncompletePins(t *testing.T) {
	e := openVerified(t)
	if err := os.Remove(filepath.Join(e.opts.pins(), enforcerMapTfGrants)); err != nil {
		t.Fatal(err)
	}
	wantReason(t, engine.StalePins, enforcerMapTfGrants)
	if err := Unload(Options{}, false); err == nil {
		t.Error("unload took pins for complete that are not")
	}
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	openVerified(t)
}

// A map that is full refuses a jail, with its reason, and nothing of it is left.
func TestFullMaps(t *testing.T) {
	e := openVerified(t)
	c := newCell(t, e)
	fill(t, e.grants, int(enforcerTfLimitTF_MAX_GRANTS)-entriesOf[enforcerTfGrantKey, enforcerTfGrant](t, e.grants)-1,
		func(i int) (enforcerTfGrantKey, enforcerTfGrant) {
			return enforcerTfGrantKey{Ino: uint64(i), Dev: ^uint32(0)}, enforcerTfGrant{}
		})
	full := func(err error) {
		t.Helper()
		var unverified *engine.UnverifiedError
		if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.MapFull {
			t.Errorf("want map-full: %v", err)
		}
	}
	s := &scene{}
	if err := s.makeCgroup("/sys/fs/cgroup", "full-"); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	spec := c.spec(engine.Read)
	spec.Cgroup, spec.CgroupPath = s.cgroup, s.path
	_, err := e.CreateJail(spec)
	full(err)
	_, err = e.Replace(c.jail.ID, c.spec(engine.AllRights))
	full(err)
	c.want(t, "truncate /in/a/file", eacces) // the former policy
	if jails, err := e.Jails(); err != nil || len(jails) != 1 {
		t.Errorf("%v, %v", jails, err)
	}
	empty(t, e.grants, func(k enforcerTfGrantKey, _ enforcerTfGrant) bool { return k.Dev == ^uint32(0) })
	c.wantVerified(t)
	c.want(t, "open /in/a/file", noErrno)
}

// With the table of members full, a cgroup that is made inside a jail cannot be entered: its tasks are found by their
// ancestors, and the state says so.
func TestFullMembers(t *testing.T) {
	t.Cleanup(func() {
		if err := Unload(Options{}, true); err != nil { // what was full once stays slow until then
			t.Error(err)
		}
	})
	e := openVerified(t)
	c := newCell(t, e)
	fill(t, e.members, int(enforcerTfLimitTF_MAX_CGROUPS)-entriesOf[uint64, enforcerTfMember](t, e.members),
		func(i int) (uint64, enforcerTfMember) { return 1<<40 | uint64(i), enforcerTfMember{} })
	sub := filepath.Join(c.path, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(sub)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	child, err := startCanary(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, child, "open "+c.base+"/out/file", eacces)
	want(t, child, "open "+c.base+"/in/a/file", noErrno)
	wantReason(t, engine.MapFull, "")
	if err := errors.Join(child.stop(), removeCgroup(sub)); err != nil {
		t.Error(err)
	}
	empty(t, e.members, func(id uint64, _ enforcerTfMember) bool { return id>>40 == 1 })
}

// fill puts as many entries into a map.
func fill[K, V any](t *testing.T, m *ebpf.Map, n int, entry func(int) (K, V)) {
	t.Helper()
	keys, values := make([]K, n), make([]V, n)
	for i := range n {
		keys[i], values[i] = entry(i)
	}
	if done, err := m.BatchUpdate(keys, values, nil); err != nil || done != n {
		t.Fatalf("filled %d of %d: %v", done, n, err)
	}
}

// empty takes entries out again.
func empty[K, V any](t *testing.T, m *ebpf.Map, which func(K, V) bool) {
	t.Helper()
	var keys []K
	if err := each(m, func(k K, v V) {
		if which(k, v) {
			keys = append(keys, k)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.BatchDelete(keys, nil); err != nil {
		t.Fatal(err)
	}
}

func TestNoCgroup(t *testing.T) {
	for _, path := range []string{"/", "/proc"} {
		dir, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		_, err = CgroupID(dir)
		var unverified *engine.UnverifiedError
		if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.CgroupUnresolvable {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What the kernel says nothing about is no identity.
func TestLearnNothing(t *testing.T) {
	e := openVerified(t)
	for how, end := range map[string]func(*os.File) error{
		"closed":                 (*os.File).Close,
		"closed behind its back": func(f *os.File) error { return unix.Close(int(f.Fd())) },
	} {
		f, err := os.OpenFile("/", unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := end(f); err != nil {
			t.Fatal(err)
		}
		id, err := e.Learn(f)
		f.Close() // or the collector would, one day, when the number is another file's
		var unverified *engine.UnverifiedError
		if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.DeviceUnobserved || id != (Identity{}) {
			t.Errorf("%s: %+v, %v", how, id, err)
		}
	}
}

// Another BPF user may replace a function of a program that is attached: its id, its link and its digest stay.
func TestReplacedFunction(t *testing.T) {
	e := openVerified(t)
	object, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	const function = "tf_settle" // which says whether an answer denies
	var fn *btf.Func
	for _, ins := range object.Programs["tf_path_chmod"].Instructions {
		if ins.Symbol() == function {
			fn = btf.FuncMetadata(&ins)
		}
	}
	p, err := readPin(filepath.Join(e.opts.pins(), linkPrefix+"path_chmod"))
	if err != nil {
		t.Fatal(err)
	}
	target, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.program))
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "allow", Type: ebpf.Extension, AttachTo: function, AttachTarget: target, License: "GPL",
		Instructions: asm.Instructions{btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, 0).WithSymbol(function), fn), asm.Return()},
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer program.Close()
	l, err := link.AttachFreplace(target, function, program)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := tmpfsIn(t)
	if err := errors.Join(os.Mkdir(dir+"/in", 0o755), os.WriteFile(dir+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	_, child := jailed(t, e, engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: dir + "/in"},
		Objects:   []engine.Object{{Path: dir + "/in", Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	})
	if errno, err := child.do([]string{"chmod", dir + "/file"}); err != nil || errno != noErrno {
		t.Errorf("chmod outside: %s, %v: nothing is replaced, and this shows nothing", errnoName(errno), err)
	}
	wantReason(t, engine.CanaryFailed, "replace functions of the attached ones (bpftool link list): path_chmod")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if errno, err := child.do([]string{"chmod", dir + "/file"}); err != nil || errno != eacces {
		t.Errorf("chmod outside: %s, %v", errnoName(errno), err)
	}
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Error(status.Reasons)
	}
}
