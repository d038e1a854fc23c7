package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Names of the cgroups in a scope.
const (
	supervisorName = "supervisor"
	jailName       = "jail"
)

// HostHasSystemd reports whether systemd is process 1, as sd_booted(3) does. It manages the cgroups then, and takes those
// that others make in its tree for its own.
func HostHasSystemd() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// CreateInScope has systemd make a transient scope, thenforce-NAME.scope, and moves this process into it: a scope has to
// hold a process to exist. The scope is delegated, so that what is below it is this process's to manage: its own process
// goes to one cgroup there, and the other is the Group. mount is where cgroup v2 is mounted.
//
// systemd ends the scope when nothing is in it any more, so also after this process was killed. The way to it is systemd's
// own socket; a D-Bus daemon is not needed. Root is.
func CreateInScope(ctx context.Context, mount, name string, limits Limits) (*Group, error) {
	unit := "thenforce-" + name + ".scope"
	if err := startScope(ctx, unit); err != nil {
		return nil, fmt.Errorf("start %s: %w", unit, err)
	}
	own, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	if filepath.Base(own) != unit {
		return nil, fmt.Errorf("start %s: this process is in %s", unit, own)
	}
	scope := filepath.Join(mount, own)
	supervisor := filepath.Join(scope, supervisorName)
	if err := os.Mkdir(supervisor, 0o755); err != nil {
		return nil, err
	}
	// A cgroup with processes in it cannot have limited children (cgroups(7), no internal processes).
	pid := strconv.Itoa(os.Getpid())
	if err := os.WriteFile(filepath.Join(supervisor, "cgroup.procs"), []byte(pid), 0); err != nil {
		return nil, err
	}
	return Create(scope, jailName, limits)
}

// startScope asks systemd for a scope with this process in it, and waits until it is there.
func startScope(ctx context.Context, unit string) error {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer conn.Close()
	done := make(chan string, 1)
	properties := []dbus.Property{
		dbus.PropDescription("thenforce run"),
		dbus.PropPids(uint32(os.Getpid())),
		{Name: "Delegate", Value: godbus.MakeVariant(true)},
		{Name: "CollectMode", Value: godbus.MakeVariant("inactive-or-failed")},
	}
	if _, err := conn.StartTransientUnitContext(ctx, unit, "fail", properties, done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd's job is %s", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ownCgroup is this process's cgroup v2, from /proc/self/cgroup.
func ownCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path, nil
		}
	}
	return "", pathError("read", "/proc/self/cgroup", errors.Join(ErrUnresolvable, errors.New("no cgroup v2 is named")))
}
