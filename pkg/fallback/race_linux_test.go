// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

var raceSeconds = flag.Float64("race-seconds", 1, "how long each race lasts")

// exchange swaps two names.
func exchange(t testing.TB, a, b string) {
	t.Helper()
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
}

// systemChanges are those that need the system's own ways.
var systemChanges = []change{
	{name: "file becomes a link out", op: "read f", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) {
			exchange(t, filepath.Join(root, "f"), filepath.Join(root, "secret"))
		}},
	{name: "file becomes a link out, written", op: "write f x", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) {
			exchange(t, filepath.Join(root, "f"), filepath.Join(root, "secret"))
		}},
	{name: "directory becomes a link out", op: "read a/b/g", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out")) }},
	{name: "directory becomes a link out, created in", op: "exclusive a/n", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out")) }},
	{name: "directory becomes a link out, made in", op: "mkdir a/n", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out")) }},
	{name: "directory becomes a link out, removed from", op: "remove a/b", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out")) }},
	{name: "directory becomes a link out, renamed from", op: "rename a/b n", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "out")) }},
	{name: "directory becomes another directory", op: "remove z/up", err: fs.ErrNotExist,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "z")) }},
	{name: "link appears where a file is created", op: "write n x", err: engine.ErrEscape, code: engine.CodeSymlink,
		change: func(t *testing.T, root string) { must(t, os.Symlink("../out/n", filepath.Join(root, "n"))) }},
	{name: "file becomes a FIFO", op: "read f", err: ErrSpecial,
		change: func(t *testing.T, root string) {
			must(t, os.Remove(filepath.Join(root, "f")))
			must(t, unix.Mkfifo(filepath.Join(root, "f"), 0o600))
		}},
	{name: "root becomes another directory", op: "read f", err: ErrConflict, code: engine.CodeRootChanged,
		change: func(t *testing.T, root string) { exchange(t, root, filepath.Join(root, "../out")) }},
	{name: "root becomes another directory, written", op: "write f x", err: ErrConflict, code: engine.CodeRootChanged,
		change: func(t *testing.T, root string) { exchange(t, root, filepath.Join(root, "../out")) }},
	{name: "root becomes a directory with the same file", op: "read f", err: ErrConflict, code: engine.CodeRootChanged,
		change: func(t *testing.T, root string) {
			must(t, os.Link(filepath.Join(root, "f"), filepath.Join(root, "../out/f")))
			exchange(t, root, filepath.Join(root, "../out"))
		}},
	{name: "directory replaced each time, created in", op: "exclusive a/n", always: true, err: ErrConflict, code: CodeObjectChanged,
		change: func(t *testing.T, root string) { exchange(t, filepath.Join(root, "a"), filepath.Join(root, "z")) }},
	{name: "directory replaced each time, removed from", op: "remove a/same", always: true, err: ErrConflict, code: CodeObjectChanged,
		change: func(t *testing.T, root string) {
			must(t, os.WriteFile(filepath.Join(root, "a/same"), nil, 0o600))
			must(t, os.WriteFile(filepath.Join(root, "z/same"), nil, 0o600))
			exchange(t, filepath.Join(root, "a"), filepath.Join(root, "z"))
		}},
}

// TestPlacedElsewhere moves the directory away in the last moment there
// is, between its comparison and the creation; what was created is removed.
func TestPlacedElsewhere(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, guarded)
		root := filepath.Join(dir, "ws")
		g := &Guard{Workspace: bind(t, root, p), Probes: p}
		top, err := p.openRoot(root)
		must(t, err)
		defer top.close()
		parent, err := top.sub("a/b", false)
		must(t, err)
		defer parent.close()
		must(t, os.Rename(filepath.Join(root, "a/b"), filepath.Join(dir, "out/b")))

		file, made, err := parent.create("n", os.O_RDWR, 0o600)
		must(t, err)
		file.Close()
		if err := g.placed(top, "a/b/n", parent, "n", &made); err != errChanged {
			t.Errorf("a file created elsewhere is %v, want errChanged", err)
		}
		made, err = parent.mkdir("d", 0o700)
		must(t, err)
		if err := g.placed(top, "a/b/d", parent, "d", &made); err != errChanged {
			t.Errorf("a directory made elsewhere is %v, want errChanged", err)
		}
		if got, want := listing(t, filepath.Join(dir, "out")), "b/\nb/g deep\nsecret "+marker; got != want {
			t.Errorf("outside is\n%s\nwant\n%s", got, want)
		}
	})
}

// TestRace lets operations run while others swap files, directories and the
// root for links that lead out, move directories out and back, and mount what
// is outside into the workspace.
func TestRace(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	races(t, followings...)
}

// followings are what races may follow.
var followings = []engine.ContainmentOptions{{}, {FollowSymlinks: true}, {FollowSymlinks: true, FollowMountPoints: true}}

// races runs one race for each backend and what it may follow.
func races(t *testing.T, followings ...engine.ContainmentOptions) {
	probes := backends(t)
	delete(probes, "reused ids") // goes the same way as openat2
	for backend, p := range probes {
		for _, options := range followings {
			name := backend
			if options.FollowSymlinks {
				name += "+links"
			}
			if options.FollowMountPoints {
				name += "+mounts"
			}
			t.Run(name, func(t *testing.T) { race(t, p, options) })
		}
	}
}

func race(t *testing.T, p *Probes, options engine.ContainmentOptions) {
	dir := realTempDir(t)
	tree(t, dir, `
		dir ws/a/b
		file ws/a/b/f inside
		file ws/a/f inside
		file ws/f inside
		file ws/a/b/m inside
		dir ws/a/b/d
		outside out/b/f
		outside out/b/m
		outside out/b/d/n
		outside out/f
		outside out/n
	`)
	for name, target := range map[string]string{"fake": "out", "ws/la": "out", "ws/lb": "out/b", "ws/lf": "out/b/f"} {
		must(t, os.Symlink(filepath.Join(dir, target), filepath.Join(dir, name)))
	}
	root := filepath.Join(dir, "ws")
	at := func(path string) string { return filepath.Join(dir, path) }
	out := listing(t, at("out"))
	g := &Guard{Workspace: bind(t, root, p), Options: options, Probes: p}

	var stop atomic.Bool
	var swaps, leaks atomic.Int64
	var work sync.WaitGroup
	loop := func(f func()) {
		work.Go(func() {
			for !stop.Load() {
				f()
			}
		})
	}
	// Those who change the tree hold on to its directories, or they would be led
	// out themselves. They get in each other's way, so any call may fail; what
	// counts is that enough do not.
	handle := func(path string) int {
		fd, err := openat(unix.AT_FDCWD, at(path), unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	top, ws, a, b := handle("."), handle("ws"), handle("ws/a"), handle("ws/a/b")
	swap := func(dir1 int, name1 string, dir2 int, name2 string) {
		if unix.Renameat2(dir1, name1, dir2, name2, unix.RENAME_EXCHANGE) == nil {
			swaps.Add(1)
		}
	}
	loop(func() { swap(ws, "a", ws, "la") })
	loop(func() { swap(a, "b", ws, "lb") })
	loop(func() { swap(b, "f", ws, "lf") })
	loop(func() {
		swap(top, "ws", top, "fake")
		time.Sleep(time.Millisecond)
		swap(top, "ws", top, "fake")
		time.Sleep(5 * time.Millisecond)
	})
	loop(func() {
		if unix.Renameat(a, "b", top, "moved") == nil {
			swaps.Add(1)
			_ = unix.Renameat(top, "moved", a, "b")
		}
		time.Sleep(time.Millisecond)
	})
	// Mounting out into the workspace would make it inside for those who follow
	// mounts, so they get something harmless.
	source := handle("out/b")
	if options.FollowMountPoints {
		tree(t, dir, "file harmless/f inside")
		source = handle("harmless")
	}
	loop(func() {
		tree, err := unix.OpenTree(source, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			t.Errorf("open_tree: %v", err)
			stop.Store(true)
			return
		}
		defer unix.Close(tree)
		if unix.MoveMount(tree, "", b, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH) == nil {
			swaps.Add(1)
			time.Sleep(100 * time.Microsecond)
			if err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", tree), unix.MNT_DETACH); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
		time.Sleep(2 * time.Millisecond)
	})

	var done, refused atomic.Int64
	count := func(err error) {
		switch {
		case err == nil:
			done.Add(1)
		case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist),
			errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EBUSY),
			errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EXDEV):
			refused.Add(1)
		default:
			t.Errorf("unexpected error: %v", err)
		}
	}
	for _, target := range []string{"f", "a/f", "a/b/f"} {
		loop(func() {
			content, err := g.ReadFile(target)
			count(err)
			if bytes.Contains(content, []byte(marker)) {
				t.Errorf("%s was read from outside", target)
				stop.Store(true)
			}
		})
	}
	loop(func() { count(g.WriteFile("a/b/f", []byte("inside"), 0o600)) })
	loop(func() {
		count(g.WriteFile("a/b/n", []byte("inside"), 0o600))
		count(g.Remove("a/b/n"))
	})
	loop(func() {
		count(g.Rename("a/b/m", "a/m"))
		count(g.Rename("a/m", "a/b/m"))
	})
	loop(func() {
		count(g.Mkdir("a/b/d/n", 0o700))
		count(g.Remove("a/b/d/n"))
	})
	// The control: who does not guard is led out.
	loop(func() {
		if content, err := os.ReadFile(at("ws/a/b/f")); err == nil && bytes.Contains(content, []byte(marker)) {
			leaks.Add(1)
		}
		time.Sleep(50 * time.Microsecond)
	})

	tookPlace := func() bool {
		return swaps.Load() > 0 && done.Load() > 0 && refused.Load() > 0 && leaks.Load() > 0
	}
	deadline := time.Now().Add(time.Duration(*raceSeconds * float64(time.Second)))
	patience := deadline.Add(time.Minute) // a busy machine lets few of them run
	for (time.Now().Before(deadline) || !tookPlace() && time.Now().Before(patience)) && !stop.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	stop.Store(true)
	work.Wait()
	t.Logf("%d swaps, %d operations done, %d refused, %d unguarded reads led out", swaps.Load(), done.Load(), refused.Load(), leaks.Load())
	if !tookPlace() {
		t.Error("the race did not take place")
	}
	if now := listing(t, at("out")); now != out {
		t.Errorf("outside changed from\n%s\nto\n%s", out, now)
	}
}
