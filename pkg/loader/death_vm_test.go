//go:build vm

package loader

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// overlayOn mounts an overlay whose layers are directories of base; ext4 layers, for tmpfs never gives a number twice.
func overlayOn(t *testing.T, base, name string) (merged string, unmount func()) {
	t.Helper()
	dir := filepath.Join(base, name)
	for _, sub := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged = filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	unmount = func() { unix.Unmount(merged, 0) }
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	return merged, unmount
}

// jailWith makes a jail whose workspace is an empty directory and that has some directories besides, with a process in it.
func jailWith(t *testing.T, e *Enforcer, dirs ...string) *canaryChild {
	t.Helper()
	ws := tmpfsIn(t)
	sets := engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: ws},
		Objects:   []engine.Object{{Path: ws, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	}
	for _, dir := range dirs {
		sets.Objects = append(sets.Objects, engine.Object{Path: dir, Rights: engine.AllRights, Source: engine.SourcePolicy})
	}
	_, child := jailed(t, e, sets)
	return child
}

func expectOpen(t *testing.T, when string, child *canaryChild, path string, want unix.Errno) {
	t.Helper()
	errno, err := child.do([]string{"open", path})
	if err != nil {
		t.Fatal(err)
	}
	if errno != want {
		t.Errorf("%s: open %s: %s, want %s", when, path, errnoName(errno), errnoName(want))
	}
}

// A directory of an overlay has no generation, and ext4 gives a removed one's number to the next.
func TestGrantDiesWithItsInode(t *testing.T) {
	e := openVerified(t)
	base, err := os.MkdirTemp("/mnt/ext4", "death-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	merged, _ := overlayOn(t, base, "a")
	victims := map[string]func(dir string) error{
		"rmdir": os.Remove,
		"rename over it": func(dir string) error {
			other := filepath.Join(merged, "other")
			if err := os.Mkdir(other, 0o755); err != nil {
				return err
			}
			return unix.Rename(other, dir) // os.Rename refuses to overwrite a directory
		},
	}
	for how, remove := range victims {
		t.Run(how, func(t *testing.T) {
			granted := filepath.Join(merged, "granted")
			if err := os.Mkdir(granted, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(granted) })
			number := inode(t, granted)
			child := jailWith(t, e, granted)
			if err := os.WriteFile(filepath.Join(granted, "file"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			expectOpen(t, "granted", child, filepath.Join(granted, "file"), 0)
			if err := os.Remove(filepath.Join(granted, "file")); err != nil {
				t.Fatal(err)
			}
			// Failing to remove it is no end.
			if err := os.Remove(merged); err == nil {
				t.Fatal("removed a mount point")
			}
			if err := remove(granted); err != nil {
				t.Fatal(err)
			}
			for i := 0; ; i++ {
				stranger := filepath.Join(merged, fmt.Sprintf("stranger to %s %d", how, i))
				if err := os.Mkdir(stranger, 0o755); err != nil {
					t.Fatal(err)
				}
				if inode(t, stranger) == number {
					secret := filepath.Join(stranger, "secret")
					if err := os.WriteFile(secret, []byte(canaryText), 0o644); err != nil {
						t.Fatal(err)
					}
					expectOpen(t, "a stranger with the number", child, secret, eacces)
					return
				}
				if i == 200 {
					t.Fatalf("no stranger got inode %d", number)
				}
			}
		})
	}
}

// A rename that fails, and one that removes nothing, leave the grant alive.
func TestGrantSurvivesRenames(t *testing.T) {
	e := openVerified(t)
	base, err := os.MkdirTemp("/mnt/ext4", "death-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	merged, _ := overlayOn(t, base, "a")
	granted, other := filepath.Join(merged, "granted"), filepath.Join(merged, "other")
	for _, dir := range []string{granted, other} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	child := jailWith(t, e, granted)
	if err := os.Remove(granted); err == nil {
		t.Fatal("removed a directory that is not empty")
	}
	if err := os.Rename(other, granted); err == nil {
		t.Fatal("overwrote a directory that is not empty")
	}
	expectOpen(t, "after what failed", child, filepath.Join(granted, "file"), 0)
	if err := unix.Renameat2(unix.AT_FDCWD, granted, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	expectOpen(t, "exchanged", child, filepath.Join(other, "file"), 0)
	expectOpen(t, "in its place", child, filepath.Join(granted, "file"), eacces)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// The next file system with the device number of an unmounted one is another file system, whatever its inodes say.
func TestGrantDiesWithItsFileSystem(t *testing.T) {
	e := openVerified(t)
	base, err := os.MkdirTemp("/mnt/ext4", "death-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	merged, unmount := overlayOn(t, base, "a")
	var before unix.Stat_t
	if err := unix.Stat(merged, &before); err != nil {
		t.Fatal(err)
	}
	child := jailWith(t, e, merged)
	if err := os.WriteFile(filepath.Join(merged, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	expectOpen(t, "granted", child, filepath.Join(merged, "file"), 0)
	unmount()
	// The same layers, so the same root inode; the kernel gives the lowest free device number.
	merged, _ = overlayOn(t, base, "a")
	var after unix.Stat_t
	if err := unix.Stat(merged, &after); err != nil {
		t.Fatal(err)
	}
	if after.Dev != before.Dev || after.Ino != before.Ino {
		t.Fatalf("another file system got device %x inode %d, the test wants %x %d again", after.Dev, after.Ino, before.Dev, before.Ino)
	}
	expectOpen(t, "another file system with its numbers", child, filepath.Join(merged, "file"), eacces)
}
