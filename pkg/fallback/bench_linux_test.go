// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"

	"github.com/thenforce/thenforce/pkg/engine"
)

// deep makes a workspace and returns it with the path of a file ten components
// below it.
func deep(t testing.TB) (root, path string) {
	root = filepath.Join(realTempDir(t), "workspace")
	path = strings.Repeat("directory/", 9) + "file"
	tree(t, root, "file "+path+" content")
	return root, path
}

// A walker is probes that cannot sweep.
type walker struct {
	engine.Probes
	engine.Generationer
}

// BenchmarkContainment compares a check of a path ten components deep with
// libraries that open it. Walking is the check without [Probes.Sweep], as a
// trace needs it or a path with a link in it.
func BenchmarkContainment(b *testing.B) {
	root, path := deep(b)
	b.Run("CheckContainment", func(b *testing.B) {
		p := newProbes(b)
		workspace := bind(b, root, p)
		b.ReportAllocs()
		for b.Loop() {
			if d := engine.CheckContainment(workspace, path, engine.ContainmentOptions{}, p); d.Outcome != engine.Allowed {
				b.Fatal(d)
			}
		}
	})
	b.Run("CheckContainment walking", func(b *testing.B) {
		p := newProbes(b)
		workspace := bind(b, root, p)
		walking := walker{p, p}
		b.ReportAllocs()
		for b.Loop() {
			if d := engine.CheckContainment(workspace, path, engine.ContainmentOptions{}, walking); d.Outcome != engine.Allowed {
				b.Fatal(d)
			}
		}
	})
	b.Run("Guard.Open", func(b *testing.B) {
		p := newProbes(b)
		g := &Guard{Workspace: bind(b, root, p), Probes: p}
		b.ReportAllocs()
		for b.Loop() {
			f, err := g.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("pathrs-lite OpenatInRoot", func(b *testing.B) {
		dir, err := os.Open(root)
		must(b, err)
		defer dir.Close()
		b.ReportAllocs()
		for b.Loop() {
			f, err := pathrs.OpenatInRoot(dir, path)
			if err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("os.Root.Open", func(b *testing.B) {
		dir, err := os.OpenRoot(root)
		must(b, err)
		defer dir.Close()
		b.ReportAllocs()
		for b.Loop() {
			f, err := dir.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
}
