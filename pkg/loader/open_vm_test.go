//go:build vm

package loader

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
)

// openVerified gives an Enforcer whose state is verified, or ends the test with every reason why not.
func openVerified(t *testing.T) *Enforcer {
	t.Helper()
	e, status, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if status.State != engine.Verified {
		for _, r := range status.Reasons {
			t.Errorf("%s", r)
		}
		t.FailNow()
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestOpenLoadsAdoptsAndProves(t *testing.T) {
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	if status := Inspect(Options{}); status.State == engine.Verified || !hasCode(status, engine.NotLoaded) {
		t.Fatalf("before the first load: %v %v", status.State, status.Reasons)
	}
	first := openVerified(t)
	before, lost, _ := first.attached()
	if len(lost) > 0 {
		t.Fatalf("lost right after the load: %v", lost)
	}
	first.Close()

	second := openVerified(t)
	after, _, _ := second.attached()
	for i := range after {
		if after[i] != before[i] {
			t.Errorf("%s was loaded again: %+v, then %+v", attachments[i].name, before[i], after[i])
		}
	}
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Errorf("inspect: %v", status.Reasons)
	}
}

// A required hook that was never attached, as with pins of an older build, is a reason, however good the proof.
func TestRequiredHookNeverAttached(t *testing.T) {
	e := openVerified(t)
	e.state.Attached[0] &^= 1
	status := Inspect(Options{})
	e.state.Attached[0] |= 1
	if status.State == engine.Verified || !hasCode(status, engine.LinkLost) {
		t.Errorf("without %s: %v %v", attachments[0].name, status.State, status.Reasons)
	}
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Errorf("with it again: %v", status.Reasons)
	}
}

// The log of a program that the kernel refuses is the only thing that says why; the sizes show what is near the limit.
func TestEveryProgramVerifies(t *testing.T) {
	chosen, err := choosePrograms()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := programs(chosen)
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Logf("%+v", ve)
		}
		t.Fatal(err)
	}
	defer coll.Close()
	for name, p := range coll.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := info.VerifiedInstructions()
		took, _ := info.LoadTime()
		t.Logf("%-18s verified %d instructions, %v", name, n, took)
	}
}

// Programs may be unloaded or replaced between the look at them and the jail. A jail in the maps that they left would
// confine nobody.
func TestJailInMapsThatNobodyReads(t *testing.T) {
	if err := Unload(Options{}, true); err != nil {
		t.Fatal(err)
	}
	unloaded := openVerified(t)
	if err := Unload(Options{}, false); err != nil {
		t.Fatal(err)
	}
	refused := func(e *Enforcer, detail string) {
		t.Helper()
		s := scene{}
		if err := s.makeCgroup("/sys/fs/cgroup", "test-"); err != nil {
			t.Fatal(err)
		}
		defer s.close()
		dir := t.TempDir()
		_, err := e.CreateJail(JailSpec{Cgroup: s.cgroup, CgroupPath: s.path, Sets: engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: dir},
			Objects:   []engine.Object{{Path: dir, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
		}})
		var unverified *engine.UnverifiedError
		if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.NotLoaded || !strings.Contains(err.Error(), detail) {
			t.Errorf("%v, want %s with %q", err, engine.NotLoaded, detail)
		}
		if live := e.liveSlots(); len(live) != 0 {
			t.Errorf("jails were made: %v", live)
		}
		if err := e.Hold("any", func(*Jail) error { return nil }); !errors.As(err, &unverified) {
			t.Errorf("hold: %v", err)
		}
	}
	refused(unloaded, "no such file")
	openVerified(t)
	refused(unloaded, "others are in their place")
}
