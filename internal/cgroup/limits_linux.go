package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"
)

// Limits are the resources that a jail may use. Zero means no limit.
type Limits struct {
	// Memory is in bytes. Swap is not counted.
	Memory int64
	// Pids counts processes and threads.
	Pids int64
	// CPUs is the processor time per time: 1.5 is one and a half processors.
	CPUs float64
}

// LimitError says that a limit was asked for that this host cannot hold.
type LimitError struct {
	// Controller is the cgroup controller that is needed: memory, pids or cpu.
	Controller string
	// Err is why: errors.ErrUnsupported when the hierarchy does not have the controller.
	Err error
}

func (e *LimitError) Error() string {
	if errors.Is(e.Err, errors.ErrUnsupported) {
		return fmt.Sprintf("limit %s: the controller is not available in the cgroup v2 hierarchy "+
			"(the kernel lacks it, or cgroup v1 has taken it)", e.Controller)
	}
	return fmt.Sprintf("limit %s: %v", e.Controller, e.Err)
}

func (e *LimitError) Unwrap() error { return e.Err }

// cpuPeriod is the kernel's default period of cpu.max, in microseconds.
const cpuPeriod = 100_000

// resources translates the limits. The controllers are named in the order in which they are checked.
func (l Limits) resources() (*cgroup2.Resources, []string, error) {
	var res cgroup2.Resources
	if l.Memory != 0 {
		if l.Memory < 0 {
			return nil, nil, &LimitError{"memory", unix.EINVAL}
		}
		res.Memory = &cgroup2.Memory{Max: &l.Memory}
	}
	if l.Pids != 0 {
		if l.Pids < 0 {
			return nil, nil, &LimitError{"pids", unix.EINVAL}
		}
		res.Pids = &cgroup2.Pids{Max: l.Pids}
	}
	if l.CPUs != 0 {
		// The kernel takes no quota below one millisecond.
		quota := math.Round(l.CPUs * cpuPeriod)
		if !(quota >= 1000 && quota <= math.MaxInt32) {
			return nil, nil, &LimitError{"cpu", unix.EINVAL}
		}
		q, period := int64(quota), uint64(cpuPeriod)
		res.CPU = &cgroup2.CPU{Max: cgroup2.NewCPUMax(&q, &period)}
	}
	return &res, res.EnabledControllers(), nil
}

// apply switches the controllers on from the root of the hierarchy down and writes the limits of the group at path.
// Controllers that were switched on stay on: others may have begun to use them.
func (l Limits) apply(path string) error {
	res, controllers, err := l.resources()
	if err != nil || len(controllers) == 0 {
		return err
	}
	top, err := top(path)
	if err != nil {
		return err
	}
	available, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(string(available)), c) {
			return &LimitError{c, errors.ErrUnsupported}
		}
	}
	rel, err := filepath.Rel(top, path)
	if err != nil {
		return err
	}
	if _, err := cgroup2.NewManager(top, "/"+rel, res); err != nil {
		return &LimitError{strings.Join(controllers, ", "), err}
	}
	return nil
}

// top returns the highest directory above path that is still cgroup v2, which is the mount point: the controllers have
// to be switched on from there downwards.
func top(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for path != "/" {
		var sfs unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(path), &sfs); err != nil {
			return "", pathError("statfs", filepath.Dir(path), err)
		}
		if !isCgroup2(&sfs) {
			break
		}
		path = filepath.Dir(path)
	}
	return path, nil
}
