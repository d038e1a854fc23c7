package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is one cgroup v2 directory, held by a descriptor. Its methods may be called from several goroutines, but for
// Close.
type Group struct {
	dir  *os.File
	path string
}

// Create makes the cgroup parent/name with the limits given, and parent too when it is missing. name must not exist
// yet: two callers never share a cgroup by accident. The Group keeps a lock on the directory until it is closed, by which
// others see that its maker is alive. When Create returns an error it has left nothing behind.
//
// The error is [ErrUnresolvable] when parent is not in a cgroup v2 hierarchy, and a [*LimitError] when a limit cannot
// be had.
func Create(parent, name string, limits Limits) (*Group, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\n\x00") {
		return nil, fmt.Errorf("create a cgroup named %q: %w", name, unix.EINVAL)
	}
	path := filepath.Join(parent, name)
	var g *Group
	for tries := 0; ; tries++ {
		var err error
		if g, err = makeClaimed(parent, path); err == nil {
			break
		}
		// Another thenforce that ends may remove the empty parent meanwhile, or take the group for an abandoned one until
		// it is locked. That cannot go on for ever: it needs another one to end each time.
		if !errors.Is(err, os.ErrNotExist) || tries == 100 {
			removeEmpty(parent)
			return nil, err
		}
	}
	if err := limits.apply(path); err != nil {
		g.Close()
		unix.Rmdir(path)
		removeEmpty(parent)
		return nil, err
	}
	return g, nil
}

// makeClaimed makes a cgroup and locks it (flock(2)): as long as this process lives and has it open, nobody takes it for
// one that a killed process left. The error is [os.ErrNotExist] when somebody was faster.
func makeClaimed(parent, path string) (*Group, error) {
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	g, err := Open(path)
	if err != nil {
		unix.Rmdir(path)
		return nil, err
	}
	for {
		err = unix.Flock(g.fd(), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	var locked, there unix.Stat_t
	if err = errors.Join(err, unix.Fstat(g.fd(), &locked), unix.Stat(path, &there)); err == nil && locked.Ino != there.Ino {
		err = unix.ENOENT
	}
	if err != nil {
		g.Close()
		unix.Rmdir(path)
		return nil, pathError("lock", path, err)
	}
	return g, nil
}

// Open opens an existing cgroup. The error is a [*fs.PathError]; it is [ErrUnresolvable] when path is a directory of
// another file system.
func Open(path string) (*Group, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(fd, &sfs); err != nil {
		unix.Close(fd)
		return nil, pathError("statfs", path, err)
	}
	if !isCgroup2(&sfs) {
		unix.Close(fd)
		return nil, pathError("open cgroup", path, ErrUnresolvable)
	}
	return &Group{dir: os.NewFile(uintptr(fd), path), path: path}, nil
}

// File returns the descriptor of the directory. It stays the Group's: do not close it.
func (g *Group) File() *os.File { return g.dir }

// Path returns the path that the Group was made or opened with.
func (g *Group) Path() string { return g.path }

// Close closes the descriptor. The cgroup stays.
func (g *Group) Close() error { return g.dir.Close() }

// ID returns the kernel's 64-bit cgroup id, the number that bpf_get_current_cgroup_id gives for a process in the
// group. It comes from name_to_handle_at(2), whose handle for a kernfs file is that id (Linux 5.5, commit 33c5ac9175).
// The error is [ErrUnresolvable].
func (g *Group) ID() (uint64, error) {
	handle, _, err := unix.NameToHandleAt(g.fd(), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return 0, pathError("name_to_handle_at", g.path, errors.Join(ErrUnresolvable, err))
	}
	if handle.Size() != 8 {
		return 0, pathError("name_to_handle_at", g.path, ErrUnresolvable)
	}
	return binary.NativeEndian.Uint64(handle.Bytes()), nil
}

func (g *Group) fd() int { return int(g.dir.Fd()) }

// Remove removes the cgroup with every cgroup below it, and then its parent if nothing else is in there. The group must
// hold no processes; one that has just been emptied may still be busy for a moment, which Remove waits for. A cgroup
// that is gone already is no error. Close is still to be called.
func (g *Group) Remove() error {
	if err := g.RemoveChildren(); err != nil {
		return err
	}
	err := retryBusy(func() error { return unix.Rmdir(g.path) })
	if err != nil && err != unix.ENOENT {
		return pathError("remove cgroup", g.path, err)
	}
	removeEmpty(filepath.Dir(g.path))
	return nil
}

// RemoveChildren removes every cgroup below this one, deepest first, waiting for those still busy.
func (g *Group) RemoveChildren() error {
	err := walk(g.fd(), func(dir int, name string) error {
		err := retryBusy(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
		if err != nil && err != unix.ENOENT {
			return pathError("remove cgroup", name, err)
		}
		return nil
	}, nil)
	if err != nil {
		return fmt.Errorf("remove the cgroups below %s: %w", g.path, err)
	}
	return nil
}

// removeEmpty removes the folder that jails have in common, if it is a cgroup and the last of them has gone. The
// kernel refuses with EBUSY as long as one is there, so no check is needed that could be overtaken. The root of a
// hierarchy cannot be removed either.
func removeEmpty(parent string) {
	unix.Rmdir(parent)
}

// busyWait is how long a cgroup without processes may stay busy. Dying processes leave their cgroup before they are
// reaped, but the last references to it are dropped later, by kernel workers.
const busyWait = 2 * time.Second

func retryBusy(remove func() error) error {
	deadline := time.Now().Add(busyWait)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := remove()
		if err != unix.EBUSY || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// walk visits the subtree of a cgroup directory: before is called for the directory itself and for each one below it,
// parents first, and after for each one below it, children first, with its name and its parent's descriptor. Both may
// be nil. A directory that vanishes meanwhile is passed over.
func walk(dir int, after func(dir int, name string) error, before func(dir int) error) error {
	if before != nil {
		if err := before(dir); err != nil {
			return err
		}
	}
	names, err := subdirectories(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		sub, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return pathError("open", name, err)
		}
		err = walk(sub, after, before)
		unix.Close(sub)
		if err == nil && after != nil {
			err = after(dir, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func subdirectories(dir int) ([]string, error) {
	// A descriptor of its own: reading moves the offset, which is shared by all who use the same open directory.
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil, nil
	}
	if err != nil {
		return nil, pathError("open", ".", err)
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	entries, err := f.ReadDir(-1)
	// A cgroup that is being removed cannot be read any more: it has no children then.
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func readFile(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", pathError("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	data, err := io.ReadAll(f)
	return string(data), err
}

func writeFile(dir int, name, value string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return pathError("open", name, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return pathError("write", name, err)
	}
	return nil
}
