// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// lstatProbe is the least that can look at the running system.
type lstatProbe struct{ mounts *mountmap.Live }

func (p lstatProbe) Inspect(path string) (engine.Entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return engine.Entry{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return engine.Entry{Kind: engine.KindOfMode(st.Mode), Dev: mountmap.StatDev(st.Dev), Ino: st.Ino}, nil
}

func (p lstatProbe) ReadLink(path string) (string, error) { return os.Readlink(path) }
func (p lstatProbe) Mounts() (*mountmap.Table, error)     { return p.mounts.Table() }
func (p lstatProbe) WorkingDir() (string, error)          { return os.Getwd() }
func (p lstatProbe) Platform() engine.PlatformIdentity    { return engine.PlatformFor("linux") }
func (p lstatProbe) ReadDir(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// TestWalkAgainstKernel builds random trees for real and compares the walk with
// openat2(2): what the kernel finds beneath the root without leaving it, the walk
// allows, under the name of the same object; where the kernel fails, the walk
// says why.
func TestWalkAgainstKernel(t *testing.T) {
	mounts, err := mountmap.OpenLive()
	if err != nil {
		t.Fatal(err)
	}
	defer mounts.Close()
	probes := lstatProbe{mounts}
	base := t.TempDir()
	// The directory for tests may itself be reached through a link.
	if base, err = filepath.EvalSymlinks(base); err != nil {
		t.Fatal(err)
	}
	trees := 0
	rapid.Check(t, func(t *rapid.T) {
		trees++
		top := filepath.Join(base, "tree")
		if err := os.RemoveAll(top); err != nil {
			t.Fatal(err)
		}
		world := drawWorld(t, false)
		for _, line := range world.text {
			kind, rest, _ := strings.Cut(line, " ")
			path, target, _ := strings.Cut(rest, " -> ")
			path = filepath.Join(top, path)
			var err error
			switch kind {
			case "dir":
				err = os.MkdirAll(path, 0o755)
			case "file":
				err = os.WriteFile(path, []byte("outside"), 0o644)
			case "link":
				if filepath.IsAbs(target) {
					target = top + target
				}
				err = os.Symlink(target, path)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		root := filepath.Join(top, "srv", "repo")
		w := engine.Bind(root, probes)
		if w.BindingStatus != engine.Bound {
			t.Fatalf("Bind: %+v", w)
		}
		target := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "srv", "repo", "..", ".", ""}), 1, 5).Draw(t, "target"), "/")
		got := engine.CheckContainment(w, target, engine.ContainmentOptions{FollowSymlinks: true}, probes)
		lexical, err := engine.Resolve(root, target)
		if err != nil {
			if got.Code != engine.CodeOutside {
				t.Fatalf("%q is lexically outside; the walk says %+v", target, got)
			}
			return
		}

		rel, err := filepath.Rel(root, lexical)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(target, "/") || strings.HasSuffix(target, "/.") {
			rel += "/"
		}
		dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(dir)
		beneath := func(path string, more uint64) (unix.Stat_t, error) {
			how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | more}
			var st unix.Stat_t
			fd, err := unix.Openat2(dir, path, &how)
			if err != nil {
				return st, err
			}
			defer unix.Close(fd)
			return st, unix.Fstat(fd, &st)
		}
		fail := func(kernel error) {
			t.Fatalf("%q: the kernel says %v, the walk %+v of\n%s", target, kernel, got, strings.Join(world.text, "\n"))
		}
		object, err := beneath(rel, 0)
		switch {
		case err == nil:
			if got.Outcome != engine.Allowed {
				fail(err)
			}
			var st unix.Stat_t
			if err := unix.Lstat(got.ResolvedPath, &st); err != nil || st.Ino != object.Ino || st.Dev != object.Dev {
				t.Fatalf("%q is inode %d, the walk's %q is %d, %v", target, object.Ino, got.ResolvedPath, st.Ino, err)
			}
		case errors.Is(err, unix.ENOENT):
			if got.Code != engine.CodeMissingComponent && got.Code != engine.CodeWithin {
				fail(err)
			}
		case errors.Is(err, unix.ENOTDIR):
			if got.Code != engine.CodeNotDirectory {
				fail(err)
			}
		case errors.Is(err, unix.ELOOP):
			if got.Code != engine.CodeLinkLoop {
				fail(err)
			}
		case errors.Is(err, unix.EXDEV):
			// The kernel refuses every step above the root and every absolute
			// link; the walk knows those that lead back in.
			if got.Outcome == engine.Denied || got.Code == engine.CodeMissingComponent {
				break
			}
			inside, err := filepath.Rel(root, got.ResolvedPath)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := beneath(inside, unix.RESOLVE_NO_SYMLINKS); err != nil && !errors.Is(err, unix.ENOENT) {
				fail(err)
			}
		default:
			t.Fatalf("openat2(%q): %v", rel, err)
		}
	})
	if trees < 50 {
		t.Errorf("only %d trees", trees)
	}
}
