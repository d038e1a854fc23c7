//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// environment is what a login of root would have.
func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin",
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "TERM=xterm-256color", "LANG=C.UTF-8",
	}
}

// runPlan runs the programs and sends the record.
func runPlan() error {
	plan, err := readPlan(guest.PlanPath)
	if err != nil {
		return err
	}
	output, err := openPort(guest.OutputPort)
	if err != nil {
		return err
	}
	reports, err := openPort(guest.ReportPort)
	if err != nil {
		return err
	}
	// Kernel threads of the boot are left behind before anything is counted.
	time.Sleep(plan.Idle)

	rec := guest.Record{Release: read("/proc/sys/kernel/osrelease"), LSM: read("/sys/kernel/security/lsm"), TaintBefore: taint()}
	for _, p := range plan.Programs {
		if p.GoTest {
			fmt.Fprintf(output, "=== PACKAGE %s\n", p.Name)
			p.Args = append(p.Args, "-test.timeout="+plan.TestTimeout(uptime()).String())
		}
		rec.Programs = append(rec.Programs, run(p, append(environment(), plan.Env...), output, reports))
	}
	rec.Taint = taint()
	if err := drain(output); err != nil {
		return err
	}
	return send(reports, guest.Report{Record: &rec})
}

func read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return strings.TrimSpace(string(text))
}

// uptime is the time since the kernel started.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

func taint() uint64 {
	n, err := strconv.ParseUint(read("/proc/sys/kernel/tainted"), 10, 64)
	if err != nil {
		return ^uint64(0)
	}
	return n
}

func run(p guest.Program, env []string, output, reports *os.File) guest.Result {
	begin := time.Now()
	res := guest.Result{Name: p.Name}
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, env
	// A daemon that a program leaves behind keeps the pipe open.
	cmd.WaitDelay = 3 * time.Second

	var err error
	switch {
	case p.GoTest:
		c := guest.NewCounter(output)
		cmd.Stdout, cmd.Stderr = c, c
		err = cmd.Run()
		t := c.Tests()
		res.Tests = &t
	case p.Terminal != nil:
		err = runOnTerminal(cmd, *p.Terminal, output, reports)
	default:
		cmd.Stdout, cmd.Stderr = writer{output}, writer{output}
		err = cmd.Run()
	}
	res.Elapsed = time.Since(begin)
	if cmd.ProcessState != nil {
		res.Exit = exitStatus(cmd.ProcessState)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		res.Error = err.Error()
	}
	return res
}

// writer hides that output is a file: exec would hand it to the program, which
// could then change the port's settings.
type writer struct{ io.Writer }

// exitStatus is that of a shell: 128 and the signal for one that was killed.
func exitStatus(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// runOnTerminal gives cmd a terminal of its own (a session, job control), fed
// by the output port and resized by reports from the host.
func runOnTerminal(cmd *exec.Cmd, size guest.Size, output, reports *os.File) error {
	t, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
	if err != nil {
		return fmt.Errorf("start on a terminal: %w", err)
	}
	defer t.Close()
	// Both end with the machine.
	go io.Copy(t, output)
	go resize(t, reports)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(output, t) // EIO when the last holder of the terminal has gone.
	}()
	err = cmd.Wait()
	select {
	case <-copied:
	case <-time.After(time.Second):
	}
	return err
}

func resize(t, reports *os.File) {
	lines := bufio.NewScanner(reports)
	for lines.Scan() {
		r, ok := guest.DecodeReport(bytes.TrimSpace(lines.Bytes()))
		if ok && r.Resize != nil {
			// A size that the terminal refuses leaves it as it was.
			pty.Setsize(t, &pty.Winsize{Rows: r.Resize.Rows, Cols: r.Resize.Cols})
		}
	}
}
