package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// testParent is the cgroup that the tests make theirs in. It must be gone at the end, by the removal of the last of them.
var testParent string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	mount, err := FindMount()
	if errors.Is(err, ErrV2Missing) {
		var dir string
		if dir, err = os.MkdirTemp("", "cgroup2-"); err == nil {
			defer os.Remove(dir)
			err = unix.Mount("cgroup2", dir, "cgroup2", 0, "")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cgroup v2 is not mounted and cannot be:", err)
			return 1
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		mount, err = FindMount()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	testParent = filepath.Join(mount.Path, "thenforce-cgroup-test-"+strconv.Itoa(os.Getpid()))
	code := m.Run()
	if _, err := os.Stat(testParent); !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "%s was left behind (%v)\n", testParent, err)
		return 1
	}
	return code
}

var names atomic.Int64

func newGroup(t *testing.T) *Group {
	t.Helper()
	g, err := Create(testParent, strconv.FormatInt(names.Add(1), 10), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		g.Close()
	})
	return g
}

// run starts a shell script in the cgroup of dir and returns when it has printed a line.
func run(t *testing.T, dir *os.File, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func child(t *testing.T, g *Group, name string) *Group {
	t.Helper()
	path := filepath.Join(g.Path(), name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const (
	sleeps   = "echo; exec sleep 1000"
	stubborn = "trap '' TERM; echo; while :; do sleep 1000; done"
)

func TestCreateAndRemove(t *testing.T) {
	g := newGroup(t)
	if _, err := Create(testParent, filepath.Base(g.Path()), Limits{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("make the same cgroup again: %v, want that it exists", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\nb", "a\x00"} {
		if _, err := Create(testParent, name, Limits{}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("make a cgroup named %q: %v, want EINVAL", name, err)
		}
	}
	other, err := Create(filepath.Join(g.Path(), "folder"), "x", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	child(t, other, "a/b")
	child(t, other, "c")
	if err := other.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(g.Path(), "folder")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty folder of the groups is still there: %v", err)
	}
	if err := other.Remove(); err != nil {
		t.Errorf("remove what is gone: %v", err)
	}
}

func TestCreateOutside(t *testing.T) {
	dir := t.TempDir()
	if _, err := Create(filepath.Join(dir, "p"), "x", Limits{}); !errors.Is(err, ErrUnresolvable) {
		t.Errorf("make a cgroup in an ordinary directory: %v, want ErrUnresolvable", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Open(dir); !errors.Is(err, ErrUnresolvable) {
		t.Errorf("open an ordinary directory: %v, want ErrUnresolvable", err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open what does not exist: %v", err)
	}
}

// The folder comes and goes with the groups in it, while others make theirs.
func TestCreateRace(t *testing.T) {
	parent := filepath.Join(newGroup(t).Path(), "folder")
	var wg sync.WaitGroup
	// Until the folder has been taken away under the others often enough.
	var removed atomic.Int64
	var done atomic.Bool
	deadline := time.Now().Add(30 * time.Second)
	go func() {
		for !done.Load() {
			if unix.Rmdir(parent) == nil {
				removed.Add(1)
			}
		}
	}()
	for i := range 4 {
		wg.Go(func() {
			for j := 0; removed.Load() < 5 && time.Now().Before(deadline); j++ {
				g, err := Create(parent, fmt.Sprintf("%d-%d", i, j), Limits{})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				if err := g.Remove(); err != nil {
					t.Errorf("remove: %v", err)
				}
				g.Close()
			}
		})
	}
	wg.Wait()
	done.Store(true)
	if removed.Load() < 5 {
		t.Error("the folder was hardly ever removed by another, so nothing was tried")
	}
	if _, err := os.Stat(parent); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestID(t *testing.T) {
	a, b := newGroup(t), newGroup(t)
	seen := map[uint64]bool{}
	for _, g := range []*Group{a, b, child(t, a, "x")} {
		id, err := g.ID()
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] {
			t.Errorf("id %d twice", id)
		}
		seen[id] = true
		// On 64-bit kernels the inode number is the same number; this is what cgroup tools compare.
		var st unix.Stat_t
		if err := unix.Stat(g.Path(), &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino != id {
			t.Errorf("%s has id %d and inode number %d", g.Path(), id, st.Ino)
		}
	}
}

func TestProcessesOfSubtree(t *testing.T) {
	g := newGroup(t)
	if got, err := g.Populated(); got || err != nil {
		t.Errorf("a new group is populated: %v, %v", got, err)
	}
	threaded := child(t, g, "threaded")
	if err := writeFile(threaded.fd(), "cgroup.type", "threaded"); err != nil {
		t.Fatal(err)
	}
	want := []int{
		run(t, g.File(), sleeps).Process.Pid,
		run(t, threaded.File(), sleeps).Process.Pid,
	}
	deep := newGroup(t)
	want2 := []int{
		run(t, child(t, deep, "a/b/c").File(), sleeps).Process.Pid,
		run(t, child(t, deep, "d").File(), sleeps).Process.Pid,
	}
	for _, tt := range []struct {
		g    *Group
		want []int
	}{{g, want}, {deep, want2}} {
		got, err := tt.g.Processes()
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("processes of %s (-want +got):\n%s", tt.g.Path(), diff)
		}
		if got, err := tt.g.Populated(); !got || err != nil {
			t.Errorf("populated: %v, %v", got, err)
		}
	}
}

func TestEnd(t *testing.T) {
	tests := []struct {
		name    string
		scripts []string
		grace   time.Duration
		signals []syscall.Signal // What each of them ended by.
		atLeast time.Duration
	}{
		{"nothing", nil, time.Hour, nil, 0},
		{"polite", []string{sleeps, sleeps}, time.Hour, []syscall.Signal{unix.SIGTERM, unix.SIGTERM}, 0},
		{"no grace", []string{sleeps}, 0, []syscall.Signal{unix.SIGKILL}, 0},
		{"stubborn", []string{stubborn, sleeps}, 100 * time.Millisecond, []syscall.Signal{unix.SIGKILL, unix.SIGTERM},
			100 * time.Millisecond},
		{"stopped", []string{"echo; kill -STOP $$"}, time.Hour, []syscall.Signal{unix.SIGTERM}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGroup(t)
			var cmds []*exec.Cmd
			for i, script := range tt.scripts {
				cmds = append(cmds, run(t, child(t, g, strconv.Itoa(i)+"/x").File(), script))
			}
			start := time.Now()
			if err := g.End(tt.grace, nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < tt.atLeast {
				t.Errorf("the grace time was cut to %v", took)
			}
			if left, err := g.Populated(); left || err != nil {
				t.Errorf("still populated: %v, %v", left, err)
			}
			for i, cmd := range cmds {
				cmd.Wait()
				if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != tt.signals[i] {
					t.Errorf("process %d ended by %v, want %v", i, got, tt.signals[i])
				}
			}
		})
	}
}

func TestEndHurried(t *testing.T) {
	g := newGroup(t)
	run(t, g.File(), stubborn)
	hurry := make(chan struct{})
	go func() { close(hurry) }()
	done := make(chan error, 1)
	go func() { done <- g.End(time.Hour, hurry) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("End waits for the grace time although it was hurried")
	}
}

// killEach is what kernels without cgroup.kill get, so it is called directly.
func TestKillEach(t *testing.T) {
	g := newGroup(t)
	// A tree that starts new processes all the time.
	run(t, child(t, g, "x").File(), "trap '' TERM; echo; f() { while :; do (:); done; }; f & f & f")
	if err := g.killEach(); err != nil {
		t.Fatal(err)
	}
	if left, err := g.Populated(); left || err != nil {
		t.Errorf("still populated: %v, %v", left, err)
	}
	if frozen, err := readFile(g.fd(), "cgroup.freeze"); err != nil || strings.TrimSpace(frozen) != "0" {
		t.Errorf("the cgroup stays frozen: %q, %v", frozen, err)
	}
}

// A cgroup that somebody else has removed is an empty one.
func TestGone(t *testing.T) {
	g := newGroup(t)
	c := child(t, g, "x")
	if err := os.Remove(c.Path()); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Populated(); got || err != nil {
		t.Errorf("Populated: %v, %v", got, err)
	}
	if got, err := c.Processes(); len(got) != 0 || err != nil {
		t.Errorf("Processes: %v, %v", got, err)
	}
	for name, f := range map[string]func() error{
		"End":            func() error { return c.End(time.Hour, nil) },
		"Kill":           c.Kill,
		"RemoveChildren": c.RemoveChildren,
		"Remove":         c.Remove,
	} {
		if err := f(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRemoveRefusesProcesses(t *testing.T) {
	g := newGroup(t)
	run(t, child(t, g, "x").File(), sleeps)
	done := make(chan error, 1)
	go func() { done <- g.Remove() }()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("remove a cgroup with a process in it: %v, want EBUSY", err)
		}
	case <-time.After(4 * busyWait):
		t.Fatal("Remove does not give up")
	}
}

func TestLimitValues(t *testing.T) {
	tests := []struct {
		limits Limits
		want   map[string]string // File and value; nil: an error.
	}{
		{Limits{}, map[string]string{}},
		{Limits{Memory: 2 << 30}, map[string]string{"memory.max": "2147483648"}},
		{Limits{Pids: 512}, map[string]string{"pids.max": "512"}},
		{Limits{CPUs: 1.5}, map[string]string{"cpu.max": "150000 100000"}},
		{Limits{CPUs: 0.01}, map[string]string{"cpu.max": "1000 100000"}},
		{Limits{CPUs: 0.001}, nil},
		{Limits{CPUs: -1}, nil},
		{Limits{CPUs: math.NaN()}, nil},
		{Limits{CPUs: math.Inf(1)}, nil},
		{Limits{Memory: -1}, nil},
		{Limits{Pids: -1}, nil},
	}
	for _, tt := range tests {
		res, _, err := tt.limits.resources()
		if tt.want == nil {
			if limit := (*LimitError)(nil); !errors.As(err, &limit) {
				t.Errorf("%+v: %v, want a LimitError", tt.limits, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tt.limits, err)
			continue
		}
		// The library writes its values to files; the strings of these files are what counts. So let it write
		// them to ordinary ones.
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for name := range tt.want {
			if err := os.MkdirAll(filepath.Join(dir, "g"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "g", name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := cgroup2.NewManager(dir, "/g", res); err != nil {
			t.Errorf("%+v: %v", tt.limits, err)
		}
		for name, want := range tt.want {
			got, err := os.ReadFile(filepath.Join(dir, "g", name))
			if err != nil || string(got) != want {
				t.Errorf("%+v: %s is %q (%v), want %q", tt.limits, name, got, err, want)
			}
		}
	}
}

// Where the controller is there the limit holds, and where it is not (cgroup v1 has it) that is said and nothing is left.
func TestLimits(t *testing.T) {
	g := newGroup(t)
	root, err := top(g.Path())
	if err != nil {
		t.Fatal(err)
	}
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		limits                  Limits
		controller, file, value string
	}{
		{Limits{Memory: 64 << 20}, "memory", "memory.max", "67108864"},
		{Limits{Pids: 5}, "pids", "pids.max", "5"},
		{Limits{CPUs: 0.5}, "cpu", "cpu.max", "50000 100000"},
	} {
		parent := filepath.Join(g.Path(), "folder")
		limited, err := Create(parent, "x", tt.limits)
		if !slices.Contains(strings.Fields(string(available)), tt.controller) {
			limit := (*LimitError)(nil)
			if !errors.As(err, &limit) || limit.Controller != tt.controller || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%+v without the controller: %v, want a LimitError for %s", tt.limits, err, tt.controller)
			}
			if _, err := os.Stat(parent); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%+v: something was left behind: %v", tt.limits, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tt.limits, err)
			continue
		}
		if got, err := readFile(limited.fd(), tt.file); err != nil || strings.TrimSpace(got) != tt.value {
			t.Errorf("%s is %q (%v), want %s", tt.file, got, err, tt.value)
		}
		if err := limited.Remove(); err != nil {
			t.Error(err)
		}
		limited.Close()
	}
}

func TestFindMount(t *testing.T) {
	m, err := FindMount()
	if err != nil {
		t.Fatal(err)
	}
	if g, err := Open(m.Path); err != nil {
		t.Errorf("%+v is not a cgroup: %v", m, err)
	} else {
		g.Close()
	}
	// Hidden below another mount it is not to be found. The thread with the mount ends with the goroutine.
	hidden := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		hidden <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", m.Path, "tmpfs", 0, ""); err != nil {
				return err
			}
			found, err := FindMount()
			if err == nil && found.Path == m.Path {
				return fmt.Errorf("%s is hidden, and FindMount returns it", m.Path)
			}
			if err != nil && !errors.Is(err, ErrV2Missing) {
				return err
			}
			return nil
		}()
	}()
	if err := <-hidden; err != nil {
		t.Error(err)
	}
}
