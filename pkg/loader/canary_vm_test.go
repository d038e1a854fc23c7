//go:build vm

package loader

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/thenforce/thenforce/pkg/engine"
)

// allowing is a program that allows everything.
var allowing = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// alwaysAllow puts in the place of one hook's program one that allows everything, attached and pinned as the real one is.
// The function that is returned puts the real one back.
func alwaysAllow(t *testing.T, i int, program string) (undo func()) {
	t.Helper()
	object, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	spec := object.Programs[program].Copy()
	spec.Instructions = allowing
	fake, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	pin := filepath.Join(Options{}.withDefaults().pins(), linkPin(attachments[i]))
	was, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer was.Close()
	info, err := was.Info()
	if err != nil {
		t.Fatal(err)
	}
	real, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		t.Fatal(err)
	}
	put := func(program *ebpf.Program) {
		t.Helper()
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		l, err := attach(attachments[i], program)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := l.Pin(pin); err != nil {
			t.Fatal(err)
		}
	}
	put(fake)
	return func() {
		t.Helper()
		put(real)
		real.Close()
	}
}

// A canary proves denial and not attachment: with a program that does nothing in the place of any one that is attached,
// the verification fails and names it.
func TestVerifyFindsTheProgramThatAllows(t *testing.T) {
	e := openVerified(t)
	ws := tmpfsIn(t)
	jailed(t, e, engine.AllowedSets{ // attaches the hook that is attached on demand
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: ws}, NoSymlinks: true,
		Objects: []engine.Object{{Path: ws, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	})
	chosen, err := choosePrograms()
	if err != nil {
		t.Fatal(err)
	}
	chosen[followLinkIndex()] = enforcerProgTfInodeFollowLink
	few := []string{"file_open", "perf_event_open", "d_delete"} // a proof takes its time
	tried := 0
	for i, a := range attachments {
		if chosen[i] == "" || !inSoak() && !slices.Contains(few, a.name) {
			continue
		}
		tried++
		t.Run(a.name, func(t *testing.T) {
			undo := alwaysAllow(t, i, chosen[i])
			defer undo()
			if status := Inspect(Options{}); status.State == engine.Verified || !hasCode(status, engine.NotProven) {
				t.Errorf("before anything is tried: %v %v", status.State, status.Reasons)
			}
			status, err := Verify(Options{})
			if err != nil || status.State == engine.Verified {
				t.Fatalf("%v %v, %v", status.State, status.Reasons, err)
			}
			named := false
			for _, r := range status.Reasons {
				if r.Code == engine.CanaryFailed {
					named = named || strings.HasPrefix(r.Detail, "a test operation was not judged as it must be: "+a.name+": ")
				}
				t.Log(r)
			}
			if !named {
				t.Errorf("no reason names %s", a.name)
			}
			for _, h := range status.Hooks {
				if h.Name == a.name && (!h.Attached || h.Proven) {
					t.Errorf("%+v", h)
				}
			}
		})
	}
	if tried < len(few) {
		t.Errorf("only %d programs were tried", tried)
	}
	status, err := Verify(Options{})
	if err != nil || status.State != engine.Verified {
		t.Errorf("with every real program back: %v %v, %v", status.State, status.Reasons, err)
	}
	for _, h := range status.Hooks {
		if !h.Required || !h.Proven {
			t.Errorf("%+v", h)
		}
	}
}

// What an administrator has forbidden to everybody cannot be tried: its hook is not required then. The proof ends when it
// is allowed again. Where only privileged processes may, a jail may not either, and the hook is tried all the same.
func TestForbiddenRings(t *testing.T) {
	settings := []string{"1", "2", "0"}
	was, err := os.ReadFile(uringDisabled)
	switch {
	case os.IsNotExist(err):
		settings = nil // before Linux 6.6, where nobody can forbid it
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(uringDisabled, was, 0) })
	expect := func(setting string, required bool) {
		t.Helper()
		status, err := Verify(Options{})
		if err != nil || status.State != engine.Verified {
			t.Fatalf("setting %s: %v %v, %v", setting, status.State, status.Reasons, err)
		}
		for _, status := range []engine.EnforcementStatus{status, Inspect(Options{})} {
			i := slices.IndexFunc(status.Hooks, func(h engine.HookStatus) bool { return h.Name == "uring_override_creds" })
			if h := status.Hooks[i]; status.State != engine.Verified || h.Required != required || h.Proven != required || !h.Attached ||
				hasCode(status, engine.OptionalHookMissing) == required {
				t.Errorf("setting %s: %v %v %+v", setting, status.State, status.Reasons, h)
			}
		}
	}
	expect("as it was", true)
	for _, setting := range settings {
		if err := os.WriteFile(uringDisabled, []byte(setting), 0); err != nil {
			t.Fatal(err)
		}
		if setting == "0" { // after 2
			if status := Inspect(Options{}); status.State == engine.Verified || !hasCode(status, engine.NotProven) {
				t.Errorf("allowed again: %v %v", status.State, status.Reasons)
			}
		}
		expect(setting, setting != "2")
	}
}
