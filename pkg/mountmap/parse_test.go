// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

const rootLine = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"

// mangle escapes as the kernel does (mangle_path with " \t\n\\#").
func mangle(s string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`).Replace(s)
}

// format writes a mount as show_mountinfo does.
func format(m Mount) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %s %s %s %s", m.ID, m.ParentID, m.Dev, mangle(m.Root), mangle(m.Point), m.Options)
	if m.Propagation.Shared != 0 {
		fmt.Fprintf(&b, " shared:%d", m.Propagation.Shared)
	}
	if m.Propagation.Master != 0 {
		fmt.Fprintf(&b, " master:%d", m.Propagation.Master)
	}
	if m.Propagation.From != 0 {
		fmt.Fprintf(&b, " propagate_from:%d", m.Propagation.From)
	}
	if m.Propagation.Unbindable {
		b.WriteString(" unbindable")
	}
	fmt.Fprintf(&b, " - %s %s %s\n", mangle(m.FSType), mangle(m.Source), m.SuperOptions)
	return b.String()
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, line string
		want       Mount
	}{
		{
			"man page", "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n",
			Mount{ID: 36, ParentID: 35, Dev: 98 << 20, Root: "/mnt1", Point: "/mnt2", Options: "rw,noatime",
				Propagation: Propagation{Master: 1}, FSType: "ext3", Source: "/dev/root", SuperOptions: "rw,errors=continue"},
		},
		{
			"every optional field, and one that nobody knows yet",
			"1 1 0:1048575 / / rw shared:7 master:8 propagate_from:9 unbindable x-new:1 alone - tmpfs t rw\n",
			Mount{ID: 1, ParentID: 1, Dev: 1<<20 - 1, Root: "/", Point: "/", Options: "rw",
				Propagation: Propagation{Shared: 7, Master: 8, From: 9, Unbindable: true}, FSType: "tmpfs", Source: "t", SuperOptions: "rw"},
		},
		{
			"escapes", `40 27 0:30 /a\134b /s\040p/t\011a/n\012l/b\134s/h\043\303\251 rw - fuse.x\040y so\040urce rw` + "\n",
			Mount{ID: 40, ParentID: 27, Dev: 30, Root: `/a\b`, Point: "/s p/t\ta/n\nl/b\\s/h#é", Options: "rw",
				FSType: "fuse.x y", Source: "so urce", SuperOptions: "rw"},
		},
		{
			"escape of an escape", `40 27 0:30 / /a\134040b rw - ext4 x rw` + "\n",
			Mount{ID: 40, ParentID: 27, Dev: 30, Root: "/", Point: `/a\040b`, Options: "rw", FSType: "ext4", Source: "x", SuperOptions: "rw"},
		},
		{
			"empty source", "40 27 0:30 / /e rw - tmpfs  rw,size=4k\n",
			Mount{ID: 40, ParentID: 27, Dev: 30, Root: "/", Point: "/e", Options: "rw", FSType: "tmpfs", SuperOptions: "rw,size=4k"},
		},
		{
			"source that escapes by its own rules", `40 27 0:30 / /c rw - 9p C:\x rw` + "\n",
			Mount{ID: 40, ParentID: 27, Dev: 30, Root: "/", Point: "/c", Options: "rw", FSType: "9p", Source: `C:\x`, SuperOptions: "rw"},
		},
		{
			"spaces in the super options", `40 27 0:30 / /c rw - 9p C:\134 rw,aname=drvfs;path=C:\Program Files;symlinkroot=/mnt/` + "\n",
			Mount{ID: 40, ParentID: 27, Dev: 30, Root: "/", Point: "/c", Options: "rw", FSType: "9p", Source: `C:\`,
				SuperOptions: `rw,aname=drvfs;path=C:\Program Files;symlinkroot=/mnt/`},
		},
		{
			"nsfs has a root that is no path", "40 27 0:4 net:[4026531840] /run/netns/x rw shared:2 - nsfs nsfs rw\n",
			Mount{ID: 40, ParentID: 27, Dev: 4, Root: "net:[4026531840]", Point: "/run/netns/x", Options: "rw",
				Propagation: Propagation{Shared: 2}, FSType: "nsfs", Source: "nsfs", SuperOptions: "rw"},
		},
		{
			"a dash as mount point's last name and as a tag's neighbour", "40 27 0:4 / /- rw - ext4 - -\n",
			Mount{ID: 40, ParentID: 27, Dev: 4, Root: "/", Point: "/-", Options: "rw", FSType: "ext4", Source: "-", SuperOptions: "-"},
		},
		{
			"deleted mount point", `40 27 0:4 /gone//deleted /x//deleted rw - ext4 x rw` + "\n",
			Mount{ID: 40, ParentID: 27, Dev: 4, Root: "/gone//deleted", Point: "/x//deleted", Options: "rw", FSType: "ext4", Source: "x", SuperOptions: "rw"},
		},
		{
			"largest numbers", "2147483647 0 4095:1048575 / /x rw shared:2147483647 - ext4 x rw\n",
			Mount{ID: 1<<31 - 1, Dev: 1<<32 - 1, Root: "/", Point: "/x", Options: "rw",
				Propagation: Propagation{Shared: 1<<31 - 1}, FSType: "ext4", Source: "x", SuperOptions: "rw"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// One byte at a time, so that no line arrives whole.
			table, err := Parse(iotest.OneByteReader(strings.NewReader(tt.line)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]Mount{tt.want}, slices.Collect(table.All())); diff != "" {
				t.Errorf("mounts differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLongLine(t *testing.T) {
	// An overlay with a thousand layers: longer than bufio.Scanner takes.
	layers := strings.Repeat("/var/lib/containers/storage/overlay/l/ABCDEFGHIJKLMNOPQRSTUVWXYZ:", 4000)
	line := "40 27 0:30 / /merged rw - overlay overlay rw,lowerdir=" + layers + "\n"
	if len(line) < 64<<10*2 {
		t.Fatalf("line of %d bytes is not long", len(line))
	}
	table, err := Parse(strings.NewReader(rootLine + line + "41 40 0:31 / /merged/x rw - tmpfs t rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, ok := table.ByID(40)
	if !ok || m.SuperOptions != "rw,lowerdir="+layers {
		t.Errorf("the options of the long line did not survive: %d bytes", len(m.SuperOptions))
	}
	if m, ok := table.At("/merged/x"); !ok || m.ID != 41 {
		t.Errorf("the line after the long one: %+v, %v", m, ok)
	}
}

func TestParseMalformed(t *testing.T) {
	tests := []struct {
		name, line, want string
	}{
		{"blank line", "\n", "mount id is empty"},
		{"no fields after the id", "40\n", "parent id is missing"},
		{"id no number", "x 27 0:1 / /a rw - ext4 a rw\n", `mount id: bad number "x"`},
		{"id negative", "-1 27 0:1 / /a rw - ext4 a rw\n", "bad number"},
		{"id signed", "+1 27 0:1 / /a rw - ext4 a rw\n", "bad number"},
		{"id with leading zero", "040 27 0:1 / /a rw - ext4 a rw\n", "bad number"},
		{"id beyond an int", "2147483648 27 0:1 / /a rw - ext4 a rw\n", "bad number"},
		{"parent no number", "40 2x 0:1 / /a rw - ext4 a rw\n", "parent id: bad number"},
		{"device without colon", "40 27 81 / /a rw - ext4 a rw\n", `bad device "81"`},
		{"device half", "40 27 8: / /a rw - ext4 a rw\n", "bad device"},
		{"device no number", "40 27 8:z / /a rw - ext4 a rw\n", "bad device"},
		{"major too large", "40 27 4096:0 / /a rw - ext4 a rw\n", "bad device"},
		{"minor too large", "40 27 0:1048576 / /a rw - ext4 a rw\n", "bad device"},
		{"empty root", "40 27 0:1  /a rw - ext4 a rw\n", "root is empty"},
		{"relative mount point", "40 27 0:1 / a rw - ext4 a rw\n", "not absolute"},
		{"short escape", `40 27 0:1 / /a\04 rw - ext4 a rw` + "\n", "bad escape"},
		{"escape at the end", `40 27 0:1 / /a\ rw - ext4 a rw` + "\n", "bad escape"},
		{"escape beyond a byte", `40 27 0:1 / /a\400 rw - ext4 a rw` + "\n", "bad escape"},
		{"escape not octal", `40 27 0:1 / /a\08x rw - ext4 a rw` + "\n", "bad escape"},
		{"bad escape in the root", `40 27 0:1 /\9 /a rw - ext4 a rw` + "\n", "root: bad escape"},
		{"bad escape in the type", `40 27 0:1 / /a rw - e\xt4 a rw` + "\n", "file system type: bad escape"},
		{"no separator", "40 27 0:1 / /a rw ext4 a rw\n", "separator is missing"},
		{"two spaces before the separator", "40 27 0:1 / /a rw  - ext4 a rw\n", "separator is empty"},
		{"nothing after the separator", "40 27 0:1 / /a rw -\n", "file system type is missing"},
		{"no super options", "40 27 0:1 / /a rw - ext4 a\n", "super options is missing"},
		{"empty super options", "40 27 0:1 / /a rw - ext4 a \n", "super options is missing"},
		{"peer group no number", "40 27 0:1 / /a rw shared:x - ext4 a rw\n", `optional field "shared:x"`},
		{"peer group without number", "40 27 0:1 / /a rw master - ext4 a rw\n", `optional field "master"`},
		{"unbindable with a value", "40 27 0:1 / /a rw unbindable:1 - ext4 a rw\n", "unbindable:1"},
		{"cut short", "40 27 0:1 / /a rw - ext4 a rw", "cut short"},
		{"longer than a line may be", "40 27 0:1 / /a rw - ext4 a " + strings.Repeat("x", maxLine) + "\n", bufio.ErrTooLong.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			table, err := Parse(strings.NewReader(rootLine + tt.line))
			var parseErr *ParseError
			if table != nil || !errors.As(err, &parseErr) || !errors.Is(err, ErrMalformed) {
				t.Fatalf("Parse = %v, %v; want no table and a *ParseError", table, err)
			}
			if parseErr.Line != 2 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q on line %d; want line 2 and %q", err, parseErr.Line, tt.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		if table, err := Parse(strings.NewReader("")); table != nil || !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse of nothing = %v, %v", table, err)
		}
	})
	t.Run("id twice", func(t *testing.T) {
		if table, err := Parse(strings.NewReader(rootLine + rootLine)); table != nil || !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse = %v, %v", table, err)
		}
	})
	t.Run("read error", func(t *testing.T) {
		broken := io.MultiReader(strings.NewReader(rootLine), iotest.ErrReader(io.ErrUnexpectedEOF))
		table, err := Parse(broken)
		if table != nil || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrMalformed) {
			t.Errorf("Parse = %v, %v; want the reader's error", table, err)
		}
	})
}

// TestParseTruncated cuts a good table after every byte: only the cuts between
// lines leave a table.
func TestParseTruncated(t *testing.T) {
	text := rootLine + "22 27 0:21 / /proc rw - proc proc rw\n"
	for n := range len(text) {
		_, err := Parse(strings.NewReader(text[:n]))
		if whole := n == len(rootLine); (err == nil) != whole {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(rootLine + "22 27 0:21 / /proc rw shared:5 - proc proc rw\n"))
	f.Add([]byte(`40 27 0:30 /a\134b /s\040p rw x - tmpfs  rw a b` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Parse(strings.NewReader(string(data)))
		if err != nil {
			if table != nil {
				t.Fatalf("a table beside the error %v", err)
			}
			return
		}
		if table.Len() == 0 {
			t.Fatal("an empty table is no error")
		}
		var text strings.Builder
		for m := range table.All() {
			text.WriteString(format(m))
			table.Lookup(m.Point)
			if at, ok := table.At(m.Point); ok {
				stack := table.Stack(m.Point)
				if len(stack) == 0 || stack[len(stack)-1].ID != at.ID {
					t.Fatalf("At(%q) is mount %d and not on top of %v", m.Point, at.ID, stack)
				}
			}
		}
		again, err := Parse(strings.NewReader(text.String()))
		if err != nil {
			t.Fatalf("what was parsed does not parse when written again: %v\n%s", err, text.String())
		}
		if diff := cmp.Diff(slices.Collect(table.All()), slices.Collect(again.All())); diff != "" {
			t.Fatalf("written and parsed again it differs:\n%s", diff)
		}
	})
}

func TestKernelDevText(t *testing.T) {
	dev, ok := MakeKernelDev(259, 1048575)
	if !ok || dev.Major() != 259 || dev.Minor() != 1048575 || dev.String() != "259:1048575" {
		t.Fatalf("MakeKernelDev = %v (%d:%d), %v", dev, dev.Major(), dev.Minor(), ok)
	}
	var back KernelDev
	if err := back.UnmarshalText([]byte("259:1048575")); err != nil || back != dev {
		t.Errorf("UnmarshalText = %v, %v", back, err)
	}
	if err := back.UnmarshalText([]byte("259")); err == nil {
		t.Error("a device without a minor number was accepted")
	}
	if _, ok := MakeKernelDev(4096, 0); ok {
		t.Error("a major number of 13 bits was accepted")
	}
	if _, ok := MakeKernelDev(0, 1<<20); ok {
		t.Error("a minor number of 21 bits was accepted")
	}
}

func TestStatDev(t *testing.T) {
	// st_dev of real devices: 8:1 is 0x801, 259:300 is 0x11032c, 0:42 is 42.
	for stat, kernel := range map[StatDev]string{0x801: "8:1", 0x11032c: "259:300", 42: "0:42", 0xfffffff_f: "4095:1048575"} {
		dev, ok := stat.Kernel()
		if !ok || dev.String() != kernel {
			t.Errorf("StatDev(%#x).Kernel() = %v, %v; want %s", uint64(stat), dev, ok, kernel)
		}
		if dev.Stat() != stat {
			t.Errorf("KernelDev %v.Stat() = %#x, want %#x", dev, uint64(dev.Stat()), uint64(stat))
		}
	}
	if dev, ok := StatDev(1 << 32).Kernel(); ok {
		t.Errorf("a device beyond 32 bits became %v", dev)
	}
	var d StatDev
	if err := d.UnmarshalText([]byte("2049")); err != nil || d != 0x801 || d.String() != "2049" {
		t.Errorf("UnmarshalText = %v, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("8:1")); err == nil {
		t.Error("the text of a KernelDev was taken for a StatDev")
	}
	if text, err := d.MarshalText(); err != nil || string(text) != strconv.Itoa(0x801) {
		t.Errorf("MarshalText = %q, %v", text, err)
	}
}
