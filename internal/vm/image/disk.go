//go:build linux

package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// ext4 makes a file system image of the given size and label, holding a copy of
// the tree dir unless that is empty. The file is sparse.
func ext4(ctx context.Context, name, label string, size int64, dir string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	args := []string{"-q", "-F", "-t", "ext4", "-L", label}
	if dir != "" {
		args = append(args, "-d", dir)
	}
	cmd := exec.CommandContext(ctx, "mke2fs", append(args, name)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the file system %s: %w: %s", label, err, bytes.TrimSpace(out))
	}
	return nil
}

// ScratchDisk makes an empty ext4 image.
func ScratchDisk(ctx context.Context, name, label string) error {
	return ext4(ctx, name, label, 1<<30, "")
}
