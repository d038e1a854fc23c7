// SPDX-License-Identifier: Apache-2.0

package engine

import "strings"

// unsafeWindows reports whether a path holds something that Windows reads as
// something else than it shows: a device name, an alternate data stream, the
// \\?\ and \\.\ prefixes, trailing dots or spaces, a path relative to a drive's
// own working directory, or a character that no name can have. It looks at the
// raw text, before ".." is taken away: Windows judges "NUL\..\x" by the NUL.
//
// Sources: "Naming Files, Paths, and Namespaces" in the Windows documentation;
// internal/filepathlite in Go for the digits ¹²³ and for CONIN$ and CONOUT$.
func unsafeWindows(path string) bool {
	if len(path) >= 2 && isWindowsSep(path[0]) && (isWindowsSep(path[1]) || path[1] == '?') {
		// \\?\ and \\.\ in any mix of slashes, and \??\ of the object manager.
		if rest := path[2:]; path[1] == '?' || rest != "" && (rest[0] == '?' || rest[0] == '.') && (len(rest) == 1 || isWindowsSep(rest[1])) {
			return true
		}
	}
	if _, rest, ok := cutUNC(path); ok {
		path = rest
	} else if len(path) >= 2 && isDriveLetter(path[0]) && path[1] == ':' {
		path = path[2:]
		if path == "" || !isWindowsSep(path[0]) {
			return true
		}
	}
	windows := pathMath{shape: shapeWindows}
	for path != "" {
		var name string
		name, path, _ = windows.next(path)
		if name != "" && name != "." && name != ".." && unsafeWindowsName(name) {
			return true
		}
	}
	return false
}

func unsafeWindowsName(name string) bool {
	if last := name[len(name)-1]; last == '.' || last == ' ' {
		return true
	}
	for i := range len(name) {
		if c := name[i]; c < 0x20 || strings.IndexByte(`<>:"|?*`, c) >= 0 {
			return true
		}
	}
	return reservedWindowsName(name)
}

// reservedWindowsName reports whether name is that of a device. What follows a
// dot does not matter ("NUL.txt"), nor spaces before it ("NUL .txt").
func reservedWindowsName(name string) bool {
	base, _, _ := strings.Cut(name, ".")
	base = strings.ToUpper(strings.TrimRight(base, " "))
	switch base {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return true
	}
	if len(base) < 4 || base[:3] != "COM" && base[:3] != "LPT" {
		return false
	}
	switch base[3:] {
	case "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "¹", "²", "³":
		return true
	}
	return false
}

// safe returns ErrUnsafePath for a path that is not to be interpreted at all.
func safe(m pathMath, path string) error {
	if strings.IndexByte(path, 0) >= 0 || len(path) > MaxPath || m.shape == shapeWindows && unsafeWindows(path) {
		return ErrUnsafePath
	}
	return nil
}
