//go:build linux

package main

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	systemdBinary = "/usr/lib/systemd/systemd"
	systemdTarget = "thenforce-vm.target"
	runnerPath    = "/run/thenforce-vm/init"
)

// systemdUnits, below /run/systemd/system, make systemd boot to the usual
// target, then run the plan, then power off. Delegate lets what the plan runs
// make cgroups. Nobody logs in on the kernel's console.
var systemdUnits = map[string]string{
	systemdTarget: `[Unit]
Requires=multi-user.target
Wants=thenforce-vm.service
After=multi-user.target
AllowIsolate=yes
`,
	"thenforce-vm.service": `[Unit]
Description=plan of the test guest
After=multi-user.target
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate
[Service]
ExecStart=` + runnerPath + ` ` + runner + `
Delegate=yes
TasksMax=infinity
`,
	"serial-getty@.service": "",
	"getty@.service":        "",
}

// startSystemd makes this process systemd. It returns only on error.
func startSystemd() error {
	if err := os.MkdirAll(filepath.Dir(runnerPath), 0o755); err != nil {
		return err
	}
	if err := copyFile("/proc/self/exe", runnerPath, 0o755); err != nil {
		return err
	}
	const dir = "/run/systemd/system"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range systemdUnits {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	args := []string{"systemd", "--unit=" + systemdTarget, "--show-status=no"}
	return &fs.PathError{Op: "exec", Path: systemdBinary, Err: unix.Exec(systemdBinary, args, environment())}
}
