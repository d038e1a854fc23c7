//go:build vm

package loader

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/thenforce/thenforce/pkg/engine"
)

// allowing is a program that allows everything.
var allowing = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// alwaysAllow puts in the place of one hook's program one that allows everything, attached and pinned as the real one is.
func alwaysAllow(t *testing.T, e *Enforcer, i int) {
	t.Helper()
	chosen, err := choosePrograms()
	if err != nil {
		t.Fatal(err)
	}
	object, err := loadEnforcer()
	if err != nil {
		t.Fatal(err)
	}
	spec := object.Programs[chosen[i]].Copy()
	spec.Instructions = allowing
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	pin := filepath.Join(e.opts.pins(), linkPin(attachments[i]))
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

// A canary proves denial and not attachment: with a program that always allows in the place of any one hook's, all is
// attached, and the verification fails and names that hook.
func TestVerifyFindsTheHookThatAllows(t *testing.T) {
	for _, name := range []string{"file_open", "path_rename", "task_alloc", "unix_stream_connect", "capable"} {
		t.Run(name, func(t *testing.T) {
			e := openVerified(t)
			for i, a := range attachments {
				if a.name == name {
					alwaysAllow(t, e, i)
				}
			}
			e.Close()
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
					named = named || strings.Contains(r.Detail, ": "+name+": ")
				}
				t.Log(r)
			}
			if !named {
				t.Errorf("no reason names %s", name)
			}
			for _, h := range status.Hooks {
				if h.Name == name && (!h.Attached || h.Proven) {
					t.Errorf("%+v", h)
				}
			}
			// Nothing is left in force of it for the tests that follow.
			if err := Unload(Options{}, true); err != nil {
				t.Fatal(err)
			}
		})
	}
}
