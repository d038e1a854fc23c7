// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
)

// marker is the content of every file outside a workspace in these tests. No
// read may ever return it.
const marker = "OUTSIDE"

// tree makes what text describes below dir, one object a line:
//
//	dir PATH | file PATH [CONTENT] | outside PATH | link PATH -> TARGET | hard PATH -> TARGET
//
// outside is a file that holds the marker.
func tree(t testing.TB, dir, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		path, content, _ := strings.Cut(rest, " ")
		target := strings.TrimPrefix(content, "-> ")
		path = filepath.Join(dir, filepath.FromSlash(path))
		var err error
		switch kind {
		case "dir":
			err = os.MkdirAll(path, 0o755)
		case "outside":
			content = marker
			fallthrough
		case "file":
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte(content), 0o644)
			}
		case "link":
			if needs.HaveSymlinks() { // who looks at it asks for them
				err = os.Symlink(filepath.FromSlash(target), path)
			}
		case "hard":
			err = os.Link(filepath.Join(dir, filepath.FromSlash(target)), path)
		default:
			t.Fatalf("unknown kind %q", kind)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// realTempDir is t.TempDir without links.
func realTempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newProbes(t testing.TB) *Probes {
	t.Helper()
	p, err := NewProbes()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func bind(t testing.TB, root string, p *Probes) engine.WorkspaceIdentity {
	t.Helper()
	w := engine.Bind(root, p)
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	return w
}

// forEachBackend runs test with every way a Guard can go down a tree.
func forEachBackend(t *testing.T, test func(t *testing.T, p *Probes)) {
	for name, p := range backends(t) {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
}

// listing returns what lies below dir: "path kind content-or-target".
func listing(t testing.TB, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		line := filepath.ToSlash(rel)
		switch {
		case d.IsDir():
			line += "/"
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + filepath.ToSlash(target)
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
