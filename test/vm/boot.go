//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thenforce/thenforce/internal/vm/guest"
	"github.com/thenforce/thenforce/internal/vm/image"
	"github.com/thenforce/thenforce/internal/vm/qemu"
)

// bootLimit is how long init may take to report. It takes 3 s when the machine
// has nothing else to do.
const bootLimit = 2 * time.Minute

// guestModules are loaded at boot where they are modules: the drive and the file
// system on it (crc32c is what ext4's journal asks the crypto layer for by name);
// overlayfs; and loop and fuse, whose device nodes udev would make. The full
// guest loads what else it needs by itself.
var guestModules = []string{"nvme", "crc32c_generic", "crc32c_intel", "ext4", "overlay", "loop", "fuse"}

// file is one thing put into a guest.
type file struct{ host, guest string }

// builder makes the binaries of a run, once for all kernels.
type builder struct {
	dir   string
	cache *image.Cache
}

func newBuilder(cache *image.Cache) (*builder, error) {
	dir, err := os.MkdirTemp("", "thenforce-vm-")
	if err != nil {
		return nil, err
	}
	return &builder{dir: dir, cache: cache}, nil
}

func (b *builder) close() { os.RemoveAll(b.dir) }

// buildInit builds the guest's process 1.
func (b *builder) buildInit(ctx context.Context) error {
	_, err := output(guestGo(ctx, "build", "-ldflags=-s -w", "-o", filepath.Join(b.dir, "init"), "./test/vm/init"))
	return err
}

// buildCommon builds init and thenforce, as /usr/bin/thenforce.
func (b *builder) buildCommon(ctx context.Context) ([]file, error) {
	if err := b.buildInit(ctx); err != nil {
		return nil, err
	}
	to := filepath.Join(b.dir, "thenforce")
	flags, err := os.ReadFile("cmd/thenforce/ldflags")
	if err != nil {
		return nil, err
	}
	if _, err := output(guestGo(ctx, "build", "-ldflags="+strings.TrimSpace(string(flags)), "-o", to, "./cmd/thenforce")); err != nil {
		return nil, err
	}
	return []file{{to, "/usr/bin/thenforce"}}, nil
}

// added turns the --add flags into files.
func added(flags []string) []file {
	var out []file
	for _, f := range flags {
		host, to, ok := strings.Cut(f, ":")
		if !ok {
			to = "/" + filepath.Base(host)
		}
		out = append(out, file{host, to})
	}
	return out
}

// guestRun is one guest to boot.
type guestRun struct {
	kernel  image.Kernel
	profile profile
	plan    guest.Plan
	files   []file
	output  io.Writer
	input   io.Reader
	resize  <-chan guest.Size
}

// boot runs a guest and returns what it left.
func (b *builder) boot(ctx context.Context, o *options, g guestRun) (*qemu.Outcome, error) {
	dir, err := os.MkdirTemp(b.dir, "guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	m, err := b.machine(ctx, o, g, dir)
	if err != nil {
		return nil, err
	}
	return bootTwice(os.Stderr, m, func(m qemu.Machine) (*qemu.Outcome, error) {
		if err := image.ScratchDisk(ctx, m.Disks[0].Path, guest.ScratchLabel); err != nil {
			return nil, err
		}
		return m.Run(ctx)
	})
}

// bootTwice runs a machine and, when it ends before init, once more, loudly: the
// newest kernel dies like that now and then under emulation. A boot that died
// with KVM does not count; it is repeated without. Once init has run nothing is
// repeated.
func bootTwice(log io.Writer, m qemu.Machine, run func(qemu.Machine) (*qemu.Outcome, error)) (*qemu.Outcome, error) {
	for retried := false; ; {
		out, err := run(m)
		if err != nil || out.Started || retried {
			return out, err
		}
		again := "booting it once more"
		if out.KVM {
			m.NoKVM, again = true, "booting it without KVM"
		} else {
			retried = true
		}
		fmt.Fprintf(log, "vm: RETRY: %s ended before init%s; %s. The end of its log:\n%s\n",
			filepath.Base(m.Kernel), because(out.Expired), again, lastLines(out.Console, 15))
	}
}

// machine prepares what the guest boots from, in dir; its first disk, the
// scratch one, is still to be made.
func (b *builder) machine(ctx context.Context, o *options, g guestRun, dir string) (qemu.Machine, error) {
	m := qemu.Machine{
		Kernel:    g.kernel.VmlinuzPath(),
		Initramfs: filepath.Join(dir, "initramfs"),
		Append:    strings.TrimSpace(g.profile.cmdline + " " + o.cmdline),
		Disks:     []qemu.Disk{{Path: filepath.Join(dir, "scratch.ext4")}},
		CPUs:      cmp.Or(o.cpus, g.profile.cpus, 1), Memory: o.memory, Count: o.count,
		Boot: bootLimit, Total: o.timeout,
		Output: g.output, Input: g.input, Resize: g.resize,
	}
	if o.console {
		m.Console = os.Stderr
	}
	g.plan.Full, g.plan.Systemd = o.full || g.profile.full, g.profile.systemd
	g.plan.Idle, g.plan.Limit = o.idle, o.timeout
	if g.plan.Full {
		disks, err := b.fullDisks(ctx, g.kernel)
		if err != nil {
			return m, err
		}
		m.Disks = append(m.Disks, disks...)
	}
	if m.Memory == "" {
		m.Memory = "1G"
		if g.plan.Full {
			m.Memory = "2G"
		}
	}
	g.plan.Env = append(slices.Clone(g.plan.Env), "THENFORCE_VM=1", "THENFORCE_VM_PROFILE="+g.profile.name, "THENFORCE_VM_SERIES="+g.kernel.Series)
	if o.soak {
		g.plan.Env = append(g.plan.Env, "THENFORCE_VM_SOAK=1")
	}
	if seed, ok := os.LookupEnv("THENFORCE_TEST_SEED"); ok {
		g.plan.Env = append(g.plan.Env, "THENFORCE_TEST_SEED="+seed)
	}
	return m, b.initramfs(ctx, m.Initramfs, g)
}

// fullDisks are the images that make a full guest of a small one.
func (b *builder) fullDisks(ctx context.Context, k image.Kernel) ([]qemu.Disk, error) {
	root, err := b.cache.Root(ctx, false)
	if err != nil {
		return nil, err
	}
	modules, err := b.cache.ModulesDisk(ctx, k)
	if err != nil {
		return nil, err
	}
	toolchain, err := b.cache.GoDisk(ctx)
	if err != nil {
		return nil, err
	}
	return []qemu.Disk{{Path: root, Shared: true}, {Path: modules, Shared: true}, {Path: toolchain, Shared: true}}, nil
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// lastLines returns the last n lines of a log, indented.
func lastLines(log string, n int) string {
	lines := strings.Split(strings.TrimRight(strings.ReplaceAll(log, "\r", ""), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return "    " + strings.Join(lines, "\n    ")
}

// The users of the small guest. dev is the ordinary one, member of groups that
// dropping privileges must lose or keep.
const (
	passwd = `root:x:0:0:root:/root:/bin/sh
dev:x:1000:1000:dev:/home/dev:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
`
	group = `root:x:0:
tty:x:5:
disk:x:6:dev
dev:x:1000:
extra:x:2000:dev
nogroup:x:65534:
`
)

// initramfs writes the archive for one guest.
func (b *builder) initramfs(ctx context.Context, name string, g guestRun) error {
	modules, err := image.LoadModules(g.kernel, guestModules)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	a := image.NewInitramfs(&buf)
	a.Copy("/init", filepath.Join(b.dir, "init"))
	for _, m := range modules {
		p := path.Join("/modules", m.Name+".ko")
		a.File(p, 0o644, m.Data)
		g.plan.Modules = append(g.plan.Modules, p)
	}
	if !g.plan.Full {
		busybox, err := b.cache.Busybox(ctx)
		if err != nil {
			return err
		}
		smallRoot(a, busybox)
	}
	for _, f := range g.files {
		a.Copy(path.Join("/payload", f.guest), f.host)
	}
	plan, err := json.Marshal(g.plan)
	if err != nil {
		return err
	}
	a.File("/payload"+guest.PlanPath, 0o644, plan)
	if err := a.Close(); err != nil {
		return fmt.Errorf("write the initramfs: %w", err)
	}
	return os.WriteFile(name, buf.Bytes(), 0o644)
}

// smallRoot lays out the root of the small guest like a Debian one.
func smallRoot(a *image.Initramfs, busybox string) {
	const root = "/payload"
	for _, d := range []string{"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/etc", "/home/dev", "/mnt", "/opt", "/srv", "/var/tmp", "/var/log"} {
		a.Dir(root+d, 0o755)
	}
	a.Dir(root+"/root", 0o700)
	for _, d := range []string{"bin", "sbin", "lib"} {
		a.Symlink(root+"/"+d, "usr/"+d)
	}
	a.File(root+"/etc/passwd", 0o644, []byte(passwd))
	a.File(root+"/etc/group", 0o644, []byte(group))
	a.File(root+"/etc/hosts", 0o644, []byte("127.0.0.1 localhost guest\n"))
	a.File(root+"/etc/hostname", 0o644, []byte("guest\n"))
	a.Copy(root+"/usr/bin/busybox", busybox)
}
