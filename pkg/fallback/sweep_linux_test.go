// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// counting counts what the engine asks for, each question being one system call
// (and the mount table one poll(2)).
type counting struct {
	engine.Probes
	inspects, mounts, sweeps int
}

func (c *counting) Inspect(path string) (engine.Entry, error) {
	c.inspects++
	return c.Probes.Inspect(path)
}

func (c *counting) Mounts() (*mountmap.Table, error) {
	c.mounts++
	return c.Probes.Mounts()
}

// sweeping is counting that can sweep.
type sweeping struct{ counting }

func (s *sweeping) Sweep(root, path string) (engine.Entry, bool) {
	s.sweeps++
	return s.Probes.(*Probes).Sweep(root, path)
}

// TestCost holds the price of a check ten components deep: one look at each
// component, the root and the mount table; with Sweep three in all.
func TestCost(t *testing.T) {
	root, path := deep(t)
	p := newProbes(t)
	workspace := bind(t, root, p)

	walked := &counting{Probes: p}
	if d := engine.CheckContainment(workspace, path, engine.ContainmentOptions{}, walked); d.Outcome != engine.Allowed {
		t.Fatal(d)
	}
	if walked.inspects > 10+1 || walked.mounts > 1 {
		t.Errorf("a walk of 10 components inspects %d times and asks %d times for the mount table", walked.inspects, walked.mounts)
	}

	swept := &sweeping{counting{Probes: p}}
	if d := engine.CheckContainment(workspace, path, engine.ContainmentOptions{}, swept); d.Outcome != engine.Allowed {
		t.Fatal(d)
	}
	if swept.inspects != 1 || swept.mounts != 1 || swept.sweeps != 1 {
		t.Errorf("a swept check asks %+v", swept.counting)
	}

	for name, probes := range map[string]engine.Probes{"walking": struct{ engine.Probes }{p}, "sweeping": p} {
		const rounds = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			engine.CheckContainment(workspace, path, engine.ContainmentOptions{}, probes)
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / rounds; bytes >= 2<<10 {
			t.Errorf("%s, a check allocates %d bytes, want less than 2 KiB", name, bytes)
		}
	}
}

// assorted are targets of every kind in the guarded tree.
func assorted(root string) []string {
	targets := []string{"", ".", "f", "f/", "f/x", "a", "a/b", "a/b/", "a/b/g", "a/b/n", "a/n", "n/n", "..", "../out/secret",
		"in", "in/g", "out", "out/secret", "secret", "loop", "z/up", "file", "a/../f", "\x00", root, root + "/a/b/g", root + "-evil"}
	for range 3 {
		targets = append(targets, targets...)
	}
	return targets
}

func TestCheckAllAgrees(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, guarded)
		root := filepath.Join(dir, "ws")
		for _, options := range []engine.ContainmentOptions{{}, follow} {
			g := &Guard{Workspace: bind(t, root, p), Options: options, Probes: p}
			targets := assorted(root)
			before := descriptors(t)
			got := g.CheckAll(targets)
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors are open after %d before", after, before)
			}
			want := make([]engine.ContainmentDecision, len(targets))
			for i, target := range targets {
				// Without Sweep: every component is looked at.
				want[i] = engine.CheckContainment(g.Workspace, target, options, struct{ engine.Probes }{p})
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("differs from single checks (-want +got):\n%s", diff)
			}
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(open)
}

// TestCheckAllInvalidation changes the tree after everything was looked at and
// before the answers are given out: they have to be those of the tree as it is
// then.
func TestCheckAllInvalidation(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	p := newProbes(t)
	for _, test := range []struct {
		name   string
		change func(t *testing.T, root string)
		code   engine.Code // of a/b/x2; "" for unchanged answers
	}{
		{"nothing", func(t *testing.T, root string) {}, engine.CodeWithin},
		{"directory becomes a link", func(t *testing.T, root string) {
			exchange(t, filepath.Join(root, "a/b"), filepath.Join(root, "in"))
		}, engine.CodeSymlink},
		{"parent becomes a link", func(t *testing.T, root string) {
			exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out"))
		}, engine.CodeSymlink},
		{"directory becomes another", func(t *testing.T, root string) {
			exchange(t, filepath.Join(root, "a/b"), filepath.Join(root, "f"))
		}, engine.CodeNotDirectory},
		{"directory becomes a like one with a link in it", func(t *testing.T, root string) {
			for i := range 8 {
				must(t, os.Symlink("../f", filepath.Join(root, fmt.Sprintf("z/x%d", i))))
			}
			exchange(t, filepath.Join(root, "a/b"), filepath.Join(root, "z"))
		}, engine.CodeSymlink},
		{"directory vanishes", func(t *testing.T, root string) {
			must(t, os.RemoveAll(filepath.Join(root, "a")))
		}, engine.CodeMissingComponent},
		{"root is replaced", func(t *testing.T, root string) {
			must(t, os.Rename(root, root+".old"))
			tree(t, filepath.Dir(root), "dir ws/a/b")
		}, engine.CodeRootChanged},
		{"root is replaced and gets the same directories", func(t *testing.T, root string) {
			must(t, os.Rename(root, root+".old"))
			must(t, os.Mkdir(root, 0o755))
			must(t, os.Rename(root+".old/a", filepath.Join(root, "a")))
		}, engine.CodeRootChanged},
		{"directory is mounted over", func(t *testing.T, root string) {
			mount(t, "none", filepath.Join(root, "a/b"), "tmpfs", 0)
			t.Cleanup(func() { unix.Unmount(filepath.Join(root, "a/b"), unix.MNT_DETACH) })
		}, engine.CodeMountPoint},
		{"file is mounted over", func(t *testing.T, root string) {
			file := filepath.Join(root, "a/b/x2")
			mount(t, filepath.Join(root, "f"), file, "", unix.MS_BIND)
			t.Cleanup(func() { unix.Unmount(file, unix.MNT_DETACH) })
		}, engine.CodeMountPoint},
		{"root is mounted over", func(t *testing.T, root string) {
			mount(t, "none", root, "tmpfs", 0)
			t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
			tree(t, root, "dir a/b")
		}, engine.CodeRootChanged},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := realTempDir(t)
			tree(t, dir, guarded)
			root := filepath.Join(dir, "ws")
			var targets []string
			for i := range 8 {
				targets = append(targets, fmt.Sprintf("a/b/x%d", i))
				must(t, os.WriteFile(filepath.Join(root, targets[i]), nil, 0o600))
			}
			looks := 0
			g := &Guard{Workspace: bind(t, root, p), Probes: p}
			g.walked = func() { looks++; test.change(t, root) }
			got := g.CheckAll(targets)
			if looks != 1 {
				t.Fatalf("%d batches, want 1", looks)
			}
			for i, target := range targets {
				if want := engine.CheckContainment(g.Workspace, target, g.Options, p); got[i] != want {
					t.Errorf("%s: got %+v, now it is %+v", target, got[i], want)
				}
			}
			if got[2].Code != test.code {
				t.Errorf("%s is %+v, want the code %s", targets[2], got[2], test.code)
			}
		})
	}
}

// BenchmarkCheckAll checks 64 files of one directory at a time.
func BenchmarkCheckAll(b *testing.B) {
	root, path := deep(b)
	p := newProbes(b)
	g := &Guard{Workspace: bind(b, root, p), Probes: p}
	targets := make([]string, batchSize)
	for i := range targets {
		targets[i] = path
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, d := range g.CheckAll(targets) {
			if d.Outcome != engine.Allowed {
				b.Fatal(d)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(targets)), "ns/target")
}
