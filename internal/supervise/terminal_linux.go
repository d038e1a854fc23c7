package supervise

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process.
type terminal struct {
	file *os.File
	// group is this process's own process group.
	group int
	// given says that the command has the terminal.
	given bool
	// wanted says that the command shall have it whenever this process's group is in the foreground.
	wanted bool
	// saved are the attributes from when it was given away.
	saved *unix.Termios
}

// openTerminal returns the controlling terminal, or nil if there is none.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: os.NewFile(uintptr(fd), "/dev/tty"), group: unix.Getpgrp()}
}

func (t *terminal) close() {
	if t != nil {
		t.file.Close()
	}
}

func (t *terminal) fd() int { return int(t.file.Fd()) }

// foreground returns the foreground process group, or 0 when there is none any more (the terminal hung up).
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// ours reports whether this process's group is in the foreground.
func (t *terminal) ours() bool { return t.foreground() == t.group }

// save notes the attributes to go back to.
func (t *terminal) save() {
	if attrs, err := unix.IoctlGetTermios(t.fd(), unix.TCGETS); err == nil {
		t.saved = attrs
	}
}

// setForeground makes group the foreground group. The caller may be in the background itself, so SIGTTOU is blocked, on
// this thread alone: ignoring it would be inherited by the command.
func (t *terminal) setForeground(group int) error {
	var err error
	blocking(unix.SIGTTOU, func() { err = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, group) })
	return err
}

// give hands the terminal to the command's group.
func (t *terminal) give(group int) {
	t.save()
	t.given = t.setForeground(group) == nil
	t.wanted = true
}

// takeBack makes this process's group the foreground group again, if the command had the terminal. It does not matter
// which of its groups has it now; only the user's shell, our parent, is not robbed of it.
func (t *terminal) takeBack() {
	if !t.given {
		return
	}
	t.given = false
	now := t.foreground()
	if shell, err := unix.Getpgid(unix.Getppid()); err == nil && now == shell {
		return
	}
	if now != t.group {
		t.setForeground(t.group)
	}
}

// restore puts the saved attributes back, as a shell does after a program that died without doing so itself.
func (t *terminal) restore() {
	if t.saved == nil || !t.ours() {
		return
	}
	blocking(unix.SIGTTOU, func() { unix.IoctlSetTermios(t.fd(), unix.TCSETSW, t.saved) })
}

// blocking runs f on a thread that has sig blocked meanwhile.
func blocking(sig syscall.Signal, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var set, old unix.Sigset_t
	set.Val[0] = 1 << (sig - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) == nil {
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}
	f()
}

// raiseInGroup makes this process's whole group feel sig by its default action. It returns only if this process was
// stopped by it and has been continued; with SIGSTOP it may also return just before the stop.
func raiseInGroup(sig syscall.Signal) {
	if sig == unix.SIGSTOP {
		unix.Kill(0, sig)
		return
	}
	old, err := setAction(sig, actionIgnore)
	unix.Kill(0, sig)
	// A signal to the process is taken by any of its threads, at any time: when this one went on after the stop, it
	// could not tell. So the others in the group got it first, and now this very thread takes its own, before the
	// call returns.
	if err == nil {
		setAction(sig, actionDefault)
		defer setAction(sig, old)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unix.Tgkill(unix.Getpid(), unix.Gettid(), sig)
}

// orphaned reports whether nobody is left who could continue this process's group after a stop: POSIX's orphaned process
// group, one in which no member has a parent in another group of the same session. The kernel does not stop such groups
// by SIGTSTP, SIGTTIN or SIGTTOU.
func orphaned(group int) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		member, ok := readStat(pid)
		if !ok || member.group != group {
			continue
		}
		parent, ok := readStat(member.parent)
		if ok && parent.group != group && parent.session == member.session {
			return false
		}
	}
	return true
}

type stat struct {
	parent, group, session int
}

// readStat reads /proc/PID/stat (proc_pid_stat(5)). The command name, in parentheses, may hold anything.
func readStat(pid int) (stat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 4 || fields[0] == "Z" || fields[0] == "X" {
		return stat{}, false
	}
	var s stat
	for i, to := range []*int{&s.parent, &s.group, &s.session} {
		if *to, err = strconv.Atoi(fields[1+i]); err != nil {
			return stat{}, false
		}
	}
	return s, true
}
