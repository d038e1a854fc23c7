package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// killWait bounds the wait for processes that got SIGKILL. One that is stuck in the kernel (an NFS server gone, a
// broken disk) cannot be waited for without end.
const killWait = 10 * time.Second

// Populated reports whether a process that has not ended yet is in the group or below it. Zombies do not count.
func (g *Group) Populated() (bool, error) {
	return populated(g.fd())
}

func populated(dir int) (bool, error) {
	events, err := readFile(dir, "cgroup.events")
	if err != nil {
		if gone(err) {
			return false, nil
		}
		return false, err
	}
	return slices.Contains(strings.Split(events, "\n"), "populated 1"), nil
}

// gone tells the errors by which a removed cgroup answers.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

// Processes returns the ids of the processes in the group and below it, without order. Processes that this process's
// pid namespace has no number for are left out.
func (g *Group) Processes() ([]int, error) {
	var pids []int
	err := walk(g.fd(), nil, func(dir int) error {
		procs, err := readFile(dir, "cgroup.procs")
		if err != nil {
			// Of a threaded cgroup the kernel lists no processes (EOPNOTSUPP): they are all listed by its
			// nearest ancestor that is not threaded (cgroups(7)).
			if gone(err) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			return err
		}
		for line := range strings.Lines(procs) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil {
				return fmt.Errorf("read cgroup.procs: %w", err)
			}
			if pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the processes of %s: %w", g.path, err)
	}
	return pids, nil
}

// Signal sends sigs in turn to every process that is in the group or below it now. It does not reach a process that is
// started meanwhile, and none outside even if a number is used anew: a pidfd is taken first, and only a process seen in
// the group afterwards is signalled through it.
func (g *Group) Signal(sigs ...unix.Signal) error {
	pids, err := g.Processes()
	if err != nil {
		return err
	}
	fds := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var errs []error
	for _, pid := range pids {
		if fds[pid] != 0 {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			fds[pid] = fd
		} else if err != unix.ESRCH {
			errs = append(errs, fmt.Errorf("open process %d: %w", pid, err))
		}
	}
	pids, err = g.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		fd, ok := fds[pid]
		if !ok {
			continue
		}
		for _, sig := range sigs {
			if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
				errs = append(errs, fmt.Errorf("send %v to process %d: %w", unix.SignalName(sig), pid, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Kill kills every process in the group and below it, also those that are being started at the same time (cgroup.kill,
// Linux 5.14). It does not wait for their end.
func (g *Group) Kill() error {
	err := writeFile(g.fd(), "cgroup.kill", "1")
	if err == nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstatat(g.fd(), "cgroup.events", &st, 0) == unix.ENOENT {
		return nil // The cgroup is gone, and with it everything to kill.
	}
	if errors.Is(err, unix.ENOENT) {
		return g.killEach()
	}
	return fmt.Errorf("kill the processes of %s: %w", g.path, err)
}

// killEach is Kill for kernels before 5.14. Frozen processes cannot start others, and SIGKILL ends them all the same,
// so that freezing first makes it safe against those that multiply.
func (g *Group) killEach() error {
	if err := writeFile(g.fd(), "cgroup.freeze", "1"); err != nil && !gone(err) {
		return err
	}
	deadline := time.Now().Add(killWait)
	for {
		if err := g.Signal(unix.SIGKILL); err != nil {
			return err
		}
		left, err := g.waitEmpty(100*time.Millisecond, nil)
		if !left || err != nil || time.Now().After(deadline) {
			writeFile(g.fd(), "cgroup.freeze", "0")
			return err
		}
	}
}

// LeftError says that processes of a cgroup did not end although they were killed.
type LeftError struct {
	Path string
	Pids []int
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("empty cgroup %s: processes %v do not end (stuck in the kernel?)", e.Path, e.Pids)
}

// End ends every process in the group and below it: SIGTERM (and SIGCONT, so that stopped ones can act on it), and
// SIGKILL for those left after the grace time. A receive from hurry, which may be nil, or its being closed ends the
// grace time early. End returns when all have ended; a [*LeftError] when some do not even after SIGKILL.
func (g *Group) End(grace time.Duration, hurry <-chan struct{}) error {
	left, err := g.Populated()
	if err == nil && left && grace > 0 {
		// Not being able to ask politely must not keep us from killing.
		g.Signal(unix.SIGTERM, unix.SIGCONT)
		left, err = g.waitEmpty(grace, hurry)
	}
	if err != nil || !left {
		return err
	}
	if err := g.Kill(); err != nil {
		return err
	}
	left, err = g.waitEmpty(killWait, nil)
	if err != nil || !left {
		return err
	}
	pids, err := g.Processes()
	return errors.Join(&LeftError{g.path, pids}, err)
}

// waitEmpty waits until the group is not populated, the time is over or hurry answers, and reports whether something is
// left.
func (g *Group) waitEmpty(limit time.Duration, hurry <-chan struct{}) (left bool, err error) {
	fd, err := unix.Openat(g.fd(), "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		if gone(err) {
			return false, nil
		}
		return true, pathError("open", g.path+"/cgroup.events", err)
	}
	defer unix.Close(fd)
	var buf [256]byte
	deadline := time.Now().Add(limit)
	for {
		// kernfs wakes a poll(2) for a change after the last read through the same descriptor. An end is seen
		// at once by that; the slice is only how soon hurry is seen.
		n, err := unix.Pread(fd, buf[:], 0)
		if err != nil {
			if gone(err) {
				return false, nil
			}
			return true, pathError("read", g.path+"/cgroup.events", err)
		}
		if !slices.Contains(strings.Split(string(buf[:n]), "\n"), "populated 1") {
			return false, nil
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			return true, nil
		}
		select {
		case <-hurry:
			return true, nil
		default:
		}
		const slice = 20 * time.Millisecond
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, int(min(rest, slice)/time.Millisecond)+1)
	}
}
