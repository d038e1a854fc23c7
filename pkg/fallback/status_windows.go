// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// kernelRelease returns the version of Windows, such as "10.0.22631".
func kernelRelease() string {
	version := windows.RtlGetVersion()
	return fmt.Sprintf("%d.%d.%d", version.MajorVersion, version.MinorVersion, version.BuildNumber)
}

// blind returns why the probes cannot see everything on this system, or "".
func blind() string {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		return "wine follows symbolic links of the system below it without showing them"
	}
	return ""
}
