package supervise

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Grace is how long what has got SIGTERM may take to end before it is killed.
const Grace = 2 * time.Second

// Result says how the command ended.
type Result struct {
	// Code is what thenforce run exits with: the command's own exit code, 128+n when signal n ended it. After
	// Timeout it is 143 (128+SIGTERM), or 137 when it took SIGKILL, whatever the command itself answered: a run
	// that was cut off never looks like success.
	Code int
	// Signal is the signal that killed the command, 0 if it exited.
	Signal syscall.Signal
	// TimedOut says that Timeout was over before the command had ended.
	TimedOut bool
	// Terminal says that the command had the terminal when it ended.
	Terminal bool
}

// Exit ends this process as the command ended, for the caller that has nothing left to do. It is os.Exit(r.Code), but
// for a command that was killed from the terminal by Ctrl-C or Ctrl-\: then this process's group gets that signal. The
// terminal would have sent it there, had the command not had a group of its own, and a shell script or loop that
// thenforce run is a part of only ends by it. A shell sees the same status, 128+n, in both cases.
func (r Result) Exit() {
	if r.Terminal && (r.Signal == unix.SIGINT || r.Signal == unix.SIGQUIT) {
		// No core file: it would be of this process and of no use.
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
		raiseInGroup(r.Signal)
	}
	os.Exit(r.Code)
}

// Wait waits for the command's end, passing on signals and the terminal meanwhile, then ends whatever else is in the
// cgroup and removes the cgroups below it. It must be called, once. With an error about what could not be cleaned up
// the Result is still right.
func (p *Process) Wait() (Result, error) {
	defer p.release()
	status, timedOut, err := p.watch()
	close(p.ended)
	if err != nil {
		return Result{Code: 125}, errors.Join(err, p.sweep(0))
	}
	r := Result{Code: status.ExitStatus(), TimedOut: timedOut != 0}
	if status.Signaled() {
		r.Signal = status.Signal()
		r.Code = 128 + int(r.Signal)
	}
	if timedOut != 0 {
		r.Code = 128 + int(timedOut)
	}
	if p.tty != nil {
		r.Terminal = p.tty.given
		p.tty.takeBack()
		if status.Signaled() {
			p.tty.restore()
		}
	}
	return r, p.sweep(Grace)
}

// release gives back what the supervision needed in this process.
func (p *Process) release() {
	p.tty.close()
	if p.own {
		p.signals.Stop()
	}
}

// sweep ends what is left in the cgroup and removes the cgroups below it.
func (p *Process) sweep(grace time.Duration) error {
	if p.cgroup == nil {
		return nil
	}
	hurry, done := p.signals.hurry()
	defer done()
	if err := p.cgroup.End(grace, hurry); err != nil {
		return err
	}
	return p.cgroup.RemoveChildren()
}

// watch returns the command's status when it has ended, and the last signal that was sent because of the timeout.
//
// All signals to the command are sent from here, and it is reaped here, so none is ever sent to another process that
// has got its number.
func (p *Process) watch() (status unix.WaitStatus, timedOut unix.Signal, err error) {
	changed, next := make(chan error), make(chan bool)
	go p.notice(changed, next)
	var timeout <-chan time.Time
	if p.timeout > 0 {
		timeout = time.After(p.timeout)
	}
	for {
		select {
		case sig := <-p.signals.ch:
			p.forward(sig.(syscall.Signal))
		case <-timeout:
			if timedOut == 0 {
				timedOut, timeout = unix.SIGTERM, time.After(Grace)
				p.signalGroup(unix.SIGTERM)
				p.signalGroup(unix.SIGCONT)
				continue
			}
			timedOut, timeout = unix.SIGKILL, nil
			if err := p.kill(); err != nil {
				return 0, timedOut, err
			}
		case err := <-changed:
			if err != nil {
				return 0, timedOut, fmt.Errorf("wait for the command: %w", err)
			}
			pid, err := unix.Wait4(p.pid, &status, unix.WNOHANG|p.stopFlag(unix.WUNTRACED), nil)
			if err != nil && err != unix.EINTR {
				return 0, timedOut, fmt.Errorf("wait for the command: %w", err)
			}
			if pid == p.pid && !status.Stopped() {
				next <- false
				return status, timedOut, nil
			}
			if pid == p.pid {
				p.stopped(status.StopSignal())
			}
			next <- true
		}
	}
}

// notice reports on changed each time the command has ended or, on a terminal, stopped, without reaping it, and goes on
// when next says so.
func (p *Process) notice(changed chan<- error, next <-chan bool) {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT|p.stopFlag(unix.WSTOPPED), nil)
		if err == unix.EINTR {
			continue
		}
		changed <- err
		if err != nil || !<-next {
			return
		}
	}
}

// stopFlag returns flag if stops are to be noticed: without a terminal there is no job control, and a command that
// someone stops by a signal is no matter of ours.
func (p *Process) stopFlag(flag int) int {
	if p.tty == nil {
		return 0
	}
	return flag
}

// kill kills everything in the cgroup, or the command's group if there is none.
func (p *Process) kill() error {
	if p.cgroup == nil {
		p.signalGroup(unix.SIGKILL)
		return nil
	}
	return p.cgroup.Kill()
}

// forward passes on a signal that this process got.
func (p *Process) forward(sig syscall.Signal) {
	if sig == unix.SIGCONT && p.tty != nil {
		// A shell that continues this process's group in the foreground has given it the terminal before.
		p.tty.given = false
		if p.tty.wanted && p.tty.ours() {
			p.tty.give(p.pid)
		}
	}
	if slices.Contains(toGroup, os.Signal(sig)) {
		p.signalGroup(sig)
		return
	}
	unix.Kill(p.pid, sig)
}

// signalGroup signals the command's process group, or the command alone if it has left the group and it is empty.
func (p *Process) signalGroup(sig syscall.Signal) {
	if unix.Kill(-p.pid, sig) == unix.ESRCH {
		unix.Kill(p.pid, sig)
	}
}

// stopped is what happens when the command has been stopped by sig.
func (p *Process) stopped(sig syscall.Signal) {
	wantsTerminal := sig == unix.SIGTTIN || sig == unix.SIGTTOU
	if wantsTerminal && p.tty.ours() {
		p.tty.give(p.pid)
		p.signalGroup(unix.SIGCONT)
		return
	}
	if orphaned(p.tty.group) {
		// Nobody would continue us. The kernel does not stop such a group, so we neither stop nor leave the
		// command stopped: SIGTSTP has no effect then. One that waits for a terminal which it can never get
		// is hung up, as the kernel does with a stopped group that becomes orphaned (POSIX, _exit). SIGSTOP
		// comes from someone who will send SIGCONT.
		if wantsTerminal {
			p.signalGroup(unix.SIGHUP)
		}
		if sig != unix.SIGSTOP {
			p.signalGroup(unix.SIGCONT)
		}
		return
	}
	p.tty.takeBack()
	raiseInGroup(sig)
	// The SIGCONT that ended the stop is in the channel and is dealt with by forward.
}
