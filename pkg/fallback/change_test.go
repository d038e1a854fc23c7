// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
)

// A change is what somebody does after the walk of an operation and before its
// lookup; each time, or once. The answer is that of the tree as it is then, or
// conflict where it never comes to rest.
type change struct {
	name   string
	op     string
	change func(t *testing.T, root string)
	always bool // else after the first walk only
	result string
	err    error
	code   engine.Code
}

// portableChanges can be made on every system.
var portableChanges = []change{
	{name: "file replaced", op: "read a/b/g", result: "second",
		change: func(t *testing.T, root string) { replaceFile(t, filepath.Join(root, "a/b/g"), "second") }},
	{name: "file replaced each time", op: "read a/b/g", always: true, err: ErrConflict, code: CodeObjectChanged,
		change: func(t *testing.T, root string) { replaceFile(t, filepath.Join(root, "a/b/g"), "again") }},
	{name: "file replaced each time, written", op: "write a/b/g x", always: true, err: ErrConflict, code: CodeObjectChanged,
		change: func(t *testing.T, root string) { replaceFile(t, filepath.Join(root, "a/b/g"), "again") }},
	{name: "file vanishes", op: "read f", err: fs.ErrNotExist,
		change: func(t *testing.T, root string) { must(t, os.Remove(filepath.Join(root, "f"))) }},
	{name: "file appears", op: "write n x", result: "",
		change: func(t *testing.T, root string) {
			must(t, os.WriteFile(filepath.Join(root, "n"), []byte("meanwhile"), 0o600))
		}},
	{name: "file appears where none may be", op: "exclusive n", err: fs.ErrExist,
		change: func(t *testing.T, root string) {
			must(t, os.WriteFile(filepath.Join(root, "n"), []byte("meanwhile"), 0o600))
		}},
	{name: "directory vanishes", op: "exclusive a/b/n", err: fs.ErrNotExist, code: engine.CodeMissingComponent,
		change: func(t *testing.T, root string) {
			must(t, os.Rename(filepath.Join(root, "a/b"), filepath.Join(root, "elsewhere")))
		}},
	{name: "root vanishes", op: "read f", err: ErrConflict, code: engine.CodeRootChanged,
		change: func(t *testing.T, root string) { must(t, os.Rename(root, root+".gone")) }},
	{name: "root replaced", op: "write f x", err: ErrConflict, code: engine.CodeRootChanged,
		change: func(t *testing.T, root string) {
			must(t, os.Rename(root, root+".old"))
			tree(t, root, "file f other")
		}},
	{name: "directory replaced each time, made in", op: "mkdir a/n", always: true, err: ErrConflict, code: CodeObjectChanged,
		change: func(t *testing.T, root string) {
			aside := filepath.Join(t.TempDir(), "a")
			must(t, os.Rename(filepath.Join(root, "a"), aside))
			must(t, os.Mkdir(filepath.Join(root, "a"), 0o755))
		}},
}

func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	// The new one exists before the old one goes: it has another inode number.
	must(t, os.WriteFile(path+".new", []byte(content), 0o600))
	must(t, os.Rename(path+".new", path))
}

func TestChangeBetweenWalkAndUse(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		for _, test := range slices.Concat(portableChanges, systemChanges) {
			t.Run(test.name, func(t *testing.T) {
				dir := realTempDir(t)
				tree(t, dir, guarded)
				root := filepath.Join(dir, "ws")
				outside := listing(t, filepath.Join(dir, "out"))
				g := &Guard{Workspace: bind(t, root, p), Probes: p}
				walks := 0
				g.walked = func() {
					if walks++; walks == 1 || test.always {
						test.change(t, root)
					}
				}
				result, err := perform(g, root, test.op)
				if !errors.Is(err, test.err) {
					t.Errorf("error is %v, want %v", err, test.err)
				}
				if test.code != "" {
					refused := (*RefusedError)(nil)
					if !errors.As(err, &refused) || refused.Decision.Code != test.code {
						t.Errorf("error is %v, want the code %s", err, test.code)
					}
				}
				if result != test.result {
					t.Errorf("result is %q, want %q", result, test.result)
				}
				if test.always && walks != attempts {
					t.Errorf("%d walks, want %d", walks, attempts)
				}
				if now := listing(t, filepath.Join(dir, "out")); !strings.Contains(test.name, "root") && now != outside {
					t.Errorf("outside changed from %q to %q", outside, now)
				}
				if test.name == "file appears" {
					content, err := os.ReadFile(filepath.Join(root, "n"))
					if err != nil || string(content) != "x" {
						t.Errorf("the file holds %q (%v), want x", content, err)
					}
				}
			})
		}
	})
}
