// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package fallback

import "golang.org/x/sys/unix"

// kernelRelease returns what uname -r prints, or "".
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// blind returns why the probes cannot see everything on this system, or "".
func blind() string { return "" }
