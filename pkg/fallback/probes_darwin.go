// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Probes looks at the file systems of the running system. It is safe for use by
// several goroutines.
type Probes struct{}

var (
	_ engine.Probes     = (*Probes)(nil)
	_ engine.CaseFolder = (*Probes)(nil)
	_ engine.Accesser   = (*Probes)(nil)
)

// NewProbes returns the probes of this system. It never errors on macOS.
func NewProbes() (*Probes, error) { return &Probes{}, nil }

// Close does nothing.
func (p *Probes) Close() error { return nil }

// Inspect implements [engine.Probes]. It costs a second system call for a
// directory: statfs(2) tells whether that is where its file system is mounted.
func (p *Probes) Inspect(path string) (engine.Entry, error) {
	var st unix.Stat_t
	if err := uninterrupted(func() error { return unix.Lstat(path, &st) }); err != nil {
		return engine.Entry{}, &fs.PathError{Op: "inspect", Path: path, Err: err}
	}
	e := entry(&st)
	if e.Kind != engine.KindDir {
		return e, nil
	}
	var mount unix.Statfs_t
	if err := uninterrupted(func() error { return unix.Statfs(path, &mount) }); err != nil {
		return engine.Entry{}, &fs.PathError{Op: "inspect", Path: path, Err: err}
	}
	e.FSType = unix.ByteSliceToString(mount.Fstypename[:])
	e.MountRoot = unix.ByteSliceToString(mount.Mntonname[:]) == path
	return e, nil
}

// entryOf describes an open file.
func (p *Probes) entryOf(file *os.File) (engine.Entry, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return engine.Entry{}, err
	}
	var st unix.Stat_t
	var statErr error
	err = raw.Control(func(fd uintptr) {
		statErr = uninterrupted(func() error { return unix.Fstat(int(fd), &st) })
	})
	if err == nil {
		err = statErr
	}
	if err != nil {
		return engine.Entry{}, err
	}
	return entry(&st), nil
}

// entry returns what the kernel told about an object. It shows the generation
// of an inode only to root, and APFS has none.
func entry(st *unix.Stat_t) engine.Entry {
	return engine.Entry{
		Kind:          engine.KindOfMode(uint32(st.Mode)),
		Dev:           mountmap.StatDev(uint32(st.Dev)),
		Ino:           st.Ino,
		Generation:    uint64(st.Gen),
		HasGeneration: st.Gen != 0,
		ChangeTime:    time.Unix(st.Ctim.Sec, st.Ctim.Nsec),
	}
}

// ReadLink implements [engine.Probes].
func (p *Probes) ReadLink(path string) (string, error) { return os.Readlink(path) }

// openDir opens a directory to read it. A link at path is not followed.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// Access implements [engine.Accesser].
func (p *Probes) Access(path string) error {
	dir, err := openDir(path)
	if err != nil {
		return err
	}
	return dir.Close()
}

// ReadDir implements [engine.Probes]. A link at path is not followed.
func (p *Probes) ReadDir(path string) ([]string, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// FoldsCase implements [engine.CaseFolder], as pathconf(2) tells.
func (p *Probes) FoldsCase(path string) (bool, error) {
	const caseSensitive = 11 // _PC_CASE_SENSITIVE of unistd.h, not in x/sys
	sensitive, err := unix.Pathconf(path, caseSensitive)
	if err != nil {
		return false, &fs.PathError{Op: "pathconf", Path: path, Err: err}
	}
	return sensitive == 0, nil
}

// Mounts returns [mountmap.ErrNotSupported]: Inspect says where mounts begin.
func (p *Probes) Mounts() (*mountmap.Table, error) { return nil, mountmap.ErrNotSupported }

// WorkingDir implements [engine.Probes].
func (p *Probes) WorkingDir() (string, error) { return os.Getwd() }

// Platform implements [engine.Probes].
func (p *Probes) Platform() engine.PlatformIdentity { return engine.PlatformFor("darwin") }

func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
