//go:build linux && !amd64

package loader

import "golang.org/x/sys/unix"

const imitates32Bit = false

// compatIoctl: this architecture's 32-bit programs cannot be imitated from a 64-bit one.
func compatIoctl(int, uint32) unix.Errno { return unix.ENOSYS }
