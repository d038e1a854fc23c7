//go:build vm

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
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

// ownProcesses is what a container with process ids of its own must be able to do.
var ownProcesses = []row{{"kill 1", 0}, {"trace 1", 0}, {"open /proc/1/status", 0}}

// An escape is what a container tries that wants out: an operation of the canary, the errno that it fails with in a jail,
// and what comes of it in the same container with no jail. That is success, or the kernel's own complaint about
// something else than permission; a row where it is permission shows nothing.
type escape struct {
	operation   string
	errno, free syscall.Errno
	// apart: with no jail a process of its own does it, as the container would not be the same for the rows after it.
	apart bool
	// kills: with no jail the victim dies of SIGTERM.
	kills bool
}

// escapes are those of a container with namespaces of its own. %HANDLE is of a file that is mounted nowhere in it.
var escapes = []escape{
	// Files of another volume, and of the image.
	{operation: "open /other/file", errno: eacces}, {operation: "truncate /other/file", errno: eacces},
	{operation: "mkdir /other/new", errno: eacces}, {operation: "unlink /other/file", errno: eacces},
	{operation: "chmod /other/file", errno: eacces}, {operation: "utimes /other/file", errno: eacces},
	{operation: "setxattr /other/file", errno: eacces}, {operation: "watch /other/file", errno: eacces},
	{operation: "symlink /other/link", errno: eacces}, {operation: "rename /other/file /other/moved", errno: eacces},
	{operation: "link /other/file /other/hard", errno: eacces}, {operation: "elsewhere /other/file", errno: eacces},
	{operation: "open /proc/self/root/other/file", errno: eacces}, {operation: "open /proc/1/root/other/file", errno: eacces},
	{operation: "reopen /other/file", errno: eacces}, {operation: "open /work/../other/file", errno: eacces},
	{operation: "open /etc/shadow", errno: eacces}, {operation: "mkdir /new", errno: eacces},
	{operation: "truncate /readme", errno: eacces}, {operation: "chmod /bin/busybox", errno: eacces},
	{operation: "mapexec /data/file", errno: eacces},
	// By handle, as root with CAP_DAC_READ_SEARCH; by descriptors of somebody outside; by io_uring.
	{operation: "handle /work /other/file", errno: eacces}, {operation: "byhandle /work %HANDLE", errno: eacces},
	{operation: "fetch /work/socket", errno: eacces},
	{operation: "uring plain openat /other/file", errno: eacces}, {operation: "uring worker openat /other/file", errno: eacces},
	{operation: "uring polled openat-write /other/file", errno: eacces}, {operation: "uring changed openat /etc/shadow", errno: eacces},
	{operation: "uring plain unlinkat /other/file", errno: eacces}, {operation: "uring worker mkdirat /other/new", errno: eacces},
	{operation: "uring plain renameat /other/file /other/moved", errno: eacces},
	{operation: "uring plain linkat /other/file /other/hard", errno: eacces}, {operation: "personality", errno: eperm},
	// Mounts, and the namespaces that would allow them.
	{operation: "mount /mnt", errno: eperm, apart: true}, {operation: "bind /other /mnt", errno: eperm, apart: true},
	{operation: "chroot /work", errno: eperm, apart: true}, {operation: "pivot /work", errno: eperm, apart: true},
	{operation: "umount /work", errno: eperm, apart: true}, {operation: "mountattr /work", errno: eperm, apart: true},
	{operation: "kernmount", errno: eperm}, {operation: "parameter", errno: eperm}, {operation: "clonetree /other", errno: eperm},
	{operation: "unshare", errno: eperm}, {operation: "apart mount /mnt", errno: eperm}, {operation: "asuser mount /mnt", errno: eperm},
	{operation: "asuser bind /other /mnt", errno: eperm},
	// Devices.
	{operation: "mkblock /work/disk", errno: eacces}, {operation: "mkchar /work/null", errno: eacces},
	{operation: "mkblock /data/disk", errno: eacces}, {operation: "ioctl /work 0xc0045878", errno: eperm, free: unix.EINVAL}, // FITHAW: is not frozen
	{operation: "fanwatch /work", errno: eperm},
	// Another cgroup.
	{operation: "join /sys/fs/cgroup", errno: eacces}, {operation: "mkdir /sys/fs/cgroup/new", errno: eacces},
	{operation: "cgroup /sys/fs/cgroup", errno: eperm},
	// The kernel, which would act outside.
	{operation: "write /proc/sys/kernel/core_pattern |/work/evil", errno: eacces}, {operation: "dump /other", errno: eacces},
	{operation: "write /proc/sys/kernel/modprobe /work/evil", errno: eacces}, {operation: "openw /proc/sysrq-trigger", errno: eacces},
	{operation: "open /proc/kcore", errno: eacces}, {operation: "bpf", errno: eperm}, {operation: "hostname", errno: eperm},
	{operation: "initmodule", errno: eperm, free: unix.ENOEXEC}, {operation: "settime", errno: eperm}, {operation: "iopl", errno: eperm},
	{operation: "swapon /work/file", errno: eperm, free: unix.EINVAL},
}

// hostEscapes are those of a container that has the host's processes, network, cgroups and all of its files at /host.
// %OUT is a directory of the host, %DISK what it is on, %VICTIM a process outside.
var hostEscapes = []escape{
	{operation: "open /host/etc/shadow", errno: eacces}, {operation: "openw /host/etc/passwd", errno: eacces},
	{operation: "open /host%OUT/file", errno: eacces}, {operation: "create /host%OUT/new", errno: eacces},
	{operation: "link /host%OUT/file /host%OUT/hard", errno: eacces}, {operation: "byhandle /work %HANDLE", errno: eacces},
	{operation: "exec /host/usr/bin/busybox", errno: eacces}, {operation: "fetch /work/socket", errno: eacces},
	// Its unix sockets.
	{operation: "dial stream /host%OUT/socket", errno: eacces}, {operation: "dial stream @thenforce-outside", errno: eacces},
	// A process of the host's.
	{operation: "open /proc/%VICTIM/root/etc/shadow", errno: eacces}, {operation: "open /proc/%VICTIM/root%OUT/file", errno: eacces},
	{operation: "open /proc/%VICTIM/cwd", errno: eacces}, {operation: "open /proc/%VICTIM/exe", errno: eacces},
	{operation: "open /proc/%VICTIM/mem", errno: eacces}, {operation: "openrw /proc/%VICTIM/mem", errno: eacces},
	{operation: "open /proc/%VICTIM/environ", errno: eacces}, {operation: "open /proc/%VICTIM/maps", errno: eacces},
	{operation: "trace %VICTIM", errno: eacces}, {operation: "attach %VICTIM", errno: eperm},
	{operation: "vmread %VICTIM", errno: eperm}, {operation: "vmwrite %VICTIM", errno: eperm},
	{operation: "pidfdget %VICTIM 0", errno: eperm}, {operation: "setns %VICTIM", errno: eperm},
	{operation: "kill %VICTIM", errno: eperm}, {operation: "tgkill %VICTIM 0", errno: eperm},
	{operation: "signal %VICTIM 15", errno: eperm, kills: true}, {operation: "pidfdsignal %VICTIM 15", errno: eperm, kills: true},
	{operation: "setown /work/file %VICTIM", errno: eperm}, {operation: "setownex /work/file %VICTIM", errno: eperm},
	{operation: "signalby /work/fifo %VICTIM 15", errno: eperm, kills: true},
	{operation: "setrlimit %VICTIM", errno: eperm}, {operation: "setnice %VICTIM", errno: eperm},
	{operation: "setscheduler %VICTIM", errno: eperm}, {operation: "setioprio %VICTIM", errno: eperm},
	{operation: "affinity %VICTIM", errno: eperm},
	// Its cgroups, devices, mounts, and kernel.
	{operation: "join /host/sys/fs/cgroup", errno: eacces}, {operation: "mkdir /host/sys/fs/cgroup/new", errno: eacces},
	{operation: "cgroup /host/sys/fs/cgroup", errno: eperm},
	{operation: "open /host%DISK", errno: eacces}, {operation: "open /host/dev/kmsg", errno: eacces},
	{operation: "write /host/proc/sys/kernel/core_pattern |/work/evil", errno: eacces}, {operation: "dump /host%OUT", errno: eacces},
	{operation: "bind /host%OUT /mnt", errno: eperm, apart: true}, {operation: "opentree /host%OUT file", errno: eperm},
	{operation: "bpfget /sys/fs/bpf/thenforce/v1/tf_jails", errno: eperm, free: unix.ENOENT},
	{operation: "bpfget /host/sys/fs/bpf/thenforce/v1/tf_jails", errno: eperm}, {operation: "reboot", errno: eperm},
}

// targets are what a container wants to get at; all of it is outside.
type targets struct {
	t       *testing.T
	g       ground
	outside string // a directory of the host's
	handle  string // of the file in there: type and bytes
	disk    string
	victim  *operator
	kernel  map[string]string // settings of the kernel
}

func newTargets(t *testing.T, g ground) *targets {
	t.Helper()
	x := &targets{t: t, g: g, outside: g.dir + "/outside", kernel: map[string]string{}}
	if err := os.Mkdir(x.outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(g.work+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		x.kernel[name] = string(text)
	}
	x.layOut()
	disk, err := exec.Command("findmnt", "--noheadings", "--output", "SOURCE", "--target", x.outside).Output()
	if err != nil {
		t.Fatal(err)
	}
	x.disk = strings.TrimSpace(string(disk))
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, x.outside+"/file", 0)
	if err != nil {
		t.Fatal(err)
	}
	x.handle = fmt.Sprintf("%d %s", handle.Type(), hex.EncodeToString(handle.Bytes()))
	for _, socket := range []string{g.work + "/socket", x.outside + "/socket", "@thenforce-outside"} {
		x.giveAway(socket)
	}
	x.newVictim()
	return x
}

// giveAway listens and passes a descriptor of the file outside to everybody who comes.
func (x *targets) giveAway(socket string) {
	x.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if f, err := os.OpenFile(x.outside+"/file", os.O_RDWR, 0); err == nil {
				c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil)
				f.Close()
			}
			c.Close()
		}
	}()
}

// newVictim starts a process of the same program as the container's, at whose addresses it could write.
func (x *targets) newVictim() {
	x.t.Helper()
	self, err := os.Executable()
	if err != nil {
		x.t.Fatal(err)
	}
	x.victim = operate(x.t, &exec.Cmd{Path: self, Args: []string{"thenforce-canary"}})
}

// layOut makes everything as it was.
func (x *targets) layOut() {
	x.t.Helper()
	for dir, keep := range map[string][]string{x.g.other: nil, x.outside: {"file", "socket"}, x.g.work: {"socket", "fifo"}} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, e := range entries {
			if slices.Contains(keep, e.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				x.t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/file", []byte(secret), 0o644); err != nil {
			x.t.Fatal(err)
		}
	}
	if err := os.Remove("/sys/fs/cgroup/new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.t.Fatal(err)
	}
	for name, text := range x.kernel {
		if err := os.WriteFile(name, []byte(text), 0); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *targets) expand(operation string) string {
	return strings.NewReplacer("%HANDLE", x.handle, "%OUT", x.outside, "%DISK", x.disk, "%VICTIM", strconv.Itoa(x.victim.cmd.Process.Pid)).Replace(operation)
}

// succeed is the control: with no jail, every escape does.
func (x *targets) succeed(o *operator, rows []escape) {
	x.t.Helper()
	for _, e := range rows {
		x.layOut()
		operation := x.expand(e.operation)
		if e.apart {
			operation = "apart " + operation
		}
		if got := o.do(operation); got != e.free {
			x.t.Errorf("with no jail: %s: got %v, want %v", operation, errnoText(got), errnoText(e.free))
		} else if e.kills {
			x.died()
			x.newVictim()
		}
	}
	x.layOut()
}

// died waits for the victim's death.
func (x *targets) died() {
	x.t.Helper()
	late := time.AfterFunc(time.Minute, func() { x.victim.cmd.Process.Kill() })
	defer late.Stop()
	var failed *exec.ExitError
	err := x.victim.cmd.Wait()
	if !errors.As(err, &failed) || failed.Sys().(syscall.WaitStatus).Signal() != unix.SIGTERM {
		x.t.Errorf("with no jail the victim ended by %v", err)
	}
}

// hold wants every escape to fail, and nothing to have come of them all.
func (x *targets) hold(o *operator, rows []escape) {
	x.t.Helper()
	x.layOut()
	for _, e := range rows {
		operation := x.expand(e.operation)
		if got := o.do(operation); got != e.errno {
			x.t.Errorf("%s: got %v, want %v", operation, errnoText(got), errnoText(e.errno))
		}
	}
	for _, dir := range []string{x.g.other, x.outside} {
		if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != secret {
			x.t.Errorf("%s/file holds %q, %v", dir, text, err)
		}
	}
	assertEntries(x.t, x.g.other, "file")
	assertEntries(x.t, x.outside, "file", "socket")
	for name, want := range x.kernel {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			x.t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	if errno := x.victim.do("ready"); errno != 0 {
		x.t.Errorf("the victim answers %v", errno)
	}
}

// share gives a container the host's processes, network and cgroups, all of its files, and every device.
func (b *bundle) share() {
	s := &b.spec
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace || n.Type == specs.NetworkNamespace || n.Type == specs.CgroupNamespace
	})
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/host", Type: "bind", Source: "/", Options: []string{"rbind", "rslave"}})
	s.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}
}

// free is the same container with no jail.
func (b *bundle) free(g ground) *bundle {
	b.t.Helper()
	f := g.bundle(b.t, b.runtime, b.id+"-free", b.spec.Process.Args...)
	id, dir := f.id, f.dir
	*f = *b
	f.id, f.dir, f.spec.Hooks = id, dir, nil
	return f
}

func TestProfileFullContainerFreeRunc(t *testing.T) { testFreeContainer(t, "runc") }
func TestProfileFullContainerFreeCrun(t *testing.T) { testFreeContainer(t, "crun") }

// The control of testContainer: with no jail the same container does all of it.
func testFreeContainer(t *testing.T, runtime string) {
	verified(t)
	g := newGround(t)
	b := g.bundle(t, runtime, "free-"+runtime, "thenforce-canary")
	b.spec.Hooks = nil
	c := b.start()
	newTargets(t, g).succeed(c, escapes)
	c.end()
	assertNothingLeft(t)
}

func TestProfileFullContainerOfTheHostRunc(t *testing.T) { testContainerOfTheHost(t, "runc") }
func TestProfileFullContainerOfTheHostCrun(t *testing.T) { testContainerOfTheHost(t, "crun") }

// A container that is in the host's namespaces and has all of its files, with a jail around it and with none.
func testContainerOfTheHost(t *testing.T, runtime string) {
	verified(t)
	setUpDefaultHost(t)
	g := newGround(t)
	targets := newTargets(t, g)
	b := g.bundle(t, runtime, "wide-"+runtime, "thenforce-canary")
	b.share()
	free := b.free(g).start()
	targets.succeed(free, hostEscapes)
	free.end()

	c := b.start()
	if jail := onlyJail(t); jail.State != "armed" || jail.Name != b.id {
		t.Errorf("the jail is %+v", jail)
	}
	for _, o := range []*operator{c, b.exec()} {
		o.check(work)
		targets.hold(o, hostEscapes)
		if o != c {
			o.end()
		}
	}
	c.end()
	assertNothingLeft(t)
}
