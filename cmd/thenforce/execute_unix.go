// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// execute becomes the command, so that signals, terminal and exit status are all its own. It returns only with an
// error.
func execute(path string, args []string) (int, error) {
	return 0, &fs.PathError{Op: "execute", Path: path, Err: syscall.Exec(path, args, os.Environ())}
}
