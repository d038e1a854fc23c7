//go:build linux

// Command vm runs tests and scripts on real kernels.
//
//	go run ./test/vm setup               install what is missing, fetch kernels
//	go run ./test/vm test                run the tests tagged vm on every kernel
//	go run ./test/vm shell -c 'uname -a' run something in a guest
//
// docs/testing.md is the manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/image"
)

// defaultKernels are the series that everything must work on: the oldest that
// Debian supports with BPF LSM, the current stable one, the newest.
const defaultKernels = "6.1,6.12,7"

const usage = `usage: go run ./test/vm COMMAND [flags]

  setup   install missing packages, download kernels, build images
  test    run Go tests that carry the build tag vm in guests
  shell   run a script, or a shell on this terminal, in a guest
  prove   boot guests that go wrong and see each of them judged so

Flags of a command: go run ./test/vm COMMAND -h. Manual: docs/testing.md.
`

const (
	exitTrouble     = 2 // there was no run to judge
	exitInterrupted = 128 + int(unix.SIGINT)
)

// errFailed means that the guests ran and their verdict has been printed.
var errFailed = errors.New("failed")

// errUsage means that the command line made no sense and that this was said.
var errUsage = errors.New("wrong usage")

// flagError is what a command returns when its flags could not be parsed; the
// package flag has printed why. Asking for help is no error.
func flagError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return errUsage
}

// exitError carries the exit status of a script to main.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	// mke2fs and depmod lie where the PATH of ordinary users does not lead.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	err := dispatch(ctx, os.Args[1:])
	stop()
	var exit exitError
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		os.Exit(exitTrouble) // The message is out already.
	case errors.As(err, &exit):
		os.Exit(int(exit))
	case errors.Is(err, errFailed):
		os.Exit(1)
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "vm: interrupted")
		os.Exit(exitInterrupted)
	default:
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(exitTrouble)
	}
}

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errUsage
	}
	commands := map[string]func(context.Context, []string) error{
		"setup": setup, "test": test, "shell": shell, "prove": prove,
	}
	run, ok := commands[args[0]]
	if !ok {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("no command %q", args[0])
	}
	return run(ctx, args[1:])
}

// options are the flags that test and shell share.
type options struct {
	cpus    int
	memory  string
	cmdline string
	timeout time.Duration
	soak    bool
	count   bool
	idle    time.Duration
	full    bool
	console bool
	add     list
}

func (o *options) register(f *flag.FlagSet, timeout time.Duration) {
	f.IntVar(&o.cpus, "smp", 0, "`number` of CPUs of the guest (default 1); attaching and detaching a lot is safe with 1 only")
	f.StringVar(&o.memory, "mem", "", "`size` of the guest's memory (default 1G, 2G with --full)")
	f.StringVar(&o.cmdline, "append", "", "`text` to add to the kernel command line")
	f.DurationVar(&o.timeout, "timeout", timeout, "wall-clock limit of one guest")
	f.BoolVar(&o.soak, "soak", false, "tests take all the time they need and leave nothing out")
	f.BoolVar(&o.count, "icount", false, "make the guest's clock count instructions, one a nanosecond; implies one CPU and --idle 20s")
	f.DurationVar(&o.idle, "idle", 0, "guest `time` to wait before the first program")
	f.BoolVar(&o.full, "full", false, "use the full guest, a Debian root with git, gcc, runc and so on")
	f.BoolVar(&o.console, "console", false, "show the kernel's log while it grows")
	f.Var(&o.add, "add", "put a `FILE[:PATH]` of the host into the guest; may be repeated")
}

// finish fills in what depends on other flags.
func (o *options) finish() {
	if o.count && o.idle == 0 {
		o.idle = 20 * time.Second
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func newFlags(name, args string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "usage: go run ./test/vm %s [flags] %s\n\n", name, args)
		f.PrintDefaults()
	}
	return f
}

// openKernels returns the cache and the kernels of a comma-separated list.
func openKernels(ctx context.Context, series string, refresh bool) (*image.Cache, []image.Kernel, error) {
	cache, err := image.OpenCache(os.Stderr)
	if err != nil {
		return nil, nil, err
	}
	kernels, err := cache.Kernels(ctx, strings.FieldsFunc(series, func(r rune) bool { return r == ',' || r == ' ' }), refresh)
	if err != nil {
		return nil, nil, err
	}
	if len(kernels) == 0 {
		return nil, nil, errors.New("no kernel selected")
	}
	return cache, kernels, nil
}
