// SPDX-License-Identifier: Apache-2.0

//go:build linux && vm

package fallback

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

// TestOverlay works in an overlay whose layers lie on different file systems. A
// file may then change its device and number when it is written for the first
// time (copy-up), and the guard meets another object than the walk saw.
func TestOverlay(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, "dir lower\ndir upper\ndir ws")
		for _, layer := range []string{"lower", "upper"} {
			target := filepath.Join(dir, layer)
			mount(t, "none", target, "tmpfs", 0)
			t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
		}
		tree(t, dir, "file lower/a/f lower\nfile lower/a/g lower\nfile lower/gone lower\nfile lower/opaque/x lower\ndir upper/data\ndir upper/work")
		root := filepath.Join(dir, "ws")
		options := "lowerdir=" + dir + "/lower,upperdir=" + dir + "/upper/data,workdir=" + dir + "/upper/work"
		must(t, unix.Mount("overlay", root, "overlay", 0, options))
		t.Cleanup(func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) })

		g := &Guard{Workspace: bind(t, root, p), Probes: p}
		for _, step := range []struct{ op, result string }{
			{"read a/f", "lower"},
			{"append a/f more", ""},
			{"read a/f", "lowermore"},
			{"write a/g new", ""},
			{"read a/g", "new"},
			{"rename a/g a/h", ""},
			{"read a/h", "new"},
			{"remove gone", ""}, // leaves a whiteout
			{"write gone back", ""},
			{"read gone", "back"},
			{"remove opaque/x", ""},
			{"remove opaque", ""},
			{"mkdir opaque", ""},
			{"list opaque", ""},
			{"write opaque/y y", ""},
			{"read opaque/y", "y"},
		} {
			result, err := perform(g, root, step.op)
			if err != nil || result != step.result {
				t.Errorf("%s is %q, %v; want %q", step.op, result, err, step.result)
			}
		}
	})
}

// TestRealFileSystems holds the properties, and races, on the file systems that a
// workspace lies on, as root: 25 random trees and 3 races of a second on each, in
// a soak 300 trees and 63 seconds of racing in all.
func TestRealFileSystems(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	checks, seconds := "25", "1"
	if os.Getenv("THENFORCE_VM_SOAK") != "" {
		checks, seconds = "300", "7"
	}
	must(t, flag.Set("rapid.checks", checks))
	must(t, flag.Set("race-seconds", seconds))
	base, err := os.MkdirTemp("/mnt/ext4", "fallback")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	tree(t, base, "dir lower\ndir upper\ndir work\ndir overlay")
	overlay := filepath.Join(base, "overlay")
	options := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	must(t, unix.Mount("overlay", overlay, "overlay", 0, options))
	t.Cleanup(func() { must(t, unix.Unmount(overlay, unix.MNT_DETACH)) })
	seen := make(map[engine.Code]int)
	for i, fsys := range []struct{ name, dir string }{{"tmpfs", os.TempDir()}, {"ext4", base}, {"overlayfs", overlay}} {
		t.Run(fsys.name, func(t *testing.T) {
			t.Setenv("TMPDIR", fsys.dir) // where they make what they need
			if fsys.name != "overlayfs" {
				checkGeneration(t, newProbes(t), fsys.dir)
			}
			t.Run("properties", func(t *testing.T) { properties(t, seen) })
			t.Run("race", func(t *testing.T) { races(t, followings[i]) })
		})
	}
	sawEnough(t, seen)
}

// TestProfileFullFileSystems needs the full guest's mkfs programs. It binds and works on file systems in an image.
func TestProfileFullFileSystems(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	for _, test := range []struct {
		name string
		mkfs []string
		// prepare makes what the file system alone can have.
		prepare func(t *testing.T, p *Probes, root string)
	}{
		{"ext4 with casefold", []string{"mkfs.ext4", "-q", "-F", "-O", "casefold"}, func(t *testing.T, p *Probes, root string) {
			folder := filepath.Join(root, "folded")
			must(t, os.Mkdir(folder, 0o755))
			fd, err := openat(unix.AT_FDCWD, folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			defer unix.Close(fd)
			must(t, unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, casefold))
			if fold, err := p.FoldsCase(folder); !fold || err != nil {
				t.Errorf("FoldsCase is %v, %v for a folded directory", fold, err)
			}
			if fold, err := p.FoldsCase(root); fold || err != nil {
				t.Errorf("FoldsCase is %v, %v for another", fold, err)
			}
			if w := bind(t, folder, p); len(w.Notices) == 0 {
				t.Error("the binding does not say that names fold")
			}
		}},
		{"btrfs", []string{"mkfs.btrfs", "-q", "-f"}, func(t *testing.T, p *Probes, root string) {
			out, err := exec.Command("btrfs", "subvolume", "create", filepath.Join(root, "sub")).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			tree(t, root, "file sub/f content")
			g := &Guard{Workspace: bind(t, root, p), Probes: p}
			if d := engine.CheckContainment(g.Workspace, "sub/f", g.Options, p); d.Outcome != engine.Conflict || d.Code != engine.CodeDeviceChanged {
				t.Errorf("a subvolume in the workspace is %+v", d)
			}
			if _, err := g.ReadFile("sub/f"); !errors.Is(err, ErrConflict) {
				t.Errorf("reading in a subvolume is %v, want ErrConflict", err)
			}
			g.Workspace = bind(t, filepath.Join(root, "sub"), p)
			if content, err := g.ReadFile("f"); err != nil || string(content) != "content" {
				t.Errorf("bound itself it reads %q, %v", content, err)
			}
		}},
		{"xfs", []string{"mkfs.xfs", "-q", "-f"}, func(*testing.T, *Probes, string) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := realTempDir(t)
			image, root := filepath.Join(dir, "image"), filepath.Join(dir, "ws")
			must(t, os.WriteFile(image, nil, 0o600))
			must(t, os.Truncate(image, 512<<20))
			must(t, os.Mkdir(root, 0o755))
			for _, args := range [][]string{append(test.mkfs, image), {"mount", "-o", "loop", image, root}} {
				if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %v: %s", args, err, out)
				}
			}
			t.Cleanup(func() { must(t, unix.Unmount(root, 0)) })
			forEachBackend(t, func(t *testing.T, p *Probes) {
				workspace := filepath.Join(root, "ws")
				defer os.RemoveAll(workspace)
				tree(t, root, "dir ws/d")
				g := &Guard{Workspace: bind(t, workspace, p), Probes: p}
				for _, step := range []struct{ op, result string }{
					{"write d/f content", ""}, {"read d/f", "content"}, {"rename d/f g", ""}, {"read g", "content"},
					{"append g more", ""}, {"read g", "contentmore"}, {"mkdir d/e", ""}, {"remove d/e", ""}, {"remove g", ""},
				} {
					if result, err := perform(g, workspace, step.op); err != nil || result != step.result {
						t.Errorf("%s is %q, %v; want %q", step.op, result, err, step.result)
					}
				}
			})
			checkGeneration(t, newProbes(t), root)
			test.prepare(t, newProbes(t), root)
		})
	}
}
