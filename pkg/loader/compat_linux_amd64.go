package loader

import "golang.org/x/sys/unix"

// imitates32Bit: a 64-bit program of this architecture can make the system calls of 32-bit ones.
const imitates32Bit = true

func compatSyscall(nr, a, b, c uintptr) (ret uintptr)

// compatIoctl is ioctl(2) as a 32-bit program makes it. A kernel that runs none kills the caller.
func compatIoctl(fd int, cmd uint32) unix.Errno {
	const ioctl = 54 // arch/x86/entry/syscalls/syscall_32.tbl
	ret := int32(compatSyscall(ioctl, uintptr(fd), uintptr(cmd), 0))
	if ret < 0 {
		return unix.Errno(-ret)
	}
	return 0
}
