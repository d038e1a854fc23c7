//go:build linux

package main

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestReadLabel(t *testing.T) {
	superblock := func(magic uint16, label string) []byte {
		disk := make([]byte, 4096)
		binary.LittleEndian.PutUint16(disk[1024+0x38:], magic)
		copy(disk[1024+0x78:1024+0x88], label)
		return disk
	}
	for what, c := range map[string]struct {
		disk []byte
		want string
	}{
		"ext4":                  {superblock(0xef53, "tf-scratch"), "tf-scratch"},
		"a label of full width": {superblock(0xef53, "sixteen-letters!"), "sixteen-letters!"},
		"another file system":   {superblock(0x4244, "tf-scratch"), ""},
		"a short disk":          {make([]byte, 1100), ""},
	} {
		name := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(name, c.disk, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := readLabel(name); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := readLabel(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("no disk: %q", got)
	}
}

func TestMoveTree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"etc/passwd": "new", "usr/bin/tool": "#!"} {
		if err := os.MkdirAll(filepath.Join(from, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(from, "bin")); err != nil {
		t.Fatal(err)
	}
	// The place is taken by a link out of the tree, which must not be followed.
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(to, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(to, "etc/passwd")); err != nil {
		t.Fatal(err)
	}
	if err := moveTree(from, to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{filepath.Join(to, "etc/passwd"): "new", filepath.Join(to, "bin/tool"): "#!", outside: "untouched"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(from, "usr/bin/tool")); !os.IsNotExist(err) {
		t.Errorf("the source is still there: %v", err)
	}
}

func TestExitStatus(t *testing.T) {
	for command, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -15 $$": 143} {
		cmd := exec.Command("sh", "-c", command)
		cmd.Run() // The state tells.
		if got := exitStatus(cmd.ProcessState); got != want {
			t.Errorf("%s: %d, want %d", command, got, want)
		}
	}
}
