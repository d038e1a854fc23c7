// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
)

// follow is the option to follow symbolic links.
var follow = engine.ContainmentOptions{FollowSymlinks: true}

// guarded is the tree of the tables below: ws is the workspace.
const guarded = `
	outside out/secret
	dir ws/a/b
	dir ws/z
	file ws/f content
	file ws/a/b/g deep
	link ws/in -> a/b
	link ws/file -> f
	link ws/out -> ../out
	link ws/secret -> ../out/secret
	link ws/loop -> loop
	link ws/z/up -> ../../ws/f
`

// perform does one operation of a table: "VERB ARG [ARG]".
func perform(g *Guard, root, op string) (string, error) {
	verb, rest, _ := strings.Cut(op, " ")
	first, second, _ := strings.Cut(rest, " ")
	first = strings.ReplaceAll(first, "ROOT", root)
	second = strings.ReplaceAll(second, "ROOT", root)
	switch verb {
	case "read":
		content, err := g.ReadFile(first)
		return string(content), err
	case "list":
		d, err := g.Open(first)
		if err != nil {
			return "", err
		}
		defer d.Close()
		names, err := d.Readdirnames(-1)
		return strings.Join(names, " "), err
	case "write":
		return "", g.WriteFile(first, []byte(second), 0o600)
	case "append":
		f, err := g.OpenFile(first, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return "", err
		}
		defer f.Close()
		_, err = f.WriteString(second)
		return "", err
	case "create":
		f, err := g.Create(first)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if _, err := f.WriteString("new"); err != nil {
			return "", err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		content, err := io.ReadAll(f)
		return string(content), err
	case "exclusive":
		f, err := g.OpenFile(first, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return "", err
		}
		return "", f.Close()
	case "mkdir":
		return "", g.Mkdir(first, 0o755)
	case "remove":
		return "", g.Remove(first)
	case "rename":
		return "", g.Rename(first, second)
	}
	panic("unknown operation " + op)
}

// escape, permission, ... are the errors of the tables.
var (
	escape     = []error{engine.ErrEscape, fs.ErrPermission}
	missing    = []error{fs.ErrNotExist}
	exists     = []error{fs.ErrExist}
	notDir     = []error{syscall.ENOTDIR}
	isRoot     = []error{ErrRoot, fs.ErrPermission}
	unsafePath = []error{engine.ErrUnsafePath, fs.ErrInvalid, fs.ErrPermission}
)

// operations are what a Guard answers on the tree above. Every system and
// backend gives the same answers.
var operations = []struct {
	op      string
	options engine.ContainmentOptions
	result  string
	errs    []error // nil: it succeeds; each must be answered
	change  string  // what is different afterwards, as in diff: "-old\n+new"
}{
	{op: "read f", result: "content"},
	{op: "read ROOT/f", result: "content"},
	{op: "read ./a/../f", result: "content"},
	{op: "read a/b/g", result: "deep"},
	{op: "list a", result: "b"},
	{op: "list a/", result: "b"},
	{op: "read f/", errs: notDir},
	{op: "read f/x", errs: notDir},
	{op: "read missing", errs: missing},
	{op: "read missing/x", errs: missing},
	{op: "read ../out/secret", errs: escape},
	{op: "read ROOT/../out/secret", errs: escape},
	{op: "read ROOT-evil/x", errs: escape},
	{op: "read a/../../out/secret", errs: escape},
	{op: "read out/secret", errs: escape},
	{op: "read secret", errs: escape},
	{op: "read file", errs: escape},
	{op: "read in/g", errs: escape},
	{op: "read file", options: follow, result: "content"},
	{op: "read in/g", options: follow, result: "deep"},
	{op: "read z/up", options: follow, result: "content"},
	{op: "read out/secret", options: follow, errs: escape},
	{op: "read secret", options: follow, errs: escape},
	{op: "read loop", options: follow, errs: append([]error{engine.ErrLinkLoop}, escape...)},

	{op: "write f new", change: "-f content\n+f new"},
	{op: "write n new", change: "+n new"},
	{op: "write a/b/n new", change: "+a/b/n new"},
	{op: "write n/ new", errs: []error{syscall.EISDIR}},
	{op: "write a new", errs: []error{syscall.EISDIR}},
	{op: "write missing/n new", errs: missing},
	{op: "write f/n new", errs: notDir},
	{op: "write ../n new", errs: escape},
	{op: "write out/n new", errs: escape},
	{op: "write secret new", errs: escape},
	{op: "write out/n new", options: follow, errs: escape},
	{op: "write secret new", options: follow, errs: escape},
	{op: "write file new", options: follow, change: "-f content\n+f new"},
	{op: "append f more", change: "-f content\n+f contentmore"},
	{op: "append missing more", errs: missing},
	{op: "create n", result: "new", change: "+n new"},
	{op: "create f", result: "new", change: "-f content\n+f new"},
	{op: "exclusive n", change: "+n "},
	{op: "exclusive f", errs: exists},
	{op: "exclusive secret", errs: escape},

	{op: "mkdir n", change: "+n/"},
	{op: "mkdir n/", change: "+n/"},
	{op: "mkdir a/b/n", change: "+a/b/n/"},
	{op: "mkdir a", errs: exists},
	{op: "mkdir secret", errs: exists},
	{op: "mkdir missing/n", errs: missing},
	{op: "mkdir f/n", errs: notDir},
	{op: "mkdir out/n", errs: escape},
	{op: "mkdir out/n", options: follow, errs: escape},
	{op: "mkdir in/n", options: follow, change: "+a/b/n/"},
	{op: "mkdir .", errs: isRoot},
	{op: "mkdir ..", errs: escape},

	{op: "remove f", change: "-f content"},
	{op: "remove f/", errs: notDir},
	{op: "remove a/b/g", change: "-a/b/g deep"},
	{op: "remove secret", change: "-secret -> ../out/secret"},
	{op: "remove secret", options: follow, change: "-secret -> ../out/secret"},
	{op: "remove out/secret", options: follow, errs: escape},
	{op: "remove in/g", errs: escape},
	{op: "remove in/g", options: follow, change: "-a/b/g deep"},
	{op: "remove missing", errs: missing},
	{op: "remove ../out/secret", errs: escape},
	{op: "remove .", errs: isRoot},
	{op: "remove a/..", errs: isRoot},
	{op: "remove ROOT", errs: isRoot},

	{op: "rename f n", change: "-f content\n+n content"},
	{op: "rename f a/b/g", change: "-a/b/g deep\n+a/b/g content\n-f content"},
	{op: "rename a/b n", change: "-a/b/\n-a/b/g deep\n+n/\n+n/g deep"},
	{op: "rename f secret", change: "-f content\n-secret -> ../out/secret\n+secret content"},
	{op: "rename secret n", change: "-secret -> ../out/secret\n+n -> ../out/secret"},
	{op: "rename f ../n", errs: escape},
	{op: "rename f out/n", options: follow, errs: escape},
	{op: "rename ../out/secret n", errs: escape},
	{op: "rename out/secret n", options: follow, errs: escape},
	{op: "rename missing n", errs: missing},
	{op: "rename f missing/n", errs: missing},
	{op: "rename f f/n", errs: notDir},
	{op: "rename f/ n", errs: notDir},
	{op: "rename . n", errs: isRoot},
	{op: "rename f .", errs: isRoot},

	{op: "read a\x00b", errs: unsafePath},
	{op: "write a\x00b x", errs: unsafePath},
	{op: "mkdir a\x00b", errs: unsafePath},
	{op: "remove f\x00", errs: unsafePath},
	{op: "rename f n\x00", errs: unsafePath},
	{op: "read " + strings.Repeat("a/", 33<<10), errs: unsafePath},
}

func TestGuard(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		for _, test := range operations {
			name := test.op
			if len(name) > 40 {
				name = name[:40]
			}
			if test.options.FollowSymlinks {
				name += " following"
			}
			t.Run(name, func(t *testing.T) {
				if linked(test.op) {
					needs.Symlinks(t)
				}
				dir := realTempDir(t)
				tree(t, dir, guarded)
				root := filepath.Join(dir, "ws")
				before := listing(t, dir)
				g := &Guard{Workspace: bind(t, root, p), Options: test.options, Probes: p}

				result, err := perform(g, root, test.op)
				switch {
				case test.errs == nil && err != nil:
					t.Fatal(err)
				case test.errs != nil && err == nil:
					t.Fatalf("succeeded with %q", result)
				}
				for _, want := range test.errs {
					if !errors.Is(err, want) {
						t.Errorf("%v (%T) does not answer to %v", err, err, want)
					}
				}
				if test.errs == nil && sorted(result) != test.result {
					t.Errorf("got %q, want %q", result, test.result)
				}
				if diff := cmp.Diff(strings.Join(lines(test.change), "\n"), changes(before, listing(t, dir))); diff != "" {
					t.Errorf("the tree changed otherwise (-want +got):\n%s", diff)
				}
			})
		}
	})
}

// sorted orders the words of a listing.
func sorted(s string) string {
	words := strings.Fields(s)
	if len(words) < 2 {
		return s
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func lines(s string) []string {
	l := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
	slices.Sort(l)
	return l
}

// changes returns the lines that differ, as diff marks them. Those of the
// workspace are relative to it.
func changes(before, after string) string {
	var changed []string
	mark := func(sign, in, notIn string) {
		have := lines(notIn)
		for _, line := range lines(in) {
			if _, found := slices.BinarySearch(have, line); !found {
				changed = append(changed, sign+strings.TrimPrefix(line, "ws/"))
			}
		}
	}
	mark("-", before, after)
	mark("+", after, before)
	slices.Sort(changed)
	return strings.Join(changed, "\n")
}

// linked reports whether an operation has to do with one of the links of the
// guarded tree.
func linked(op string) bool {
	words := strings.FieldsFunc(op, func(r rune) bool { return r == ' ' || r == '/' })
	return slices.ContainsFunc(words, func(word string) bool {
		return slices.Contains([]string{"in", "file", "out", "secret", "loop", "up"}, word)
	}) && !strings.Contains(op, "../out")
}
