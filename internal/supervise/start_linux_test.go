package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/thread"
	"golang.org/x/sys/unix"
)

var groups atomic.Int64

// newGroup makes a cgroup that must be empty and removable at the end of the test.
func newGroup(t *testing.T) *cgroup.Group {
	t.Helper()
	g, err := cgroup.Create(testRoot, strconv.FormatInt(groups.Add(1), 10), cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := g.Processes(); err != nil || len(left) != 0 {
			t.Errorf("left in the cgroup: %v (%v)", left, err)
			g.Kill()
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		g.Close()
	})
	return g
}

// probeCommand is a Command that runs the probe.
func probeCommand(t *testing.T, args ...string) Command {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Command{
		Args:   append([]string{exe}, args...),
		Env:    append(os.Environ(), partVar+"="+partProbe),
		Cgroup: newGroup(t),
	}
}

// output runs c to its end and returns what it wrote to stdout.
func output(t *testing.T, c Command) (string, Result, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout = w
	p, err := Start(c)
	w.Close()
	if err != nil {
		return "", Result{}, err
	}
	var out bytes.Buffer
	copied := make(chan struct{})
	go func() {
		io.Copy(&out, r)
		close(copied)
	}()
	res, err := p.Wait()
	<-copied
	return out.String(), res, err
}

// observe runs the probe and returns what it found.
func observe(t *testing.T, c Command) state {
	t.Helper()
	out, res, err := output(t, c)
	if err != nil || res.Code != 0 {
		t.Fatalf("run the probe: %+v, %v, %q", res, err, out)
	}
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return s
}

func TestBornInCgroup(t *testing.T) {
	c := probeCommand(t)
	s := observe(t, c)
	if !strings.HasSuffix(c.Cgroup.Path(), s.Cgroup) || s.Cgroup == "/" {
		t.Errorf("the command was in cgroup %q, want %s", s.Cgroup, c.Cgroup.Path())
	}
	if s.Group != s.Pid {
		t.Errorf("the command is %d in process group %d, want one of its own", s.Pid, s.Group)
	}
	if s.Status["NoNewPrivs"] != "0" {
		t.Error("no_new_privs is set without being asked for")
	}
}

// What clone3(2) refuses is no fault of the command.
func TestCgroupRefusal(t *testing.T) {
	c := probeCommand(t)
	if err := os.Mkdir(filepath.Join(c.Cgroup.Path(), "gone"), 0o755); err != nil {
		t.Fatal(err)
	}
	gone, err := cgroup.Open(filepath.Join(c.Cgroup.Path(), "gone"))
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if err := gone.Remove(); err != nil {
		t.Fatal(err)
	}
	c.Cgroup = gone
	_, err = Start(c)
	if err == nil || ExitCode(err) != 125 {
		t.Errorf("start in a cgroup that is gone: %v (exit code %d), want an error of our own", err, ExitCode(err))
	}
	var ce *CommandError
	if errors.As(err, &ce) {
		t.Errorf("the command is blamed: %v", err)
	}
}

func TestEnvironmentAndArguments(t *testing.T) {
	c := probeCommand(t, "state", "", "b c")
	c.Env = append(c.Env, "X=1=2")
	s := observe(t, c)
	if diff := cmp.Diff(c.Args, s.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	// The probe takes the one variable away that makes it the probe.
	want := slices.DeleteFunc(slices.Clone(c.Env), func(v string) bool { return strings.HasPrefix(v, partVar+"=") })
	if diff := cmp.Diff(want, s.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, c := range []Command{{}, {Args: []string{"true", "a\x00b"}}, {Args: []string{"true"}, Env: []string{"A\x00=1"}}} {
		if _, err := Start(c); err == nil || ExitCode(err) != 125 {
			t.Errorf("start %q: %v", c.Args, err)
		}
	}
}

func TestWithoutCgroup(t *testing.T) {
	c := probeCommand(t)
	c.Cgroup = nil
	if got, want := observe(t, c).Cgroup, look().Cgroup; got != want {
		t.Errorf("the command was in %s, want our own cgroup %s", got, want)
	}
}

func TestDirectory(t *testing.T) {
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c := probeCommand(t)
	c.Dir = t.TempDir()
	if s := observe(t, c); s.Dir != c.Dir {
		t.Errorf("the command ran in %s, want %s", s.Dir, c.Dir)
	}
	if after, _ := os.Getwd(); after != before {
		t.Errorf("our own directory has become %s", after)
	}
	c.Dir += "/none"
	access := (*AccessError)(nil)
	if _, err := Start(c); !errors.As(err, &access) || !errors.Is(err, os.ErrNotExist) || ExitCode(err) != 125 {
		t.Errorf("start in a directory that does not exist: %v", err)
	}
}

func TestNoNewPrivs(t *testing.T) {
	c := probeCommand(t)
	c.NoNewPrivs = true
	if s := observe(t, c); s.Status["NoNewPrivs"] != "1" {
		t.Error("no_new_privs is not set")
	}
	if own := look().Status["NoNewPrivs"]; own != "0" {
		t.Error("it is set in ourselves")
	}
}

// A descriptor that lacks close-on-exec in this process must not reach the command.
func TestDescriptors(t *testing.T) {
	leak, err := unix.FcntlInt(0, unix.F_DUPFD, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	c := probeCommand(t)
	if diff := cmp.Diff([]int{0, 1, 2}, observe(t, c).Fds); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c.Extra = []*os.File{w, r, w}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5}, observe(t, c).Fds); diff != "" {
		t.Errorf("descriptors with extra ones (-want +got):\n%s", diff)
	}
	leak2, err := unix.FcntlInt(0, unix.F_DUPFD, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak2)
	if err := closeOnExecEach(); err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(leak2), unix.F_GETFD, 0); err != nil || flags != unix.FD_CLOEXEC {
		t.Errorf("the loop for old kernels leaves a descriptor as it is: %d, %v", flags, err)
	}
}

func TestInheritDescriptors(t *testing.T) {
	for _, tt := range []struct {
		keep string
		want []int // nil: refused.
	}{
		{"0", []int{0, 1, 2}},
		{"1", []int{0, 1, 2, 3}},
		{"2", []int{0, 1, 2, 3, 4}},
		{"3", nil},
		{"1000000", nil},
		{"-1", nil},
	} {
		f := newFront(t, "-preserve-fds", tt.keep)
		f.command("state")
		f.cmd.ExtraFiles = []*os.File{os.Stdin, os.Stderr}
		if tt.want != nil {
			if diff := cmp.Diff(tt.want, f.state(t).Fds); diff != "" {
				t.Errorf("--preserve-fds %s: descriptors (-want +got):\n%s", tt.keep, diff)
			}
			continue
		}
		f.start(t)
		if code, _ := f.wait(t); code != 125 || !strings.Contains(f.stderr.String(), "descriptor") {
			t.Errorf("--preserve-fds %s: exit code %d, %s", tt.keep, code, &f.stderr)
		}
	}
}

func TestPrivateTmp(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "supervise-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	for name, text := range map[string]string{"seen/file": "in the tree\n", "seen/sub/file": "below\n", "single": "alone\n", "hidden": ""} {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	c := Command{
		Args: []string{"sh", "-c", "stat -c '%a %u' /tmp; ls -A /tmp; ls $B; cat $B/seen/file $B/seen/sub/file $B/single; " +
			"echo >/tmp/of-the-jail; echo >$B/seen/new; grep ' /tmp ' /proc/self/mounts | tail -n 1 | cut -d' ' -f3,4; readlink /proc/self/ns/mnt"},
		Env:        append(os.Environ(), "B="+base),
		Cgroup:     newGroup(t),
		PrivateTmp: true,
		Expose:     []string{base + "/seen/sub", "/usr", base + "/single", base + "/seen"},
		Prepare: func(v View) error {
			if v.Tmp != "/tmp" {
				t.Errorf("View.Tmp is %q", v.Tmp)
			}
			f, err := v.Open("/tmp")
			if err != nil {
				return err
			}
			defer f.Close()
			var sfs unix.Statfs_t
			if err := unix.Fstatfs(int(f.Fd()), &sfs); err != nil || sfs.Type != unix.TMPFS_MAGIC {
				t.Errorf("/tmp as Prepare sees it has type %x (%v)", sfs.Type, err)
			}
			return nil
		},
	}
	out, res, err := output(t, c)
	if err != nil || res.Code != 0 {
		t.Fatalf("%q, %+v, %v", out, res, err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	ns := lines[len(lines)-1]
	options := lines[len(lines)-2]
	want := []string{"1777 0", filepath.Base(base), "seen", "single", "in the tree", "below", "alone"}
	if diff := cmp.Diff(want, lines[:len(lines)-2]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(options, "tmpfs rw,nosuid,nodev") {
		t.Errorf("/tmp is mounted as %s", options)
	}
	if ns == ours {
		t.Error("the command is in our own mount namespace")
	}
	if after, _ := os.Readlink("/proc/self/ns/mnt"); after != ours {
		t.Error("our own mount namespace is another one now")
	}
	if _, err := os.Stat("/tmp/of-the-jail"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of the private /tmp is on the host: %v", err)
	}
	if _, err := os.Stat(filepath.Join(base, "seen/new")); err != nil {
		t.Errorf("what was written into the exposed directory: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), base) {
		t.Errorf("mounts of the command are on the host (%v)", err)
	}
}

// Where systemd runs, mounts propagate. That of /tmp must not.
func TestPrivateTmpDoesNotPropagate(t *testing.T) {
	f := newFront(t, "-private-tmp")
	f.command("/usr/bin/stat", "-f", "-c", "%T", "/tmp")
	f.cmd.Args = append([]string{"unshare", "-m", "--propagation", "shared", "sh", "-c",
		`"$@"; mount --bind /mnt /mnt; grep -c ' /mnt ' /proc/self/mounts; grep -c 'tmpfs /tmp ' /proc/self/mounts`, "sh"}, f.cmd.Args...)
	f.cmd.Path = "/usr/bin/unshare"
	before, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	f.start(t)
	got := []string{f.line(t), f.line(t), f.line(t)}
	// The line about /mnt shows that mounts of that namespace would be seen.
	want := []string{"tmpfs", strconv.Itoa(strings.Count(string(before), " /mnt ") + 1),
		strconv.Itoa(strings.Count(string(before), "tmpfs /tmp "))}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPrivateTmpRefusals(t *testing.T) {
	base, err := os.MkdirTemp("/tmp", "supervise-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	if err := os.Symlink("/etc", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		expose string
		want   error
	}{
		{"relative", unix.EINVAL},
		{base + "/none", unix.ENOENT},
		{base + "/link", unix.ELOOP},
		{base + "/link/apt", unix.ELOOP},
	} {
		c := probeCommand(t)
		c.PrivateTmp, c.Expose = true, []string{tt.expose}
		if _, err := Start(c); !errors.Is(err, tt.want) || ExitCode(err) != 125 {
			t.Errorf("expose %s: %v, want %v", tt.expose, err, tt.want)
		}
	}
	// The working directory would be hidden.
	c := probeCommand(t)
	c.PrivateTmp, c.Dir = true, base
	if _, err := Start(c); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start in a hidden directory: %v", err)
	}
	// /tmp itself exposed means that there is no private one.
	c = Command{Args: []string{"test", "-L", base + "/link"}, Cgroup: newGroup(t), PrivateTmp: true, Expose: []string{"/tmp"}}
	if out, res, err := output(t, c); err != nil || res.Code != 0 {
		t.Errorf("with /tmp exposed: %q, %+v, %v", out, res, err)
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		dir         string
		paths, want []string
	}{
		{"/tmp", nil, nil},
		{"/tmp", []string{"/tmp/b", "/tmp/a/", "/tmp/a/x", "/tmpx", "/", "/tmp/a-b", "/tmp/../etc"}, []string{"/tmp/a", "/tmp/a-b", "/tmp/b"}},
		{"/tmp", []string{"/tmp/x", "/tmp"}, []string{"/tmp"}},
		{"/", []string{"/a", "/b"}, []string{"/a", "/b"}},
	} {
		got, err := below(tt.dir, tt.paths)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.paths, diff)
		}
	}
}

func TestPrepareFails(t *testing.T) {
	broken := errors.New("no grants")
	ran := filepath.Join(t.TempDir(), "ran")
	c := Command{Args: []string{"touch", ran}, Cgroup: newGroup(t), PrivateTmp: true, Prepare: func(View) error { return broken }}
	if _, err := Start(c); !errors.Is(err, broken) || ExitCode(err) != 125 {
		t.Errorf("%v, want Prepare's error", err)
	}
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command ran all the same")
	}
}

// What Prepare does is seen by the command: it is the same thread's state that is inherited.
func TestPrepareThread(t *testing.T) {
	c := probeCommand(t)
	c.PrivateTmp, c.Expose = true, []string{c.Args[0]} // Test executables are built in /tmp.
	var ns string
	c.Prepare = func(View) (err error) {
		ns, err = os.Readlink("/proc/thread-self/ns/mnt")
		return err
	}
	if s := observe(t, c); s.MountNS != ns {
		t.Errorf("Prepare was in %s, the command in %s", ns, s.MountNS)
	}
}

// A start that failed leaves no child and no thread in another mount namespace, and the next one works.
func TestFailedStartLeavesNothing(t *testing.T) {
	c := Command{Args: []string{"/nowhere"}, Cgroup: newGroup(t), PrivateTmp: true}
	for range 20 {
		if _, err := Start(c); err == nil {
			t.Fatal("started")
		}
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a child is left: %v", err)
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the threads in other mount namespaces", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/mnt")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(tasks, func(path string) bool {
			ns, err := os.Readlink(path)
			return err == nil && ns != ours
		})
	})
}

func TestSpawnThread(t *testing.T) {
	for range 200 {
		err := thread.Run(func() error {
			if unix.Gettid() == unix.Getpid() {
				return errors.New("on the main thread")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// With a cgroup that is not the command's own, others in it are left alone.
func TestSharedCgroup(t *testing.T) {
	c := Command{Args: []string{"sleep", "1000"}, Cgroup: newGroup(t)}
	other, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Args, c.SharedCgroup = []string{"true"}, true
	if _, res, err := output(t, c); err != nil || res.Code != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	c.Args, c.Timeout = []string{"sh", "-c", "trap '' TERM; while :; do sleep 1000; done"}, time.Millisecond
	if _, res, err := output(t, c); err != nil || !res.TimedOut {
		t.Errorf("%+v, %v", res, err)
	}
	c.Args = []string{"/nowhere"}
	if _, err := Start(c); err == nil {
		t.Error("started")
	}
	if !alive(other.Pid()) {
		t.Error("the other process of the cgroup was ended")
	}
	unix.Kill(other.Pid(), unix.SIGKILL)
	if res, err := other.Wait(); err != nil || res.Signal != unix.SIGKILL {
		t.Errorf("%+v, %v", res, err)
	}
}
