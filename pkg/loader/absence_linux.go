package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// absence tells which operations the kernel, as it is set up, has nobody do: bit i is for mayBeAbsent[i]. Their hooks are
// never asked, so nothing can prove them, and they are not required. A proof holds the set, and is good only as long as
// they are still absent.
type absence uint32

// terminalEnd is the function that ends a pseudo terminal.
const terminalEnd = "devpts_pty_kill"

// optional is a hook whose operation a kernel can lack or forbid.
type optional struct {
	hook  string
	find  func() (bool, error) // whether it is absent; nil where only the canary itself can tell
	fixed bool                 // it stays so until the next boot
}

// mayBeAbsent lists them. A proof holds the places: new ones are added at the end.
var mayBeAbsent = [...]optional{
	{hook: "file_ioctl_compat", find: no32Bit, fixed: true},
	{hook: "uring_override_creds", find: noUring},
	{hook: terminalEnd, fixed: true},
}

func absencePlace(hook string) int {
	return slices.IndexFunc(mayBeAbsent[:], func(o optional) bool { return o.hook == hook })
}

func (a absence) has(hook string) bool {
	i := absencePlace(hook)
	return i >= 0 && a>>i&1 != 0
}

func (a *absence) add(hook string) { *a |= 1 << absencePlace(hook) }

// learn finds out whether a hook's operation is absent.
func (a *absence) learn(hook string) error {
	i := absencePlace(hook)
	if i < 0 || mayBeAbsent[i].find == nil {
		return nil
	}
	absent, err := mayBeAbsent[i].find()
	if absent {
		a.add(hook)
	}
	return err
}

// holds reports whether all that was absent still is.
func (a absence) holds() bool {
	for i, o := range mayBeAbsent {
		if a>>i&1 == 0 || o.fixed {
			continue
		}
		if absent, err := o.find(); err != nil || !absent {
			return false
		}
	}
	return true
}

// uringDisabled is 2 where the administrator has forbidden io_uring to everybody; see io_uring_setup(2).
const uringDisabled = "/proc/sys/kernel/io_uring_disabled"

// noUring reports whether nobody can make an io_uring, by asking for one. It is asked only where the hook is attached, and
// a kernel without io_uring has none: if the system call is missing, a seccomp filter has taken it from this process alone.
func noUring() (bool, error) {
	var params [120]byte // struct io_uring_params
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	switch errno {
	case noErrno:
		unix.Close(int(ring))
		return false, nil
	case unix.EPERM:
		text, err := os.ReadFile(uringDisabled)
		if err == nil && strings.TrimSpace(string(text)) == "2" {
			return true, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, fmt.Errorf("make an io_uring: %w", errno)
}

// no32Bit reports whether the kernel runs no 32-bit system calls: it kills who makes one, so another process tries.
func no32Bit() (bool, error) {
	probe, err := startCanary(nil, nil, nil)
	if err != nil {
		return false, err
	}
	errno, err := probe.do([]string{"compat", "/proc/self/exe", "0x541b"})
	ended := probe.stop()
	switch {
	case err == nil:
		if errno == unix.ENOSYS && imitates32Bit {
			return false, errors.Join(errors.New("make a 32-bit system call: a seccomp filter hides them from this process"), ended)
		}
		return !imitates32Bit, ended
	case probe.faulted():
		return true, nil
	}
	return false, errors.Join(err, ended)
}
