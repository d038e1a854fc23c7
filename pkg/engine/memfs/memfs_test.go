// SPDX-License-Identifier: Apache-2.0

package memfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

func TestBuild(t *testing.T) {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MustBuild(`
		dir    /a/b dev=77 ino=5 gen=6 fs=xfs
		link   /a/l -> "some where"
		file   "/a/with space"
		error  /a/e err=EIO
		socket /a/s
	`)
	e, err := fsys.Inspect("/a/b")
	want := engine.Entry{Kind: engine.KindDir, Dev: 77, Ino: 5, Generation: 6, HasGeneration: true, FSType: "xfs"}
	if err != nil || e != want {
		t.Errorf("Inspect = %+v, %v; want %+v", e, err, want)
	}
	if target, err := fsys.ReadLink("/a/l"); err != nil || target != "some where" {
		t.Errorf("ReadLink = %q, %v", target, err)
	}
	if names, err := fsys.ReadDir("/a"); err != nil || !slices.Equal(names, []string{"b", "l", "with space", "e", "s"}) {
		t.Errorf("ReadDir = %q, %v", names, err)
	}
	if _, err := fsys.Inspect("/a/e"); !errors.Is(err, syscall.EIO) {
		t.Errorf("Inspect of what cannot be = %v", err)
	}
	for path, want := range map[string]error{"/a/nope": fs.ErrNotExist, "/a/nope/x": fs.ErrNotExist, "/a/s/x": syscall.ENOTDIR, "/a/e/x": syscall.EIO} {
		var pathErr *fs.PathError
		if _, err := fsys.Inspect(path); !errors.Is(err, want) || !errors.As(err, &pathErr) || pathErr.Path != path {
			t.Errorf("Inspect(%q) = %v, want %v", path, err, want)
		}
	}
	// A probe that followed links by itself would hide that the engine asks.
	if e, err := fsys.Inspect("/a/l/x"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Inspect through a link = %+v, %v", e, err)
	}
	for _, line := range []string{"directory /x", "dir", "file /x what=1", "file /x dev=z", "error /x", `file "/x`, "file x", "file /a/s/x"} {
		if err := fsys.Build(line); err == nil {
			t.Errorf("Build(%q) did not error", line)
		}
	}
}

func TestRename(t *testing.T) {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MustBuild("file /a/b/c ino=5\ndir /d")
	if err := fsys.Rename("/a/b", "/d/e"); err != nil {
		t.Fatal(err)
	}
	if e, err := fsys.Inspect("/d/e/c"); err != nil || e.Ino != 5 {
		t.Errorf("after the rename: %+v, %v", e, err)
	}
	if _, err := fsys.Inspect("/a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
	for _, from := range []string{"/", "/nope"} {
		if err := fsys.Rename(from, "/x"); err == nil {
			t.Errorf("Rename(%q) did not error", from)
		}
	}
}

func TestMountIDs(t *testing.T) {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MountIDs = true
	fsys.MustBuild("dir /a/b")
	fsys.MustMount(memfs.Mount{Point: "/a", Dev: 9})
	fsys.MustMount(memfs.Mount{Point: "/a", Dev: 10})
	root, _ := fsys.Inspect("/")
	top, _ := fsys.Inspect("/a")
	below, _ := fsys.Inspect("/a/b")
	table, err := fsys.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := table.ByID(top.MountID); !ok || m.Dev != 10 || !top.MountRoot || top.MountID == root.MountID || below.MountID != top.MountID || below.MountRoot {
		t.Errorf("root %+v, mount point %+v (%+v), below %+v", root, top, m, below)
	}
	if err := fsys.Mount(memfs.Mount{Point: "relative"}); err == nil {
		t.Error("a relative mount point was taken")
	}
	fsys.ClearMounts()
	if table, err := fsys.Mounts(); err == nil {
		t.Errorf("without mounts: %v", table)
	}
}

func Example() {
	fsys := memfs.New(engine.PlatformFor("windows"))
	fsys.MustBuild(`
		dir      C:\Work\Repo
		junction C:\Work\Repo\out -> \??\C:\Windows
	`)
	workspace := engine.Bind(`c:\work\repo`, fsys)
	d := engine.CheckContainment(workspace, `out\system.ini`, engine.ContainmentOptions{FollowJunctions: true}, fsys)
	fmt.Println(workspace.CanonicalRoot, d.Outcome, d.Code)
	// Output:
	// C:\Work\Repo denied link-escape
}
