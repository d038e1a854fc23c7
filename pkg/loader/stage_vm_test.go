//go:build vm

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// place is a file system for a stage.
type place struct {
	name string
	make func(t *testing.T) string
	// briefly has the users that the table is run for where it is not run for all.
	briefly map[uint32]bool
}

var places = []place{
	{"tmpfs", tmpfsIn, map[uint32]bool{0: true}},
	{"ext4", func(*testing.T) string { return "/mnt/ext4" }, map[uint32]bool{1000: true}},
	{"overlayfs", overlayIn, nil},
	{"overlayfs-of-two", overlayOfTwo, nil},
}

// inFull reports whether nothing is left out: on the kernel that most of the tests run on, and whenever there is time.
func inFull() bool {
	return os.Getenv("THENFORCE_VM_SERIES") == "6.12" || inSoak()
}

// inSoak reports whether tests may take all the time they need.
func inSoak() bool { return os.Getenv("THENFORCE_VM_SOAK") != "" }

func userName(uid uint32) string { return "uid " + strconv.Itoa(int(uid)) }

// jailed makes a cgroup and a jail for it, with a process in it.
func jailed(t *testing.T, e *Enforcer, sets engine.AllowedSets) (*Jail, *canaryChild) {
	t.Helper()
	var s scene
	if err := s.makeCgroup("/sys/fs/cgroup", "test-"); err != nil {
		t.Fatal(err)
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	jail, err := e.CreateJail(JailSpec{Cgroup: s.cgroup, CgroupPath: s.path, Open: open, Sets: sets})
	if err != nil {
		t.Fatal(err)
	}
	child, err := startCanary(s.cgroup, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		child.stop() // a test may have
		err := e.DeleteJail(jail.ID)
		if errors.Is(err, ErrNoJail) {
			err = nil
		}
		if err := errors.Join(err, s.close()); err != nil {
			t.Error(err)
		}
	})
	return jail, child
}

func tmpfsIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/", "tmpfs-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		os.Remove(dir)
	})
	return dir
}

func overlayIn(t *testing.T) string {
	t.Helper()
	base := tmpfsIn(t)
	if err := os.Mkdir(base+"/lower", 0o755); err != nil {
		t.Fatal(err)
	}
	merged, _ := overlayOver(t, base+"/lower", base)
	return merged
}

// overlayOfTwo has its layers on two file systems.
func overlayOfTwo(t *testing.T) string {
	t.Helper()
	merged, _ := overlayOver(t, tmpfsIn(t), tmpfsIn(t))
	return merged
}

// stage is a jail with everything around it that the rows need.
type stage struct {
	e       *Enforcer
	base    string
	scene   scene // in it: child, who does what the rows say; peer; root, of a user namespace
	jail    *Jail
	user    uint32
	host    *canaryChild // outside
	foreign *canaryChild // in the other jail
	looks   string       // how everything looks: a snapshot, or empty
	replace *strings.Replacer
}

// stageDirs are the folders of a stage, each with the same things in it.
var stageDirs = []string{"in", "in/none", "in/mnt", "in/denied", "ro", "out", "other", "in-evil"}

// oddNames are names that something between the kernel and a log might trip over.
var oddNames = []string{"sp ace", "new\nline", "tab\tbing", `back\slash\040`, "not\xffutf\xfe8", "-"}

// depths are those that others' walks have ended at.
var depths = []int{20, 21, 32, 33, 64, 300}

func newStage(t *testing.T, e *Enforcer, on string, user uint32) *stage {
	t.Helper()
	base, err := os.MkdirTemp(on, "promise-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	p := &stage{e: e, user: user, base: base}
	allowPerf(t)
	p.furnish(t)
	p.confine(t)
	p.people(t)
	return p
}

func (p *stage) dir(name string) string { return filepath.Join(p.base, name) }

// allowPerf lets perf_event_open(2) come as far as its hook: at level 3, which Debian has, the kernel asks for privileges.
func allowPerf(t *testing.T) {
	t.Helper()
	const level = "/proc/sys/kernel/perf_event_paranoid"
	was, err := os.ReadFile(level)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(level, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(level, was, 0) })
}

// furnish makes the files.
func (p *stage) furnish(t *testing.T) {
	t.Helper()
	for _, name := range stageDirs {
		dir := p.dir(name)
		if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o777); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"file", "victim", "linked"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(canaryText), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(writeTinyProgram(filepath.Join(dir, "program")), p.scene.listen(dir)); err != nil {
			t.Fatal(err)
		}
	}
	in, out := p.dir("in"), p.dir("out")
	for _, dir := range []string{in, out} {
		for _, name := range oddNames {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{65, 201, 256, 4095} {
			name := longName(dir, n)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range depths {
			name := deepDir(dir+"/chain", n) + "/file"
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, 0o666)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, err := range []error{
		os.Mkdir(in+"/lazy", 0o755), os.Mkdir(in+"/ns", 0o755),
		os.Symlink(out+"/file", in+"/to-out"), os.Symlink("../out", in+"/to-outdir"), os.Symlink("/", in+"/to-root"),
		os.Symlink(out+"/new", in+"/dangling"), os.Symlink("../..", in+"/dir/up"),
		os.Link(p.dir("in/denied/linked"), in+"/link"),
		unix.Mknod(in+"/found-char", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))),
		unix.Mknod(in+"/found-block", unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))),
		os.WriteFile(in+"/script", []byte("#!"+in+"/program\n"), 0o755),
		os.WriteFile(in+"/outer-script", []byte("#!"+out+"/program\n"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Everything belongs to the user, so that what is denied is denied by the jail and nothing else.
	err := filepath.WalkDir(p.base, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(p.user), int(p.user)))
	})
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(p.base, 0o755)
	mnt := p.dir("in/mnt")
	if err := unix.Mount(out, mnt, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mnt, unix.MNT_DETACH) })
}

// confine makes the jail and the other one.
func (p *stage) confine(t *testing.T) {
	t.Helper()
	if err := p.scene.makeCgroup("/sys/fs/cgroup", "promise-"); err != nil {
		t.Fatal(err)
	}
	in := p.dir("in")
	p.jail = p.newJail(t, &p.scene, engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: in},
		Objects: []engine.Object{
			{Path: in, Rights: engine.AllRights, Source: engine.SourceWorkspace},
			{Path: p.dir("ro"), Rights: engine.Read, Source: engine.SourcePolicy},
			{Path: p.dir("in/none"), Rights: engine.None, Source: engine.SourcePolicy},
			{Path: "/dev/null", Rights: engine.Read | engine.Write, Source: engine.SourcePreset},
			{Path: "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", Rights: engine.Read, Source: engine.SourcePreset}, // Go's runtime
			{Path: "/dev/ptmx", Rights: engine.Read | engine.Write, Source: engine.SourcePreset},
		},
		Deny: []string{in + "/denied", in + "/denied/linked", in + "/.env", in + "/git/hooks", in + "/.eight-up",
			in + "/" + strings.Repeat("n", 255)},
	})
}

func (p *stage) newJail(t *testing.T, s *scene, sets engine.AllowedSets) *Jail {
	t.Helper()
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	jail, err := p.e.CreateJail(JailSpec{Cgroup: s.cgroup, CgroupPath: s.path, Open: open, Sets: sets})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		if jail.ID != "" {
			if err = p.e.DeleteJail(jail.ID); errors.Is(err, ErrNoJail) {
				err = nil // a test ended it
			}
		}
		if err := errors.Join(err, s.close()); err != nil {
			t.Error(err)
		}
	})
	return jail
}

// people starts everybody.
func (p *stage) people(t *testing.T) {
	t.Helper()
	out := p.dir("out")
	other := &scene{}
	if err := other.mkdirCgroup(filepath.Dir(p.scene.path), "promise-other-"); err != nil {
		t.Fatal(err)
	}
	p.newJail(t, other, engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: p.dir("other")},
		Objects:   []engine.Object{{Path: p.dir("other"), Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	})
	sub := p.scene.path + "/child"
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	p.scene.closeAtTheEnd = append(p.scene.closeAtTheEnd, func() error { return removeCgroup(sub) })
	for _, cgroup := range []string{p.scene.path, sub, other.path} {
		if err := errors.Join(os.Chown(cgroup, int(p.user), -1), os.Chown(cgroup+"/cgroup.procs", int(p.user), -1)); err != nil {
			t.Fatal(err)
		}
	}
	home := p.scene.cgroup
	if p.user != 0 {
		home = p.open(t, sub, unix.O_RDONLY)
	}

	p.host = p.start(t, nil)
	t.Cleanup(func() { p.host.stop() })
	p.foreign = p.start(t, other.cgroup)
	other.peer = p.foreign
	outer, err := newRing(false)
	if err != nil {
		t.Fatal(err)
	}
	// The file owns the descriptor from here on; the memory goes with the process.
	ring := os.NewFile(uintptr(outer.fd), "ring")
	t.Cleanup(func() { ring.Close() })
	p.scene.peer = p.start(t, p.scene.cgroup, p.open(t, out+"/file", unix.O_RDONLY), ring)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.scene.socket = pair[0]
	t.Cleanup(func() { unix.Close(pair[0]) })
	group, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	extra := []*os.File{os.NewFile(uintptr(pair[1]), "socket")}
	for _, owner := range []*canaryChild{p.host, p.scene.peer} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		if err := askForSignals(r, owner.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		extra = append(extra, w)
	}
	extra = append(extra, os.NewFile(uintptr(group), "fanotify"), p.open(t, out+"/file", unix.O_RDONLY), p.open(t, "/sys/fs/cgroup", unix.O_PATH))
	p.scene.child = p.start(t, home, extra...)
	for _, f := range extra {
		f.Close()
	}
	p.startRoot(t)
	p.holdLazy(t)

	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	if err := os.Chown(slave.Name(), int(p.user), int(p.user)); err != nil {
		t.Fatal(err)
	}
	p.replace = p.replacer(slave.Name(), other.path)
	for name, who := range map[string]*canaryChild{"host": p.host, "peer": p.scene.peer, "foreign": p.foreign} {
		for kind := range socketKinds {
			if errno, err := who.do([]string{"listen", kind, p.replace.Replace("@" + name + "-" + kind + "-%TAG")}); err != nil || errno != 0 {
				t.Fatalf("listen: %s %v", errnoName(errno), err)
			}
		}
	}
	for _, dir := range stageDirs {
		if dir == "in/mnt" { // out, by another path
			continue
		}
		if errno, err := p.host.do([]string{"listen", "packet", p.dir(dir) + "/packet"}); err != nil || errno != 0 {
			t.Fatalf("listen in %s: %s %v", dir, errnoName(errno), err)
		}
	}
}

// replacer puts in what the words of a row stand for.
func (p *stage) replacer(tty, sibling string) *strings.Replacer {
	in, out := p.dir("in"), p.dir("out")
	var words []string
	for i := len(depths) - 1; i >= 0; i-- {
		n := depths[i]
		words = append(words, "%DEEP"+strconv.Itoa(n), deepDir(in+"/chain", n), "%OUTDEEP"+strconv.Itoa(n), deepDir(out+"/chain", n))
	}
	for _, n := range []int{65, 201, 256, 4095} {
		words = append(words, "%IN:"+strconv.Itoa(n), longName(in, n), "%OUT:"+strconv.Itoa(n), longName(out, n))
	}
	pid := func(c *canaryChild) string { return strconv.Itoa(c.cmd.Process.Pid) }
	return strings.NewReplacer(append(words,
		"%IN", in, "%RO", p.dir("ro"), "%NONE", p.dir("in/none"), "%OUT", out, "%MNT", p.dir("in/mnt"), "%DENIED", p.dir("in/denied"),
		"%OTHER", p.dir("other"), "%BASE", p.base, "%LONG", in+"/"+strings.Repeat("n", 255), "%SHORT", in+"/"+strings.Repeat("n", 254),
		"%CGROUP", p.scene.path, "%PARENT", filepath.Dir(p.scene.path), "%SIBLING", sibling, "%TTY", tty, "%TAG", filepath.Base(p.base),
		"%HOST", pid(p.host), "%PEER", pid(p.scene.peer), "%FOREIGN", pid(p.foreign), "%SELF", pid(p.scene.child))...)
}

// start starts somebody of the stage's user.
func (p *stage) start(t *testing.T, cgroup *os.File, extra ...*os.File) *canaryChild {
	t.Helper()
	attr := &syscall.SysProcAttr{Setpgid: true}
	if p.user != 0 {
		attr.Credential = &syscall.Credential{Uid: p.user, Gid: p.user}
	}
	child, err := startCanary(cgroup, extra, attr)
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// startRoot starts root of a user namespace, has it mount something, and puts it into the jail.
func (p *stage) startRoot(t *testing.T) {
	t.Helper()
	id := []syscall.SysProcIDMap{{HostID: int(p.user), Size: 1}}
	root, err := startCanary(nil, nil, &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: id, GidMappings: id,
		Credential: &syscall.Credential{NoSetGroups: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.scene.root = root
	if errno, err := root.do([]string{"setup", p.dir("in/ns")}); err != nil || errno != noErrno {
		t.Fatalf("mount in a user namespace: %s %v", errnoName(errno), err)
	}
	if err := os.WriteFile(p.scene.path+"/cgroup.procs", []byte(strconv.Itoa(root.cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// holdLazy gives the child a handle of what was mounted in the workspace and is so no more.
func (p *stage) holdLazy(t *testing.T) {
	t.Helper()
	lazy := p.dir("in/lazy")
	if err := unix.Mount("tmpfs", lazy, "tmpfs", 0, "mode=0777"); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(lazy+"/file", []byte(canaryText), 0o666)
	errno, asked := p.scene.child.do([]string{"hold", lazy})
	if err := errors.Join(err, asked, orNil(errno), unix.Unmount(lazy, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
}

func (p *stage) open(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// checkOthers sees that nothing happened to those outside.
func (p *stage) checkOthers(t *testing.T) {
	t.Helper()
	for name, who := range map[string]*canaryChild{"host": p.host, "foreign": p.foreign} {
		if _, err := who.do([]string{"ready"}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pid := who.cmd.Process.Pid
		if nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid); err != nil || nice != 20 { // the system call says 20 - nice
			t.Errorf("%s has nice value %d, %v", name, 20-nice, err)
		}
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur == 7 {
			t.Errorf("%s may have %d files open, %v", name, limit.Cur, err)
		}
		if attr, err := unix.SchedGetAttr(pid, 0); err != nil || attr.Policy != unix.SCHED_NORMAL {
			t.Errorf("%s has scheduling policy %v, %v", name, attr, err)
		}
	}
}

// preparations are what the host does right before an operation in the jail.
var preparations = map[string]func(p *stage, args []string) error{
	"receive": func(p *stage, args []string) error {
		fd, err := p.openToSend(args)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendmsg(p.scene.socket, []byte{0}, unix.UnixRights(fd), nil, 0)
	},
}

// openToSend opens a kind of descriptor.
func (p *stage) openToSend(args []string) (int, error) {
	kind, path := args[0], ""
	if len(args) > 1 {
		path = args[1]
	}
	switch kind {
	case "read":
		return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "write":
		return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	case "path":
		return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	case "deleted":
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		return fd, errors.Join(err, unix.Unlink(path))
	case "pipe":
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return -1, err
		}
		return ends[1], unix.Close(ends[0])
	case "memory":
		return unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	case "pidfd":
		return unix.PidfdOpen(p.host.cmd.Process.Pid, 0)
	case "eventfd":
		return unix.Eventfd(0, unix.EFD_CLOEXEC)
	case "bpfmap":
		return unix.Dup(p.e.armed.FD())
	case "userfault":
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
		return int(fd), orNil(errno)
	case "inotify":
		return unix.InotifyInit1(unix.IN_CLOEXEC)
	}
	return -1, fmt.Errorf("no kind of descriptor %q", kind)
}

// writeTinyProgram makes an executable file.
func writeTinyProgram(path string) error {
	return errors.Join(os.WriteFile(path, tinyProgram(), 0o755), os.Chmod(path, 0o755))
}

// deepDir is the directory n levels below dir, in a chain that makeChain made.
func deepDir(dir string, n int) string { return filepath.Join(dir, strings.Repeat("/d", n)) }

// longName is a path below dir of exactly n bytes.
func longName(dir string, n int) string {
	for n-len(dir) > 250 {
		dir += "/" + strings.Repeat("l", 200)
	}
	return dir + "/" + strings.Repeat("f", n-len(dir)-1)
}
