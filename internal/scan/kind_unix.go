// SPDX-License-Identifier: Apache-2.0

//go:build unix

package scan

import (
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// kindOf returns the kind of an object with the given st_mode.
func kindOf(mode uint32) engine.Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return engine.KindFile
	case unix.S_IFDIR:
		return engine.KindDir
	case unix.S_IFLNK:
		return engine.KindSymlink
	case unix.S_IFIFO:
		return engine.KindFIFO
	case unix.S_IFSOCK:
		return engine.KindSocket
	case unix.S_IFCHR:
		return engine.KindCharDevice
	case unix.S_IFBLK:
		return engine.KindBlockDevice
	}
	return engine.KindOther
}
