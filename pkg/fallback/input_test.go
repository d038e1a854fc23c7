// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
)

// TestTargets holds what becomes of targets that nobody means well with, or that
// are at an edge: the check and the open say the same.
func TestTargets(t *testing.T) {
	for _, test := range []struct {
		name, target string
		outcome      engine.Outcome
		code         engine.Code
		err          error
	}{
		{"empty", "", engine.Allowed, engine.CodeWithin, nil},
		{"dot", ".", engine.Allowed, engine.CodeWithin, nil},
		{"slashes", "a//b///g", engine.Allowed, engine.CodeWithin, nil},
		{"trailing slash on a directory", "a/b//", engine.Allowed, engine.CodeWithin, nil},
		{"trailing slash on a file", "f/", engine.Denied, engine.CodeNotDirectory, engine.ErrNotDirectory},
		{"trailing dot on a file", "f/.", engine.Denied, engine.CodeNotDirectory, engine.ErrNotDirectory},
		{"NUL", "a\x00/../../x", engine.Denied, engine.CodeNULInPath, engine.ErrUnsafePath},
		{"longer than 64 KiB", strings.Repeat("a", engine.MaxPath+1), engine.Denied, engine.CodeUnsafePath, engine.ErrUnsafePath},
		{"64 KiB to an existing file", strings.Repeat("./", engine.MaxPath/2-1) + "f", engine.Allowed, engine.CodeWithin, nil},
		{"64 KiB to nothing", strings.Repeat("n/", engine.MaxPath/2), engine.EnforcementUnverified, engine.CodeMissingComponent, fs.ErrNotExist},
		{"parents", strings.Repeat("../", 100) + "etc/passwd", engine.Denied, engine.CodeOutside, engine.ErrEscape},
		{"sibling with the same prefix", "../ws-evil/f", engine.Denied, engine.CodeOutside, engine.ErrEscape},
	} {
		t.Run(test.name, func(t *testing.T) {
			forEachBackend(t, func(t *testing.T, p *Probes) {
				dir := realTempDir(t)
				tree(t, dir, guarded+"outside ws-evil/f")
				g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p}
				decision := engine.CheckContainment(g.Workspace, test.target, g.Options, p)
				if decision.Outcome != test.outcome || decision.Code != test.code {
					t.Errorf("got %s (%s), want %s (%s)", decision.Outcome, decision.Code, test.outcome, test.code)
				}
				f, err := g.Open(test.target)
				if err == nil {
					f.Close()
				}
				if !errors.Is(err, test.err) {
					t.Errorf("opening it is %v, want %v", err, test.err)
				}
			})
		})
	}
}

// TestRoots binds roots of every kind, does something to them, and holds what
// becomes of a check of the file f in them.
func TestRoots(t *testing.T) {
	for _, test := range []struct {
		name    string
		root    func(dir string) string
		after   func(t *testing.T, dir string)
		outcome engine.Outcome
		code    engine.Code
		err     error
		links   bool // there is one in it
	}{
		{name: "as it is", outcome: engine.Allowed, code: engine.CodeWithin},
		{name: "relative", outcome: engine.Allowed, code: engine.CodeWithin,
			root: func(dir string) string { return "ws" }},
		{name: "empty", outcome: engine.Allowed, code: engine.CodeWithin,
			root: func(dir string) string { return "" }},
		{name: "a link", links: true, outcome: engine.Allowed, code: engine.CodeWithin,
			root: func(dir string) string { return filepath.Join(dir, "link") }},
		{name: "with a trailing slash", outcome: engine.Allowed, code: engine.CodeWithin,
			root: func(dir string) string { return filepath.Join(dir, "ws") + string(filepath.Separator) }},
		{name: "missing", outcome: engine.Denied, code: engine.CodeBindingBlocked, err: fs.ErrNotExist,
			root: func(dir string) string { return filepath.Join(dir, "missing") }},
		{name: "a file", outcome: engine.Denied, code: engine.CodeBindingBlocked, err: engine.ErrNotDirectory,
			root: func(dir string) string { return filepath.Join(dir, "ws/f") }},
		{name: "a loop", links: true, outcome: engine.Denied, code: engine.CodeBindingBlocked, err: engine.ErrLinkLoop,
			root: func(dir string) string { return filepath.Join(dir, "loop") }},
		{name: "with a NUL", outcome: engine.Denied, code: engine.CodeBindingBlocked, err: engine.ErrUnsafePath,
			root: func(dir string) string { return dir + "\x00" }},
		{name: "longer than 64 KiB", outcome: engine.Denied, code: engine.CodeBindingBlocked, err: engine.ErrUnsafePath,
			root: func(dir string) string { return dir + strings.Repeat("/", engine.MaxPath) }},
		{name: "deleted afterwards", outcome: engine.Conflict, code: engine.CodeRootChanged, err: ErrConflict,
			after: func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "ws"))) }},
		{name: "replaced afterwards", outcome: engine.Conflict, code: engine.CodeRootChanged, err: ErrConflict,
			after: func(t *testing.T, dir string) {
				must(t, os.Rename(filepath.Join(dir, "ws"), filepath.Join(dir, "old")))
				tree(t, dir, "file ws/f content")
			}},
		{name: "removed and made again afterwards", outcome: engine.Conflict, code: engine.CodeRootChanged, err: ErrConflict,
			after: func(t *testing.T, dir string) {
				// The new one often gets the inode number of the old one.
				must(t, os.RemoveAll(filepath.Join(dir, "ws")))
				tree(t, dir, "file ws/f content")
			}},
		{name: "replaced by a file afterwards", outcome: engine.Conflict, code: engine.CodeRootChanged, err: ErrConflict,
			after: func(t *testing.T, dir string) {
				must(t, os.Rename(filepath.Join(dir, "ws"), filepath.Join(dir, "old")))
				tree(t, dir, "file ws content")
			}},
		{name: "replaced by a link to itself afterwards", links: true, outcome: engine.Conflict, code: engine.CodeRootChanged, err: ErrConflict,
			after: func(t *testing.T, dir string) {
				must(t, os.Rename(filepath.Join(dir, "ws"), filepath.Join(dir, "old")))
				tree(t, dir, "link ws -> old")
			}},
		{name: "link to it changed afterwards", links: true, outcome: engine.Allowed, code: engine.CodeWithin,
			root: func(dir string) string { return filepath.Join(dir, "link") },
			after: func(t *testing.T, dir string) {
				must(t, os.Remove(filepath.Join(dir, "link")))
				tree(t, dir, "outside evil/f\nlink link -> evil")
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.links {
				needs.Symlinks(t)
			}
			forEachBackend(t, func(t *testing.T, p *Probes) {
				dir := realTempDir(t)
				tree(t, dir, "file ws/f content\nlink link -> ws\nlink loop -> loop")
				root := filepath.Join(dir, "ws")
				if test.root != nil {
					root = test.root(dir)
				}
				switch root {
				case "":
					t.Chdir(filepath.Join(dir, "ws"))
				default:
					t.Chdir(dir)
				}
				g := &Guard{Workspace: engine.Bind(root, p), Probes: p}
				if g.Workspace.WorkspaceID == "" {
					t.Error("the binding has no id")
				}
				if test.after != nil {
					test.after(t, dir)
				}
				decision := engine.CheckContainment(g.Workspace, "f", g.Options, p)
				if decision.Outcome != test.outcome || decision.Code != test.code {
					t.Errorf("got %s (%s): %s; want %s (%s)", decision.Outcome, decision.Code, decision.Reason, test.outcome, test.code)
				}
				content, err := g.ReadFile("f")
				if !errors.Is(err, test.err) {
					t.Errorf("reading it is %v, want %v", err, test.err)
				}
				if err == nil && string(content) != "content" {
					t.Errorf("it reads %q", content)
				}
				for _, op := range []string{"write f x", "mkdir n", "remove f", "rename f g"} {
					if test.err == nil {
						break
					}
					if _, err := perform(g, root, op); !errors.Is(err, test.err) {
						t.Errorf("%s is %v, want %v", op, err, test.err)
					}
				}
			})
		})
	}
}

func TestNoProbes(t *testing.T) {
	p := newProbes(t)
	g := &Guard{Workspace: bind(t, realTempDir(t), p)}
	for _, op := range []string{"read f", "write f x", "mkdir n", "remove f", "rename f g"} {
		if _, err := perform(g, "", op); !errors.Is(err, ErrUnverified) || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s without probes is %v, want ErrUnverified", op, err)
		}
	}
	for _, d := range g.CheckAll([]string{"f", ""}) {
		if d.Code != engine.CodeNoProbe {
			t.Errorf("a check without probes is %+v", d)
		}
	}
	g = &Guard{Probes: p}
	if _, err := g.Open("f"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("opening without a binding is %v", err)
	}
}

func TestFlags(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, guarded)
	g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p}
	for name, open := range map[string]func() error{
		"an unknown flag":            func() error { _, err := g.OpenFile("f", 1<<30, 0); return err },
		"truncate without write":     func() error { _, err := g.OpenFile("f", os.O_TRUNC, 0); return err },
		"a mode of more than 9 bits": func() error { _, err := g.OpenFile("n", os.O_CREATE|os.O_RDWR, fs.ModeSetuid|0o700); return err },
		"a directory's mode":         func() error { return g.Mkdir("n", fs.ModeSticky|0o700) },
	} {
		if err := open(); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s is %v, want ErrInvalid", name, err)
		}
	}
	if got := listing(t, dir); strings.Contains(got, "ws/n") || !strings.Contains(got, "ws/f content") {
		t.Errorf("the tree changed:\n%s", got)
	}
}
