//go:build linux

// Command wine runs tests as programs of Windows, in a Debian with wine that it
// makes once.
//
//	go run ./test/wine                       the packages that CI runs there
//	go run ./test/wine --run TestJunction ./pkg/fallback
//
// It needs root for debootstrap and chroot. docs/testing.md is the manual.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/guest"
	"github.com/thenforce/thenforce/internal/vm/image"
)

// packages are those with code of their own for Windows, and those whose rules
// for Windows paths must not depend on what they run on.
var packages = []string{
	"./pkg/engine", "./pkg/engine/memfs", "./pkg/fallback", "./pkg/mountmap",
	"./internal/scan", "./internal/rpc", "./cmd/thenforce",
}

func main() {
	runtime.LockOSThread() // children end with the thread that started them
	verbose := flag.Bool("v", false, "print the tests' output, also of those that pass")
	run := flag.String("run", "", "run only tests that match this `regexp`, as of go test")
	limit := flag.Duration("timeout", 10*time.Minute, "wall-clock limit of one package")
	flag.Parse()
	selected := flag.Args()
	if len(selected) == 0 {
		selected = packages
	}
	// debootstrap lies where the PATH of ordinary users does not lead.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	failed, err := test(ctx, selected, *run, *limit, *verbose)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "wine:", err)
		os.Exit(2)
	case failed:
		os.Exit(1)
	}
}

// A result is what became of one package.
type result struct {
	pkg   string // below the module
	tests guest.Tests
}

// test runs the tests of packages and reports whether anything is wrong.
func test(ctx context.Context, packages []string, run string, limit time.Duration, verbose bool) (failed bool, err error) {
	cache, err := image.OpenCache(os.Stderr)
	if err != nil {
		return false, err
	}
	root, err := cache.Wine(ctx)
	if err != nil {
		return false, err
	}
	module, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}"))
	if err != nil {
		return false, err
	}
	bin, err := os.MkdirTemp("", "thenforce-wine-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(bin)

	c := chroot{root: root, source: module, bin: bin, limit: limit}
	var results []result
	for _, pattern := range packages {
		dir, err := output(windowsGo(ctx, "list", "-f", "{{.Dir}}", pattern))
		if err != nil {
			return false, err
		}
		pkg, err := filepath.Rel(module, dir)
		if err != nil {
			return false, err
		}
		if _, err := output(windowsGo(ctx, "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(bin, "test.exe"), pattern)); err != nil {
			return false, err
		}
		var log bytes.Buffer
		out := io.Writer(&log)
		if verbose {
			out = os.Stdout
		}
		start := time.Now()
		tests, err := c.test(ctx, pkg, run, out)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		wrong := judge(tests, err)
		state := "ok  "
		if len(wrong) > 0 {
			failed, state = true, "FAIL"
			os.Stdout.Write(log.Bytes())
		}
		fmt.Printf("%s  wine  %-20s %4d passed, %d failed, %d lacking  %.1fs\n",
			state, pkg, tests.Passed, len(tests.Failed), len(tests.Skipped), time.Since(start).Seconds())
		for _, w := range wrong {
			fmt.Printf("  %s\n", w)
		}
		results = append(results, result{pkg, tests})
	}
	for _, w := range judgeLacks(lacks, results, run == "") {
		failed = true
		fmt.Printf("FAIL  wine  %s\n", w)
	}
	return failed, nil
}

// judge returns what is wrong with the run of a package, apart from skips.
func judge(tests guest.Tests, err error) []string {
	var wrong []string
	for _, name := range tests.Failed {
		wrong = append(wrong, "failed: "+name)
	}
	for _, name := range tests.Unfinished {
		wrong = append(wrong, "ended in the middle of "+name)
	}
	if err != nil && len(tests.Failed) == 0 {
		wrong = append(wrong, err.Error())
	}
	if tests.Passed == 0 && len(wrong) == 0 {
		wrong = append(wrong, "no test ran")
	}
	return wrong
}

// A chroot runs programs of Windows.
type chroot struct {
	root   string // of the Debian with wine
	source string // the module
	bin    string // where test.exe is
	limit  time.Duration
}

// enter is what runs in the namespaces of one package's tests: it puts a layer
// of memory over the root, which stays as it is, and goes there. Nothing that is
// mounted or started survives it. The tests' files do not lie in the overlay, on
// which a file has another device than its directory.
const enter = `set -e
root=$1 source=$2 bin=$3 dir=$4; shift 4
mount --make-rprivate /
at=$bin/at
mkdir -p "$at"
mount -t tmpfs tmpfs "$at"
mkdir "$at/upper" "$at/work" "$at/root"
mount -t overlay -o "lowerdir=$root,upperdir=$at/upper,workdir=$at/work" overlay "$at/root"
cd "$at/root"
mkdir source bin.win
mount --bind -o ro "$source" source
mount --bind "$bin" bin.win
mount -t proc proc proc
mount -t tmpfs tmpfs temporary
exec chroot . sh -c 'cd "/source/$1"; shift; exec wine /bin.win/test.exe "$@"' sh "$dir" "$@"
`

// test runs test.exe in the folder of a package. out gets what it says.
func (c *chroot) test(ctx context.Context, pkg, run string, out io.Writer) (guest.Tests, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, fmt.Errorf("no end after %v", c.limit))
	defer cancel()
	args := []string{"-c", enter, "sh", c.root, c.source, c.bin, pkg, "-test.v=test2json", "-test.timeout=0"}
	if run != "" {
		args = append(args, "-test.run="+run)
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "WINEDEBUG=-all"}
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC, Pdeathsig: unix.SIGKILL}
	counter := guest.NewCounter(out)
	cmd.Stdout, cmd.Stderr = counter, counter
	err := cmd.Run()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return counter.Tests(), err
}

// windowsGo returns a go command for Windows.
func windowsGo(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	return cmd
}

func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			err = fmt.Errorf("%w\n%s", err, bytes.TrimSpace(ended.Stderr))
		}
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// judgeLacks compares the tests that were left out with the list. whole says that
// no test was deselected.
func judgeLacks(lacks []lack, results []result, whole bool) []string {
	var wrong []string
	skipped, passed, ran := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range results {
		ran[r.pkg] = true
		for _, name := range r.tests.Finished {
			passed[r.pkg+" "+name] = true
		}
		for _, name := range r.tests.Skipped {
			top, _, _ := strings.Cut(name, "/")
			skipped[r.pkg+" "+top] = true
			listed := slices.ContainsFunc(lacks, func(l lack) bool {
				return slices.ContainsFunc(l.tests, func(test string) bool {
					full := r.pkg + " " + name
					return full == test || strings.HasPrefix(full, test+"/")
				})
			})
			if !listed {
				wrong = append(wrong, fmt.Sprintf("%s: skipped and not listed in lacks.go: %s", r.pkg, name))
			}
		}
	}
	if !whole {
		return wrong
	}
	for _, l := range lacks {
		for _, test := range l.tests {
			pkg, name, _ := strings.Cut(test, " ")
			top, _, _ := strings.Cut(name, "/")
			if ran[pkg] && !skipped[pkg+" "+top] {
				wrong = append(wrong, fmt.Sprintf("%s: listed in lacks.go and not skipped: wine may have %s now", test, l.feature))
			}
		}
		for _, test := range l.covered {
			pkg, _, _ := strings.Cut(test, " ")
			if ran[pkg] && !passed[test] {
				wrong = append(wrong, fmt.Sprintf("%s: did not pass, and covers for the lack of %s", test, l.feature))
			}
		}
	}
	return wrong
}
