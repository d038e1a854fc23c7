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

// A canary proves denial and not attachment: with a program that always allows in the place of any one hook's, all is
// attached, and the verification fails and names that hook.
func TestVerifyFindsTheHookThatAllows(t *testing.T) {
	allowPerf(t) // else the kernel itself refuses before it asks the hook, and a canary has to take that for good
	openVerified(t).Close()
	chosen, err := choosePrograms()
	if err != nil {
		t.Fatal(err)
	}
	few := []string{"file_open", "task_alloc", "capable"} // a proof takes its time
	tried := 0
	for i, a := range attachments {
		if chosen[i] == "" || a.kind != lsmHook || a.hook < 0 || a.onDemand || !inSoak() && !slices.Contains(few, a.name) {
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
					named = named || strings.Contains(r.Detail, ": "+a.name+": ")
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
		t.Errorf("only %d hooks were tried", tried)
	}
	if status, err := Verify(Options{}); err != nil || status.State != engine.Verified {
		t.Errorf("with every real program back: %v %v, %v", status.State, status.Reasons, err)
	}
}
