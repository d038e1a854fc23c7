package loader

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canaryName is the argv[0] that turns a program which imports this package into the canary's child.
const canaryName = "thenforce-canary"

func init() {
	if len(os.Args) > 0 && os.Args[0] == canaryName {
		canaryMain()
	}
}

// Descriptors that a canary's child finds open.
const (
	receiveFD  = 3 // a socket that descriptors come over
	outsideFD  = 4 // a pipe whose reader's owner is outside
	insideFD   = 5 // a pipe whose reader's owner is in the jail
	childFDs   = 6
	aclAccess  = "system.posix_acl_access"
	userXattr  = "user.thenforce"
	noErrno    = unix.Errno(0)
	sysSetattr = 469 // file_setattr(2), Linux 6.17
)

// canaryMain does what it reads, a line each, and answers each with an errno. Words are split at tabs. Everything is
// done on the main thread, which is the one that others know by the process's number.
func canaryMain() {
	runtime.LockOSThread()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(int(perform(strings.Split(in.Text(), "\t"))))
	}
	os.Exit(0)
}

// operations are the words a canary's child knows. Each is one operation, made by the plainest system call.
var operations = map[string]func(args []string) error{
	"ready":     func([]string) error { return nil },
	"path":      func(a []string) error { return withFile(a[0], unix.O_PATH, func(int) error { return nil }) },
	"open":      func(a []string) error { return withFile(a[0], unix.O_RDONLY, func(int) error { return nil }) },
	"fork":      func([]string) error { return fork() },
	"elsewhere": func(a []string) error { return elsewhere(a[0]) },
	"mknod":     func(a []string) error { return unix.Mknod(a[0], unix.S_IFREG|0o600, 0) },
	"mkdir":     func(a []string) error { return unix.Mkdir(a[0], 0o700) },
	"symlink":   func(a []string) error { return unix.Symlink("target", a[0]) },
	"unlink":    func(a []string) error { return unix.Unlink(a[0]) },
	"rmdir":     func(a []string) error { return unix.Rmdir(a[0]) },
	"link":      func(a []string) error { return unix.Link(a[0], a[1]) },
	"rename":    func(a []string) error { return unix.Rename(a[0], a[1]) },
	"exchange": func(a []string) error {
		return unix.Renameat2(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], unix.RENAME_EXCHANGE)
	},
	"truncate": func(a []string) error { return unix.Truncate(a[0], 0) },
	"chmod":    func(a []string) error { return unix.Chmod(a[0], 0o640) },
	"chown":    func(a []string) error { return unix.Chown(a[0], os.Getuid(), os.Getgid()) },
	"utimes": func(a []string) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, a[0], []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0)
	},
	"setxattr":    func(a []string) error { return unix.Setxattr(a[0], userXattr, []byte("x"), 0) },
	"removexattr": func(a []string) error { return unix.Removexattr(a[0], userXattr) },
	"setacl":      func(a []string) error { return unix.Setxattr(a[0], aclAccess, minimalACL(), 0) },
	"removeacl":   func(a []string) error { return unix.Removexattr(a[0], aclAccess) },
	"filesetattr": func(a []string) error { return fileSetattr(a[0]) },
	"ioctl": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error {
			var room [64]byte
			return call(unix.SYS_IOCTL, uintptr(fd), number(a[1]), uintptr(unsafe.Pointer(&room)))
		})
	},
	"compat": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error { return orNil(compatIoctl(fd, uint32(number(a[1])))) })
	},
	"setown": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error {
			pid := int(number(a[1]))
			if pid == 0 {
				pid = os.Getpid()
			}
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, pid)
			return err
		})
	},
	"receive": func([]string) error { return receive(receiveFD) },
	"mapexec": func(a []string) error {
		return withMapping(a[0], unix.PROT_READ|unix.PROT_EXEC, func([]byte) error { return nil })
	},
	"protect": func(a []string) error {
		return withMapping(a[0], unix.PROT_READ, func(m []byte) error { return unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC) })
	},
	"pty": func([]string) error { return ownTerminal() },
	"type": func([]string) error { // into a terminal, for others to read
		return withFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, func(fd int) error {
			letter := byte('x')
			return call(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&letter)))
		})
	},
	"watch":  func(a []string) error { return watch(a[0]) },
	"mount":  func(a []string) error { return unix.Mount("none", a[0], "tmpfs", 0, "size=64k") },
	"chroot": func(a []string) error { return unix.Chroot(a[0]) },
	"trace": func(a []string) error {
		_, err := os.Readlink("/proc/" + a[0] + "/exe")
		return err
	},
	"traceme": func([]string) error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0) },
	"kill":    func(a []string) error { return unix.Kill(int(number(a[0])), 0) },
	"setpgid": func(a []string) error { return unix.Setpgid(0, int(number(a[0]))) },
	"lease": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
			return err
		})
	},
	"sigio": func(a []string) error {
		_, err := unix.Write(int(number(a[0])), []byte{0})
		return err
	},
	"setrlimit": func(a []string) error {
		var now unix.Rlimit
		pid := int(number(a[0]))
		if err := unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &now); err != nil {
			return err
		}
		return unix.Prlimit(pid, unix.RLIMIT_CORE, &now, nil)
	},
	"setnice": func(a []string) error { return unix.Setpriority(unix.PRIO_PROCESS, int(number(a[0])), 0) },
	"setscheduler": func(a []string) error {
		var param int32
		return call(unix.SYS_SCHED_SETSCHEDULER, number(a[0]), 0, uintptr(unsafe.Pointer(&param)))
	},
	"setioprio": func(a []string) error { return call(unix.SYS_IOPRIO_SET, 1, number(a[0]), 0) },
	"cgroup":    func(a []string) error { return startIn(a[0]) },
	"connect":   func(a []string) error { return connect(a[0]) },
	"send":      func(a []string) error { return send(a[0]) },
	"bpf": func([]string) error {
		var attr [128]byte
		return call(unix.SYS_BPF, unix.BPF_PROG_GET_NEXT_ID, uintptr(unsafe.Pointer(&attr)), 12)
	},
	"perf": func([]string) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0, Config: unix.PERF_COUNT_SW_DUMMY}
		fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"family": func([]string) error { return call(unix.SYS_SOCKET, 18, unix.SOCK_STREAM, 0) }, // AF_ASH, which never was
	"hostname": func([]string) error {
		var uts unix.Utsname
		if err := unix.Uname(&uts); err != nil {
			return err
		}
		return unix.Sethostname([]byte(unix.ByteSliceToString(uts.Nodename[:])))
	},
	"personality": func([]string) error { return ringWithPersonality() },

	// In a user namespace, where the process may mount: made ready outside the jail, tried inside.
	"setup":  func(a []string) error { return setUpMounts(a[0]) },
	"pivot":  func(a []string) error { return unix.PivotRoot(a[0], a[0]) },
	"umount": func(a []string) error { return unix.Unmount(a[0], unix.MNT_DETACH) },
	"remount": func(a []string) error {
		fd, err := unix.Fspick(unix.AT_FDCWD, a[0], 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.FsconfigReconfigure(fd)
	},
	"kernmount": func([]string) error {
		context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(context)
		if err := unix.FsconfigCreate(context); err != nil {
			return err
		}
		fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"parameter": func([]string) error {
		context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(context)
		return unix.FsconfigSetString(context, "size", "64k")
	},
	"movemount": func(a []string) error {
		return unix.MoveMount(detached, "", unix.AT_FDCWD, a[0], unix.MOVE_MOUNT_F_EMPTY_PATH)
	},
}

func perform(words []string) unix.Errno {
	operation, ok := operations[words[0]]
	if !ok {
		return unix.ENOSYS
	}
	args := append(words[1:], "", "") // what a caller left out is empty
	var errno unix.Errno
	if err := operation(args); err != nil && !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}

// fork starts this program once more, which ends at once: its standard input is empty.
func fork() error {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{canaryName}, nil)
	if err != nil {
		return err
	}
	_, err = unix.Wait4(pid, nil, 0, nil)
	return err
}

// elsewhere opens a file on a thread that this process starts for it. The main thread is taken, so it is another one.
func elsewhere(path string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		done <- withFile(path, unix.O_RDONLY, func(int) error { return nil })
	}()
	return <-done
}

func number(text string) uintptr {
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0
	}
	return uintptr(n)
}

func orNil(errno unix.Errno) error {
	if errno == noErrno {
		return nil
	}
	return errno
}

func call(nr, a, b, c uintptr) error {
	_, _, errno := unix.Syscall(nr, a, b, c)
	return orNil(errno)
}

func call6(nr, a, b, c, d, e, f uintptr) error {
	_, _, errno := unix.Syscall6(nr, a, b, c, d, e, f)
	return orNil(errno)
}

func withFile(path string, flags int, use func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return use(fd)
}

func withMapping(path string, prot int, use func([]byte) error) error {
	return withFile(path, unix.O_RDONLY, func(fd int) error {
		m, err := unix.Mmap(fd, 0, 4096, prot, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		defer unix.Munmap(m)
		return use(m)
	})
}

// minimalACL says what mode 0600 says; linux/posix_acl_xattr.h.
func minimalACL() []byte {
	acl := []byte{2, 0, 0, 0}
	for _, entry := range [][2]byte{{0x01, 6}, {0x04, 0}, {0x20, 0}} { // user, group, others
		acl = append(acl, entry[0], 0, entry[1], 0, 0xff, 0xff, 0xff, 0xff)
	}
	return acl
}

func fileSetattr(path string) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	var attr [24]byte // struct file_attr, linux/fs.h
	at := unix.AT_FDCWD
	return call6(sysSetattr, uintptr(at), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&attr)), uintptr(len(attr)), 0, 0)
}

// receive takes a descriptor that is sent over a socket.
func receive(socket int) error {
	data, control := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err == nil && len(fds) > 0 {
			unix.Close(fds[0])
			return nil
		}
	}
	return unix.EACCES // it was dropped
}

// ownTerminal makes a pseudo terminal and opens its slave by name.
func ownTerminal() error {
	return withFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, func(master int) error {
		if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		return withFile(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, func(int) error { return nil })
	})
}

func watch(path string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_MODIFY)
	return err
}

// startIn starts this program once more, in the cgroup at path: by clone3, with a descriptor that never was opened.
func startIn(path string) error {
	return withFile(path, unix.O_PATH|unix.O_DIRECTORY, func(fd int) error {
		pid, err := syscall.ForkExec("/proc/self/exe", []string{canaryName}, &syscall.ProcAttr{
			Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd},
		})
		if err != nil {
			return err
		}
		unix.Kill(pid, unix.SIGKILL)
		_, err = unix.Wait4(pid, nil, 0, nil)
		return err
	})
}

func connect(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

func send(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, []byte{0}, 0, &unix.SockaddrUnix{Name: path})
}

// detached is the mount that setup made and left unattached.
var detached = -1

func setUpMounts(at string) error {
	if err := unix.Mount("none", at, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return err
	}
	detached, err = unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	return err
}

// ringWithPersonality has an io_uring do nothing, with credentials registered before.
func ringWithPersonality() error {
	const (
		registerPersonality          = 9
		offsetRings, offsetEntries   = 0, 0x10000000
		entrySize, entryPersonality  = 64, 42
		sqTail, sqMask, sqArray      = 40 + 4, 40 + 8, 40 + 24 // in struct io_uring_params
		cqHead, cqTail, cqes, getEvt = 80, 80 + 4, 80 + 20, 1
	)
	var params [120]byte
	at := func(offset int) int { return int(*(*uint32)(unsafe.Pointer(&params[offset]))) }
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 2, uintptr(unsafe.Pointer(&params)), 0)
	if errno != noErrno {
		return errno
	}
	defer unix.Close(int(ring))
	rings, err := unix.Mmap(int(ring), offsetRings, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(rings)
	entries, err := unix.Mmap(int(ring), offsetEntries, 2*entrySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(entries)
	id, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, ring, registerPersonality, 0, 0, 0, 0)
	if errno != noErrno {
		return errno
	}
	word := func(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&rings[offset])) }
	*(*uint16)(unsafe.Pointer(&entries[entryPersonality])) = uint16(id)
	*word(at(sqArray)) = 0
	*word(at(sqTail))++
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, ring, 1, 1, getEvt, 0, 0); errno != noErrno {
		return errno
	}
	for range 100 {
		if *word(at(cqHead)) != *word(at(cqTail)) {
			result := *(*int32)(unsafe.Pointer(&rings[at(cqes)+8]))
			if result < 0 {
				return unix.Errno(-result)
			}
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return unix.ETIMEDOUT
}
