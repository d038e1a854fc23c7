package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// InheritDescriptors takes over the n descriptors from 3 on that this process was started with (--preserve-fds) and
// marks all others but 0 to 2 close-on-exec, so that no descriptor reaches the command that was not asked for. It
// belongs at the very start of the program, and is called with 0 when there are none to keep.
//
// The error names the first of the n descriptors that was not inherited; a descriptor that this process has opened
// itself in the meantime is not taken for one.
func InheritDescriptors(n int) ([]*os.File, error) {
	if n < 0 {
		return nil, fmt.Errorf("inherit %d descriptors: %w", n, unix.EINVAL)
	}
	var files []*os.File
	for fd := 3; fd < 3+n; fd++ {
		// Everything that survived the execve(2) of this program lacks close-on-exec, and everything that Go
		// opens has it.
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC != 0 {
			err = unix.EBADF
		}
		if err != nil {
			return nil, fmt.Errorf("inherit descriptors 3 to %d: descriptor %d is not open: %w", 2+n, fd, err)
		}
		files = append(files, os.NewFile(uintptr(fd), "descriptor "+strconv.Itoa(fd)))
	}
	return files, closeOnExec()
}

// closeOnExec marks every descriptor from 3 on. close_range(2) knows the flag since Linux 5.11; seccomp filters that do
// not know the call answer in several ways, so any error leads to the list in /proc.
func closeOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecEach()
}

func closeOnExecEach() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		// The descriptor that the list was read through has been closed since.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && !errors.Is(err, unix.EBADF) {
			return fmt.Errorf("mark descriptor %d close-on-exec: %w", fd, err)
		}
	}
	return nil
}

func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: err}
}
