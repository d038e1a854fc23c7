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

// A dir is a handle on a directory (O_PATH), with the identity it was opened
// with. Below it nothing is ever reached through a link.
//
// There are two ways to go down: openat2(2), and component by component with
// O_NOFOLLOW where the kernel has none (before Linux 5.6) or a seccomp filter
// refuses it. Both give the same errors: ELOOP or ENOTDIR for a link, EXDEV for
// a mount that is not to be entered.
type dir struct {
	probes *Probes
	path   string // for the names of files
	fd     int
	id     engine.ObjectID
}

// beneath are the rules of every lookup below a dir.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openRoot opens the root of a workspace. Its path has no links.
func (p *Probes) openRoot(path string) (*dir, error) {
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
	return p.newDir(fd, path)
}

// newDir takes over fd.
func (p *Probes) newDir(fd int, path string) (*dir, error) {
	e, err := p.statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &dir{probes: p, path: path, fd: fd, id: e.ID()}, nil
}

func (d *dir) close() { unix.Close(d.fd) }

// sub opens the directory rel.
func (d *dir) sub(rel string, mounts bool) (*dir, error) {
	fd, err := d.descend(rel, unix.O_PATH|unix.O_DIRECTORY, mounts)
	if err != nil {
		return nil, err
	}
	return d.probes.newDir(fd, filepath.Join(d.path, rel))
}

// lookup describes the object rel. A link in the last place is described.
func (d *dir) lookup(rel string, mounts bool) (engine.Entry, error) {
	fd, err := d.descend(rel, unix.O_PATH, mounts)
	if err != nil {
		return engine.Entry{}, err
	}
	defer unix.Close(fd)
	return d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
}

// open opens the existing object rel and describes it. It does not wait for
// what a FIFO or a device might make it wait for.
func (d *dir) open(rel string, flag int, mounts bool) (*os.File, engine.Entry, error) {
	fd, err := d.descend(rel, flag|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_LARGEFILE, mounts)
	if err != nil {
		return nil, engine.Entry{}, err
	}
	e, err := d.probes.statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil {
		err = block(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, engine.Entry{}, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, rel)), e, nil
}

// block takes O_NONBLOCK away from fd.
func block(fd int) error {
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, status&^unix.O_NONBLOCK)
	return err
}

// create creates a file in d itself and describes it.
func (d *dir) create(name string, flag int, perm fs.FileMode) (*os.File, engine.Entry, error) {
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

// mkdir makes a directory in d itself and describes it.
func (d *dir) mkdir(name string, perm fs.FileMode) (engine.Entry, error) {
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

// remove removes a name from d itself.
func (d *dir) remove(name string, directory bool) error {
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

// rename moves a name from d itself to another directory itself.
func (d *dir) rename(name string, to *dir, newName string) error {
	for {
		if err := unix.Renameat(d.fd, name, to.fd, newName); err != unix.EINTR {
			return err
		}
	}
}

// descend opens rel, which is clean and local. mounts says whether to enter
// mounts. A link in the last place is ELOOP (ENOTDIR with O_DIRECTORY), or is
// opened itself with O_PATH alone.
func (d *dir) descend(rel string, flag int, mounts bool) (int, error) {
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
func (d *dir) stepDown(rel string, flag int, mounts bool) (int, error) {
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
func (d *dir) sameMount(fd int) error {
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

// raced reports whether a lookup ended in an error that it could not end in had
// the tree been what the walk saw.
func raced(err error) bool {
	for _, errno := range [...]unix.Errno{unix.ENOENT, unix.ELOOP, unix.ENOTDIR, unix.EXDEV, unix.EAGAIN, unix.ESTALE} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
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
