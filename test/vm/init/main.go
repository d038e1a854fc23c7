//go:build linux

// Command init is process 1 of the guests. It prepares the system, runs the
// plan in a second process, and powers off; it is built statically and put into
// the initramfs by the harness.
//
// The plan runs in another process because process 1 must wait for whatever
// orphan comes along, which would take exit statuses away from os/exec.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

const runner = "runner"

func main() {
	if len(os.Args) == 2 && os.Args[1] == runner {
		if err := runPlan(); err != nil {
			fmt.Fprintln(os.Stderr, "vm runner:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: this is process 1 of a test guest; it does nothing elsewhere")
		os.Exit(1)
	}
	if err := boot(); err != nil {
		// The console shows it too, for when there is no port to report to.
		fmt.Fprintln(os.Stderr, "vm init:", err)
		if err := report(guest.Report{Record: &guest.Record{Error: err.Error()}}); err != nil {
			fmt.Fprintln(os.Stderr, "vm init:", err)
		}
	}
	unix.Sync()
	fmt.Fprintln(os.Stderr, "vm init: power off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// boot brings the system up, runs the plan and returns when it is done. The
// record has been sent unless an error is returned or the runner died.
func boot() error {
	if err := mountFirst(); err != nil {
		return err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	if err := report(guest.Report{Started: &guest.Started{Release: string(release[:len(release)-1])}}); err != nil {
		return err
	}
	plan, err := readPlan("/payload" + guest.PlanPath)
	if err != nil {
		return err
	}
	if err := loadModules(plan.Modules); err != nil {
		return err
	}
	if err := switchRoot(plan.Full); err != nil {
		return err
	}
	if err := mountRest(); err != nil {
		return err
	}
	if err := settle(plan.Full); err != nil {
		return err
	}
	if plan.Systemd {
		return startSystemd()
	}
	return reap()
}

// reap starts the runner and waits for every process until that one ends.
func reap() error {
	console := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	p, err := os.StartProcess("/proc/self/exe", []string{"init", runner}, &os.ProcAttr{Dir: "/", Files: console, Env: environment()})
	if err != nil {
		return fmt.Errorf("start the runner: %w", err)
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the runner: %w", err)
		case pid == p.Pid:
			return nil
		}
	}
}

func readPlan(name string) (guest.Plan, error) {
	var plan guest.Plan
	text, err := os.ReadFile(name)
	if err != nil {
		return plan, err
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return plan, fmt.Errorf("read %s: %w", name, err)
	}
	return plan, nil
}

// report sends one report and waits until it has left the port: the machine may
// be off the next moment.
func report(r guest.Report) error {
	port, err := openPort(guest.ReportPort)
	if err != nil {
		return err
	}
	defer port.Close()
	return send(port, r)
}

func send(port *os.File, r guest.Report) error {
	line, err := r.Encode()
	if err != nil {
		return err
	}
	if _, err := port.Write(line); err != nil {
		return err
	}
	return drain(port)
}
