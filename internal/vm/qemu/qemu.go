//go:build linux

// Package qemu boots one guest and carries its serial ports.
package qemu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// Machine describes a guest.
type Machine struct {
	Kernel    string // vmlinuz
	Initramfs string
	Append    string // kernel command line, after the harness's own
	Disks     []Disk
	CPUs      int
	Memory    string // as QEMU's -m
	// NoKVM forces emulation where KVM seems to be there.
	NoKVM bool
	// Count makes the clock advance by one nanosecond for each instruction.
	Count bool
	// Boot limits the time until init reports, Total the whole run.
	Boot, Total time.Duration
	// Output gets what the programs print, while they do.
	Output io.Writer
	// Input, if any, is what a terminal types.
	Input io.Reader
	// Resize, if any, gives new sizes of the terminal.
	Resize <-chan guest.Size
	// Console, if any, gets the kernel's log while it grows.
	Console io.Writer
}

// Disk is a raw image, seen by the guest as an NVMe drive: the one kind that
// every cloud kernel has a driver for.
type Disk struct {
	Path string
	// Shared images are used by several guests at once; what a guest writes to
	// one is thrown away when it ends.
	Shared bool
}

// Outcome is what a guest left behind.
type Outcome struct {
	// Started says that the guest's init ran.
	Started bool
	// Record is nil when none arrived.
	Record *guest.Record
	// Console is the kernel's log.
	Console string
	// KVM says that QEMU was told to try it.
	KVM bool
	// Expired names the limit that ended the run, empty when none did.
	Expired string
	// Boot is the time until init reported, Total that of the whole run.
	Boot, Total time.Duration
}

// ErrQEMU is wrapped when QEMU itself failed; the outcome then says nothing
// about the kernel.
var ErrQEMU = errors.New("run qemu")

// Run boots the machine and waits until it is off or a limit has passed. An
// error means that there was no run; everything that went wrong inside the guest
// is in the Outcome.
func (m Machine) Run(ctx context.Context) (*Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	console, err := newPort()
	if err != nil {
		return nil, err
	}
	defer console.close()
	output, err := newPort()
	if err != nil {
		return nil, err
	}
	defer output.close()
	reports, err := newPort()
	if err != nil {
		return nil, err
	}
	defer reports.close()

	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.args()...)
	cmd.ExtraFiles = []*os.File{console.guest, output.guest, reports.guest}
	cmd.Stderr = &stderr
	// QEMU must not outlive the harness, and must not see the Ctrl-C meant for it.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Kill() }

	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	for _, p := range []*port{console, output, reports} {
		p.guest.Close()
	}

	var (
		out  Outcome
		log  bytes.Buffer
		wait sync.WaitGroup
		logW io.Writer = &log
	)
	if m.Console != nil {
		logW = io.MultiWriter(&log, m.Console)
	}
	bootLimit := time.AfterFunc(m.Boot, func() { cancel(expired("init did not report within " + m.Boot.String())) })
	defer bootLimit.Stop()
	totalLimit := time.AfterFunc(m.Total, func() { cancel(expired("not done within " + m.Total.String())) })
	defer totalLimit.Stop()

	wait.Go(func() { io.Copy(logW, console.host) })
	wait.Go(func() { io.Copy(m.Output, output.host) })
	wait.Go(func() {
		lines := bufio.NewReader(reports.host)
		for {
			line, err := lines.ReadBytes('\n')
			if r, ok := guest.DecodeReport(bytes.TrimSpace(line)); ok {
				switch {
				case r.Started != nil && !out.Started:
					bootLimit.Stop()
					out.Started, out.Boot = true, time.Since(begin)
				case r.Record != nil:
					out.Record = r.Record
				}
			}
			if err != nil {
				return
			}
		}
	})
	// These two end when their writes fail, after QEMU has gone.
	if m.Input != nil {
		go io.Copy(output.host, m.Input)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case size := <-m.Resize:
				if line, err := (guest.Report{Resize: &size}).Encode(); err == nil {
					reports.host.Write(line)
				}
			case <-done:
				return
			}
		}
	}()

	err = cmd.Wait()
	close(done)
	wait.Wait()
	out.Total = time.Since(begin)
	out.Console = log.String()
	out.KVM = m.useKVM()
	if cause := context.Cause(ctx); cause != nil {
		var limit expired
		if !errors.As(cause, &limit) {
			return nil, cause
		}
		out.Expired = limit.Error()
		return &out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %s", ErrQEMU, err, strings.TrimSpace(stderr.String()))
	}
	return &out, nil
}

// expired is why a limit ended a run.
type expired string

func (e expired) Error() string { return string(e) }

func (m Machine) args() []string {
	cpus := max(m.CPUs, 1)
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-m", m.Memory,
		"-kernel", m.Kernel, "-initrd", m.Initramfs, "-append", m.commandLine(),
	}
	switch {
	case m.Count:
		cpus = 1
		args = append(args, "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max")
	case m.useKVM():
		args = append(args, "-accel", "kvm", "-accel", "tcg,thread=multi", "-cpu", "max")
	default:
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", "max")
	}
	args = append(args, "-smp", strconv.Itoa(cpus))
	// The order of the ports is that of guest.ConsolePort and so on; the files
	// are inherited from 3 on.
	for i := range 3 {
		id := "port" + strconv.Itoa(i)
		args = append(args, "-chardev", fmt.Sprintf("socket,id=%s,fd=%d", id, 3+i), "-serial", "chardev:"+id)
	}
	for i, d := range m.Disks {
		id := "disk" + strconv.Itoa(i)
		drive := fmt.Sprintf("file=%s,format=raw,if=none,cache=unsafe,id=%s", strings.ReplaceAll(d.Path, ",", ",,"), id)
		if d.Shared {
			drive += ",snapshot=on"
		}
		args = append(args, "-drive", drive, "-device", "nvme,drive="+id+",serial="+id)
	}
	return args
}

// commandLine is the kernel's. Warnings go to the console (level 5), where the
// harness looks for oopses; an oops ends the guest, since what runs after one
// proves nothing and may hang until the limit.
func (m Machine) commandLine() string {
	line := "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic random.trust_cpu=on"
	if m.Append != "" {
		line += " " + m.Append
	}
	return line
}

// useKVM reports whether KVM is worth trying. That /dev/kvm exists says nothing:
// under nested virtualisation without the flags QEMU hangs with "KVM internal
// error".
func (m Machine) useKVM() bool {
	if m.NoKVM || m.Count || unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return false
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && hasVirtualisation(string(info))
}

// hasVirtualisation looks for the flags vmx (Intel) and svm (AMD) in the text
// of /proc/cpuinfo.
func hasVirtualisation(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		name, flags, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) != "flags" {
			continue
		}
		for f := range strings.FieldsSeq(flags) {
			if f == "vmx" || f == "svm" {
				return true
			}
		}
	}
	return false
}

// port is a serial port: a pair of connected sockets, one of which QEMU
// inherits. Nothing has a name in the file system that could collide or stay
// behind.
type port struct{ host, guest *os.File }

func newPort() (*port, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a serial port: %w", os.NewSyscallError("socketpair", err))
	}
	// Non-blocking, so that closing the file ends a read on it.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, fmt.Errorf("make a serial port: %w", os.NewSyscallError("fcntl", err))
	}
	return &port{
		host:  os.NewFile(uintptr(fds[0]), "serial port"),
		guest: os.NewFile(uintptr(fds[1]), "serial port of the guest"),
	}, nil
}

func (p *port) close() {
	p.guest.Close()
	p.host.Close()
}
