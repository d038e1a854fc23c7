//go:build vm

package loader

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Descriptors that the promise's child finds open beside the canary's.
const (
	fanotifyFD = childFDs + iota // a fanotify group made outside, with all its powers
	legacyFD                     // a file outside, opened for reading before the jail was
	cgroupFD                     // the root of the cgroups, O_PATH
)

// Operations that the promise is about and no hook needs for its proof. Only what is built for guests, by the tag vm, has
// them: every program that imports this package then, a test's of another package too. They have to be there before the
// child's main, which runs from an init function: so they are added by a variable's initialisation.
var _ = func() bool {
	addOperations(moreOperations)
	// Words with any byte in them.
	operations["quoted"] = func(a []string) error {
		words, err := unquote(a)
		if err != nil {
			return err
		}
		return operations[words[0]](words[1:])
	}
	operations["uring"] = func(a []string) error { return uring(a[0], a[1], a[2:]) }
	// By a process of its own.
	operations["apart"] = func(a []string) error { // in a mount namespace, which nobody else sees changes of
		return performIn(&syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}, a)
	}
	operations["asuser"] = func(a []string) error { // as root of a user namespace
		self := []syscall.SysProcIDMap{{Size: 1}}
		return performIn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: self, GidMappings: self}, a)
	}
	return true
}()

// addOperations is to be called while variables are initialised.
func addOperations(more map[string]func(a []string) error) bool {
	for name, do := range more {
		if _, ok := operations[name]; ok {
			panic("two operations " + name)
		}
		operations[name] = do
	}
	return true
}

// performIn has a new process do an operation.
func performIn(attr *syscall.SysProcAttr, words []string) error {
	cmd := exec.Cmd{
		Path: "/proc/self/exe", Args: []string{canaryName}, Stdin: strings.NewReader(strings.Join(words, "\t") + "\n"), SysProcAttr: attr,
	}
	answer, err := cmd.Output()
	if err != nil {
		return err
	}
	errno, err := strconv.Atoi(strings.TrimSpace(string(answer)))
	if err != nil {
		return err
	}
	return orNil(unix.Errno(errno))
}

// unquote reads words with the escapes of Go's strings.
func unquote(words []string) ([]string, error) {
	var plain []string
	for _, w := range words {
		w, err := strconv.Unquote(`"` + w + `"`)
		if err != nil {
			return nil, err
		}
		plain = append(plain, w)
	}
	return plain, nil
}

var moreOperations = map[string]func(a []string) error{
	// Opening.
	"openw":     func(a []string) error { return withFile(a[0], unix.O_WRONLY, closed) },
	"openrw":    func(a []string) error { return withFile(a[0], unix.O_RDWR, closed) },
	"append":    func(a []string) error { return withFile(a[0], unix.O_WRONLY|unix.O_APPEND, closed) },
	"opentrunc": func(a []string) error { return withFile(a[0], unix.O_WRONLY|unix.O_TRUNC, closed) },
	"open3":     func(a []string) error { return withFile(a[0], unix.O_ACCMODE, closed) }, // for ioctls only
	"create": func(a []string) error {
		return withNewFile(a[0], unix.O_CREAT|unix.O_WRONLY, closed)
	},
	"tmpfile": func(a []string) error { return withNewFile(a[0], unix.O_TMPFILE|unix.O_RDWR, closed) },
	"write": func(a []string) error {
		return withFile(a[0], unix.O_WRONLY, func(fd int) error {
			_, err := unix.Write(fd, []byte(a[1]))
			return err
		})
	},
	"reopen": func(a []string) error { // a handle, by its name in /proc
		return withHandle(a[0], func(fd string) error { return withFile(fd, unix.O_RDONLY, closed) })
	},
	"below": func(a []string) error { // a directory's handle
		return withFile(a[0], unix.O_PATH, func(dir int) error { return openBelow(dir, a[1]) })
	},
	"handle": func(a []string) error { return openByHandle(a[0], a[1]) },
	"byhandle": func(a []string) error { // a handle that somebody else made, or guessed: its type and its bytes
		bytes, err := hex.DecodeString(a[2])
		if err != nil {
			return err
		}
		return openHandle(a[0], unix.NewFileHandle(int32(number(a[1])), bytes))
	},
	"hold": func(a []string) (err error) {
		held, err = unix.Open(a[0], unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	},
	"openheld": func(a []string) error { return openBelow(held, a[0]) },
	"exec":     func(a []string) error { return execute(a[0]) },
	"fexec":    func(a []string) error { return withHandle(a[0], execute) },
	"execveat": func(a []string) error { // never for what may succeed: it would end the child
		return withFile(a[0], unix.O_PATH, executeFD)
	},
	"memexec": func([]string) error { return executeMemory() },

	// Metadata.
	"stat": func(a []string) error { var st unix.Stat_t; return unix.Stat(a[0], &st) },
	"readlink": func(a []string) error {
		_, err := unix.Readlink(a[0], make([]byte, 4096))
		return err
	},
	"access": func(a []string) error { return unix.Access(a[0], unix.R_OK) },
	"getxattr": func(a []string) error {
		_, err := unix.Getxattr(a[0], userXattr, nil)
		if errors.Is(err, unix.ENODATA) {
			return nil
		}
		return err
	},
	"chdir": func(a []string) error {
		if err := unix.Chdir(a[0]); err != nil {
			return err
		}
		return unix.Chdir("/")
	},

	// Names.
	"mkfifo":     func(a []string) error { return unix.Mkfifo(a[0], 0o600) },
	"mksock":     func(a []string) error { return unix.Mknod(a[0], unix.S_IFSOCK|0o600, 0) },
	"mkchar":     func(a []string) error { return unix.Mknod(a[0], unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) },
	"mkblock":    func(a []string) error { return unix.Mknod(a[0], unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) },
	"bindsocket": func(a []string) error { return withSocket(unix.SOCK_STREAM, a[0], unix.Bind) },
	"linkfd": func(a []string) error { // a handle, by its name in /proc
		return withHandle(a[0], func(fd string) error {
			return unix.Linkat(unix.AT_FDCWD, fd, unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
		})
	},
	"linkhandle": func(a []string) error { // a handle, as such
		return withFile(a[0], unix.O_PATH, func(fd int) error {
			return unix.Linkat(fd, "", unix.AT_FDCWD, a[1], unix.AT_EMPTY_PATH)
		})
	},
	"linkdeleted": func(a []string) error { // made, opened and removed before
		return withNewFile(a[0], unix.O_CREAT|unix.O_RDWR, func(fd int) error {
			if err := unix.Unlink(a[0]); err != nil {
				return err
			}
			return unix.Linkat(unix.AT_FDCWD, selfFD(fd), unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
		})
	},
	"linktmp": func(a []string) error {
		return withNewFile(a[0], unix.O_TMPFILE|unix.O_RDWR, func(fd int) error {
			return unix.Linkat(unix.AT_FDCWD, selfFD(fd), unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
		})
	},
	"whiteout": func(a []string) error {
		return unix.Renameat2(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], unix.RENAME_WHITEOUT)
	},

	// Attributes, otherwise than by path.
	"touch": func(a []string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, a[0], nil, 0) },
	"utimesfd": func(a []string) error {
		return withHandle(a[0], func(fd string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, fd, longAgo, 0) })
	},
	"chmodfd": func(a []string) error {
		return withHandle(a[0], func(fd string) error { return unix.Chmod(fd, 0o640) })
	},
	"lchown":       func(a []string) error { return unix.Lchown(a[0], os.Getuid(), os.Getgid()) },
	"settrusted":   func(a []string) error { return unix.Setxattr(a[0], "trusted.thenforce", []byte("x"), 0) },
	"setcap":       func(a []string) error { return unix.Setxattr(a[0], "security.capability", fileCapability(), 0) },
	"setimmutable": func(a []string) error { return setImmutable(a[0]) },
	"legacychmod":  func([]string) error { return unix.Fchmod(legacyFD, 0o640) },
	"legacychown":  func([]string) error { return unix.Fchown(legacyFD, os.Getuid(), os.Getgid()) },
	"legacyutimes": func([]string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, selfFD(legacyFD), longAgo, 0) },
	"legacyxattr":  func([]string) error { return unix.Fsetxattr(legacyFD, userXattr, []byte("x"), 0) },
	"legacyreopen": func([]string) error { return withFile(selfFD(legacyFD), unix.O_RDWR, closed) },
	"legacymap": func([]string) error {
		_, err := unix.Mmap(legacyFD, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		return err
	},

	// Mounts.
	"bind": func(a []string) error { return unix.Mount(a[0], a[1], "", unix.MS_BIND, "") },
	"remountro": func(a []string) error {
		return unix.Mount("", a[0], "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	},
	"private": func(a []string) error { return unix.Mount("", a[0], "", unix.MS_PRIVATE, "") },
	"unshare": func([]string) error {
		return onOwnThread(func() error { return unix.Unshare(unix.CLONE_NEWNS) })
	},
	"setns": func(a []string) error {
		return withPidfd(a[0], func(fd int) error {
			return onOwnThread(func() error { // a mount namespace takes a thread that shares its root with none
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					return err
				}
				return unix.Setns(fd, unix.CLONE_NEWNS)
			})
		})
	},
	"clonetree": func(a []string) error { return withTree(a[0], closed) },
	"opentree":  func(a []string) error { return withTree(a[0], func(fd int) error { return openBelow(fd, a[1]) }) },
	"mountattr": func(a []string) error {
		return unix.MountSetattr(unix.AT_FDCWD, a[0], 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	},
	"movetree": func(a []string) error {
		return unix.MoveMount(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], 0)
	},

	// Descriptors.
	"fetch": func(a []string) error { // from the process that listens there
		return withSocket(unix.SOCK_STREAM, a[0], func(fd int, to unix.Sockaddr) error {
			if err := unix.SetNonblock(fd, false); err != nil {
				return err
			}
			if err := unix.Connect(fd, to); err != nil {
				return err
			}
			return receive(fd)
		})
	},
	"pidfdget": func(a []string) error {
		return withPidfd(a[0], func(fd int) error {
			got, err := unix.PidfdGetfd(fd, int(number(a[1])), 0)
			if err != nil {
				return err
			}
			return unix.Close(got)
		})
	},

	// Cgroups.
	"join": func(a []string) error {
		return withFile(a[0]+"/cgroup.procs", unix.O_WRONLY, func(fd int) error {
			_, err := unix.Write(fd, []byte("0"))
			return err
		})
	},
	"joinfd": func(a []string) error { // by a descriptor that was open before
		fd, err := unix.Openat(cgroupFD, a[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	},

	// Other processes.
	"attach": func(a []string) error {
		pid := int(number(a[0]))
		if err := unix.PtraceSeize(pid); err != nil {
			return err
		}
		if err := unix.PtraceInterrupt(pid); err != nil {
			return err
		}
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
			return err
		}
		return unix.PtraceDetach(pid)
	},
	"vmread":  func(a []string) error { return otherMemory(a[0], unix.ProcessVMReadv) },
	"vmwrite": func(a []string) error { return otherMemory(a[0], unix.ProcessVMWritev) },
	"advise": func(a []string) error {
		return withPidfd(a[0], func(fd int) error {
			iov := unix.Iovec{Base: &spot[-uintptr(unsafe.Pointer(&spot))%4096], Len: 4096}
			return call6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_COLD, 0, 0)
		})
	},
	"kcmp":      func(a []string) error { return call6(unix.SYS_KCMP, number(a[0]), number(a[0]), 2, 0, 0, 0) },
	"movepages": func(a []string) error { return call6(unix.SYS_MIGRATE_PAGES, number(a[0]), 0, 0, 0, 0, 0) },
	"signal":    func(a []string) error { return unix.Kill(int(number(a[0])), unix.Signal(number(a[1]))) },
	"tgkill": func(a []string) error {
		return unix.Tgkill(int(number(a[0])), int(number(a[0])), unix.Signal(number(a[1])))
	},
	"sigqueue": func(a []string) error {
		info := [128]byte{}
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		return call(unix.SYS_RT_SIGQUEUEINFO, number(a[0]), number(a[1]), uintptr(unsafe.Pointer(&info)))
	},
	"pidfdsignal": func(a []string) error {
		return withPidfd(a[0], func(fd int) error { return unix.PidfdSendSignal(fd, unix.Signal(number(a[1])), nil, 0) })
	},
	"setownex": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error {
			owner := [2]int32{1, int32(number(a[1]))} // F_OWNER_PID
			return call(unix.SYS_FCNTL, uintptr(fd), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
		})
	},
	"signalby": func(a []string) error { // by the kernel, which is to tell of what comes through a FIFO
		return withFile(a[0], unix.O_RDWR, func(fd int) error {
			for _, set := range [][2]int{{unix.F_SETOWN, int(number(a[1]))}, {unix.F_SETSIG, int(number(a[2]))}, {unix.F_SETFL, unix.O_ASYNC}} {
				if _, err := unix.FcntlInt(uintptr(fd), set[0], set[1]); err != nil {
					return err
				}
			}
			_, err := unix.Write(fd, []byte{0})
			return err
		})
	},
	"renice": func(a []string) error { return unix.Setpriority(unix.PRIO_PROCESS, int(number(a[0])), 5) },
	"affinity": func(a []string) error {
		var set unix.CPUSet
		set.Set(0)
		return unix.SchedSetaffinity(int(number(a[0])), &set)
	},
	"schedattr": func(a []string) error {
		return unix.SchedSetAttr(int(number(a[0])), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}, 0)
	},
	"limitfiles": func(a []string) error {
		return unix.Prlimit(int(number(a[0])), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 7, Max: 7}, nil)
	},
	"crash": func([]string) error { // leaves a core file, if it can
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
			return err
		}
		panic("on purpose")
	},
	"dump": func(a []string) error { return dumpIn(a[0]) },

	// Sockets.
	"listen": func(a []string) error { return listenAs(a[0], a[1]) },
	"dial": func(a []string) error {
		return withSocket(socketKinds[a[0]], a[1], unix.Connect)
	},
	"sendto": func(a []string) error {
		return withSocket(unix.SOCK_DGRAM, a[0], func(fd int, to unix.Sockaddr) error { return unix.Sendto(fd, []byte{0}, 0, to) })
	},

	// Watching.
	"fanmark": func(a []string) error {
		flags := map[string]uint{"inode": 0, "mount": unix.FAN_MARK_MOUNT, "filesystem": unix.FAN_MARK_FILESYSTEM}[a[0]]
		if err := unix.FanotifyMark(fanotifyFD, unix.FAN_MARK_ADD|flags, unix.FAN_OPEN, unix.AT_FDCWD, a[1]); err != nil {
			return err
		}
		return unix.FanotifyMark(fanotifyFD, unix.FAN_MARK_REMOVE|flags, unix.FAN_OPEN, unix.AT_FDCWD, a[1])
	},
	"fanwatch": func(a []string) error { // a whole file system, by a group of one's own
		fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, a[0])
	},
	"dnotify": func(a []string) error {
		return withFile(a[0], unix.O_RDONLY, func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_NOTIFY, 2) // DN_MODIFY
			return err
		})
	},

	// Terminals.
	"compattype": func([]string) error { // as a 32-bit program
		return withFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, func(fd int) error {
			return orNil(compatIoctl(fd, unix.TIOCSTI))
		})
	},
	"ttyioctl": func(a []string) error {
		return withFile("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, func(fd int) error {
			var room [64]byte
			return call(unix.SYS_IOCTL, uintptr(fd), number(a[0]), uintptr(unsafe.Pointer(&room)))
		})
	},

	// The machine.
	"bpfget": func(a []string) error {
		name, err := unix.BytePtrFromString(a[0])
		if err != nil {
			return err
		}
		attr := [128]byte{}
		*(*uint64)(unsafe.Pointer(&attr)) = uint64(uintptr(unsafe.Pointer(name)))
		return call(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&attr)), uintptr(len(attr)))
	},
	"bpfmap": func([]string) error {
		attr := [128]byte{}
		copy(attr[:], []byte{unix.BPF_MAP_TYPE_ARRAY, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0})
		return call(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), uintptr(len(attr)))
	},
	"loadmodule": func([]string) error {
		fd, err := unix.MemfdCreate("module", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.FinitModule(fd, "", 0)
	},
	"initmodule":   func([]string) error { return unix.InitModule(make([]byte, 64), "") },
	"deletemodule": func([]string) error { return unix.DeleteModule("thenforce_none", 0) },
	"kexec":        func([]string) error { return call6(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0, 0, 0) },
	"kexecfile":    func([]string) error { return unix.KexecFileLoad(-1, -1, "", 0) },
	"reboot":       func([]string) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"swapon":       func(a []string) error { return onPath(unix.SYS_SWAPON, a[0]) },
	"swapoff":      func(a []string) error { return onPath(unix.SYS_SWAPOFF, a[0]) },
	"acct":         func(a []string) error { return unix.Acct(a[0]) },
	"settime": func([]string) error {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		return call(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&now)), 0)
	},
	"slewtime": func([]string) error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_FREQUENCY})
		return err
	},
	"iopl":     func([]string) error { return unix.Iopl(3) },
	"ioperm":   func([]string) error { return unix.Ioperm(0x80, 1, 1) },
	"vhangup":  func([]string) error { return call(unix.SYS_VHANGUP, 0, 0, 0) },
	"domain":   func([]string) error { return unix.Setdomainname([]byte("thenforce")) },
	"quotaoff": func(a []string) error { return withFile(a[0], unix.O_RDONLY, quotaOff) },
}

var (
	closed  = func(int) error { return nil } // a use that is none
	longAgo = []unix.Timespec{{Sec: 1}, {Sec: 1}}
	held    = -1
	// spot lies at the same address in every process of this program.
	spot [8192]byte

	socketKinds = map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM, "packet": unix.SOCK_SEQPACKET}
)

func selfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func withNewFile(path string, flags int, use func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return use(fd)
}

// withHandle gives the name in /proc of a descriptor that was never judged.
func withHandle(path string, use func(name string) error) error {
	return withFile(path, unix.O_PATH, func(fd int) error { return use(selfFD(fd)) })
}

func openBelow(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func openByHandle(mount, path string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	if err != nil {
		return err
	}
	return openHandle(mount, handle)
}

func openHandle(mount string, handle unix.FileHandle) error {
	return withFile(mount, unix.O_RDONLY, func(dir int) error {
		fd, err := unix.OpenByHandleAt(dir, handle, unix.O_RDONLY|unix.O_CLOEXEC)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func onOwnThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		done <- do()
	}()
	return <-done
}

func execute(path string) error {
	pid, err := syscall.ForkExec(path, []string{"program"}, nil)
	if err != nil {
		return err
	}
	_, err = unix.Wait4(pid, nil, 0, nil)
	return err
}

func executeFD(fd int) error {
	empty := [1]byte{}
	argv := [2]*byte{&empty[0]}
	return call6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty)), uintptr(unsafe.Pointer(&argv)), 0, unix.AT_EMPTY_PATH, 0)
}

func executeMemory() error {
	fd, err := unix.MemfdCreate("program", 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, tinyProgram()); err != nil {
		return err
	}
	return withHandle(selfFD(fd), execute) // what is open for writing cannot be executed, so by another descriptor
}

// tinyProgram is the smallest program for amd64 that ends with status 0.
func tinyProgram() []byte {
	const base, head = 0x400000, 64 + 56
	code := []byte{0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05} // mov eax, 60 (exit); xor edi, edi; syscall
	var b bytes.Buffer
	word := func(size int, v uint64) {
		for range size {
			b.WriteByte(byte(v))
			v >>= 8
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	for _, f := range [][2]uint64{{2, 2}, {2, 62}, {4, 1}, {8, base + head}, {8, 64}, {8, 0}, {4, 0}, {2, 64}, {2, 56}, {2, 1}, {2, 0}, {2, 0}, {2, 0}} {
		word(int(f[0]), f[1])
	}
	size := uint64(head + len(code))
	for _, f := range [][2]uint64{{4, 1}, {4, 5}, {8, 0}, {8, base}, {8, base}, {8, size}, {8, size}, {8, 4096}} {
		word(int(f[0]), f[1])
	}
	b.Write(code)
	return b.Bytes()
}

// fileCapability is CAP_NET_RAW, permitted and effective; linux/capability.h, VFS_CAP_REVISION_2.
func fileCapability() []byte {
	return []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
}

func setImmutable(path string) error {
	return withFile(path, unix.O_RDONLY, func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0x10) })
}

func withPidfd(pid string, use func(fd int) error) error {
	fd, err := unix.PidfdOpen(int(number(pid)), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return use(fd)
}

func withTree(path string, use func(fd int) error) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return use(fd)
}

func otherMemory(pid string, move func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	data := make([]byte, 1)
	_, err := move(int(number(pid)), []unix.Iovec{{Base: &data[0], Len: 1}},
		[]unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&spot)), Len: 1}}, 0)
	return err
}

// dumpIn has a process that starts in dir crash: success means that there was a core.
func dumpIn(dir string) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	fmt.Fprintln(out, "crash")
	out.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{canaryName}, &syscall.ProcAttr{
		Dir: dir, Env: []string{"GOTRACEBACK=crash"}, Files: []uintptr{in.Fd()},
	})
	if err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	if !status.CoreDump() {
		return unix.EACCES
	}
	return nil
}

// withSocket takes a path, or an abstract name after @.
func withSocket(kind int, to string, use func(int, unix.Sockaddr) error) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return use(fd, &unix.SockaddrUnix{Name: to})
}

// listenAs leaves a socket that nobody serves until the process ends.
func listenAs(kind, name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, socketKinds[kind]|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return err
	}
	if kind == "datagram" {
		return nil
	}
	return unix.Listen(fd, 64)
}

func onPath(nr uintptr, path string) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	return call(nr, uintptr(unsafe.Pointer(name)), 0, 0)
}

func quotaOff(fd int) error {
	const quotaOff = 0x800003 << 8 // Q_QUOTAOFF, linux/quota.h
	return call6(unix.SYS_QUOTACTL_FD, uintptr(fd), quotaOff, 0, 0, 0, 0)
}
