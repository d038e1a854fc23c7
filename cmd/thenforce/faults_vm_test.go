//go:build vm

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
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

// fault is a state of a host in which nothing may be called verified, brought about for real.
type fault struct {
	name string
	code string // the reason
	// quick is the reason that status gives without --verify, where that cannot see the other.
	quick string
	// script makes it in a mount namespace of its own, where thenforce is then run as $0 with its arguments.
	script string
	attr   syscall.SysProcAttr
	drop   []uintptr // capabilities taken out of the bounding set
	filter *filter   // of system calls
	// unloaded: the programs are not in the kernel yet.
	unloaded bool
	// damage is done to what is pinned, for all to see; afterwards unload --force has to help.
	damage func(t *testing.T)
	// slow: it takes a guest ten seconds or more, for the programs are loaded for it. Only in the soak.
	slow bool
}

const pins = "/sys/fs/bpf/thenforce/v1/"

func inPins(script string) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		cmd := exec.Command("sh", "-e", "-c", script)
		cmd.Dir = pins
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// faults are the rows of cases 30 in their order. Those that take another kernel command line are TestProfileNoLSM and
// TestProfileLockdown; a full map, a hook that takes no more programs and a canary that fails are tests of pkg/loader. A
// link of an LSM program cannot be detached through another handle (bpf(2), BPF_LINK_DETACH: EOPNOTSUPP): it ends when
// its last pin does.
var faults = []fault{
	{name: "BTF mounted over", script: "mount -t tmpfs none /sys/kernel/btf", code: "btf-missing"},
	{name: "sysfs mounted over", script: "mount -t tmpfs none /sys", code: "btf-missing"},
	{
		name: "load refused with all capabilities", code: "permission-denied", quick: "not-loaded", unloaded: true,
		filter: &filter{nr: unix.SYS_BPF, arg: unix.BPF_PROG_LOAD, errno: unix.EPERM},
	},
	{
		name: "load refused with an errno that nobody expects", code: "kernel-too-old", quick: "not-loaded", unloaded: true, slow: true,
		filter: &filter{nr: unix.SYS_BPF, arg: unix.BPF_PROG_LOAD, errno: unix.EXFULL},
	},
	{
		name: "attaching not supported", code: "attach-unsupported", quick: "not-loaded", unloaded: true, slow: true,
		filter: &filter{nr: unix.SYS_BPF, arg: unix.BPF_LINK_CREATE, errno: unix.EOPNOTSUPP},
	},
	{
		name: "io_uring hidden from this process alone", code: "canary-failed", quick: "not-loaded", unloaded: true, slow: true,
		filter: &filter{nr: unix.SYS_IO_URING_SETUP, arg: 1, errno: unix.ENOSYS},
	},
	{
		name: "32-bit system calls hidden from this process alone", code: "canary-failed", quick: "not-loaded", unloaded: true, slow: true,
		filter: &filter{of32Bit: true, errno: unix.ENOSYS},
	},
	{name: "root without CAP_SYS_ADMIN and CAP_BPF", script: ":", code: "permission-denied", drop: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_BPF}},
	{name: "an ordinary user", script: ":", code: "permission-denied", attr: syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}},
	{
		name: "root of a user namespace", code: "permission-denied",
		attr: syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
		},
	},
	{
		name: "one hook missing", code: "hook-missing", quick: "not-loaded", unloaded: true,
		script: "mount -o bind " + withoutHook + " /sys/kernel/btf/vmlinux",
	},
	{
		name: "a structure without a member that programs read", code: "verifier-rejected", quick: "not-loaded", unloaded: true, slow: true,
		script: "mount -o bind " + withoutMember + " /sys/kernel/btf/vmlinux",
	},
	{name: "a link ended", code: "link-lost", slow: true, damage: inPins("rm link_path_rename")},
	{name: "another program at a link's place", code: "canary-failed", quick: "not-proven", slow: true, damage: inPins("rm link_path_rename; ln link_capable link_path_rename")},
	{name: "pins of another version", code: "stale-pins", slow: true, damage: inPins("mkdir ../v0; ln link_capable ../v0/link_capable")},
	{name: "incomplete pins", code: "stale-pins", slow: true, damage: inPins("rm tf_grants")},
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
	{name: "mountinfo cannot be read", code: "mountinfo-unavailable", filter: &filter{nr: unix.SYS_READ, mountinfo: func([]byte) []byte { return nil }}},
	{
		name: "mountinfo truncated", code: "mountinfo-malformed",
		filter: &filter{nr: unix.SYS_READ, mountinfo: func(text []byte) []byte { return text[:len(text)-len(text)/4] }},
	},
	{
		name: "whether it is in a jail itself cannot be found out", code: "inside-jail",
		filter: &filter{nr: unix.SYS_BPF, arg: unix.BPF_PROG_TEST_RUN, errno: unix.EPERM},
	},
	{name: "bpffs not mounted", script: "umount -l /sys/fs/bpf", code: "bpffs-missing"},
	{name: "bpffs mounted over", script: "mount -t tmpfs none /sys/fs/bpf", code: "bpffs-missing"},
	{name: "cgroup2 not mounted", script: "umount -l /sys/fs/cgroup", code: "cgroup-v2-missing"},
	{name: "cgroup2 mounted over", script: "mount -t tmpfs none /sys/fs/cgroup", code: "cgroup-v2-missing"},
}

// Copies of the kernel's type information in which one name is another's.
const (
	withoutHook   = "/root/btf-without-hook"
	withoutMember = "/root/btf-without-member"
)

func writeOtherBTF(t *testing.T) {
	t.Helper()
	btf, err := os.ReadFile("/sys/kernel/btf/vmlinux")
	if err != nil {
		t.Fatal(err)
	}
	for path, name := range map[string]string{withoutHook: "bpf_lsm_path_rename", withoutMember: "mnt_mountpoint"} {
		old, changed := []byte("\x00"+name+"\x00"), []byte("\x00"+strings.Repeat("x", len(name))+"\x00")
		if bytes.Count(btf, old) != 1 {
			t.Fatalf("%s is %d times in the type information", name, bytes.Count(btf, old))
		}
		if err := os.WriteFile(path, bytes.Replace(btf, old, changed, 1), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
	}
}

// in runs thenforce in a fault's surroundings.
func (f *fault) in(t *testing.T, args ...string) result {
	t.Helper()
	path, err := exec.LookPath("thenforce")
	if err != nil {
		t.Fatal(err)
	}
	script := f.script
	if script == "" {
		script = ":"
	}
	cmd := exec.Command("sh", append([]string{"-c", script + ` || exit 99; exec "$0" "$@"`, path}, args...)...)
	attr := f.attr
	if f.attr.Credential == nil {
		attr.Cloneflags |= syscall.CLONE_NEWNS // made private by the kernel's root being so in the guest
	}
	cmd.SysProcAttr = &attr
	done := make(chan result)
	go func() {
		// The bounding set is the thread's, as filters are, and a child has what the thread has that started it. Never
		// unlocked: the thread ends with the goroutine.
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
		if f.filter != nil {
			stop := f.filter.install(t)
			defer stop()
		}
		done <- finish(t, cmd)
	}()
	return <-done
}

func TestFaults(t *testing.T) {
	writeOtherBTF(t)
	verify := func(t *testing.T) {
		t.Helper()
		if r := thenforce(t, "status", "--verify"); r.code != 0 {
			t.Fatal(r)
		}
	}
	loaded := false
	for i := range faults {
		f := &faults[i]
		if f.slow && os.Getenv("THENFORCE_VM_SOAK") == "" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			switch {
			case f.unloaded && loaded:
				must(t, "unload")
			case !f.unloaded && !loaded:
				verify(t)
			}
			loaded = !f.unloaded
			if f.unloaded {
				defer must(t, "unload") // what the fault lets be loaded, and not be proven
			}
			if f.damage != nil {
				f.damage(t)
				defer func() {
					must(t, "unload", "--force")
					loaded = false
				}()
			}
			f.check(t)
		})
	}
	// Nothing of it has touched what is in force.
	verify(t)
	assertNothingLeft(t)
}

// reason is as status prints it.
type reason struct {
	Code, Detail, Fix string
	Blocking          bool
}

func (f *fault) check(t *testing.T) {
	p := newPlace(t)
	first := "" // reason of the verification
	for _, c := range []struct {
		code string
		args []string
	}{
		{cmp.Or(f.quick, f.code), []string{"status", "--json"}},
		{f.code, []string{"status", "--verify", "--json"}},
	} {
		r := f.in(t, c.args...)
		var status struct {
			State   string
			Reasons []reason
		}
		if err := json.Unmarshal([]byte(r.stdout), &status); err != nil || r.code != 5 || status.State != "unverified" {
			t.Errorf("%v: %v, %v", c.args, r, err)
			continue
		}
		first = status.Reasons[0].Code
		at := slices.IndexFunc(status.Reasons, func(r reason) bool { return r.Code == c.code })
		if at < 0 || !status.Reasons[at].Blocking || status.Reasons[at].Detail == "" || status.Reasons[at].Fix == "" {
			t.Errorf("%v: want a blocking %s with detail and fix: %+v", c.args, c.code, status.Reasons)
		}
	}
	if r := f.in(t, "status"); r.code != 5 || !strings.Contains(r.stdout, "reason: ") || !strings.Contains(r.stdout, "fix: ") {
		t.Error(r)
	}
	ran := filepath.Join(p.work, "ran")
	r := f.in(t, "run", "--workspace", p.work, "--", "touch", ran)
	if r.code != 125 || !strings.Contains(r.stderr, "enforcement-unverified") || !strings.Contains(r.stderr, ": "+first+": ") {
		t.Errorf("run: %v", r)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
}

// With ftrace switched off no attached program is called, however it was proven before. Linux 7 refuses that.
func TestFtraceSwitchedOff(t *testing.T) {
	const setting = "/proc/sys/kernel/ftrace_enabled"
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	p := newPlace(t)
	read := []string{"run", "--allow-unverified", "--workspace", p.work, "--", "cat", p.outside + "/secret"}
	t.Cleanup(func() { os.WriteFile(setting, []byte("1"), 0) })
	if err := os.WriteFile(setting, []byte("0"), 0); errors.Is(err, unix.EOPNOTSUPP) {
		if r := thenforce(t, read...); r.code == 0 || r.stdout != "" {
			t.Errorf("the kernel refuses to switch ftrace off, and the jail is open: %v", r)
		}
	} else if err != nil {
		t.Fatal(err)
	} else {
		if r := thenforce(t, read...); r.code != 0 || !strings.Contains(r.stderr, "ftrace-off") || !strings.Contains(r.stderr, "NOT reliably confined") {
			t.Errorf("programs that are not called have denied something, or nobody is told: %v", r)
		}
		(&fault{code: "ftrace-off"}).check(t)
	}
	if err := os.WriteFile(setting, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if r := thenforce(t, "status"); r.code != 0 {
		t.Error(r)
	}
	if r := thenforce(t, read...); r.code == 0 || r.stdout != "" {
		t.Errorf("with ftrace on again: %v", r)
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

// Who asks from inside a jail. Only in monitor mode a task of one comes so far; else the programs keep it from asking, and
// nothing is verified either.
func TestStatusInsideAJail(t *testing.T) {
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	p := newPlace(t)
	wantFailure(t, 1, "not a resolvable cgroup v2 directory", "jail", "create", "--cgroup", p.work, "--workspace", p.work)
	inner := newCgroup(t)
	for mode, code := range map[string]string{"monitor": "inside-jail", "enforce": ""} {
		run := []string{"run", "--mode", mode, "--workspace", p.work, "--"}
		if r := thenforce(t, append(run, "thenforce", "status")...); r.code != 5 || !strings.Contains(r.stdout, "reason: "+code) {
			t.Errorf("%s: %v", mode, r)
		}
		r := thenforce(t, append(run, "thenforce", "jail", "create", "--cgroup", inner, "--workspace", p.work)...)
		if r.code == 0 || !strings.Contains(r.stderr, code) {
			t.Errorf("%s: %v", mode, r)
		}
	}
	assertNothingLeft(t)
}
