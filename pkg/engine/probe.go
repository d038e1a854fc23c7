// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Probes is how the engine looks at a file system; it has no other way. Live
// implementations are in pkg/fallback, one that presents a made-up tree is in
// pkg/engine/memfs.
//
// Paths are absolute and clean, in the shape of the root that is looked at.
// Errors are *fs.PathError where a path is concerned, and answer errors.Is for
// fs.ErrNotExist, fs.ErrPermission and syscall.ENOTDIR. An implementation that
// is not sure returns an error and no guess: the engine turns it into
// enforcement-unverified.
//
// Implementations must be safe for use by several goroutines.
type Probes interface {
	// Inspect describes the object at path itself, as lstat(2) does: a link in
	// the last place is described and not followed. The engine inspects every
	// component from the root down, and no component twice in one walk. It is
	// to cost one system call.
	Inspect(path string) (Entry, error)

	// ReadLink returns the target of the symbolic link, junction or other name
	// surrogate at path, as it is stored.
	ReadLink(path string) (string, error)

	// ReadDir returns the names in a directory, in any order.
	ReadDir(path string) ([]string, error)

	// Mounts returns the mount table of this moment. An implementation may
	// return the table it returned before if it has proof that nothing changed
	// since. Where the system has no such table the error answers
	// errors.ErrUnsupported; on Linux any error makes every answer
	// enforcement-unverified.
	Mounts() (*mountmap.Table, error)

	// WorkingDir returns the absolute path that relative roots start from.
	WorkingDir() (string, error)

	// Platform returns how this system compares names.
	Platform() PlatformIdentity
}

// A Sweeper is a Probes that can prove with one look what a walk would find
// step by step. CheckContainment asks it first and walks where it does not know.
type Sweeper interface {
	// Sweep describes the object at path, which lies at or below root, and
	// reports true only if all of this is certain: every component between
	// them exists; none is a link, junction, reparse point or mount point,
	// path's own last one included; all but the last are directories.
	//
	// On Linux that is openat2(2) with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS
	// and RESOLVE_NO_XDEV. A change of device within one mount (a btrfs
	// subvolume) need not be noticed: the caller compares the entry's device
	// with the root's.
	Sweep(root, path string) (Entry, bool)
}

// A CaseFolder is a Probes that can tell directories in which names match
// whatever their case: those of ext4 and f2fs with the casefold attribute.
type CaseFolder interface {
	// FoldsCase reports whether names in the directory at path match
	// regardless of case.
	FoldsCase(path string) (bool, error)
}

// A Generationer is a Probes whose Inspect leaves the generation of an object out,
// because it takes another look. The engine asks for it where an inode number may
// have been given to another object meanwhile: for roots, and in snapshots.
type Generationer interface {
	// Generation returns the generation of the object at path, and false where
	// the file system has none, or none that is known.
	Generation(path string) (uint64, bool, error)
}

// identify adds the generation to an entry that was found at path.
func identify(probes Probes, path string, e *Entry) error {
	g, ok := probes.(Generationer)
	if !ok || e.HasGeneration {
		return nil
	}
	var err error
	e.Generation, e.HasGeneration, err = g.Generation(path)
	return err
}

// An Accesser is a Probes that can tell whether a directory may be read without
// reading it.
type Accesser interface {
	// Access returns nil if the names in the directory at path may be read.
	// A link at path is an error.
	Access(path string) error
}

// A LongNamer is a Probes of a system with 8.3 names.
type LongNamer interface {
	// LongPath returns path with every component that is a short alias
	// replaced by the long name of the same object. Components that do not
	// exist are kept.
	LongPath(path string) (string, error)
}

// Kind is what an object is.
type Kind uint8

const (
	KindUnknown     Kind = iota
	KindFile             // a regular file
	KindDir              // a directory
	KindSymlink          // a symbolic link
	KindJunction         // Windows: IO_REPARSE_TAG_MOUNT_POINT that leads to a directory
	KindReparse          // Windows: any other reparse point
	KindFIFO             // a named pipe
	KindSocket           // a unix socket
	KindCharDevice       // a character device node
	KindBlockDevice      // a block device node
	KindOther            // something else that exists
)

var kindNames = [...]string{
	KindUnknown:     "unknown",
	KindFile:        "file",
	KindDir:         "dir",
	KindSymlink:     "symlink",
	KindJunction:    "junction",
	KindReparse:     "reparse-point",
	KindFIFO:        "fifo",
	KindSocket:      "socket",
	KindCharDevice:  "char-device",
	KindBlockDevice: "block-device",
	KindOther:       "other",
}

// String returns a stable lower-case name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// KindOfMode returns the kind of an object with the given st_mode. The numbers of
// sys/stat.h are the same on every Unix.
func KindOfMode(mode uint32) Kind {
	switch mode >> 12 & 0o17 {
	case 0o01:
		return KindFIFO
	case 0o02:
		return KindCharDevice
	case 0o04:
		return KindDir
	case 0o06:
		return KindBlockDevice
	case 0o10:
		return KindFile
	case 0o12:
		return KindSymlink
	case 0o14:
		return KindSocket
	}
	return KindOther
}

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Entry is what [Probes.Inspect] found. The zero value of every field but Kind
// means that it is not known.
type Entry struct {
	Kind Kind

	// Dev and Ino say which object this is, among those that exist now. InoHigh
	// is the upper half of a 128-bit file id (ReFS).
	Dev          mountmap.StatDev
	Ino, InoHigh uint64
	// Generation tells an inode from an earlier one with the same number,
	// where HasGeneration is set.
	Generation    uint64
	HasGeneration bool
	// ChangeTime is st_ctime, or what comes nearest to it.
	ChangeTime time.Time

	// MountID is the mount the object was reached on; UniqueMountID says that
	// it is of the kind that is never used again (STATX_MNT_ID_UNIQUE).
	MountID       uint64
	UniqueMountID bool
	// MountRoot is set where the object is known to be the root of a mount
	// (STATX_ATTR_MOUNT_ROOT), or a volume mounted in a directory on Windows.
	MountRoot bool
	// FSType is the type of the file system, where it costs nothing to know.
	FSType string

	// Magic is set for a link that leads to an object and not to a path.
	Magic bool
	// ReparseTag is the tag of a reparse point, and DirReparse says whether it
	// is one on a directory.
	ReparseTag uint32
	DirReparse bool
	// Name is the name under which the directory holds the object, where that
	// can be another than the one asked for: other case, an 8.3 alias.
	Name string
}

// SameObject reports whether e and o are one object: device and inode agree,
// and both are known. Where both have a generation, that agrees too.
func (e *Entry) SameObject(o *Entry) bool {
	if e.Ino == 0 && e.InoHigh == 0 {
		return false
	}
	if e.Dev != o.Dev || e.Ino != o.Ino || e.InoHigh != o.InoHigh {
		return false
	}
	return !e.HasGeneration || !o.HasGeneration || e.Generation == o.Generation
}

// link reports whether e leads elsewhere by name.
func (e *Entry) link() bool {
	switch e.Kind {
	case KindSymlink, KindJunction:
		return true
	case KindReparse:
		// Bit 29 of a tag: the reparse point stands for another named object
		// (IsReparseTagNameSurrogate). Without it, it is the object itself, a
		// cloud file's placeholder for instance.
		return e.ReparseTag&0x20000000 != 0
	}
	return false
}

// directory reports whether names can lie below e.
func (e *Entry) directory() bool {
	return e.Kind == KindDir || e.Kind == KindReparse && e.DirReparse && !e.link()
}
