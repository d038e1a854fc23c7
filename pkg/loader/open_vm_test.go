//go:build vm

package loader

import (
	"errors"
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
	before, lost := first.attached()
	if len(lost) > 0 {
		t.Fatalf("lost right after the load: %v", lost)
	}
	first.Close()

	second := openVerified(t)
	after, _ := second.attached()
	for i := range after {
		if after[i] != before[i] {
			t.Errorf("%s was loaded again: %+v, then %+v", attachments[i].name, before[i], after[i])
		}
	}
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Errorf("inspect: %v", status.Reasons)
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
