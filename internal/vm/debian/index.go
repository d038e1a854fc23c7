package debian

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Package is one stanza of an archive index, cut down to what choosing a
// kernel needs.
type Package struct {
	Name    string
	Version string
	Depends []Dependency
}

// Dependency is one element of a Depends field. Of alternatives ("a | b") only
// the first is kept: kernel packages use them for tools, never for parts of
// the kernel.
type Dependency struct {
	Name string
	// Exact is the version of a "(= version)" relation, empty for any other.
	Exact string
}

// ParseIndex reads a Packages file (deb822, see deb822(5)) and returns the
// stanzas whose name keep accepts. A stanza without name or version, and a
// line that is neither field nor continuation, is an error: a truncated index
// must not pass for an archive that lacks the package.
func ParseIndex(r io.Reader, keep func(name string) bool) ([]Package, error) {
	var (
		out   []Package
		cur   Package
		seen  bool
		lines = bufio.NewScanner(r)
	)
	// Descriptions and Depends of some packages are far above the default.
	lines.Buffer(make([]byte, 0, 64<<10), 4<<20)
	flush := func(line int) error {
		if !seen {
			return nil
		}
		if cur.Name == "" || cur.Version == "" {
			return fmt.Errorf("parse index: stanza before line %d has no name or no version", line)
		}
		if keep(cur.Name) {
			out = append(out, cur)
		}
		cur, seen = Package{}, false
		return nil
	}
	n := 0
	for lines.Scan() {
		n++
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			if err := flush(n); err != nil {
				return nil, err
			}
			continue
		case line[0] == ' ' || line[0] == '\t':
			continue // Continuations belong to fields that nobody here reads.
		}
		field, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("parse index: line %d is not a field: %q", n, line)
		}
		seen = true
		value = strings.TrimSpace(value)
		switch field {
		case "Package":
			cur.Name = value
		case "Version":
			cur.Version = value
		case "Depends":
			cur.Depends = parseDepends(value)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse index: %w", err)
	}
	if err := flush(n + 1); err != nil {
		return nil, err
	}
	return out, nil
}

func parseDepends(value string) []Dependency {
	var out []Dependency
	for element := range strings.SplitSeq(value, ",") {
		first, _, _ := strings.Cut(element, "|")
		name, relation, _ := strings.Cut(strings.TrimSpace(first), "(")
		name, _, _ = strings.Cut(strings.TrimSpace(name), ":") // python3:any
		if name == "" {
			continue
		}
		d := Dependency{Name: name}
		relation = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(relation), ")"))
		if v, ok := strings.CutPrefix(relation, "="); ok {
			d.Exact = strings.TrimSpace(v)
		}
		out = append(out, d)
	}
	return out
}
