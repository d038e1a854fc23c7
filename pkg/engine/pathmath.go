// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxPath is the longest path the engine looks at, in bytes.
const MaxPath = 64 << 10

// A shape is the kind of path a root is, whatever system the program runs on.
type shape uint8

const (
	shapeNone    shape = iota // relative, or nothing known
	shapePOSIX                // /srv/repo
	shapeWindows              // C:\work\repo, C:/work/repo, \\server\share\repo
)

// shapeOf returns the shape of an absolute path. A drive letter alone ("C:",
// "C:x") is relative to that drive's working directory and so has none.
func shapeOf(root string) shape {
	switch {
	case strings.HasPrefix(root, "/"):
		return shapePOSIX
	case len(root) >= 3 && isDriveLetter(root[0]) && root[1] == ':' && isWindowsSep(root[2]):
		return shapeWindows
	case strings.HasPrefix(root, `\\`):
		if _, _, ok := cutUNC(root); ok {
			return shapeWindows
		}
	}
	return shapeNone
}

func isDriveLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isWindowsSep(c byte) bool { return c == '\\' || c == '/' }

// pathMath is how names and paths of one workspace are taken apart and compared.
type pathMath struct {
	shape shape
	fold  bool          // names match whatever their case
	form  UnicodePolicy // names match in this normal form
}

// mathFor returns the default path math for the shape of root: Windows paths
// match regardless of case and in NFC, POSIX paths byte by byte.
func mathFor(root string) pathMath {
	m := pathMath{shape: shapeOf(root), form: UnicodeUnknown}
	if m.shape == shapeWindows {
		m.fold, m.form = true, UnicodeNFC
	}
	return m
}

func (m pathMath) sep() byte {
	if m.shape == shapeWindows {
		return '\\'
	}
	return '/'
}

func (m pathMath) isSep(c byte) bool {
	return c == '/' || m.shape == shapeWindows && c == '\\'
}

// equal reports whether two names, or two whole paths, stand for the same.
func (m pathMath) equal(a, b string) bool {
	if a == b {
		return true
	}
	if !m.fold && m.form == UnicodeUnknown {
		return false
	}
	return m.key(a) == m.key(b)
}

// key returns the text by which names are compared.
func (m pathMath) key(s string) string {
	if m.fold {
		s = lowerRunes(s)
	}
	switch m.form {
	case UnicodeNFC:
		s = norm.NFC.String(s)
	case UnicodeNFD:
		s = norm.NFD.String(s)
	}
	return s
}

// lowerRunes maps every rune to lower case by itself, and keeps bytes that are
// no UTF-8 as they are: two names that differ only there are two names.
//
// strings.ToLower would merge them, and strings.EqualFold knows pairs that
// Windows does not. JavaScript's toLowerCase, which the reference uses, differs
// for U+0130 (it yields two code points) and for a sigma at the end of a word.
func lowerRunes(s string) string {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			return string(appendLower(make([]byte, 0, len(s)+8), s))
		}
	}
	return s
}

func appendLower(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, s[i])
		} else {
			dst = utf8.AppendRune(dst, unicode.ToLower(r))
		}
		i += size
	}
	return dst
}

// volume splits an absolute or relative path into its device ("C:",
// `\\server\share`, "" for POSIX and for a path that names none), whether it
// starts at the root of that device, and the rest.
func (m pathMath) volume(path string) (device string, rooted bool, rest string) {
	if m.shape != shapeWindows {
		if strings.HasPrefix(path, "/") {
			return "", true, path[1:]
		}
		return "", false, path
	}
	if device, rest, ok := cutUNC(path); ok {
		if rest != "" {
			rest = rest[1:]
		}
		return device, true, rest
	}
	if len(path) >= 2 && isDriveLetter(path[0]) && path[1] == ':' {
		device, path = path[:2], path[2:]
	}
	if path != "" && isWindowsSep(path[0]) {
		return device, true, path[1:]
	}
	return device, false, path
}

// cutUNC splits `\\server\share\rest` as Node's path.win32 does: two separators,
// a name, separators, a name. The device it returns has backslashes.
func cutUNC(path string) (device, rest string, ok bool) {
	if len(path) < 2 || !isWindowsSep(path[0]) || !isWindowsSep(path[1]) {
		return "", "", false
	}
	name := func(from int) int {
		for from < len(path) && !isWindowsSep(path[from]) {
			from++
		}
		return from
	}
	server := name(2)
	share := server
	for share < len(path) && isWindowsSep(path[share]) {
		share++
	}
	end := name(share)
	if server == 2 || share == server || end == share {
		return "", "", false
	}
	return `\\` + path[2:server] + `\` + path[share:end], path[end:], true
}

// clean returns an absolute path without empty, "." and ".." components and
// with one kind of separator. It reports false for a path that is not absolute.
func (m pathMath) clean(path string) (string, bool) {
	device, rooted, rest := m.volume(path)
	if !rooted || m.shape == shapeNone || m.shape == shapeWindows && device == "" {
		return "", false
	}
	if m.shape == shapePOSIX && isClean(rest) {
		return path, true
	}
	return m.join(device, rest, ""), true
}

// join returns the clean absolute path of device, then base, then tail below it.
func (m pathMath) join(device, base, tail string) string {
	if m.shape == shapePOSIX && tail == "" && isClean(base) {
		return "/" + base
	}
	sep := m.sep()
	out := make([]byte, 0, len(device)+len(base)+len(tail)+2)
	out = append(out, device...)
	top := len(out)
	for _, part := range [...]string{base, tail} {
		for part != "" {
			var name string
			name, part, _ = m.next(part)
			switch name {
			case "", ".":
			case "..":
				if i := bytes.LastIndexByte(out[top:], sep); i >= 0 {
					out = out[:top+i]
				}
			default:
				out = append(append(out, sep), name...)
			}
		}
	}
	if len(out) == top {
		out = append(out, sep)
	}
	return string(out)
}

// isClean reports whether a POSIX path without its leading slash needs no work.
func isClean(rest string) bool {
	if rest == "" {
		return true
	}
	for start := 0; ; {
		end := strings.IndexByte(rest[start:], '/')
		if end < 0 {
			end = len(rest)
		} else {
			end += start
		}
		switch rest[start:end] {
		case "", ".", "..":
			return false
		}
		if end == len(rest) {
			return true
		}
		start = end + 1
	}
}

// next cuts the first component off a relative path. It reports whether a
// separator followed it: what comes before one has to be a directory.
func (m pathMath) next(path string) (name, rest string, sep bool) {
	i := 0
	for i < len(path) && !m.isSep(path[i]) {
		i++
	}
	if i == len(path) {
		return path, "", false
	}
	return path[:i], path[i+1:], true
}

// demandsDirectory reports whether a path ends in a separator, or in one and ".".
func (m pathMath) demandsDirectory(path string) bool {
	n := len(path)
	if n > 1 && path[n-1] == '.' {
		n--
	}
	return n > 0 && m.isSep(path[n-1])
}

// below splits the clean absolute path off the clean absolute root: rel is what
// remains, in path's own spelling and without a leading separator, "" for the
// root itself. It reports false where path is not at or below root.
func (m pathMath) below(root, path string) (rel string, ok bool) {
	if path == root {
		return "", true
	}
	base := root
	if last := len(root) - 1; m.isSep(root[last]) {
		base = root[:last] // "/" and `C:\` end in the separator
	}
	if len(path) > len(base) && path[:len(base)] == base && m.isSep(path[len(base)]) {
		return path[len(base)+1:], true
	}
	if !m.fold && m.form == UnicodeUnknown {
		return "", false
	}
	// Names that match may differ in length, so take as many components of
	// path as root has and compare those.
	end := 0
	for range m.depth(base) + 1 {
		if end == len(path) {
			return "", false
		}
		end++
		for end < len(path) && !m.isSep(path[end]) {
			end++
		}
	}
	if !m.equal(base, path[:end]) {
		return "", false
	}
	return strings.TrimPrefix(path[end:], string(m.sep())), true
}

// depth returns the number of separators in a path, not counting the first byte.
func (m pathMath) depth(path string) int {
	n := 0
	for i := 1; i < len(path); i++ {
		if m.isSep(path[i]) {
			n++
		}
	}
	return n
}

// resolve makes candidate absolute, starting from root, and says where it lies.
// It looks at text only. resolved keeps the candidate's spelling; rel is what of
// it lies below root. It reports false where that is nothing.
func (m pathMath) resolve(root, candidate string) (resolved, rel string, ok bool) {
	rootDevice, _, rootRest := m.volume(root)
	device, rooted, rest := m.volume(candidate)
	switch {
	case device == "":
		device = rootDevice
	case !m.equal(device, rootDevice):
		// Another drive or share. "D:x" starts from a working directory there
		// that nobody here knows.
		return "", "", false
	}
	switch {
	case rooted:
		resolved = m.join(device, rest, "")
	case m.shape == shapePOSIX && rootRest != "" && rest != "" && isClean(rest):
		resolved = root + "/" + rest
	default:
		resolved = m.join(device, rootRest, rest)
	}
	rel, ok = m.below(root, resolved)
	return resolved, rel, ok
}

// Resolve makes candidate absolute, starting from root, and returns it if it
// lies at or below root, judged by the text alone: links are not looked at and
// ".." takes away the name before it. The shape of root decides the rules. On
// Windows names match regardless of case, and the result keeps the spelling of
// candidate.
//
// It returns [ErrEscape] for a path outside, and [ErrUnsafePath] for a root that
// is not absolute. It does not refuse what [CheckContainment] refuses later, a
// NUL or an alternate stream for example.
func Resolve(root, candidate string) (string, error) {
	m := mathFor(root)
	clean, ok := m.clean(root)
	if !ok {
		return "", fmt.Errorf("resolve below %q: root is not absolute: %w", root, ErrUnsafePath)
	}
	resolved, _, ok := m.resolve(clean, candidate)
	if !ok {
		return "", fmt.Errorf("resolve %q below %q: %w", candidate, clean, ErrEscape)
	}
	return resolved, nil
}
