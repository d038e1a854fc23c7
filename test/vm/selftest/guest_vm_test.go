//go:build vm

// Package selftest checks that a guest is what the other tests take it for.
package selftest

import (
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func lsms(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), ",")
}

func TestBPFIsAnActiveLSM(t *testing.T) {
	if list := lsms(t); !slices.Contains(list, "bpf") {
		t.Errorf("active LSMs are %v, without bpf", list)
	}
}

func TestProfileNoLSM(t *testing.T) {
	if list := lsms(t); slices.Contains(list, "bpf") {
		t.Errorf("active LSMs are %v, with bpf", list)
	}
	if p := os.Getenv("THENFORCE_VM_PROFILE"); p != "nolsm" {
		t.Errorf("THENFORCE_VM_PROFILE is %q", p)
	}
}

func TestKernelHasBTF(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Error(err)
	}
}

func TestFileSystems(t *testing.T) {
	for _, c := range []struct {
		path  string
		magic int64
	}{
		{"/sys/fs/cgroup", unix.CGROUP2_SUPER_MAGIC},
		{"/sys/fs/bpf", unix.BPF_FS_MAGIC},
		{"/sys/kernel/security", unix.SECURITYFS_MAGIC},
		{"/mnt/ext4", unix.EXT4_SUPER_MAGIC},
		{"/tmp", unix.TMPFS_MAGIC},
		{"/run", unix.TMPFS_MAGIC},
		{"/dev/pts", unix.DEVPTS_SUPER_MAGIC},
	} {
		var st unix.Statfs_t
		if err := unix.Statfs(c.path, &st); err != nil {
			t.Errorf("%s: %v", c.path, err)
		} else if st.Type != c.magic {
			t.Errorf("%s: file system %#x, want %#x", c.path, st.Type, c.magic)
		}
	}
}

func TestOrdinaryUser(t *testing.T) {
	u, err := user.LookupId("1000")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		t.Fatal(err)
	}
	if u.Username != "dev" || len(groups) < 2 {
		t.Errorf("user 1000 is %q with groups %v; want dev with more than one", u.Username, groups)
	}
	for dir, want := range map[string]os.FileMode{u.HomeDir: 0o755, "/tmp": 0o777, "/var/tmp": 0o777} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", dir, got, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(u.HomeDir, &st); err != nil || st.Uid != 1000 {
		t.Errorf("%s belongs to %d, %v", u.HomeDir, st.Uid, err)
	}
}

func TestShellAndTools(t *testing.T) {
	out, err := exec.Command("sh", "-c", "mkdir -p /tmp/a/b && ln -s b /tmp/a/c && echo hi >/tmp/a/c/f && cat /tmp/a/b/f").CombinedOutput()
	if err != nil || string(out) != "hi\n" {
		t.Errorf("shell said %q, %v", out, err)
	}
}
