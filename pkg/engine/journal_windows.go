// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"

	"golang.org/x/sys/windows"
)

const openNoFollow = 0

// canReplaceOpen: a rename may replace a file that is open.
const canReplaceOpen = false

// lock takes the one writer's place, until the file is closed.
func lock(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := raw.Control(func(fd uintptr) {
		// A byte far beyond the content: a lock on Windows also keeps others
		// from reading what it covers.
		at := windows.Overlapped{OffsetHigh: 1 << 30}
		lockErr = windows.LockFileEx(windows.Handle(fd),
			windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	}); err != nil {
		return err
	}
	if lockErr == windows.ERROR_LOCK_VIOLATION || lockErr == windows.ERROR_IO_PENDING {
		return ErrJournalLocked
	}
	return lockErr
}

// syncDir does nothing: NTFS journals the names, and a directory cannot be
// flushed without the privilege to back up.
func syncDir(string) error { return nil }
