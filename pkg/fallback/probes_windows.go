// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Probes looks at the file systems of the running system. It is safe for use by
// several goroutines.
type Probes struct{}

var (
	_ engine.Probes    = (*Probes)(nil)
	_ engine.LongNamer = (*Probes)(nil)
	_ engine.Accesser  = (*Probes)(nil)
)

// NewProbes returns the probes of this system. It never errors on Windows.
func NewProbes() (*Probes, error) { return &Probes{}, nil }

// Close does nothing.
func (p *Probes) Close() error { return nil }

// Inspect implements [engine.Probes]. It opens the object itself, whatever
// reparse point that is, and asks the handle: volume and file id, tag, times.
// The name comes from the directory. A volume mounted in a directory is
// described as that directory, with MountRoot set.
//
// Where the directory has a reparse point and the handle none, it is an error:
// something below Windows followed a link in its place. Wine does that with the
// links of the system it runs on; those to files it does not show at all.
func (p *Probes) Inspect(path string) (engine.Entry, error) {
	handle, err := openObject(path, windows.FILE_READ_ATTRIBUTES)
	if err != nil {
		return engine.Entry{}, inspectError(path, err)
	}
	defer windows.CloseHandle(handle)
	e, err := entryByHandle(handle)
	if err != nil {
		return engine.Entry{}, inspectError(path, err)
	}
	if e.Kind == engine.KindJunction {
		target, err := targetByHandle(handle)
		if err != nil {
			return engine.Entry{}, inspectError(path, err)
		}
		if mountsVolume(target) {
			e.Kind, e.MountRoot = engine.KindDir, true
		}
	}
	var attributes uint32
	if e.Name, attributes, err = nameInDirectory(path); err != nil {
		return engine.Entry{}, inspectError(path, err)
	}
	if attributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 && e.ReparseTag == 0 {
		return engine.Entry{}, inspectError(path, errFollowed)
	}
	return e, nil
}

// errFollowed is returned for a link that cannot be looked at because it is
// followed by the system.
var errFollowed = errors.New("the system follows the link that is here")

func inspectError(path string, err error) error {
	return &fs.PathError{Op: "inspect", Path: path, Err: err}
}

// systemName returns a path as the system takes it. In one that is not UTF-8 it
// would put U+FFFD in the place of what it does not understand: another name.
func systemName(path string) (*uint16, error) {
	if !utf8.ValidString(path) {
		return nil, errNotUnicode
	}
	return windows.UTF16PtrFromString(path)
}

// openObject opens the object at path itself.
func openObject(path string, access uint32) (windows.Handle, error) {
	name, err := systemName(extended(path))
	if err != nil {
		return windows.InvalidHandle, err
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	const attributes = windows.FILE_FLAG_BACKUP_SEMANTICS | windows.FILE_FLAG_OPEN_REPARSE_POINT
	return windows.CreateFile(name, access, share, nil, windows.OPEN_EXISTING, attributes, 0)
}

// entryOf describes an open file.
func (p *Probes) entryOf(file *os.File) (engine.Entry, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return engine.Entry{}, err
	}
	var e engine.Entry
	var entryErr error
	if err := raw.Control(func(handle uintptr) { e, entryErr = entryByHandle(windows.Handle(handle)) }); err != nil {
		return engine.Entry{}, err
	}
	return e, entryErr
}

// entryByHandle describes the object behind a handle.
func entryByHandle(handle windows.Handle) (engine.Entry, error) {
	// A device answers to names of files too ("NUL"), and knows nothing of this.
	if kind, err := windows.GetFileType(handle); err != nil {
		return engine.Entry{}, err
	} else if kind != windows.FILE_TYPE_DISK {
		return engine.Entry{Kind: engine.KindOther}, nil
	}
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(handle, &info); err != nil {
		return engine.Entry{}, err
	}
	e := engine.Entry{
		Kind: engine.KindFile,
		Dev:  mountmap.StatDev(info.VolumeSerialNumber),
		Ino:  uint64(info.FileIndexHigh)<<32 | uint64(info.FileIndexLow),
	}
	directory := info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0
	if directory {
		e.Kind = engine.KindDir
	}

	// FILE_ID_INFO: the whole serial number and the 128 bits that ReFS needs.
	var id struct {
		serial uint64
		id     [16]byte
	}
	err := windows.GetFileInformationByHandleEx(handle, windows.FileIdInfo, (*byte)(unsafe.Pointer(&id)), uint32(unsafe.Sizeof(id)))
	if err == nil {
		e.Dev = mountmap.StatDev(id.serial)
		e.Ino, e.InoHigh = binary.LittleEndian.Uint64(id.id[:8]), binary.LittleEndian.Uint64(id.id[8:])
	} // else a file system, or a server, that has only the short ones

	// FILE_BASIC_INFO. The last is when anything changed, as st_ctime.
	var basic struct {
		creation, access, write, change int64
		attributes                      uint32
		_                               uint32
	}
	err = windows.GetFileInformationByHandleEx(handle, windows.FileBasicInfo, (*byte)(unsafe.Pointer(&basic)), uint32(unsafe.Sizeof(basic)))
	if err == nil && basic.change != 0 {
		change := windows.Filetime{LowDateTime: uint32(basic.change), HighDateTime: uint32(basic.change >> 32)}
		e.ChangeTime = time.Unix(0, change.Nanoseconds())
	}

	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT == 0 {
		return e, nil
	}
	// FILE_ATTRIBUTE_TAG_INFO
	var tag struct{ attributes, tag uint32 }
	err = windows.GetFileInformationByHandleEx(handle, windows.FileAttributeTagInfo, (*byte)(unsafe.Pointer(&tag)), uint32(unsafe.Sizeof(tag)))
	if err != nil {
		return engine.Entry{}, err
	}
	e.ReparseTag, e.DirReparse = tag.tag, directory
	switch tag.tag {
	case tagSymlink:
		e.Kind = engine.KindSymlink
	case tagMountPoint:
		e.Kind = engine.KindJunction
	default:
		e.Kind = engine.KindReparse
	}
	return e, nil
}

// nameInDirectory returns the long name by which the directory holds the object
// at path, and its attributes there. They are "" and 0 for the root of a volume.
func nameInDirectory(path string) (long string, attributes uint32, err error) {
	if filepath.Dir(path) == path {
		return "", 0, nil
	}
	name, err := systemName(extended(path))
	if err != nil {
		return "", 0, err
	}
	var found windows.Win32finddata
	search, err := windows.FindFirstFile(name, &found)
	if err != nil {
		return "", 0, err
	}
	windows.FindClose(search)
	n := 0
	for n < len(found.FileName) && found.FileName[n] != 0 {
		n++
	}
	long, err = decodeUTF16(found.FileName[:n])
	return long, found.FileAttributes, err
}

// ReadLink implements [engine.Probes]: the substitute name of a symbolic link or
// junction. Other reparse points have no target that is known.
func (p *Probes) ReadLink(path string) (string, error) {
	handle, err := openObject(path, windows.FILE_READ_ATTRIBUTES)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	defer windows.CloseHandle(handle)
	target, err := targetByHandle(handle)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	return target, nil
}

func targetByHandle(handle windows.Handle) (string, error) {
	var buffer [windows.MAXIMUM_REPARSE_DATA_BUFFER_SIZE]byte
	var n uint32
	err := windows.DeviceIoControl(handle, windows.FSCTL_GET_REPARSE_POINT, nil, 0, &buffer[0], uint32(len(buffer)), &n, nil)
	if err != nil {
		return "", err
	}
	return reparseTarget(buffer[:n])
}

// Access implements [engine.Accesser].
func (p *Probes) Access(path string) error {
	handle, err := openObject(path, windows.FILE_LIST_DIRECTORY)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return windows.CloseHandle(handle)
}

// ReadDir implements [engine.Probes]. A link at path is an error.
func (p *Probes) ReadDir(path string) ([]string, error) {
	want, err := p.Inspect(path)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	got, err := p.entryOf(dir)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: path, Err: err}
	}
	if !got.SameObject(&want) {
		return nil, &fs.PathError{Op: "readdir", Path: path, Err: errChanged}
	}
	return dir.Readdirnames(-1)
}

// LongPath implements [engine.LongNamer].
func (p *Probes) LongPath(path string) (string, error) {
	long, err := longPath(path)
	if err == nil {
		return long, nil
	}
	dir := filepath.Dir(path)
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, windows.ERROR_PATH_NOT_FOUND)
	if !missing || dir == path {
		return "", &fs.PathError{Op: "expand", Path: path, Err: err}
	}
	if dir, err = p.LongPath(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

func longPath(path string) (string, error) {
	short, err := systemName(path)
	if err != nil {
		return "", err
	}
	buffer := make([]uint16, len(path)+windows.MAX_PATH)
	for {
		n, err := windows.GetLongPathName(short, &buffer[0], uint32(len(buffer)))
		if err != nil {
			return "", err
		}
		if int(n) < len(buffer) {
			return decodeUTF16(buffer[:n])
		}
		buffer = make([]uint16, n)
	}
}

// Mounts returns [mountmap.ErrNotSupported]: Inspect says where volumes are
// mounted.
func (p *Probes) Mounts() (*mountmap.Table, error) { return nil, mountmap.ErrNotSupported }

// WorkingDir implements [engine.Probes].
func (p *Probes) WorkingDir() (string, error) { return os.Getwd() }

// Platform implements [engine.Probes].
func (p *Probes) Platform() engine.PlatformIdentity { return engine.PlatformFor("windows") }
