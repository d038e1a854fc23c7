// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"io/fs"
	"os"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

const directoryFlags = unix.O_DIRECTORY | unix.O_NONBLOCK

// inspect describes the entry name of an open directory.
func (s *Scan) inspect(dir *os.File, name, rel string) (object, error) {
	return statx(dir, name, rel, unix.AT_SYMLINK_NOFOLLOW)
}

func (s *Scan) inspectHandle(dir *os.File, rel string) (object, error) {
	o, err := statx(dir, "", rel, unix.AT_EMPTY_PATH)
	if err == nil && rel == "." {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
			return object{}, &fs.PathError{Op: "statfs", Path: rel, Err: err}
		}
		o.sharedDevs = st.Type == unix.OVERLAYFS_SUPER_MAGIC
		// The workspace may be the root of a mount: it is inside all the same.
		o.mountRoot = false
	}
	return o, err
}

// statx describes an object. STATX_MNT_ID and STATX_ATTR_MOUNT_ROOT are of Linux 5.8: before, a bind mount of the same
// file system is not told from a directory, and what is mounted of another is a change of device.
func statx(dir *os.File, name, rel string, flags int) (object, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(int(dir.Fd()), name, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return object{}, &fs.PathError{Op: "statx", Path: rel, Err: err}
		}
	}
	o := object{
		kind:  engine.KindOfMode(uint32(st.Mode)),
		inode: inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino},
		links: uint64(st.Nlink),
		setID: st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0,
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		o.mount = st.Mnt_id
	}
	o.mountRoot = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return o, nil
}
