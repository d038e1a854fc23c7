// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"io/fs"
	"os"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/windows"
)

const directoryFlags = 0

// inspect describes the entry that is called rel. Windows has no call that looks at a name in an open directory, so the
// path is looked up anew; it is read from that nothing but metadata, and directories are opened below the root.
func (s *Scan) inspect(_ *os.File, _, rel string) (object, error) {
	path := s.join(rel)
	e, err := s.probes.Inspect(path)
	if err != nil {
		return object{}, err
	}
	o := object{kind: e.Kind, inode: inode{uint64(e.Dev), e.Ino}, mountRoot: e.MountRoot}
	if e.Kind == engine.KindFile {
		if o.links, err = linkCount(path); err != nil {
			return object{}, &fs.PathError{Op: "count links", Path: path, Err: err}
		}
	}
	return o, nil
}

func (s *Scan) inspectHandle(_ *os.File, rel string) (object, error) {
	o, err := s.inspect(nil, "", rel)
	if rel == "." {
		o.mountRoot = false // the workspace may be a volume
	}
	return o, err
}

func linkCount(path string) (uint64, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	const flags = windows.FILE_FLAG_BACKUP_SEMANTICS | windows.FILE_FLAG_OPEN_REPARSE_POINT
	handle, err := windows.CreateFile(name, windows.FILE_READ_ATTRIBUTES, share, nil, windows.OPEN_EXISTING, flags, 0)
	if err != nil {
		return 0, err
	}
	defer windows.CloseHandle(handle)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(handle, &info); err != nil {
		return 0, err
	}
	return uint64(info.NumberOfLinks), nil
}
