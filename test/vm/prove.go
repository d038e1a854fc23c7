//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// proof is a guest that goes wrong and what the harness has to say about it.
type proof struct {
	what  string
	tests []string // each run by itself
	limit time.Duration
	// want are parts of reasons, each of which must be given; nothing else may.
	want []string
}

var proofs = []proof{
	{
		what:  "a test passes",
		tests: []string{"TestPasses"},
	}, {
		what:  "tests fail, skip, exit, panic, are missing",
		tests: []string{"TestFails", "TestSkips", "TestExits", "TestPanics", "TestMissing", "TestPasses"},
		want: []string{
			"failed: TestFails", "skipped: TestSkips", "ended in the middle of TestExits",
			"TestPanics: exit status 2", "failed: TestPanics", "did not run: TestMissing",
		},
	}, {
		what:  "the kernel warns",
		tests: []string{"TestWarns"},
		want:  []string{"kernel log: ", "on_purpose"},
	}, {
		what:  "the kernel panics",
		tests: []string{"TestPasses", "TestCrashesKernel"},
		want:  []string{"kernel log: ", "Kernel panic", "without a result record"},
	}, {
		what:  "the guest ends without a record",
		tests: []string{"TestPasses", "TestPowersOff"},
		want:  []string{"without a result record"},
	}, {
		what:  "a test hangs",
		tests: []string{"TestHangs"},
		limit: 15 * time.Second,
		want:  []string{"TestHangs: exit status 2", "TestHangs"},
	}, {
		what:  "the guest hangs",
		tests: []string{"TestStopsEverything"},
		limit: 15 * time.Second,
		want:  []string{"not done within 15s", "without a result record"},
	},
}

// prove boots guests that go wrong, and fails unless the harness judges each of
// them so, for the right reason. Without it a harness that lets everything pass
// would look fine.
func prove(ctx context.Context, args []string) error {
	var o options
	f := newFlags("prove", "")
	series := f.String("kernel", "6.12", "kernel `series`")
	o.register(f, time.Minute)
	if err := f.Parse(args); err != nil {
		return flagError(err)
	}
	o.finish()
	if err := needTools(o.full); err != nil {
		return err
	}
	cache, kernels, err := openKernels(ctx, *series, false)
	if err != nil {
		return err
	}
	b, err := newBuilder(cache)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.buildInit(ctx); err != nil {
		return err
	}
	binary := filepath.Join(b.dir, "broken.test")
	if err := buildTest(ctx, "vmbroken", "./test/vm/broken", binary); err != nil {
		return err
	}
	passed, failed := 0, 0
	for _, p := range proofs {
		g := guestRun{kernel: kernels[0], profile: profiles[0], files: []file{{binary, "/src/broken.test"}}, output: io.Discard}
		for _, name := range p.tests {
			g.plan.Programs = append(g.plan.Programs, guest.Program{
				Name: name, Dir: "/src", GoTest: true, Want: []string{name},
				Args: []string{"/src/broken.test", "-test.v=test2json", "-test.run=^" + name + "$"},
			})
		}
		limits := o
		if p.limit != 0 {
			limits.timeout = p.limit
		}
		out, err := b.boot(ctx, &limits, g)
		if err != nil {
			return err
		}
		reasons := judge(g.plan, out)
		if trouble := p.check(reasons); len(trouble) > 0 {
			failed++
			fmt.Printf("FAIL  %s: %s\n      the harness said:\n        %s\n", p.what, strings.Join(trouble, "; "), strings.Join(reasons, "\n        "))
			continue
		}
		passed++
		fmt.Printf("ok    %s (%d reasons)\n", p.what, len(reasons))
	}
	fmt.Fprintf(os.Stdout, "%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return errFailed
	}
	return nil
}

// check compares the reasons given with those wanted.
func (p proof) check(reasons []string) []string {
	var trouble []string
	for _, w := range p.want {
		if !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(r, w) }) {
			trouble = append(trouble, fmt.Sprintf("no reason has %q", w))
		}
	}
	for _, r := range reasons {
		if !slices.ContainsFunc(p.want, func(w string) bool { return strings.Contains(r, w) }) {
			trouble = append(trouble, fmt.Sprintf("unwanted reason %q", r))
		}
	}
	return trouble
}
