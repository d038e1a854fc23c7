//go:build vm

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filter is a seccomp filter, see seccomp(2): one system call fails, or is answered by this process.
type filter struct {
	nr  uint32
	arg uint32 // the first argument for which it fails
	// errno is what the call fails with.
	errno unix.Errno
	// of32Bit: instead of one call, all those that 32-bit programs make.
	of32Bit bool
	// mountinfo makes what is read from the mount table of what the kernel says, nil a failure. Set instead of errno.
	mountinfo func([]byte) []byte
}

// install filters what the calling thread and its children do. It gives a function to call after they have ended.
func (f *filter) install(t *testing.T) (stop func()) {
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: equal, K: f.nr, Jf: 3},
		{Code: load, K: 16}, // the lower half of args[0]
		{Code: equal, K: f.arg, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(f.errno)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	if f.of32Bit {
		program = []unix.SockFilter{
			{Code: load, K: 4}, // seccomp_data.arch
			{Code: equal, K: unix.AUDIT_ARCH_I386, Jf: 1},
			{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(f.errno)},
			{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		}
	}
	flags := uintptr(0)
	if f.mountinfo != nil {
		program = []unix.SockFilter{
			{Code: load, K: 0},
			{Code: equal, K: f.nr, Jf: 1},
			{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF},
			{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		}
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&list)))
	runtime.KeepAlive(program)
	if errno != 0 {
		t.Errorf("install filter: %v", errno)
		return func() {}
	}
	if f.mountinfo == nil {
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for f.serve(int(listener)) {
		}
	}()
	return func() {
		// The listener hangs up when the last filtered thread ends, and this one is about to.
		go func() {
			<-ended
			unix.Close(int(listener))
		}()
	}
}

// serve answers one call.
func (f *filter) serve(listener int) bool {
	poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, -1); err == unix.EINTR {
		return true
	} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
		return false
	}
	var call struct { // struct seccomp_notif, linux/seccomp.h
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	if !control(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)) {
		return true // it was interrupted
	}
	answer := struct { // struct seccomp_notif_resp
		id    uint64
		value int64
		err   int32
		flags uint32
	}{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", call.pid, int32(call.args[0])))
	if err == nil && filepath.Base(name) == "mountinfo" {
		answer.flags = 0
		answer.value, answer.err = f.read(int(call.pid), int(int32(call.args[0])), call.args[1], call.args[2])
	}
	control(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	return true
}

// read answers a read(2) of the mount table: all at once, and then its end. The position is the caller's own.
func (f *filter) read(pid, fd int, buf, size uint64) (int64, int32) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return 0, -int32(unix.EIO)
	}
	if text = f.mountinfo(text); text == nil {
		return 0, -int32(unix.EIO)
	}
	process, err := unix.PidfdOpen(leader(pid), 0)
	if err != nil {
		return 0, -int32(unix.EIO)
	}
	defer unix.Close(process)
	file, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return 0, -int32(unix.EIO)
	}
	defer unix.Close(file)
	at, err := unix.Seek(file, 0, unix.SEEK_CUR)
	if err != nil || at >= int64(len(text)) {
		return 0, 0
	}
	n := min(size, uint64(int64(len(text))-at))
	if n == 0 {
		return 0, 0
	}
	local := []unix.Iovec{{Base: &text[at], Len: n}}
	remote := []unix.RemoteIovec{{Base: uintptr(buf), Len: int(n)}}
	written, err := unix.ProcessVMWritev(pid, local, remote, 0)
	if err != nil {
		return 0, -int32(unix.EIO)
	}
	unix.Seek(file, at+int64(written), unix.SEEK_SET)
	return int64(written), 0
}

func control(fd int, request uintptr, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno == 0
}

// leader is the process that a thread belongs to.
func leader(thread int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return -1
	}
	_, after, _ := bytes.Cut(text, []byte("\nTgid:"))
	var pid int
	fmt.Sscan(string(after), &pid)
	return pid
}
