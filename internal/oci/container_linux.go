package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/thread"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// configBytes bounds what is read of a bundle's config.json.
const configBytes = 16 << 20

// Container is one that its runtime is making: everything by descriptor, so that it stays the same one.
type Container struct {
	id     string
	pidfd  int
	root   *os.File // O_PATH, in the container's mount namespace
	cgroup *os.File
	path   string // of the cgroup
}

// Open finds the container of a state in the stage [Create]. mount is where cgroup v2 is mounted.
//
// It errors when the container's process is gone, when it has no cgroup of its own, and when its root is the host's.
func Open(state specs.State, mount string) (_ *Container, err error) {
	fail := func(err error) (*Container, error) { return nil, fmt.Errorf("container %s: %w", state.ID, err) }
	c := &Container{id: state.ID}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.pidfd, err = unix.PidfdOpen(state.Pid, 0); err != nil {
		c.pidfd = -1
		return fail(fmt.Errorf("open its process %d: %w", state.Pid, err))
	}
	rootfs, err := rootPath(state.Bundle)
	if err != nil {
		return fail(err)
	}
	if err := c.openRoot(state.Pid, rootfs); err != nil {
		return fail(err)
	}
	if err := c.openCgroup(state.Pid, mount); err != nil {
		return fail(err)
	}
	// Everything above was read by the process's number. It still is that process, so it was all along.
	if err := unix.PidfdSendSignal(c.pidfd, 0, nil, 0); err != nil {
		return fail(fmt.Errorf("its process %d ended meanwhile: %w", state.Pid, err))
	}
	return c, nil
}

// Close lets go of the descriptors.
func (c *Container) Close() error {
	var errs []error
	if c.pidfd >= 0 {
		errs = append(errs, unix.Close(c.pidfd))
		c.pidfd = -1
	}
	for _, f := range []*os.File{c.root, c.cgroup} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	c.root, c.cgroup = nil, nil
	return errors.Join(errs...)
}

// Root is the directory that will be the container's root.
func (c *Container) Root() *os.File { return c.root }

// Cgroup is the container's cgroup, and CgroupPath its path.
func (c *Container) Cgroup() *os.File { return c.cgroup }

// CgroupPath is the path of the container's cgroup.
func (c *Container) CgroupPath() string { return c.path }

// rootPath is where the container's root file system lies, as the bundle's config.json says.
func rootPath(bundle string) (string, error) {
	name := filepath.Join(bundle, "config.json")
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, configBytes))
	if err != nil {
		return "", err
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if spec.Root == nil || spec.Root.Path == "" {
		return "", &fs.PathError{Op: "read", Path: name, Err: errors.New("it names no root file system")}
	}
	if filepath.IsAbs(spec.Root.Path) {
		return spec.Root.Path, nil
	}
	return filepath.Join(bundle, spec.Root.Path), nil
}

// openRoot opens the container's root through the root of its process, which still is the host's, in the container's mount
// namespace: what is mounted there is not what this process would find at that path.
func (c *Container) openRoot(pid int, rootfs string) error {
	name := fmt.Sprintf("/proc/%d/root", pid)
	host, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(host)
	fd, err := openIn(host, rootfs, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return &fs.PathError{Op: "open root file system", Path: rootfs, Err: err}
	}
	c.root = os.NewFile(uintptr(fd), rootfs)
	for _, other := range []string{"/", name} {
		same, err := isSame(fd, other)
		if err != nil {
			return err
		}
		if same {
			return fmt.Errorf("its root file system %s is the host's: such a container cannot be told from the runtime that makes it", rootfs)
		}
	}
	return nil
}

func isSame(fd int, path string) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(fd, &a); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if err := unix.Stat(path, &b); err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}

// openCgroup opens the cgroup of the container's process. It must not be one that the runtime is in as well, or that this
// hook runs in: those are the host's.
func (c *Container) openCgroup(pid int, mount string) error {
	theirs, err := cgroupOf(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	ours, err := cgroupOf("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if contains(theirs, ours) {
		return fmt.Errorf("it has no cgroup of its own: it is in %s, and so is the runtime", theirs)
	}
	c.path = filepath.Join(mount, theirs)
	fd, err := unix.Open(c.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: c.path, Err: err}
	}
	c.cgroup = os.NewFile(uintptr(fd), c.path)
	return nil
}

// cgroupOf reads a process's cgroup v2 from its file in proc, cgroups(7).
func cgroupOf(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/..") || strings.HasSuffix(path, " (deleted)") {
			return "", &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("cgroup %q cannot be reached from here", path)}
		}
		return path, nil
	}
	return "", &fs.PathError{Op: "read", Path: name, Err: errors.New("the process is in no cgroup v2")}
}

// openIn opens a path below a directory as if that were the root directory: neither links nor ".." lead out of it.
func openIn(dir int, path string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve | unix.RESOLVE_IN_ROOT}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		if err != unix.EINTR && err != unix.EAGAIN { // EAGAIN: a rename raced with ".."
			return fd, err
		}
	}
}

// Inside calls f with probes that see the container: its root directory is theirs. f runs on a thread of its own, and must
// not leave the probes to other goroutines.
func (c *Container) Inside(f func(engine.Probes) error) error {
	return thread.Run(func() error { return c.inside(f) })
}

func (c *Container) inside(f func(engine.Probes) error) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Fchdir(int(c.root.Fd())); err != nil {
		return &fs.PathError{Op: "chdir", Path: c.root.Name(), Err: err}
	}
	if err := unix.Chroot("."); err != nil {
		return &fs.PathError{Op: "chroot", Path: c.root.Name(), Err: err}
	}
	probes, err := fallback.NewProbes()
	if err != nil {
		return err
	}
	defer probes.Close()
	return f(probes)
}

// isPlainID: a pattern with a count is a good part of what the start of any command costs.
func isPlainID(id string) bool {
	return id != "" && len(id) <= 64 && strings.Trim(id, nameLetters) == ""
}

// JailName makes a jail's name of a container's id. Ids of podman and Docker are 64 hex digits, one more than a name can
// have; other ids that are none give the name by their digest.
func JailName(id string) string {
	const longest = 63
	if isPlainID(id) {
		return id[:min(len(id), longest)]
	}
	sum := sha256.Sum256([]byte(id))
	return "oci-" + hex.EncodeToString(sum[:16])
}
