//go:build vm

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// These tests start containers with Debian's runc, crun and podman, as their users do.

// hookYAML and containerPolicy are what the host says in these tests, unless one says otherwise.
const (
	hookYAML = `version: 1
policy: container
timeout: 1m
`
	containerPolicy = `version: 1
workspace: /work
grants:
  - {path: /, rights: rx, reason: the image}
  - {path: /data, rights: rw}
deny: [denied]
`
)

// verified loads and proves the programs if that has not been done since the boot. The hook does so itself, within a time
// that an emulated guest under load exceeds.
func verified(t *testing.T) {
	t.Helper()
	if r := thenforce(t, "status"); r.code == 0 {
		return
	}
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
}

// setUpHost writes the host's decisions, and takes them away at the end.
func setUpHost(t *testing.T, hook string, policies map[string]string) {
	t.Helper()
	if err := os.MkdirAll(hookPolicies, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(hookConfig)) })
	if err := os.WriteFile(hookConfig, []byte(hook), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, text := range policies {
		if err := os.WriteFile(filepath.Join(hookPolicies, name+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func setUpDefaultHost(t *testing.T) {
	setUpHost(t, hookYAML, map[string]string{"container": strings.Replace(containerPolicy, "deny: [denied]\n", "", 1)})
}

// ground is where containers are made: an image with busybox and this program, which as a canary does single operations,
// and two directories to mount as volumes.
type ground struct {
	dir, image, work, other string
}

func newGround(t *testing.T) ground {
	t.Helper()
	dir, err := os.MkdirTemp("/mnt/ext4", "ground-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := ground{dir, dir + "/image", dir + "/work", dir + "/other"}
	for _, sub := range []string{"image/bin", "image/etc", "image/proc", "image/sys", "image/dev", "image/work", "image/other", "image/data", "image/mnt", "image/host", "work", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"image/etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "image/etc/shadow": secret, "image/readme": "of the image\n",
		"image/data/file": "data\n", "work/file": "work\n", "other/file": secret,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copyInto(t, self, g.image+"/bin/thenforce-canary")
	copyInto(t, "/usr/bin/busybox", g.image+"/bin/busybox")
	for _, applet := range []string{"sh", "cat", "ls", "mknod", "sleep", "echo", "id", "true", "ln"} {
		if err := os.Symlink("busybox", g.image+"/bin/"+applet); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// archive packs the image, for podman and Docker to import.
func (g ground) archive(t *testing.T) string {
	t.Helper()
	archive := g.dir + "/image.tar"
	if out, err := exec.Command("tar", "-C", g.image, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return archive
}

func copyInto(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bundle is a container that runc or crun can start: root on overlayfs, both volumes, every capability, nothing masked, no
// seccomp. What holds it is the jail.
type bundle struct {
	t       *testing.T
	runtime string
	dir, id string
	spec    specs.Spec
}

func (g ground) bundle(t *testing.T, runtime, id string, args ...string) *bundle {
	t.Helper()
	b := &bundle{t: t, runtime: runtime, dir: filepath.Join(g.dir, id), id: id}
	for _, sub := range []string{"rootfs", "upper", "overlay-work"} {
		if err := os.MkdirAll(filepath.Join(b.dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/overlay-work", g.image, b.dir, b.dir)
	if err := unix.Mount("overlay", b.dir+"/rootfs", "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(b.dir+"/rootfs", unix.MNT_DETACH) })
	spec := exec.Command("runc", "spec")
	spec.Dir = b.dir
	if out, err := spec.CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v %s", err, out)
	}
	text, err := os.ReadFile(b.dir + "/config.json")
	if err == nil {
		err = json.Unmarshal(text, &b.spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &b.spec
	s.Root = &specs.Root{Path: "rootfs"}
	s.Process.Terminal, s.Process.Args = false, args
	var every []string
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		every = append(every, capName(c))
	}
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: every, Effective: every, Permitted: every, Inheritable: every}
	s.Process.NoNewPrivileges = false
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths, s.Linux.Seccomp = nil, nil, nil
	for i := range s.Mounts {
		if s.Mounts[i].Destination == "/sys/fs/cgroup" || s.Mounts[i].Destination == "/sys" {
			s.Mounts[i].Options = slices.DeleteFunc(s.Mounts[i].Options, func(o string) bool { return o == "ro" })
		}
	}
	for at, from := range map[string]string{"/work": g.work, "/other": g.other} {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "bind", Source: from, Options: []string{"bind", "rw"}})
	}
	self, err := exec.LookPath("thenforce")
	if err != nil {
		t.Fatal(err)
	}
	own := []specs.Hook{{Path: self, Args: []string{"thenforce", "hook"}}}
	s.Hooks = &specs.Hooks{CreateRuntime: own, Poststop: own}
	return b
}

// capName is a capability's name, capabilities(7).
func capName(c int) string {
	names := strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)
	return "CAP_" + names[c]
}

// write writes the bundle's config.json.
func (b *bundle) write() {
	b.t.Helper()
	text, err := json.Marshal(b.spec)
	if err == nil {
		err = os.WriteFile(b.dir+"/config.json", text, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.runtime, args...)
	cmd.Dir = b.dir
	return cmd
}

// run starts the container and waits for it.
func (b *bundle) run() result {
	b.t.Helper()
	b.write()
	b.t.Cleanup(func() { b.command("delete", "--force", b.id).Run() })
	return finish(b.t, b.command("run", b.id))
}

// start starts the container, whose command is a canary.
func (b *bundle) start() *operator {
	b.t.Helper()
	b.write()
	b.t.Cleanup(func() { b.command("delete", "--force", b.id).Run() })
	return operate(b.t, b.command("run", b.id))
}

// exec starts another canary in the container.
func (b *bundle) exec() *operator {
	b.t.Helper()
	return operate(b.t, b.command("exec", b.id, "thenforce-canary"))
}

// operator is a canary in a container: it does operations and tells their errnos.
type operator struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
}

func operate(t *testing.T, cmd *exec.Cmd) *operator {
	t.Helper()
	o := &operator{t: t, cmd: cmd}
	var err error
	if o.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &o.stderr
	o.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	if errno := o.do("ready"); errno != 0 {
		t.Fatalf("the canary answers %v", errno)
	}
	return o
}

func (o *operator) do(operation string) syscall.Errno {
	o.t.Helper()
	if _, err := fmt.Fprintln(o.in, strings.Join(strings.Fields(operation), "\t")); err != nil {
		o.t.Fatalf("%s: %v: %s", operation, err, o.stderr.String())
	}
	if !o.out.Scan() {
		o.cmd.Wait()
		o.t.Fatalf("%s: the canary ended: %v %s", operation, o.cmd.ProcessState, o.stderr.String())
	}
	n, err := strconv.Atoi(o.out.Text())
	if err != nil {
		o.t.Fatalf("%s: the canary said %q", operation, o.out.Text())
	}
	return syscall.Errno(n)
}

// check compares operations with the errnos they must have.
func (o *operator) check(rows []row) {
	o.t.Helper()
	for _, r := range rows {
		if got := o.do(r.operation); got != r.errno {
			o.t.Errorf("%s: got %v, want %v", r.operation, errnoText(got), errnoText(r.errno))
		}
	}
}

func errnoText(e syscall.Errno) string {
	if e == 0 {
		return "success"
	}
	return unix.ErrnoName(e)
}

// end lets the canary go.
func (o *operator) end() {
	o.t.Helper()
	o.in.Close()
	if err := o.cmd.Wait(); err != nil {
		o.t.Errorf("the container's canary: %v %s", err, o.stderr.String())
	}
}

type row struct {
	operation string
	errno     syscall.Errno
}

const (
	eacces = unix.EACCES
	eperm  = unix.EPERM
)

// work is what a container must be able to do.
var work = []row{
	{"open /work/file", 0}, {"mkdir /work/new", 0}, {"rename /work/new /work/newer", 0}, {"rmdir /work/newer", 0},
	{"symlink /work/link", 0}, {"unlink /work/link", 0}, {"chmod /work/file", 0}, {"mapexec /work/file", 0},
	{"mkdir /data/new", 0}, {"rmdir /data/new", 0}, {"truncate /data/file", 0}, // copied up by overlayfs
	{"open /readme", 0}, {"open /etc/passwd", 0}, {"open /dev/null", 0}, {"open /proc/self/status", 0},
	{"open /proc/meminfo", 0}, {"elsewhere /work/file", 0}, {"fork", 0}, {"pty", 0}, {"watch /work/file", 0},
	{"uring plain openat /work/file", 0}, {"uring worker openat-create /work/by-worker", 0}, {"unlink /work/by-worker", 0},
}

func TestProfileFullContainerRunc(t *testing.T) { testContainer(t, "runc") }
func TestProfileFullContainerCrun(t *testing.T) { testContainer(t, "crun") }

func testContainer(t *testing.T, runtime string) {
	verified(t)
	setUpDefaultHost(t)
	g := newGround(t)
	b := g.bundle(t, runtime, "c-"+runtime, "thenforce-canary")
	// Hooks of others: the host's own, in the container's cgroup and before its root is, are not disturbed; the
	// image's are jailed.
	script := filepath.Join(g.dir, "host-hook")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nls /root /mnt/ext4 >/dev/null && cat "+g.other+"/file >/dev/null && echo fine >"+g.dir+"/host-hook.ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/usr/bin:/bin"}
	b.spec.Hooks.CreateContainer = []specs.Hook{{Path: script, Env: env}}
	b.spec.Hooks.StartContainer = []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo ran >/work/image-hook; cat /other/file >>/work/image-hook; true"}, Env: env}}

	c := b.start()
	jail := onlyJail(t)
	if jail.State != "armed" || jail.Workspace != "/work" || jail.Name != b.id {
		t.Errorf("the jail is %+v", jail)
	}
	if out, err := os.ReadFile(g.dir + "/host-hook.ran"); err != nil || string(out) != "fine\n" {
		t.Errorf("the host's createContainer hook: %q %v", out, err)
	}
	if out, err := os.ReadFile(g.work + "/image-hook"); err != nil || string(out) != "ran\n" {
		t.Errorf("the image's startContainer hook: %q %v", out, err)
	}
	targets := newTargets(t, g)
	for _, o := range []*operator{c, b.exec()} {
		o.check(work)
		o.check(ownProcesses)
		targets.hold(o, escapes)
		if o != c {
			o.end()
		}
	}
	if after := onlyJail(t); after.ID != jail.ID {
		t.Errorf("the jail was %s and is %s", jail.ID, after.ID)
	}
	c.end()
	assertNothingLeft(t)
}

func assertEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if !slices.Equal(have, want) {
		t.Errorf("%s holds %v, want %v", dir, have, want)
	}
}

func onlyJail(t *testing.T) jailJSON {
	t.Helper()
	r := thenforce(t, "jail", "list", "--json")
	var jail jailJSON
	if err := json.Unmarshal([]byte(r.stdout), &jail); err != nil {
		t.Fatalf("%v: %v", err, r)
	}
	return jail
}

// A container that is denied its own command does not start, and says so.
func TestProfileFullContainerCommandNotGranted(t *testing.T) {
	verified(t)
	setUpHost(t, hookYAML, map[string]string{"container": "version: 1\nworkspace: /work\npresets: []\n"})
	g := newGround(t)
	for _, runtime := range []string{"runc", "crun"} {
		r := g.bundle(t, runtime, "denied-"+runtime, "/bin/echo", "started").run()
		if r.code == 0 || strings.Contains(r.stdout, "started") || !strings.Contains(strings.ToLower(r.stderr), "permission denied") {
			t.Errorf("%s: %v", runtime, r)
		}
	}
	assertNothingLeft(t)
}

// Two containers share a volume, each under a policy of its own.
func TestProfileFullContainersShareVolume(t *testing.T) {
	verified(t)
	setUpHost(t, "version: 1\npolicy: container\nallowAnnotations: [policy]\ntimeout: 1m\n", map[string]string{
		"container": "version: 1\nworkspace: /work\ngrants: [{path: /, rights: rx}]\n",
		"reader":    "version: 1\nworkspace: /work\nworkspaceRights: ro\ngrants: [{path: /, rights: rx}]\n",
	})
	g := newGround(t)
	writer := g.bundle(t, "crun", "writer", "thenforce-canary").start()
	b := g.bundle(t, "runc", "reader", "thenforce-canary")
	b.spec.Annotations = map[string]string{"io.thenforce.policy": "reader"}
	reader := b.start()
	both := []row{{"open /work/file", 0}, {"open /other/file", eacces}}
	writer.check(append(both, row{"mkdir /work/by-writer", 0}))
	reader.check(append(both, row{"mkdir /work/by-reader", eacces}, row{"open /work/by-writer", 0}, row{"rmdir /work/by-writer", eacces}))
	reader.end()
	writer.check(append(both, row{"rmdir /work/by-writer", 0}))
	writer.end()
	assertNothingLeft(t)
}

// hook calls the hook with a state.
func hook(t *testing.T, state string) result {
	t.Helper()
	cmd := exec.Command("thenforce", "hook")
	cmd.Stdin = strings.NewReader(state)
	return finish(t, cmd)
}

func TestProfileFullHookFaults(t *testing.T) {
	verified(t)
	g := newGround(t)
	b := g.bundle(t, "runc", "faults", "/bin/true")
	os.Symlink("/../../../../other", b.dir+"/rootfs/out")
	os.Symlink("/work", b.dir+"/rootfs/inside")
	state, goOn := b.stopInHook()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*specs.State)) string {
		s := state
		s.Status = specs.StateCreating
		change(&s)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	same := func(*specs.State) {}
	annotate := func(key, value string) func(*specs.State) {
		return func(s *specs.State) { s.Annotations = map[string]string{"io.thenforce." + key: value} }
	}
	policy := map[string]string{"container": "version: 1\nworkspace: /work\n"}
	for name, c := range map[string]struct {
		hook     string
		policies map[string]string
		state    string
		says     []string
	}{
		"nothing":           {hookYAML, policy, "", []string{"standard input is empty"}},
		"broken JSON":       {hookYAML, policy, `{"id":"x",`, []string{"read the container's state"}},
		"other JSON":        {hookYAML, policy, `[1]`, []string{"read the container's state"}},
		"no id":             {hookYAML, policy, `{"status":"creating","pid":1,"bundle":"/x"}`, []string{"no id"}},
		"relative bundle":   {hookYAML, policy, `{"id":"x","status":"creating","pid":1,"bundle":"x"}`, []string{`bundle "x"`}},
		"wrong stage":       {hookYAML, policy, `{"id":"x","status":"running","pid":1,"bundle":"/x"}`, []string{`status "running"`, "createRuntime and poststop"}},
		"no process":        {hookYAML, policy, with(func(s *specs.State) { s.Pid = 0 }), []string{"no process"}},
		"dead process":      {hookYAML, policy, with(func(s *specs.State) { s.Pid = ended.Process.Pid }), []string{"its process " + strconv.Itoa(ended.Process.Pid), "no such process"}},
		"host's process":    {hookYAML, policy, with(func(s *specs.State) { s.Pid = os.Getpid() }), []string{"no cgroup of its own"}},
		"no bundle":         {hookYAML, policy, with(func(s *specs.State) { s.Bundle = "/nowhere" }), []string{"/nowhere/config.json"}},
		"no config":         {"", policy, with(same), []string{hookConfig, "docs/containers.md"}},
		"misspelt config":   {"version: 1\npolicies: x\n", policy, with(same), []string{hookConfig, "line 2", "policies"}},
		"no policy":         {hookYAML, nil, with(same), []string{"container.yaml"}},
		"misspelt policy":   {hookYAML, map[string]string{"container": "version: 1\nworkspace: /work\ngrant: []\n"}, with(same), []string{"container.yaml:3:1", "grant"}},
		"relative":          {hookYAML, map[string]string{"container": "version: 1\nworkspace: work\n"}, with(same), []string{"workspace", "relative"}},
		"no workspace":      {"version: 1\npolicy: container\nallowAnnotations: [workspace]\n", map[string]string{"container": "version: 1\n"}, with(same), []string{"annotation io.thenforce.workspace is missing"}},
		"no such directory": {hookYAML, map[string]string{"container": "version: 1\nworkspace: /nowhere\n"}, with(same), []string{"/nowhere", "no such file"}},
		"link out":          {hookYAML, map[string]string{"container": "version: 1\nworkspace: /out\n"}, with(same), []string{"/out is a symbolic link", "/../../../../other"}},
		"link within":       {hookYAML, map[string]string{"container": "version: 1\nworkspace: /inside\n"}, with(same), []string{"/inside is a symbolic link"}},
		"grant by link":     {hookYAML, map[string]string{"container": "version: 1\nworkspace: /work\ngrants: [{path: /out, rights: ro}]\n"}, with(same), []string{"/out is a symbolic link"}},
		"unknown wish":      {hookYAML, policy, with(annotate("worksapce", "/")), []string{"io.thenforce.worksapce", "unknown"}},
		"wider workspace":   {hookYAML, policy, with(annotate("workspace", "/")), []string{"io.thenforce.workspace", "outside the host's /work"}},
		"other policy":      {hookYAML, policy, with(annotate("policy", "other")), []string{"io.thenforce.policy", "the host decides"}},
		"policy by path":    {"version: 1\npolicy: container\nallowAnnotations: [policy]\n", policy, with(annotate("policy", "../hook")), []string{"no name of a policy"}},
		"monitor":           {hookYAML, policy, with(annotate("mode", "monitor")), []string{"io.thenforce.mode", "enforces"}},
		"unverified":        {hookYAML, policy, with(annotate("allow-unverified", "true")), []string{"io.thenforce.allow-unverified"}},
		"own state": {hookYAML, map[string]string{"container": "version: 1\nworkspace: /work\ngrants: [{path: /sys/fs/cgroup, rights: rw}]\n"}, with(same),
			[]string{"grant /sys/fs/cgroup", "a jail could be left"}},
	} {
		t.Run(name, func(t *testing.T) {
			setUpHost(t, c.hook, c.policies)
			if c.hook == "" {
				os.Remove(hookConfig)
			}
			r := hook(t, c.state)
			if r.code != 1 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
				t.Error(r)
			}
			for _, want := range c.says {
				if !strings.Contains(strings.ToLower(r.stderr), strings.ToLower(want)) {
					t.Errorf("want %q in: %v", want, r)
				}
			}
			assertNothingLeft(t)
		})
	}
	// A file that others could have written says nothing.
	setUpDefaultHost(t)
	if err := os.Chmod(hookConfig, 0o666); err != nil {
		t.Fatal(err)
	}
	if r := hook(t, with(same)); r.code != 1 || !strings.Contains(r.stderr, "others than root can change it") {
		t.Errorf("a configuration that everybody can write: %v", r)
	}
	os.Chmod(hookConfig, 0o644)
	// And the right call makes a jail that is pending, until it is told that the container is gone.
	if r := hook(t, with(annotate("workspace", "/work/sub"))); r.code != 1 || !strings.Contains(r.stderr, "/work/sub") {
		t.Errorf("a missing narrower workspace: %v", r)
	}
	if err := os.Mkdir(g.work+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if r := hook(t, with(annotate("workspace", "/work/sub"))); r.code != 0 {
		t.Errorf("a narrower workspace: %v", r)
	}
	if jail := onlyJail(t); jail.State != "pending" || jail.Workspace != "/work/sub" || jail.Name != b.id {
		t.Errorf("the jail is %+v", jail)
	}
	stopped := fmt.Sprintf(`{"id":%q,"status":"stopped","bundle":%q}`, b.id, b.dir)
	if r := hook(t, stopped); r.code != 0 || onlyJail(t).ID == "" {
		t.Errorf("told to stop while the container is there: %v", r)
	}
	goOn()
	if r := hook(t, stopped); r.code != 0 {
		t.Error(r)
	}
	assertNothingLeft(t)
	if r := hook(t, stopped); r.code != 0 {
		t.Errorf("told to stop twice: %v", r)
	}
}

// stopInHook starts the container and stops its runtime in the stage createRuntime. It returns the state that the runtime
// gives to hooks then, and what lets it go on and end.
func (b *bundle) stopInHook() (specs.State, func()) {
	b.t.Helper()
	script, pipe := filepath.Join(b.dir, "wait"), filepath.Join(b.dir, "state")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\ncat >"+pipe+"\nread x <"+pipe+"\n"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: script, Env: []string{"PATH=/usr/bin:/bin"}}}}
	b.write()
	cmd := b.command("run", b.id)
	cmd.Stdin = nil
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.command("delete", "--force", b.id).Run() })
	var state specs.State
	text, err := os.ReadFile(pipe)
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		b.t.Fatalf("the state is %q: %v", text, err)
	}
	return state, func() {
		b.t.Helper()
		if err := os.WriteFile(pipe, []byte("go on\n"), 0); err != nil {
			b.t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			b.t.Errorf("the container: %v", err)
		}
	}
}

// podmanCommand is a podman that needs no network and no service.
func podmanCommand(runtime string, args ...string) *exec.Cmd {
	return exec.Command("podman", append([]string{"--runtime", runtime, "--cgroup-manager", "cgroupfs", "--events-backend", "none"}, args...)...)
}

// podman calls one that calls the hooks.
func podman(t *testing.T, runtime string, args ...string) result {
	t.Helper()
	return finish(t, podmanCommand(runtime, append([]string{"--hooks-dir", podmanHooks}, args...)...))
}

const podmanHooks = "/run/thenforce-hooks.d"

func TestProfileFullPodman(t *testing.T) {
	verified(t)
	setUpDefaultHost(t)
	g := newGround(t)
	if err := os.Mkdir(podmanHooks, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := thenforce(t, "hook", "--install", podmanHooks); r.code != 0 || r.stderr != "" {
		t.Fatal(r)
	}
	if r := podman(t, "crun", "import", g.archive(t), "ground"); r.code != 0 {
		t.Fatal(r)
	}
	targets := newTargets(t, g)
	runtimes := []string{"/usr/bin/crun"} // podman's own choice
	if os.Getenv("THENFORCE_VM_SOAK") != "" {
		runtimes = append(runtimes, "/usr/bin/runc") // which all else here starts, too
	}
	for _, runtime := range runtimes {
		t.Run(filepath.Base(runtime), func(t *testing.T) {
			t.Cleanup(func() { podman(t, runtime, "rm", "-f", "-t", "0", "box") })
			r := podman(t, runtime, "run", "-d", "--name", "box", "--privileged", "--network", "none",
				"-v", g.work+":/work", "-v", g.other+":/other", "ground", "/bin/sleep", "6000")
			if r.code != 0 {
				t.Fatal(r)
			}
			first := onlyJail(t)
			check := func() {
				t.Helper()
				x := operate(t, podmanCommand(runtime, "exec", "-i", "box", "thenforce-canary"))
				x.check(work)
				x.check(ownProcesses)
				targets.hold(x, escapes)
				x.end()
			}
			check()
			if r := podman(t, runtime, "restart", "-t", "0", "box"); r.code != 0 {
				t.Fatal(r)
			}
			second := onlyJail(t)
			if first.ID == second.ID {
				t.Error("a restarted container has its old jail")
			}
			check()
			if r := podman(t, runtime, "rm", "-f", "-t", "0", "box"); r.code != 0 {
				t.Fatal(r)
			}
			assertNothingLeft(t)
			testPodmanOfTheHost(t, targets, runtime)

			// Without the host's decision, nothing starts.
			if err := os.Rename(hookConfig, hookConfig+".away"); err != nil {
				t.Fatal(err)
			}
			r = podman(t, runtime, "run", "--rm", "--network", "none", "ground", "/bin/echo", "started")
			if r.code == 0 || strings.Contains(r.stdout, "started") {
				t.Errorf("without a configuration: %v", r)
			}
			if err := os.Rename(hookConfig+".away", hookConfig); err != nil {
				t.Fatal(err)
			}
			assertNothingLeft(t)
		})
	}
}

// testPodmanOfTheHost starts a container with no wall but the jail, and one with none at all.
func testPodmanOfTheHost(t *testing.T, targets *targets, runtime string) {
	t.Helper()
	start := []string{"run", "-d", "--name", "wide", "--privileged", "--pid", "host", "--network", "host", "--cgroupns", "host",
		"-v", targets.g.work + ":/work", "-v", targets.g.other + ":/other", "-v", "/:/host:rslave", "ground", "/bin/sleep", "6000"}
	remove := []string{"rm", "-f", "-t", "0", "wide"}
	t.Cleanup(func() { podman(t, runtime, remove...) })
	for _, jailed := range []bool{false, true} {
		dir := podmanHooks
		if !jailed {
			dir = t.TempDir()
		}
		cmd := podmanCommand(runtime, append([]string{"--hooks-dir", dir}, start...)...)
		if r := finish(t, cmd); r.code != 0 {
			t.Fatal(r)
		}
		x := operate(t, podmanCommand(runtime, "exec", "-i", "wide", "thenforce-canary"))
		if jailed {
			x.check(work)
			targets.hold(x, hostEscapes)
		} else {
			targets.succeed(x, hostEscapes)
		}
		x.end()
		if r := podman(t, runtime, remove...); r.code != 0 {
			t.Fatal(r)
		}
		assertNothingLeft(t)
	}
}

// Docker and containerd start containers by a runtime that the host names: it adds the hook.
func TestProfileFullRuntimeWrapper(t *testing.T) {
	verified(t)
	setUpDefaultHost(t)
	g := newGround(t)
	targets := newTargets(t, g)
	for _, runtime := range []string{"runc", "crun"} {
		path, err := exec.LookPath(runtime)
		if err != nil {
			t.Fatal(err)
		}
		b := g.bundle(t, runtime, "wrapped-"+runtime, "thenforce-canary")
		b.spec.Hooks = nil
		b.write()
		// As a containerd shim calls it.
		root := filepath.Join(g.dir, "root-"+runtime)
		call := func(args ...string) *exec.Cmd {
			global := []string{"hook", "--runtime", path, "--", "--root", root, "--log", g.dir + "/log.json", "--log-format", "json"}
			return exec.Command("thenforce", append(global, args...)...)
		}
		t.Cleanup(func() { call("delete", "--force", b.id).Run() })
		b.spec.Process.Args = []string{"/bin/sleep", "600"}
		b.write()
		for range 2 { // a bundle that is used again has the hook once
			if r := finishDetached(t, call("create", "--bundle", b.dir, "--pid-file", g.dir+"/pid", b.id)); r.code != 0 {
				log, _ := os.ReadFile(g.dir + "/log.json")
				t.Fatalf("%v %s", r, log)
			}
			if jail := onlyJail(t); jail.State != "pending" {
				t.Errorf("the jail of a created container is %+v", jail)
			}
			if r := finish(t, call("start", b.id)); r.code != 0 {
				t.Fatal(r)
			}
			x := operate(t, call("exec", b.id, "thenforce-canary"))
			x.check(work)
			x.check(ownProcesses)
			targets.hold(x, escapes)
			x.end()
			if r := finish(t, call("delete", "--force", b.id)); r.code != 0 {
				t.Fatal(r)
			}
			assertNothingLeft(t)
		}
		var spec specs.Spec
		text, err := os.ReadFile(b.dir + "/config.json")
		if err == nil {
			err = json.Unmarshal(text, &spec)
		}
		if err != nil || spec.Hooks == nil || len(spec.Hooks.CreateRuntime) != 1 || len(spec.Hooks.Poststop) != 1 {
			t.Errorf("%s: hooks are %+v, %v", runtime, spec.Hooks, err)
		}
		if r := finish(t, call("--unknown", "create", "x")); r.code != 1 || !strings.Contains(r.stderr, "--unknown") {
			t.Errorf("a call that is not understood: %v", r)
		}
	}
}

// finishDetached waits for a command whose output a container keeps open.
func finishDetached(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return result{code: cmd.ProcessState.ExitCode(), stderr: string(text)}
}

// listenToSyslog gives a function that returns what was logged next.
func listenToSyslog(t *testing.T) func() string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/dev/log", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		os.Remove("/dev/log")
	})
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 4096)
		n, err := conn.Read(line)
		if err != nil {
			t.Errorf("syslog: %v", err)
		}
		return string(line[:n])
	}
}

// Where BPF LSM is not active, no container starts, unless the host says that it may.
func TestProfileContainersNoLSM(t *testing.T) {
	g := newGround(t)
	log := listenToSyslog(t)
	for _, runtime := range []string{"runc", "crun"} {
		setUpDefaultHost(t)
		r := g.bundle(t, runtime, "strict-"+runtime, "/bin/echo", "started").run()
		if r.code == 0 || strings.Contains(r.stdout, "started") {
			t.Errorf("%s, strict: %v", runtime, r)
		}
		if runtime == "runc" && !strings.Contains(r.stderr, "lsm-inactive") {
			t.Errorf("%s does not show why: %v", runtime, r)
		}
		if line := log(); !strings.Contains(line, "thenforce") || !strings.Contains(line, "container strict-"+runtime) || !strings.Contains(line, "lsm-inactive") {
			t.Errorf("%s: syslog has %q", runtime, line)
		}
		setUpHost(t, hookYAML+"allowUnverified: true\n", map[string]string{"container": "version: 1\nworkspace: /work\n"})
		r = g.bundle(t, runtime, "lax-"+runtime, "/bin/echo", "started").run()
		if r.code != 0 || r.stdout != "started\n" {
			t.Errorf("%s, allowUnverified: %v", runtime, r)
		}
	}
	if _, err := os.Stat("/run/thenforce/jails"); err == nil {
		assertEntries(t, "/run/thenforce/jails")
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
