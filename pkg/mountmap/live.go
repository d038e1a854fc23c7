// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"errors"
	"fmt"
)

var (
	// ErrNotSupported is returned where the system has no mount table that
	// this package can read: everywhere but on Linux. It is also an
	// errors.ErrUnsupported.
	ErrNotSupported = fmt.Errorf("mount table: not supported on this system: %w", errors.ErrUnsupported)

	// ErrUntrusted is returned where what lies at /proc is not proven to be
	// the kernel's procfs, so that anybody may have written what is in it.
	ErrUntrusted = errors.New("procfs is not proven to be the kernel's")

	// ErrUnstable is returned where the table changed during every attempt to
	// read it.
	ErrUnstable = errors.New("mount table changed every time it was read")
)

// Read returns the mount table of the calling thread's namespace, as of now. To
// ask often, use [Live].
//
// The errors are [ErrNotSupported], [ErrUntrusted], [ErrUnstable], a
// [*ParseError], and those of the system as *fs.PathError.
func Read() (*Table, error) {
	l, err := OpenLive()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Table()
}
