//go:build vm

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// container is a pending jail with a root directory such as a runtime would make: in it the workspace /in, the folder
// /out that is granted to nobody, and /proc.
type container struct {
	*scene
	e    *Enforcer
	jail *Jail
	root string
}

func newContainer(t *testing.T, e *Enforcer, open []OpenObject) *container {
	t.Helper()
	c := &container{scene: &scene{}, e: e, root: tmpfsIn(t)}
	for _, dir := range []string{"in", "out"} {
		if err := os.Mkdir(filepath.Join(c.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.root, dir, "file"), []byte(canaryText), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	proc := filepath.Join(c.root, "proc")
	if err := os.Mkdir(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(proc, unix.MNT_DETACH) })
	if err := c.makeCgroup("/sys/fs/cgroup", "container-"); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(c.root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c.jail, err = e.CreateJail(JailSpec{
		Cgroup: c.cgroup, CgroupPath: c.path, Root: dir, Open: open,
		Sets: engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: "/in"},
			Objects:   []engine.Object{{Path: "/in", Rights: engine.AllRights, Source: engine.SourceWorkspace}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.DeleteJail(c.jail.ID), c.close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// start starts a canary in the container's cgroup, with the container's root or the host's.
func (c *container) start(t *testing.T, withRoot bool) *canaryChild {
	t.Helper()
	child, err := c.tryStart(withRoot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.stop() })
	return child
}

func (c *container) tryStart(withRoot bool) (*canaryChild, error) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if withRoot {
		attr.Chroot = c.root
	}
	return startCanary(c.cgroup, nil, attr)
}

func (c *container) isPending(t *testing.T) bool {
	t.Helper()
	j, err := c.e.FindJail(c.jail.ID)
	if err != nil {
		t.Fatal(err)
	}
	return j.Pending
}

func want(t *testing.T, child *canaryChild, tries string, errno unix.Errno) {
	t.Helper()
	got, err := child.do(strings.Fields(tries))
	if err != nil {
		t.Fatalf("%s: %v", tries, err)
	}
	if got != errno {
		t.Errorf("%s: got %s, want %s", tries, errnoName(got), errnoName(errno))
	}
}

func TestPendingJail(t *testing.T) {
	e := openVerified(t)
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	c := newContainer(t, e, open)

	// What has not got the container's root is the runtime, however often it executes something.
	runtime := c.start(t, false)
	want(t, runtime, "open "+c.root+"/out/file", noErrno)
	want(t, runtime, "mkdir "+c.root+"/out/made", noErrno)
	want(t, runtime, "elsewhere "+c.root+"/out/file", noErrno)
	if !c.isPending(t) {
		t.Error("the jail is armed though nothing has executed with its root")
	}

	inside := c.start(t, true)
	want(t, inside, "open /in/file", noErrno)
	want(t, inside, "open /out/file", eacces)
	want(t, inside, "elsewhere /out/file", eacces)
	if c.isPending(t) {
		t.Error("the jail is pending though a task is armed")
	}

	// The runtime goes on as before, and is out of reach.
	want(t, runtime, "open "+c.root+"/out/file", noErrno)
	pid := strconv.Itoa(runtime.cmd.Process.Pid)
	for tries, errno := range map[string]unix.Errno{
		"trace " + pid: eacces, "kill " + pid: eperm, "setrlimit " + pid: eperm, "setnice " + pid: eperm, "setpgid " + pid: eperm,
		"open /proc/" + pid + "/environ": eacces, "open /proc/" + pid + "/mem": eacces, "open /proc/" + pid + "/root/out/file": eacces,
	} {
		want(t, inside, tries, errno)
	}
	// Its own kind is not.
	other := strconv.Itoa(c.start(t, true).cmd.Process.Pid)
	for _, tries := range []string{"trace " + other, "kill " + other, "open /proc/" + other + "/environ"} {
		want(t, inside, tries, noErrno)
	}
}

// What arms a task is itself judged: a container whose command lies outside its grants does not start.
func TestPendingJailJudgesItsFirstExec(t *testing.T) {
	e := openVerified(t)
	c := newContainer(t, e, nil)
	if child, err := c.tryStart(true); err == nil {
		child.stop()
		t.Error("something that is not granted was executed")
	} else if !errors.Is(err, unix.EACCES) {
		t.Errorf("the exec failed with %v, want EACCES", err)
	}
	c.start(t, false)
}

// A mark takes memory. Where there is none, the exec and the fork fail; nothing goes on unjudged.
func TestPendingJailWithoutRoomForMarks(t *testing.T) {
	e := openVerified(t)
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	c := newContainer(t, e, open)
	before := c.start(t, true)
	want(t, before, "elsewhere /in/file", noErrno)

	keys := make([]uint64, e.armed.MaxEntries())
	for i := range keys {
		keys[i] = uint64(i + 1) // no task lies there
	}
	marks := make([]uint32, len(keys))
	n, err := e.armed.BatchUpdate(keys, marks, nil)
	if n == len(keys) || !errors.Is(err, unix.E2BIG) {
		t.Fatalf("the table took %d of %d marks: %v", n, len(keys), err)
	}
	t.Cleanup(func() {
		for _, key := range keys[:n+1] {
			e.armed.Delete(key)
		}
	})
	if child, err := c.tryStart(true); err == nil {
		child.stop()
		t.Error("a task was started that could not be marked")
	} else if !errors.Is(err, unix.ENOMEM) {
		t.Errorf("the exec failed with %v, want ENOMEM", err)
	}
	want(t, before, "fork", unix.ENOMEM)
	want(t, before, "open /out/file", eacces)
}

// Marks go with their tasks.
func TestPendingJailForgetsTasks(t *testing.T) {
	e := openVerified(t)
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	c := newContainer(t, e, open)
	child, err := c.tryStart(true)
	if err != nil {
		t.Fatal(err)
	}
	if count(t, e.armed) == 0 {
		t.Fatal("a running armed task has no mark")
	}
	if err := child.stop(); err != nil {
		t.Fatal(err)
	}
	// A task is freed some grace periods after it was waited for.
	for deadline := time.Now().Add(20 * time.Second); count(t, e.armed) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d marks are left of tasks that are gone", count(t, e.armed))
		}
	}
}

func count(t *testing.T, m *ebpf.Map) int {
	t.Helper()
	n := 0
	var key uint64
	var mark uint32
	iter := m.Iterate()
	for iter.Next(&key, &mark) {
		n++
	}
	if err := iter.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}
