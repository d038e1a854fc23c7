//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thenforce/thenforce/internal/vm/guest"
	"github.com/thenforce/thenforce/internal/vm/image"
	"github.com/thenforce/thenforce/internal/vm/qemu"
)

// verdict is what became of one guest.
type verdict struct {
	kernel  image.Kernel
	profile profile
	outcome *qemu.Outcome
	reasons []string
}

func (v verdict) label() string {
	if v.profile.name == profiles[0].name {
		return v.kernel.Series
	}
	return v.kernel.Series + " " + v.profile.name
}

// passed counts the tests that passed.
func (v verdict) passed() int {
	n := 0
	if v.outcome != nil && v.outcome.Record != nil {
		for _, p := range v.outcome.Record.Programs {
			if p.Tests != nil {
				n += p.Tests.Passed
			}
		}
	}
	return n
}

func test(ctx context.Context, args []string) error {
	var o options
	f := newFlags("test", "[packages]")
	series := f.String("kernels", defaultKernels, "kernel `series`, separated by commas")
	run := f.String("run", "", "run only tests that match this `regexp`, as of go test")
	only := f.String("profile", "", "run only these boot `profiles`, separated by commas; see test/vm/profile.go")
	untagged := f.Bool("untagged", false, "also run the tests of files without the build tag vm")
	jobs := f.Int("j", 1, "`number` of guests at once")
	o.register(f, 10*time.Minute)
	if err := f.Parse(args); err != nil {
		return flagError(err)
	}
	o.finish()
	patterns := f.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	selected := profiles
	if *only != "" {
		selected = nil
		for name := range strings.SplitSeq(*only, ",") {
			p, err := findProfile(name)
			if err != nil {
				return err
			}
			selected = append(selected, p)
		}
	}
	if err := needTools(o.full); err != nil {
		return err
	}

	packages, err := findPackages(ctx, patterns, *untagged)
	if err != nil {
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
	common, err := b.buildCommon(ctx)
	if err != nil {
		return err
	}
	common = append(common, added(o.add)...)

	var runs []guestRun
	built := map[string]bool{}
	for _, p := range selected {
		g, err := b.testRun(ctx, p, packages, *run, built)
		if err != nil {
			return err
		}
		if len(g.plan.Programs) == 0 {
			continue
		}
		g.files = append(g.files, common...)
		for _, k := range kernels {
			g.kernel = k
			runs = append(runs, g)
		}
	}
	if len(runs) == 0 {
		return fmt.Errorf("no test matches in %s", strings.Join(patterns, " "))
	}
	verdicts, err := b.testAll(ctx, &o, runs, *jobs)
	if err != nil {
		return err
	}
	return summarize(os.Stdout, verdicts)
}

// testRun is the guest of one profile, the kernel left open.
func (b *builder) testRun(ctx context.Context, p profile, packages []goPackage, run string, built map[string]bool) (guestRun, error) {
	g := guestRun{profile: p}
	for _, pkg := range packages {
		names, err := pkg.selectTests(p, run)
		if err != nil {
			return g, err
		}
		if len(names) == 0 {
			continue
		}
		host := filepath.Join(b.dir, strings.ReplaceAll(pkg.rel, "/", "_")+".test")
		if !built[pkg.path] {
			if err := buildTest(ctx, "vm", pkg.path, host); err != nil {
				return g, err
			}
			built[pkg.path] = true
		}
		dir := "/src/" + pkg.rel
		binary := dir + "/" + filepath.Base(pkg.rel) + ".test"
		g.files = append(g.files, file{host, binary})
		if data := filepath.Join(pkg.dir, "testdata"); isDir(data) {
			g.files = append(g.files, file{data, dir + "/testdata"})
		}
		program := guest.Program{
			Name: pkg.rel, Dir: dir, GoTest: true,
			Args: []string{binary, "-test.v=test2json", "-test.run=" + runPattern(names, run)},
		}
		// A pattern for subtests may match none in a package; tests are wanted
		// by name only without one.
		if !strings.Contains(run, "/") {
			program.Want = names
		}
		g.plan.Programs = append(g.plan.Programs, program)
	}
	return g, nil
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// testAll runs the guests, some at once, and judges them.
func (b *builder) testAll(ctx context.Context, o *options, runs []guestRun, jobs int) ([]verdict, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		verdicts = make([]verdict, len(runs))
		slots    = make(chan struct{}, max(jobs, 1))
		wait     sync.WaitGroup
		stdout   = &lockedWriter{w: os.Stdout}
	)
	for i, g := range runs {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wait.Go(func() {
			defer func() { <-slots }()
			v := verdict{kernel: g.kernel, profile: g.profile}
			out := newPrefixWriter(stdout, "["+v.label()+"] ")
			g.output = out
			var err error
			if v.outcome, err = b.boot(ctx, o, g); err != nil {
				cancel(err)
				return
			}
			out.flush()
			v.reasons = judge(g.plan, v.outcome)
			verdicts[i] = v
			if len(v.reasons) > 0 {
				fmt.Fprintf(out, "FAIL\n  %s\n", strings.Join(v.reasons, "\n  "))
				if name, err := b.cache.KeepLog(g.kernel.Series+"-"+g.profile.name, v.outcome.Console); err == nil {
					fmt.Fprintf(out, "the end of the kernel's log (whole: %s):\n%s\n", name, lastLines(v.outcome.Console, 25))
				}
				out.flush()
			}
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return verdicts, nil
}

// judge adds to the guest's record what only the host knows.
func judge(plan guest.Plan, out *qemu.Outcome) []string {
	reasons := guest.Judge(plan, out.Record, out.Console)
	if out.Expired != "" {
		reasons = append([]string{out.Expired}, reasons...)
	}
	return reasons
}

// summarize prints a line for each guest and, last and alone, the counts.
func summarize(w io.Writer, verdicts []verdict) error {
	passed, failed := 0, 0
	fmt.Fprintln(w)
	for _, v := range verdicts {
		passed += v.passed()
		failed += len(v.reasons)
		result := "ok"
		if len(v.reasons) > 0 {
			result = "FAIL"
		}
		fmt.Fprintf(w, "%-4s  %-14s %-28s %4d passed, %d failed  %.1fs (boot %.1fs)\n",
			result, v.label(), v.kernel.Release, v.passed(), len(v.reasons), v.outcome.Total.Seconds(), v.outcome.Boot.Seconds())
	}
	for _, v := range verdicts {
		for _, r := range v.reasons {
			fmt.Fprintf(w, "  [%s] %s\n", v.label(), r)
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return errFailed
	}
	if passed == 0 {
		return errors.New("no test passed")
	}
	return nil
}

// lockedWriter lets several guests print whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// prefixWriter puts a prefix before each line and writes whole lines.
type prefixWriter struct {
	w      io.Writer
	prefix string
	rest   []byte
}

func newPrefixWriter(w io.Writer, prefix string) *prefixWriter {
	return &prefixWriter{w: w, prefix: prefix}
}

func (p *prefixWriter) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	var out []byte
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			break
		}
		out = slices.Concat(out, []byte(p.prefix), p.rest[:i+1])
		p.rest = p.rest[i+1:]
	}
	if len(out) > 0 {
		if _, err := p.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// flush ends a last line that the guest left open.
func (p *prefixWriter) flush() {
	if len(p.rest) > 0 {
		p.Write([]byte("\n"))
	}
}
