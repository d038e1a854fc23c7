// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package fallback

import (
	"cmp"
	"os"

	"golang.org/x/sys/unix"
)

// nonblock keeps an open from waiting for the other end of a FIFO.
const nonblock = unix.O_NONBLOCK

// unblock takes nonblock away from an open file.
func unblock(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var fcntlErr error
	err = raw.Control(func(fd uintptr) { fcntlErr = unix.SetNonblock(int(fd), false) })
	return cmp.Or(err, fcntlErr)
}
