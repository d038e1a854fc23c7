//go:build vm

package selftest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sh runs a script in a new directory on the scratch disk.
func sh(t *testing.T, script string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/mnt/ext4", "selftest-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestProfileFullTools(t *testing.T) {
	for _, name := range []string{
		"bash", "bwrap", "crun", "curl", "gcc", "git", "go", "jq", "make", "mksquashfs", "mkfs.btrfs", "mkfs.erofs", "mkfs.xfs", "node", "npm",
		"podman", "python3", "rsync", "runc", "setfacl", "sqlite3", "strace", "sudo", "systemctl", "unshare",
	} {
		if _, err := exec.LookPath(name); err != nil {
			t.Error(err)
		}
	}
}

func TestProfileFullFileSystems(t *testing.T) {
	for kind, magic := range map[string]int64{"btrfs": unix.BTRFS_SUPER_MAGIC, "xfs": unix.XFS_SUPER_MAGIC} {
		dir := filepath.Join(t.TempDir(), kind)
		sh(t, "truncate -s 320M image; mkfs."+kind+" -q image; mkdir "+dir+"; mount -o loop image "+dir)
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Errorf("%s: %v", kind, err)
		} else if st.Type != magic {
			t.Errorf("%s: file system %#x, want %#x", kind, st.Type, magic)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", kind, err)
		}
	}
	sh(t, `mkdir lower upper work merged; echo low >lower/f
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
echo up >>merged/f; test "$(cat upper/f)" = "$(printf 'low\nup')"; umount merged`)
}

func TestProfileFullContainers(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		out := sh(t, `mkdir -p rootfs/bin rootfs/proc; cp /bin/busybox rootfs/bin/
runc spec; sed -i 's/"terminal": true/"terminal": false/; s#"sh"#"/bin/busybox","echo","inside"#' config.json
`+runtime+" run selftest")
		if out != "inside\n" {
			t.Errorf("%s: the container said %q", runtime, out)
		}
	}
}

func TestProfileFullOrdinaryUser(t *testing.T) {
	if out := sh(t, `su dev -c 'id -u; bwrap --ro-bind / / --unshare-all echo confined'`); out != "1000\nconfined\n" {
		t.Errorf("dev said %q", out)
	}
}
