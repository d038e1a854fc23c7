//go:build vm

package loader

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// These tests need the full guest: file systems that are modules, and the tools that make them.

// morePlaces are the file systems of the full guest.
var morePlaces = []place{
	{"xfs", func(t *testing.T) string { return newFileSystem(t, "xfs", "mkfs.xfs", "-q") }, map[uint32]bool{0: true}},
	{"btrfs", func(t *testing.T) string { return newFileSystem(t, "btrfs", "mkfs.btrfs", "-q") }, nil},
	{"btrfs-subvolume", subvolumeIn, map[uint32]bool{1000: true}},
}

func TestProfileFullPromise(t *testing.T) {
	e := openVerified(t)
	for _, place := range morePlaces {
		for _, user := range []uint32{0, 1000} {
			if inSoak() || place.briefly[user] {
				t.Run(place.name+"/"+userName(user), func(t *testing.T) {
					newStage(t, e, place.make(t), user).run(t, promise)
				})
			}
		}
	}
}

// Read-only lower layers, as of container images and live systems, and layers on file systems with their own identities.
func TestProfileFullOverlayLayers(t *testing.T) {
	e := openVerified(t)
	for _, name := range []string{"squashfs", "erofs", "btrfs", "xfs"} {
		t.Run(name, func(t *testing.T) {
			const user = 1000
			dir := tmpfsIn(t)
			switch name {
			case "squashfs", "erofs":
				furnishLayer(t, dir, user)
				image := filepath.Join(tmpfsIn(t), "image")
				if name == "squashfs" {
					tool(t, "mksquashfs", dir, image, "-quiet", "-no-progress")
				} else {
					tool(t, "mkfs.erofs", "--quiet", image, dir)
				}
				dir = mountImage(t, name, image)
			default:
				dir = newFileSystem(t, name, "mkfs."+name, "-q")
				furnishLayer(t, dir, user)
			}
			testLayers(t, e, dir, user)
		})
	}
}

// Device, inode number and generation are all the same in a snapshot, and a directory of another subvolume may have the
// number of one that is granted: only the subvolume tells them apart.
func TestProfileFullSubvolumes(t *testing.T) {
	e := openVerified(t)
	root := newFileSystem(t, "btrfs", "mkfs.btrfs", "-q")
	for _, name := range []string{"work", "other"} {
		tool(t, "btrfs", "-q", "subvolume", "create", filepath.Join(root, name))
		if err := os.Mkdir(filepath.Join(root, name, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"file", "dir/file"} {
			if err := os.WriteFile(filepath.Join(root, name, file), []byte(canaryText), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	tool(t, "btrfs", "-q", "subvolume", "snapshot", root+"/work", root+"/snapshot")
	tool(t, "btrfs", "-q", "subvolume", "snapshot", "-r", root+"/work", root+"/frozen")
	tool(t, "btrfs", "-q", "subvolume", "create", root+"/work/inner")
	if err := os.WriteFile(root+"/work/inner/file", []byte(canaryText), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"snapshot", "frozen", "other"} { // else the test would show nothing
		var a, b unix.Stat_t
		if err := errors.Join(unix.Stat(root+"/work/dir", &a), unix.Stat(filepath.Join(root, name, "dir"), &b)); err != nil || a.Ino != b.Ino {
			t.Fatalf("dir has number %d in work and %d in %s: %v", a.Ino, b.Ino, name, err)
		}
	}
	byID := mountImage(t, "btrfs", "", "-o", "subvol=snapshot", device(t, root))

	for _, workspace := range []string{"work", "work/dir"} {
		p := &stage{e: e, base: root + "/other"}
		if err := p.scene.makeCgroup("/sys/fs/cgroup", "volumes-"); err != nil {
			t.Fatal(err)
		}
		in := filepath.Join(root, workspace)
		p.jail = p.newJail(t, &p.scene, engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: in},
			Objects:   []engine.Object{{Path: in, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
		})
		p.scene.child = p.start(t, p.scene.cgroup)
		p.replace = strings.NewReplacer("%ROOT", root, "%SNAPSHOT", byID)
		events, err := OpenEvents(Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.take(t, events)
		for _, row := range []row{
			{operation: "open %ROOT/work/dir/file"},
			{operation: "openw %ROOT/work/dir/file"},
			{"open %ROOT/snapshot/dir/file", eacces, "no-grant", ""},
			{"openw %ROOT/snapshot/dir/file", eacces, "no-grant", ""},
			{"open %ROOT/snapshot/dir", eacces, "no-grant", ""},
			{"mkdir %ROOT/snapshot/dir/d", eacces, "no-grant", ""},
			{"open %ROOT/frozen/dir/file", eacces, "no-grant", ""},
			{"open %ROOT/other/dir/file", eacces, "no-grant", ""},
			{"open %ROOT/other/file", eacces, "no-grant", ""},
			{"open %SNAPSHOT/dir/file", eacces, "no-grant", ""},
			{"ioctl %ROOT/work/dir 0x50009401", eperm, "ioctl", "%ROOT/work/dir"}, // BTRFS_IOC_SNAP_CREATE
			{"rmdir %ROOT/snapshot/dir", eacces, "no-grant", ""},
		} {
			p.try(t, events, row)
		}
		if workspace == "work" { // a subvolume in the workspace is part of it
			p.try(t, events, row{operation: "open %ROOT/work/inner/file"})
		} else {
			p.try(t, events, row{"open %ROOT/work/inner/file", eacces, "no-grant", ""})
		}
		events.Close()
	}
}

func subvolumeIn(t *testing.T) string {
	t.Helper()
	root := newFileSystem(t, "btrfs", "mkfs.btrfs", "-q")
	tool(t, "btrfs", "-q", "subvolume", "create", root+"/volume")
	return root + "/volume"
}

// newFileSystem mounts a fresh one from a file.
func newFileSystem(t *testing.T, kind string, mkfs ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), kind)
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(512<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	tool(t, append(mkfs, image)...)
	return mountImage(t, kind, image)
}

// mountImage mounts a file system with mount(8), which sets up the loop device.
func mountImage(t *testing.T, kind, image string, options ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/", kind+"-")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"mount", "-t", kind}, options...)
	if image != "" {
		args = append(args, "-o", "loop", image)
	}
	tool(t, append(args, dir)...)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.Remove(dir)
	})
	return dir
}

// device is what is mounted at a path.
func device(t *testing.T, path string) string {
	t.Helper()
	text, err := exec.Command("findmnt", "-n", "-o", "SOURCE", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func tool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
