// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Status returns the state of enforcement where this package is all there is: it
// is always unverified, since nothing stops a program that does not ask. The
// reason is userspace-only, and os-unsupported on a system for which there are
// no probes either, or whose links they cannot see (wine). On Linux a mount table
// that cannot be read is a further one.
func Status() engine.EnforcementStatus {
	status := engine.EnforcementStatus{
		Backend:   "userspace",
		Kernel:    kernelRelease(),
		LSM:       []string{},
		Mountinfo: "unavailable",
		Reasons:   []engine.EnforcementReason{},
		Hooks:     []engine.HookStatus{},
	}
	probes, err := NewProbes()
	if err != nil {
		status.Add(engine.OSUnsupported, err.Error())
		status.Settle()
		return status
	}
	defer probes.Close()
	status.Add(engine.UserspaceOnly, "")
	if why := blind(); why != "" {
		status.Add(engine.OSUnsupported, why)
	}
	switch _, err := probes.Mounts(); {
	case err == nil:
		status.Mountinfo = "ok"
	case errors.Is(err, mountmap.ErrNotSupported):
		// Nothing is missing: on this system the probes need no table.
	case errors.Is(err, mountmap.ErrMalformed):
		status.Mountinfo = "malformed"
		status.Add(engine.MountinfoMalformed, err.Error())
	case errors.Is(err, mountmap.ErrUntrusted):
		status.Add(engine.ProcfsUntrusted, err.Error())
	default:
		status.Add(engine.MountinfoUnavailable, err.Error())
	}
	status.Settle()
	return status
}
