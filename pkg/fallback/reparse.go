// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The reparse tags of Windows that have a target of their own (ntifs.h).
const (
	tagMountPoint = 0xA0000003 // a junction, or a volume mounted in a directory
	tagSymlink    = 0xA000000C
)

var (
	errReparse    = errors.New("malformed reparse point")
	errNoTarget   = errors.New("the reparse point has no target that is known")
	errNotUnicode = errors.New("the name is not valid Unicode")
)

// reparseTarget returns the target that a REPARSE_DATA_BUFFER (ntifs.h) stores:
// the substitute name, which is what the system follows. The print name is for
// people only and may say anything.
func reparseTarget(buffer []byte) (string, error) {
	if len(buffer) < 8 {
		return "", errReparse
	}
	tag := binary.LittleEndian.Uint32(buffer)
	size := int(binary.LittleEndian.Uint16(buffer[4:]))
	data := buffer[8:]
	if size > len(data) {
		return "", errReparse
	}
	data = data[:size]
	header := 8
	switch tag {
	case tagMountPoint:
	case tagSymlink:
		header = 12 // the flags come before the names
	default:
		return "", errNoTarget
	}
	if len(data) < header {
		return "", errReparse
	}
	offset := int(binary.LittleEndian.Uint16(data))
	length := int(binary.LittleEndian.Uint16(data[2:]))
	names := data[header:]
	if length == 0 || length%2 != 0 || offset+length > len(names) {
		return "", errReparse
	}
	name := names[offset : offset+length]
	units := make([]uint16, length/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(name[2*i:])
	}
	return decodeUTF16(units)
}

// decodeUTF16 is utf16.Decode that does not replace what it does not
// understand: with another character it would be another name.
func decodeUTF16(units []uint16) (string, error) {
	var text strings.Builder
	for i := 0; i < len(units); i++ {
		r := rune(units[i])
		if utf16.IsSurrogate(r) {
			r = utf8.RuneError
			if i+1 < len(units) {
				r = utf16.DecodeRune(rune(units[i]), rune(units[i+1]))
			}
			if r == utf8.RuneError {
				return "", errNotUnicode
			}
			i++
		}
		text.WriteRune(r)
	}
	return text.String(), nil
}

// mountsVolume reports whether the target of a mount point leads to the root of
// a volume, and is no junction to a directory: `\??\Volume{GUID}\`.
func mountsVolume(target string) bool {
	const prefix = `\??\volume{`
	if len(target) < len(prefix) || !strings.EqualFold(target[:len(prefix)], prefix) {
		return false
	}
	_, rest, ok := strings.Cut(target[len(prefix):], "}")
	return ok && (rest == "" || rest == `\`)
}

// extended returns a clean absolute Windows path in the form that the system
// takes as it is: not shortened, no names of devices, no limit of 260
// characters.
func extended(path string) string {
	if rest, ok := strings.CutPrefix(path, `\\`); ok {
		return `\\?\UNC\` + rest
	}
	return `\\?\` + path
}
