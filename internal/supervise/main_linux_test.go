package supervise

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/thread"
	"golang.org/x/sys/unix"
)

// The tests start this test binary anew in two other parts: as the front end, a little thenforce run that uses the
// package as cmd/thenforce does, and as the probe, a command that tells what it finds itself to be.
const (
	partVar   = "SUPERVISE_TEST_PART"
	partFront = "front"
	partProbe = "probe"
)

// testRoot is the cgroup below which everything happens.
var testRoot string

func TestMain(m *testing.M) {
	switch os.Getenv(partVar) {
	case partFront:
		front()
	case partProbe:
		os.Unsetenv(partVar)
		probe(os.Args[1:])
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests start jails' commands and need root")
		return 1
	}
	// The tests may run as a background job of a shell, where what they start would ignore these.
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT} {
		if _, err := setAction(sig, actionDefault); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	mount, err := cgroup.FindMount()
	if errors.Is(err, cgroup.ErrV2Missing) {
		return runInNewMount()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	testRoot = filepath.Join(mount.Path, "thenforce-test-"+strconv.Itoa(os.Getpid()))
	code := m.Run()
	if err := os.Remove(testRoot); err == nil || !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "cgroups were left behind: %s was still there (%v)\n", testRoot, err)
		return 1
	}
	return code
}

// runInNewMount runs the tests anew where cgroup v2 is mounted, in a mount namespace that goes with them.
func runInNewMount() int {
	err := thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := unix.Mount("cgroup2", "/mnt", "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroup2: %w", err)
		}
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// front is a small thenforce run. Its flags are the test's choice; the result is written to the file of -report.
func front() {
	flags := flag.NewFlagSet("front", flag.ExitOnError)
	parent := flags.String("parent", "", "cgroup to make the command's cgroup in")
	report := flags.String("report", "", "file for the outcome")
	user := flags.String("user", "", "user")
	dir := flags.String("dir", "", "working directory")
	keep := flags.Int("preserve-fds", 0, "descriptors to keep")
	timeout := flags.Duration("timeout", 0, "timeout")
	die := flags.Bool("die-with-parent", false, "die with parent")
	private := flags.Bool("private-tmp", false, "private /tmp")
	reraise := flags.Bool("exit", false, "end by Result.Exit")
	started := flags.String("started", "", "file that gets the command's pid")
	block := flags.String("block", "", "wait in Prepare for this file to appear; its name with .at says that we are there")
	flags.Parse(os.Args[1:])

	outcome := struct {
		Result
		Err string
	}{}
	code := func() int {
		fail := func(err error) int {
			outcome.Err = err.Error()
			fmt.Fprintln(os.Stderr, "front:", err)
			outcome.Code = ExitCode(err)
			return outcome.Code
		}
		extra, err := InheritDescriptors(*keep)
		if err != nil {
			return fail(err)
		}
		signals := CatchSignals()
		group, err := cgroup.Create(*parent, strconv.Itoa(os.Getpid()), cgroup.Limits{})
		if err != nil {
			return fail(err)
		}
		defer group.Remove()
		c := Command{
			Args: flags.Args(), Dir: *dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Extra: extra,
			Cgroup: group, Timeout: *timeout, DieWithParent: *die, Signals: signals,
			PrivateTmp: *private,
		}
		os.Setenv(partVar, partProbe)
		if *user != "" {
			if c.User, err = LookupUser(*user); err != nil {
				return fail(err)
			}
		}
		if *block != "" {
			c.Prepare = func(View) error {
				os.WriteFile(*block+".at", nil, 0o600)
				for {
					if _, err := os.Stat(*block); err == nil {
						return nil
					}
					time.Sleep(time.Millisecond)
				}
			}
		}
		p, err := Start(c)
		if err != nil {
			return fail(err)
		}
		if *started != "" {
			os.WriteFile(*started+".new", []byte(strconv.Itoa(p.Pid())), 0o600)
			os.Rename(*started+".new", *started)
		}
		outcome.Result, err = p.Wait()
		if err != nil {
			return fail(err)
		}
		return outcome.Code
	}()
	if *report != "" {
		data, _ := json.Marshal(outcome)
		os.WriteFile(*report+".new", data, 0o600)
		os.Rename(*report+".new", *report)
	}
	if *reraise {
		outcome.Exit()
	}
	os.Exit(code)
}
