// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Probes looks at the file systems of the running system. It is safe for use by
// several goroutines.
type Probes struct {
	mu   sync.Mutex
	live *mountmap.Live // nil until the mount table could be opened

	// mask is what statx is asked for.
	mask int
	// types remembers the file-system type behind a unique mount id, which
	// never comes to mean another mount.
	types sync.Map // uint64 -> int64

	openat2Once   sync.Once
	componentwise bool // openat2 is not used; see hasOpenat2
	viaRoot       bool // an os.Root goes down, as on other systems; in tests
}

var (
	_ engine.Probes     = (*Probes)(nil)
	_ engine.CaseFolder = (*Probes)(nil)
	_ engine.Accesser   = (*Probes)(nil)

	_ engine.Generationer = (*Probes)(nil)
)

// identity is what statx(2) must return for an object to be known.
const identity = unix.STATX_TYPE | unix.STATX_INO

// NewProbes returns the probes of this system, which keep a descriptor of the
// mount table of the calling thread's namespace open. It never errors on Linux:
// a mount table that cannot be read is the error of [Probes.Mounts], which tries
// again each time.
func NewProbes() (*Probes, error) {
	p := &Probes{mask: identity | unix.STATX_CTIME | unix.STATX_MNT_ID}
	// With unique ids from statx and none in the table no mount would ever be
	// confirmed.
	if table, err := p.Mounts(); err == nil && hasUniqueIDs(table) {
		p.mask |= unix.STATX_MNT_ID_UNIQUE
	}
	return p, nil
}

func hasUniqueIDs(table *mountmap.Table) bool {
	for m := range table.All() {
		if m.UniqueID == 0 {
			return false
		}
	}
	return true
}

// Close releases the mount table. The probes must not be used afterwards.
func (p *Probes) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		return nil
	}
	return p.live.Close()
}

// Inspect implements [engine.Probes].
func (p *Probes) Inspect(path string) (engine.Entry, error) {
	e, err := p.statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return engine.Entry{}, &fs.PathError{Op: "inspect", Path: path, Err: err}
	}
	if e.Kind == engine.KindSymlink && virtual(e.Dev) {
		return p.inspectLink(path, e)
	}
	return e, nil
}

// statx describes what path below the directory dir leads to.
func (p *Probes) statx(dir int, path string, flags int) (engine.Entry, error) {
	var st unix.Statx_t
	for {
		// An automount point is described and not triggered: what would be
		// mounted there is on the other side of a boundary.
		err := unix.Statx(dir, path, flags|unix.AT_NO_AUTOMOUNT, p.mask, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return engine.Entry{}, err
		}
		return entry(&st)
	}
}

// entryOf describes an open file.
func (p *Probes) entryOf(file *os.File) (engine.Entry, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return engine.Entry{}, err
	}
	var e engine.Entry
	var statErr error
	err = raw.Control(func(fd uintptr) { e, statErr = p.statx(int(fd), "", unix.AT_EMPTY_PATH) })
	return e, cmp.Or(err, statErr)
}

// entry returns what the kernel told about an object.
func entry(st *unix.Statx_t) (engine.Entry, error) {
	if st.Mask&identity != identity {
		return engine.Entry{}, errNoIdentity
	}
	e := engine.Entry{
		Kind: engine.KindOfMode(uint32(st.Mode)),
		Dev:  mountmap.StatDev(unix.Mkdev(st.Dev_major, st.Dev_minor)),
		Ino:  st.Ino,
		// Unset where the kernel does not know the attribute either; then the
		// mount ids tell, or the device numbers.
		MountRoot: st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}
	if st.Mask&unix.STATX_CTIME != 0 {
		e.ChangeTime = time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec))
	}
	switch {
	case st.Mask&unix.STATX_MNT_ID_UNIQUE != 0:
		e.MountID, e.UniqueMountID = st.Mnt_id, true
	case st.Mask&unix.STATX_MNT_ID != 0:
		e.MountID = st.Mnt_id
	}
	return e, nil
}

// Generation implements [engine.Generationer].
func (p *Probes) Generation(path string) (uint64, bool, error) {
	g, ok, err := generation(unix.AT_FDCWD, path, 0)
	if err != nil {
		return 0, false, &fs.PathError{Op: "inspect", Path: path, Err: err}
	}
	return g, ok, nil
}

// generation returns the generation of the object that path below the directory
// dir leads to, and false where there is none that is known. Nothing in stat(2)
// has it, and the ioctl(2) that does wants the object opened for reading; but the
// handle that a file system gives out for export (name_to_handle_at(2), from
// fs/exportfs) holds it beside the inode number.
func generation(dir int, path string, flags int) (uint64, bool, error) {
	handle, _, err := unix.NameToHandleAt(dir, path, flags)
	for err == unix.EINTR {
		handle, _, err = unix.NameToHandleAt(dir, path, flags)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EOVERFLOW):
		return 0, false, nil // a file system that cannot be exported: proc, overlayfs
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return 0, false, nil // a seccomp filter: containers refuse its counterpart, and some this one
	case err != nil:
		return 0, false, err
	}
	g, ok := generationIn(handle.Type(), handle.Bytes())
	return g, ok, nil
}

// The types of handles (include/linux/exportfs.h) that hold a generation.
const (
	fileidIno32Gen = 0x01 // most file systems, and in another order tmpfs
	fileidIno64Gen = 0x81 // XFS with large inode numbers
	fileidBtrfs    = 0x4d
)

// generationIn returns the generation in a handle, and false where it has none
// that is known.
func generationIn(kind int32, handle []byte) (uint64, bool) {
	at := -1
	switch {
	case kind == fileidIno32Gen && len(handle) == 8:
		at = 4 // behind the inode number
	case kind == fileidIno32Gen && len(handle) == 12:
		at = 0 // shmem_encode_fh: in front of it
	case kind == fileidIno64Gen && len(handle) == 12:
		at = 8
	case kind == fileidBtrfs && len(handle) == 20:
		at = 16 // behind the numbers of the inode and the subvolume
	}
	if at < 0 {
		return 0, false
	}
	return uint64(binary.NativeEndian.Uint32(handle[at:])), true
}

// errNoIdentity is returned for an object that a file system describes without
// saying what it is.
var errNoIdentity = errors.New("the file system tells no type or inode number")

// virtual reports whether a file system with this device has no block device
// below it. Only those can have magic links.
func virtual(dev mountmap.StatDev) bool {
	d, ok := dev.Kernel()
	return !ok || d.Major() == 0
}

// inspectLink describes a link that may be magic: a link of procfs leads to
// whatever the kernel says (proc_pid_get_link), and so do those of securityfs
// and apparmorfs that lead to the policy of a namespace (policy_get_link in
// security/apparmor/apparmorfs.c). seen is what was at path just before.
func (p *Probes) inspectLink(path string, seen engine.Entry) (engine.Entry, error) {
	if magic, ok := p.types.Load(seen.MountID); ok && seen.UniqueMountID {
		return linkOn(seen, magic.(int64)), nil
	}
	fail := func(err error) (engine.Entry, error) {
		return engine.Entry{}, &fs.PathError{Op: "inspect", Path: path, Err: err}
	}
	fd, err := openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	// The file system is that of this handle, so the description has to be too.
	e, err := p.statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return fail(err)
	}
	var st unix.Statfs_t
	if err := fstatfs(fd, &st); err != nil {
		return fail(err)
	}
	if e.UniqueMountID {
		p.types.Store(e.MountID, int64(st.Type))
	}
	if e.Kind != engine.KindSymlink {
		return e, nil
	}
	return linkOn(e, int64(st.Type)), nil
}

// linkOn returns the link e on a file system of the given type.
func linkOn(e engine.Entry, magic int64) engine.Entry {
	switch magic {
	case unix.PROC_SUPER_MAGIC:
		e.FSType = "proc" // the engine knows which of its links are plain ones
	case unix.SECURITYFS_MAGIC, unix.AAFS_MAGIC:
		e.Magic = true
	}
	return e
}

// ReadLink implements [engine.Probes].
func (p *Probes) ReadLink(path string) (string, error) { return os.Readlink(path) }

// openDir opens a directory to read it. A link at path is not followed.
func openDir(path string) (int, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// Access implements [engine.Accesser].
func (p *Probes) Access(path string) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// ReadDir implements [engine.Probes]. A link at path is not followed.
func (p *Probes) ReadDir(path string) ([]string, error) {
	fd, err := openDir(path)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// casefold is FS_CASEFOLD_FL of linux/fs.h, not in x/sys.
const casefold = 0x40000000

// FoldsCase implements [engine.CaseFolder]: it knows the casefold attribute of a
// directory, and vfat and exfat, which always fold. The error is that of opening
// the directory, which needs the permission to read it.
func (p *Probes) FoldsCase(path string) (bool, error) {
	fd, err := openDir(path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := fstatfs(fd, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	switch int64(st.Type) {
	case unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC:
		return true, nil
	}
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return false, nil // a file system without inode flags
	case err != nil:
		return false, &fs.PathError{Op: "ioctl", Path: path, Err: err}
	}
	return flags&casefold != 0, nil
}

// Mounts implements [engine.Probes]. The errors are those of [mountmap.Read].
func (p *Probes) Mounts() (*mountmap.Table, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live == nil {
		live, err := mountmap.OpenLive()
		if err != nil {
			return nil, err
		}
		p.live = live
	}
	return p.live.Table()
}

// WorkingDir implements [engine.Probes].
func (p *Probes) WorkingDir() (string, error) { return os.Getwd() }

// Platform implements [engine.Probes].
func (p *Probes) Platform() engine.PlatformIdentity { return engine.PlatformFor("linux") }

// openat is openat(2) that starts again after a signal. The descriptor is not
// inherited by programs.
func openat(dir int, path string, flags int, perm uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, perm)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func fstatfs(fd int, st *unix.Statfs_t) error {
	for {
		if err := unix.Fstatfs(fd, st); err != unix.EINTR {
			return err
		}
	}
}
