//go:build vm

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// faults are states of a host in which nothing may be called verified, each brought about for real: by a script in a
// mount namespace of its own, where thenforce is then run as $0 with its arguments. The boot parameters' are TestProfile...
var faults = []struct {
	name   string
	script string
	code   string
	attr   syscall.SysProcAttr
	drop   []uintptr // capabilities taken out of the bounding set
}{
	{name: "securityfs not mounted", script: "umount /sys/kernel/security", code: "lsm-list-unreadable"},
	{
		name: "securityfs mounted over, with a list that says bpf", code: "lsm-list-unreadable",
		script: "mount -t tmpfs none /sys/kernel/security && echo lockdown,bpf >/sys/kernel/security/lsm",
	},
	{
		name: "the list itself mounted over", code: "lsm-list-unreadable",
		script: "mount -t tmpfs none /mnt && echo bpf >/mnt/lsm && mount -o bind /mnt/lsm /sys/kernel/security/lsm",
	},
	{name: "procfs not mounted", script: "umount -l /proc", code: "procfs-untrusted"},
	{name: "procfs mounted over", script: "mount -t tmpfs none /proc", code: "procfs-untrusted"},
	{
		name: "mountinfo mounted over, with one that looks good", code: "procfs-untrusted",
		script: "mount -t tmpfs none /mnt && cat /proc/self/mountinfo >/mnt/good && mount -t tmpfs none /proc && mkdir /proc/self && cp /mnt/good /proc/self/mountinfo",
	},
	{name: "bpffs not mounted", script: "umount -l /sys/fs/bpf", code: "bpffs-missing"},
	{name: "bpffs mounted over", script: "mount -t tmpfs none /sys/fs/bpf", code: "bpffs-missing"},
	{name: "cgroup2 not mounted", script: "umount -l /sys/fs/cgroup", code: "cgroup-v2-missing"},
	{name: "cgroup2 mounted over", script: "mount -t tmpfs none /sys/fs/cgroup", code: "cgroup-v2-missing"},
	{name: "sysfs mounted over", script: "mount -t tmpfs none /sys", code: "btf-missing"},
	{name: "BTF mounted over", script: "mount -t tmpfs none /sys/kernel/btf", code: "btf-missing"},
	{name: "an ordinary user", script: ":", code: "permission-denied", attr: syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}},
	{
		name: "root of a user namespace", script: ":", code: "permission-denied",
		attr: syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
		},
	},
	{name: "root without CAP_SYS_ADMIN and CAP_BPF", script: ":", code: "permission-denied", drop: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_BPF}},
}

// in runs thenforce in a fault's surroundings.
func in(t *testing.T, i int, args ...string) result {
	t.Helper()
	f := &faults[i]
	path, err := exec.LookPath("thenforce")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-c", f.script + ` || exit 99; exec "$0" "$@"`, path}, args...)...)
	attr := f.attr
	if f.attr.Credential == nil {
		attr.Cloneflags |= syscall.CLONE_NEWNS // made private by the kernel's root being so in the guest
	}
	cmd.SysProcAttr = &attr
	done := make(chan result)
	go func() {
		// The bounding set is the thread's, and a child has that of the thread that started it. Never unlocked: the
		// thread ends with the goroutine.
		runtime.LockOSThread()
		if attr.Cloneflags&syscall.CLONE_NEWNS != 0 {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err == nil {
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
			}
			attr.Cloneflags &^= syscall.CLONE_NEWNS
		}
		for _, c := range f.drop {
			unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
		done <- finish(t, cmd)
	}()
	return <-done
}

func TestFaults(t *testing.T) {
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	for i, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			p := newPlace(t)
			for _, args := range [][]string{{"status", "--json"}, {"status", "--verify", "--json"}} {
				r := in(t, i, args...)
				var status struct {
					State   string
					Reasons []struct {
						Code, Detail, Fix string
						Blocking          bool
					}
				}
				if err := json.Unmarshal([]byte(r.stdout), &status); err != nil || r.code != 5 || status.State != "unverified" {
					t.Errorf("%v: %v, %v", args, r, err)
					continue
				}
				at := slices.IndexFunc(status.Reasons, func(r struct {
					Code, Detail, Fix string
					Blocking          bool
				}) bool {
					return r.Code == f.code
				})
				if at < 0 || !status.Reasons[at].Blocking || status.Reasons[at].Detail == "" || status.Reasons[at].Fix == "" {
					t.Errorf("%v: want a blocking %s with detail and fix: %+v", args, f.code, status.Reasons)
				}
			}
			if r := in(t, i, "status"); r.code != 5 || !strings.Contains(r.stdout, f.code+": ") || !strings.Contains(r.stdout, "fix: ") {
				t.Error(r)
			}
			ran := filepath.Join(p.work, "ran")
			if r := in(t, i, "run", "--workspace", p.work, "--", "touch", ran); r.code != 125 || !strings.Contains(r.stderr, "enforcement-unverified") {
				t.Errorf("run: %v", r)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command ran")
			}
		})
	}
	// Nothing of it has touched what is in force.
	if r := thenforce(t, "status"); r.code != 0 {
		t.Error(r)
	}
	assertNothingLeft(t)
}

// What looks strange and is in order stays verified: a cgroup namespace, in which every path is 0::/, and mount points
// with the names that mountinfo escapes, or very long ones.
func TestStrangeIsNotFaulty(t *testing.T) {
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	p := newPlace(t)
	long := filepath.Join(p.base, strings.Repeat("n", 250), strings.Repeat("o", 250), strings.Repeat("p", 250))
	for _, dir := range []string{p.base + "/a b\tc\nd\\e", p.base + "/\xff\xfe", long} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("a strange\tsource", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	if r := thenforce(t, "status"); r.code != 0 {
		t.Errorf("with strange mounts: %v", r)
	}
	cmd := exec.Command("thenforce", "run", "--workspace", p.work, "--", "sh", "-c", "cat /proc/self/cgroup >&2; cat "+p.outside+"/secret || echo denied")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP}
	if r := finish(t, cmd); r.code != 0 || r.stdout != "denied\n" {
		t.Errorf("in a cgroup namespace: %v", r)
	}
}
