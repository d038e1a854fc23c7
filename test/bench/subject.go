//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// One operation is measured as the least of many rounds, for a timer's tick falls into some: they are so short that at depth 33
// half of them have none.
const perRound = 100

// subject is the process that is measured: it is put into a jail, or puts itself under Landlock, and then performs what
// its standard input names, one operation a line, and answers with what one of them cost.
func subject(rounds int, in io.Reader, out io.Writer) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // the collector's threads would count
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		cost, err := perform(strings.Fields(lines.Text()), rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if _, err := fmt.Fprintln(out, cost); err != nil {
			return err
		}
	}
	return lines.Err()
}

func perform(words []string, rounds int) (int64, error) {
	if len(words) < 2 {
		return 0, errors.New("an operation and a path were expected")
	}
	path := words[1]
	switch words[0] {
	case "landlock":
		// Linux 6.1 has the second version. That something is denied at all is seen by the denied open.
		return 0, landlock.V3.BestEffort().RestrictPaths(landlock.RWDirs(path).WithRefer(), landlock.RODirs(programs))
	case "open":
		return least(rounds, perRound, func() error { return openClose(path, unix.O_RDONLY) })
	case "first":
		return leastOfFirst(10*rounds, path)
	case "denied":
		return least(rounds, perRound, func() error {
			if err := openClose(path, unix.O_RDONLY); err != unix.EACCES {
				return fmt.Errorf("not denied: %v", err)
			}
			return nil
		})
	case "stat":
		var st unix.Stat_t
		return least(rounds, perRound, func() error { return unix.Stat(path, &st) })
	case "create":
		return least((rounds+3)/4, perRound, func() error {
			if err := openClose(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY); err != nil {
				return err
			}
			return unix.Unlink(path)
		})
	case "rename":
		other := path + "-renamed"
		pair, err := least((rounds+3)/4, perRound, func() error {
			if err := unix.Rename(path, other); err != nil {
				return err
			}
			return unix.Rename(other, path)
		})
		return pair / 2, err
	case "exec":
		attr := &syscall.ProcAttr{Files: []uintptr{0, 1, 2}}
		return least(rounds, 1, func() error {
			pid, err := syscall.ForkExec(path, words[1:], attr)
			if err != nil {
				return err
			}
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
				return fmt.Errorf("wait status %#x, %v", status, err)
			}
			return nil
		})
	default:
		return 0, errors.New("unknown operation")
	}
}

func openClose(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// least is the cost of one operation in the cheapest round.
func least(rounds, perRound int, op func() error) (int64, error) {
	best := int64(-1)
	for range rounds {
		start := now()
		for range perRound {
			if err := op(); err != nil {
				return 0, err
			}
		}
		if cost := (now() - start) / int64(perRound); best < 0 || cost < best {
			best = cost
		}
	}
	return best, nil
}

// leastOfFirst measures opens that nothing remembered helps: before each a directory is moved, outside the measured
// time. What it costs to read the clock is taken off.
func leastOfFirst(times int, path string) (int64, error) {
	moved := [2]string{workspace + "/moved-a", workspace + "/moved-b"}
	if err := unix.Mkdir(moved[0], 0o755); err != nil {
		return 0, err
	}
	defer func() { unix.Rmdir(moved[0]); unix.Rmdir(moved[1]) }()
	cost := func(op func() error) (int64, error) {
		best := int64(-1)
		for range times {
			if err := unix.Rename(moved[0], moved[1]); err != nil {
				return 0, err
			}
			moved[0], moved[1] = moved[1], moved[0]
			start := now()
			if err := op(); err != nil {
				return 0, err
			}
			if took := now() - start; best < 0 || took < best {
				best = took
			}
		}
		return best, nil
	}
	nothing, err := cost(func() error { return nil })
	if err != nil {
		return 0, err
	}
	all, err := cost(func() error { return openClose(path, unix.O_RDONLY) })
	return all - nothing, err
}

// process is a running subject.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startSubject starts a subject, in a cgroup where one is given.
func startSubject(rounds int, cgroup *os.File) (*process, error) {
	cmd := exec.Command("/proc/self/exe", "subject", strconv.Itoa(rounds))
	cmd.Stderr = os.Stderr
	if cgroup != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd: cmd, in: in, out: bufio.NewScanner(out)}, nil
}

func (p *process) do(words ...string) (int64, error) {
	line := strings.Join(words, " ")
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return 0, err
	}
	if !p.out.Scan() {
		return 0, fmt.Errorf("%s: the subject gave no answer (%v)", line, p.out.Err())
	}
	return strconv.ParseInt(p.out.Text(), 10, 64)
}

func (p *process) stop() error {
	p.in.Close()
	return p.cmd.Wait()
}
