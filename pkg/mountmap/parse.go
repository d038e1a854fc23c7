// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxLine bounds one line of a mount table, in bytes. The longest in practice
// are overlays with hundreds of layers, a few tens of KiB.
const maxLine = 1 << 20

// maxID is the largest mount id, parent id or peer group id: they are C ints.
const maxID = 1<<31 - 1

var (
	// ErrMalformed is what every [*ParseError] answers to.
	ErrMalformed = errors.New("malformed mount table")

	errEmpty     = errors.New("no mounts")
	errTruncated = errors.New("line is cut short: no newline at the end")
)

// A ParseError says which line of a mount table was not understood.
// errors.Is(err, [ErrMalformed]) holds for it.
type ParseError struct {
	Line int    // the number of the line, from 1; 0 for the table as a whole
	Text string // the start of the line
	Err  error  // what is wrong with it
}

func (e *ParseError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("parse mount table: %v", e.Err)
	}
	return fmt.Sprintf("parse mount table: line %d: %v: %q", e.Line, e.Err, e.Text)
}

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// Is reports whether target is [ErrMalformed].
func (e *ParseError) Is(target error) bool { return target == ErrMalformed }

// Parse reads a mount table in the form of proc_pid_mountinfo(5):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// It accepts what the kernel writes (show_mountinfo in fs/proc_namespace.c) and
// nothing else: any doubt is a [*ParseError], and so is an empty table or a last
// line without its newline. An error of r is returned as it is.
//
// The moby/sys/mountinfo package is not used here, because it takes a number
// that it cannot parse for 0 and stops at a line of 64 KiB; the tests compare
// the two on well-formed input, where they must agree.
func Parse(r io.Reader) (*Table, error) {
	var mounts []Mount
	lines := bufio.NewReaderSize(r, 32<<10)
	var line []byte
	for n := 1; ; n++ {
		var err error
		line, err = readLine(lines, line[:0])
		if err == io.EOF {
			break
		}
		if err == nil {
			var m Mount
			if m, err = parseLine(string(line)); err == nil {
				mounts = append(mounts, m)
				continue
			}
		} else if err != errTruncated && err != bufio.ErrTooLong {
			return nil, fmt.Errorf("read mount table: %w", err)
		}
		return nil, &ParseError{Line: n, Text: string(line[:min(len(line), 200)]), Err: err}
	}
	t, err := New(mounts)
	if err != nil {
		return nil, &ParseError{Err: err}
	}
	return t, nil
}

// readLine appends the next line to buf, without its newline. It returns io.EOF
// only between lines.
func readLine(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		chunk, err := r.ReadSlice('\n')
		buf = append(buf, chunk...)
		switch {
		case len(buf) > maxLine:
			return buf, bufio.ErrTooLong
		case err == nil:
			return bytes.TrimSuffix(buf, []byte("\n")), nil
		case err == io.EOF && len(buf) > 0:
			return buf, errTruncated
		case err != bufio.ErrBufferFull:
			return buf, err
		}
	}
}

// parseLine reads one line without its newline.
func parseLine(line string) (Mount, error) {
	var m Mount
	fields := fieldReader{rest: line}
	m.ID = fields.id("mount id")
	m.ParentID = fields.id("parent id")
	if dev := fields.next("device"); fields.err == nil {
		m.Dev, fields.err = parseDev(dev)
	}
	m.Root = fields.path("root")
	m.Point = fields.path("mount point")
	m.Options = fields.next("mount options")
	for fields.err == nil {
		tag := fields.next("separator")
		if tag == "-" {
			break
		}
		if fields.err == nil {
			fields.err = m.Propagation.parse(tag)
		}
	}
	m.FSType = fields.path("file system type")
	source := fields.field("source")
	m.SuperOptions = fields.remainder("super options")
	if fields.err != nil {
		return Mount{}, fields.err
	}
	// The source is whatever the file system's show_devname prints. Not every
	// one escapes as the kernel's default does, and nothing is decided by it,
	// so what does not unescape stays as it is.
	m.Source = source
	if s, err := unescape(source); err == nil {
		m.Source = s
	}
	if !strings.HasPrefix(m.Point, "/") {
		return Mount{}, fmt.Errorf("mount point %q is not absolute", m.Point)
	}
	return m, nil
}

// parse reads one optional field. Tags it does not know are no error:
// proc_pid_mountinfo(5) asks parsers to ignore them.
func (p *Propagation) parse(field string) error {
	tag, value, _ := strings.Cut(field, ":")
	var to *uint64
	switch tag {
	case "shared":
		to = &p.Shared
	case "master":
		to = &p.Master
	case "propagate_from":
		to = &p.From
	case "unbindable":
		if field != tag {
			return fmt.Errorf("value in optional field %q", field)
		}
		p.Unbindable = true
		return nil
	default:
		return nil
	}
	id, err := parseID(value)
	if err != nil {
		return fmt.Errorf("peer group in optional field %q: %w", field, err)
	}
	*to = id
	return nil
}

// A fieldReader takes a line apart at single spaces: the kernel never writes
// two, except around an empty source. The first error sticks.
type fieldReader struct {
	rest string
	done bool
	err  error
}

// field returns the next field, which may be empty.
func (f *fieldReader) field(name string) string {
	if f.err != nil {
		return ""
	}
	if f.done {
		f.err = fmt.Errorf("%s is missing", name)
		return ""
	}
	field, rest, more := strings.Cut(f.rest, " ")
	f.rest, f.done = rest, !more
	return field
}

// next returns the next field, which must not be empty.
func (f *fieldReader) next(name string) string {
	field := f.field(name)
	if f.err == nil && field == "" {
		f.err = fmt.Errorf("%s is empty", name)
	}
	return field
}

// path returns the next field with its escapes resolved.
func (f *fieldReader) path(name string) string {
	field := f.next(name)
	if f.err != nil {
		return ""
	}
	s, err := unescape(field)
	if err != nil {
		f.err = fmt.Errorf("%s: %w", name, err)
	}
	return s
}

// id returns the next field as an id.
func (f *fieldReader) id(name string) uint64 {
	field := f.next(name)
	if f.err != nil {
		return 0
	}
	id, err := parseID(field)
	if err != nil {
		f.err = fmt.Errorf("%s: %w", name, err)
	}
	return id
}

// remainder returns the rest of the line. A space in the super options is the
// file system's own (9p on WSL 2 prints Windows paths there), not a separator.
func (f *fieldReader) remainder(name string) string {
	if f.err == nil && (f.done || f.rest == "") {
		f.err = fmt.Errorf("%s is missing", name)
	}
	if f.err != nil {
		return ""
	}
	return f.rest
}

// parseID reads a number as the kernel prints an int: decimal digits, no sign,
// no leading zero.
func parseID(s string) (uint64, error) {
	if s == "" || len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("bad number %q", s)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxID {
		return 0, fmt.Errorf("bad number %q", s)
	}
	return n, nil
}

// parseDev reads "major:minor".
func parseDev(s string) (KernelDev, error) {
	majorText, minorText, ok := strings.Cut(s, ":")
	major, err1 := parseID(majorText)
	minor, err2 := parseID(minorText)
	if !ok || err1 != nil || err2 != nil || major > maxMajor || minor > maxMinor {
		return 0, fmt.Errorf("bad device %q", s)
	}
	dev, _ := MakeKernelDev(uint32(major), uint32(minor))
	return dev, nil
}

// unescape resolves the octal escapes that the kernel's mangle_path writes for
// space, tab, newline, backslash and '#'. Every backslash begins one, so a
// backslash that does not is an error.
func unescape(s string) (string, error) {
	i := strings.IndexByte(s, '\\')
	if i < 0 {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for ; i >= 0; i = strings.IndexByte(s, '\\') {
		out = append(out, s[:i]...)
		s = s[i:]
		if len(s) < 4 || !octal(s[1], '3') || !octal(s[2], '7') || !octal(s[3], '7') {
			return "", fmt.Errorf("bad escape %q", s[:min(len(s), 4)])
		}
		out = append(out, (s[1]-'0')<<6|(s[2]-'0')<<3|(s[3]-'0'))
		s = s[4:]
	}
	return string(append(out, s...)), nil
}

func octal(c, last byte) bool { return '0' <= c && c <= last }
