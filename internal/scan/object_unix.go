// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package scan

import (
	"io/fs"
	"os"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

const directoryFlags = unix.O_DIRECTORY | unix.O_NONBLOCK

// inspect describes the entry name of an open directory. A mount is seen by its device.
func (s *Scan) inspect(dir *os.File, name, rel string) (object, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return object{}, &fs.PathError{Op: "lstat", Path: rel, Err: err}
	}
	return fromStat(&st), nil
}

func (s *Scan) inspectHandle(dir *os.File, rel string) (object, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return object{}, &fs.PathError{Op: "fstat", Path: rel, Err: err}
	}
	return fromStat(&st), nil
}

func fromStat(st *unix.Stat_t) object {
	return object{
		kind:  engine.KindOfMode(uint32(st.Mode)),
		inode: inode{uint64(st.Dev), uint64(st.Ino)},
		links: uint64(st.Nlink),
		setID: st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0,
	}
}
