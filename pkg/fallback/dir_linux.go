// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

// A handleDir is a descriptor of a directory (O_PATH). Below it nothing is ever
// reached through a link.
//
// There are two ways to go down: openat2(2), and component by component with
// O_NOFOLLOW where the kernel has none (before Linux 5.6) or a seccomp filter
// refuses it. Both give the same errors: ELOOP or ENOTDIR for a link, EXDEV for
// a mount that is not to be entered.
type handleDir struct {
	probes *Probes
	path   string // for the names of files
	fd     int
	id     engine.ObjectID
}

// beneath are the rules of every lookup below a handleDir.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openRoot opens the root of a workspace. Its path has no links.
func (p *Probes) openRoot(path string) (dir, error) {
	if p.viaRoot {
		return p.openOSRoot(path)
	}
	d, err := p.openHandle(path)
	if err != nil {
		return nil, err
	}
	if d.id.Generation, d.id.HasGeneration, err = generation(d.fd, "", unix.AT_EMPTY_PATH); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// opened makes an interface of a handle, and nil of none.
func opened(d *handleDir, err error) (dir, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// openHandle opens the directory at path, which has no links.
func (p *Probes) openHandle(path string) (*handleDir, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	var fd int
	var err error
	if p.hasOpenat2() {
		fd, err = openat2(unix.AT_FDCWD, path, flags, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	} else {
		// A link above the root leads to a root with another identity.
		fd, err = openat(unix.AT_FDCWD, path, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return p.newHandle(fd, path)
}

// newHandle takes over fd.
func (p *Probes) newHandle(fd int, path string) (*handleDir, error) {
	e, err := p.statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &handleDir{probes: p, path: path, fd: fd, id: e.ID()}, nil
}

func (d *handleDir) close() { unix.Close(d.fd) }

func (d *handleDir) is(seen engine.ObjectID) bool { return d.id.Same(seen) }

func (d *handleDir) sub(rel string, mounts bool) (dir, error) {
	fd, err := d.descend(rel, unix.O_PATH|unix.O_DIRECTORY, mounts)
	if err != nil {
		return nil, err
	}
	return opened(d.probes.newHandle(fd, filepath.Join(d.path, rel)))
}

func (d *handleDir) lookup(rel string, mounts bool) (engine.Entry, error) {
	fd, err := d.descend(rel, unix.O_PATH, mounts)
	if err != nil {
		return engine.Entry{}, err
	}
	defer unix.Close(fd)
	return d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
}

func (d *handleDir) open(rel string, flag int, mounts bool) (*os.File, engine.Entry, error) {
	fd, err := d.descend(rel, flag|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_LARGEFILE, mounts)
	if err != nil {
		return nil, engine.Entry{}, err
	}
	e, err := d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, engine.Entry{}, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, rel)), e, nil
}

func (d *handleDir) create(name string, flag int, perm fs.FileMode) (*os.File, engine.Entry, error) {
	flag |= unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_LARGEFILE
	fd, err := openat(d.fd, name, flag, uint32(perm))
	if err != nil {
		return nil, engine.Entry{}, err
	}
	e, err := d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		unix.Close(fd)
		return nil, engine.Entry{}, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), e, nil
}

func (d *handleDir) mkdir(name string, perm fs.FileMode) (engine.Entry, error) {
	for {
		err := unix.Mkdirat(d.fd, name, uint32(perm))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return engine.Entry{}, err
		}
		return d.probes.statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW)
	}
}

func (d *handleDir) remove(name string, directory bool) error {
	flags := 0
	if directory {
		flags = unix.AT_REMOVEDIR
	}
	for {
		if err := unix.Unlinkat(d.fd, name, flags); err != unix.EINTR {
			return err
		}
	}
}

func (d *handleDir) rename(name string, to dir, newName string) error {
	for {
		if err := unix.Renameat(d.fd, name, to.(*handleDir).fd, newName); err != unix.EINTR {
			return err
		}
	}
}

// descend opens rel, which is clean and local. mounts says whether to enter
// mounts. A link in the last place is ELOOP (ENOTDIR with O_DIRECTORY), or is
// opened itself with O_PATH alone.
func (d *handleDir) descend(rel string, flag int, mounts bool) (int, error) {
	flag |= unix.O_NOFOLLOW
	if !d.probes.hasOpenat2() {
		return d.stepDown(rel, flag, mounts)
	}
	resolve := uint64(beneath)
	if !mounts {
		resolve |= unix.RESOLVE_NO_XDEV
	}
	return openat2(d.fd, rel, flag, resolve)
}

// stepDown is descend without openat2.
func (d *handleDir) stepDown(rel string, flag int, mounts bool) (int, error) {
	at := d.fd
	for {
		name, rest, more := strings.Cut(rel, "/")
		if name == ".." || name == "" {
			return -1, unix.EXDEV // never from a Guard
		}
		how := flag
		if more {
			how = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
		}
		fd, err := openat(at, name, how, 0)
		if at != d.fd {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		if !mounts {
			if err := d.sameMount(fd); err != nil {
				unix.Close(fd)
				return -1, err
			}
		}
		if !more {
			return fd, nil
		}
		at, rel = fd, rest
	}
}

// sameMount returns EXDEV if fd lies on another mount than d. Where the kernel
// has no mount ids the device has to be the same; a mount of the same device is
// then left to the walk, which knows it from the mount table.
func (d *handleDir) sameMount(fd int) error {
	e, err := d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
	switch {
	case err != nil:
		return err
	case e.MountID != 0 && d.id.MountID != 0 && e.MountID != d.id.MountID,
		e.MountID == 0 && e.Kind == engine.KindDir && e.Dev != d.id.Dev:
		return unix.EXDEV
	}
	return nil
}

// openat2 is openat2(2) that starts again after a signal. The descriptor is not
// inherited by programs.
func openat2(dir int, path string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// hasOpenat2 reports whether openat2(2) can be used. ENOSYS is an older kernel;
// EPERM comes from seccomp filters that do not know the call.
func (p *Probes) hasOpenat2() bool {
	p.openat2Once.Do(func() {
		fd, err := openat2(unix.AT_FDCWD, "/", unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
		if err == nil {
			unix.Close(fd)
		}
		p.componentwise = p.componentwise || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
	})
	return !p.componentwise
}
