// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"encoding/binary"
	"errors"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// reparsePoint builds a REPARSE_DATA_BUFFER as Windows does: the substitute name,
// the print name, each followed by a NUL.
func reparsePoint(tag uint32, substitute, print string) []byte {
	var names []byte
	var fields [4]uint16
	for i, name := range []string{substitute, print} {
		fields[2*i] = uint16(len(names))
		units := utf16.Encode([]rune(name))
		fields[2*i+1] = uint16(2 * len(units))
		for _, u := range append(units, 0) {
			names = binary.LittleEndian.AppendUint16(names, u)
		}
	}
	var data []byte
	for _, field := range fields {
		data = binary.LittleEndian.AppendUint16(data, field)
	}
	if tag == tagSymlink {
		data = binary.LittleEndian.AppendUint32(data, 0)
	}
	data = append(data, names...)
	buffer := binary.LittleEndian.AppendUint32(nil, tag)
	buffer = binary.LittleEndian.AppendUint16(buffer, uint16(len(data)))
	return append(append(buffer, 0, 0), data...)
}

func TestReparseTarget(t *testing.T) {
	valid := reparsePoint(tagMountPoint, `\??\C:\target`, `C:\lie`)
	lone := reparsePoint(tagSymlink, "x", "")
	binary.LittleEndian.PutUint16(lone[8+12:], 0xD800)
	change := func(at int, value uint16) []byte {
		b := append([]byte(nil), valid...)
		binary.LittleEndian.PutUint16(b[at:], value)
		return b
	}
	for _, test := range []struct {
		name   string
		buffer []byte
		target string
		err    error
	}{
		{"junction", valid, `\??\C:\target`, nil},
		{"symbolic link", reparsePoint(tagSymlink, `..\target`, "lie"), `..\target`, nil},
		{"beyond the basic plane", reparsePoint(tagSymlink, "\U0001F512é", ""), "\U0001F512é", nil},
		{"another tag", reparsePoint(0x80000017, "x", "x"), "", errNoTarget},
		{"nothing", nil, "", errReparse},
		{"a header alone", valid[:8], "", errReparse},
		{"cut short", valid[:len(valid)-1], "", errReparse},
		{"an empty name", reparsePoint(tagSymlink, "", "lie"), "", errReparse},
		{"an odd length", change(10, 3), "", errReparse},
		{"a name beyond the end", change(10, 0xfffe), "", errReparse},
		{"a name that starts beyond the end", change(8, 0xfffe), "", errReparse},
		{"half a surrogate pair", lone, "", errNotUnicode},
	} {
		target, err := reparseTarget(test.buffer)
		if target != test.target || !errors.Is(err, test.err) {
			t.Errorf("%s: got %q, %v; want %q, %v", test.name, target, err, test.target, test.err)
		}
	}
}

func TestMountsVolume(t *testing.T) {
	for target, want := range map[string]bool{
		`\??\Volume{01234567-89ab-cdef-0123-456789abcdef}\`:    true,
		`\??\VOLUME{01234567-89ab-cdef-0123-456789abcdef}`:     true,
		`\??\Volume{01234567-89ab-cdef-0123-456789abcdef}\dir`: false,
		`\??\C:\`:        false,
		`\??\Volume`:     false,
		`\??\Volume{012`: false,
		"":               false,
	} {
		if got := mountsVolume(target); got != want {
			t.Errorf("%q: %v, want %v", target, got, want)
		}
	}
}

func TestExtended(t *testing.T) {
	for path, want := range map[string]string{
		`C:\`:                   `\\?\C:\`,
		`C:\work\repo`:          `\\?\C:\work\repo`,
		`\\server\share\folder`: `\\?\UNC\server\share\folder`,
	} {
		if got := extended(path); got != want {
			t.Errorf("%s is extended to %s, want %s", path, got, want)
		}
	}
}

func FuzzReparseTarget(f *testing.F) {
	f.Add(reparsePoint(tagMountPoint, `\??\C:\target`, `C:\target`))
	f.Add(reparsePoint(tagSymlink, `..\target`, "target"))
	f.Add(reparsePoint(tagSymlink, "\U0001F512", ""))
	f.Add([]byte{0x0c, 0, 0, 0xa0, 0xff, 0xff, 0, 0})
	f.Fuzz(func(t *testing.T, buffer []byte) {
		target, err := reparseTarget(buffer)
		if err != nil {
			if target != "" {
				t.Errorf("a target %q beside the error %v", target, err)
			}
			return
		}
		if target == "" || !utf8.ValidString(target) {
			t.Errorf("the target is %q", target)
		}
		// What was read is written the same way again.
		again, err := reparseTarget(reparsePoint(binary.LittleEndian.Uint32(buffer), target, ""))
		if err != nil || again != target {
			t.Errorf("%q is read again as %q, %v", target, again, err)
		}
	})
}
