// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engine

import (
	"os"

	"golang.org/x/sys/unix"
)

// openNoFollow keeps a link from taking the place of a journal.
const openNoFollow = unix.O_NOFOLLOW

// canReplaceOpen: a rename may replace a file that is open.
const canReplaceOpen = true

// lock takes the one writer's place, until the file is closed.
func lock(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := raw.Control(func(fd uintptr) {
		lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
	}); err != nil {
		return err
	}
	if lockErr == unix.EWOULDBLOCK {
		return ErrJournalLocked
	}
	return lockErr
}

// syncDir makes the names in a directory survive a crash.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
