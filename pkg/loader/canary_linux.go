package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// A canary is one operation that must be denied and one that must work. Each is a row of words that the child
// understands; %IN and %OUT stand for the folders inside and outside the canary's workspace.
type canary struct {
	hook        int
	deny, allow []string
	errno       unix.Errno
	// intact checks that the denied operation had no effect.
	intact func(out string) error
}

var canaries = []canary{
	{hook: 0, deny: []string{"open", "%OUT/file"}, allow: []string{"open", "%IN/file"}},
	{hook: 1, deny: []string{"mknod", "%OUT/new"}, allow: []string{"mknod", "%IN/new"}, intact: absent("new")},
	{hook: 2, deny: []string{"mkdir", "%OUT/newdir"}, allow: []string{"mkdir", "%IN/newdir"}, intact: absent("newdir")},
	{hook: 3, deny: []string{"symlink", "%OUT/link"}, allow: []string{"symlink", "%IN/link"}, intact: absent("link")},
	{hook: 4, deny: []string{"unlink", "%OUT/file"}, allow: []string{"unlink", "%IN/victim"}, intact: present("file")},
	{hook: 5, deny: []string{"rmdir", "%OUT/dir"}, allow: []string{"rmdir", "%IN/dir"}, intact: present("dir")},
	{hook: 6, deny: []string{"link", "%IN/file", "%OUT/hard"}, allow: []string{"link", "%IN/file", "%IN/hard"}, intact: absent("hard")},
	{hook: 7, deny: []string{"rename", "%IN/file", "%OUT/moved"}, allow: []string{"rename", "%IN/file", "%IN/moved"}, intact: absent("moved")},
	{hook: 8, deny: []string{"truncate", "%OUT/file"}, allow: []string{"truncate", "%IN/moved"}, intact: sized("file", len(canaryText))},
	{hook: 9, deny: []string{"chmod", "%OUT/file"}, allow: []string{"chmod", "%IN/moved"}, intact: moded("file", 0o600)},
	{hook: 10, deny: []string{"chown", "%OUT/file"}, allow: []string{"chown", "%IN/moved"}},
}

const canaryText = "a canary's secret\n"

func absent(name string) func(string) error {
	return func(out string) error {
		if _, err := os.Lstat(filepath.Join(out, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it made %s all the same", name)
		}
		return nil
	}
}

func present(name string) func(string) error {
	return func(out string) error {
		_, err := os.Lstat(filepath.Join(out, name))
		return err
	}
}

func sized(name string, size int) func(string) error {
	return func(out string) error {
		fi, err := os.Lstat(filepath.Join(out, name))
		if err == nil && fi.Size() != int64(size) {
			err = fmt.Errorf("it changed %s all the same", name)
		}
		return err
	}
}

func moded(name string, mode fs.FileMode) func(string) error {
	return func(out string) error {
		fi, err := os.Lstat(filepath.Join(out, name))
		if err == nil && fi.Mode().Perm() != mode {
			err = fmt.Errorf("it changed %s all the same", name)
		}
		return err
	}
}

// proveAndReport runs all canaries and records the proof. The caller holds the lock.
func (e *Enforcer) proveAndReport() engine.EnforcementStatus {
	status := look()
	before, _ := e.attached()
	if err := e.writeProof(nil); err != nil { // whatever was proven before counts no longer
		status.Add(engine.MapMismatch, "write proof: "+err.Error())
	}
	if err := e.prove(&status); err != nil {
		status.Add(engine.CanaryFailed, err.Error())
	}
	after, _ := e.attached()
	for i := range after {
		if after[i] != before[i] {
			status.Add(engine.CanaryFailed, attachments[i].name+" was replaced while it was tested")
		}
	}
	if !hasBlocking(status) {
		if err := e.writeProof(after); err != nil {
			status.Add(engine.MapMismatch, "write proof: "+err.Error())
		}
	}
	e.report(&status)
	status.Settle()
	return status
}

// prove makes a fresh cgroup and a fresh jail and has a child try every canary in it.
func (e *Enforcer) prove(status *engine.EnforcementStatus) (err error) {
	base, err := os.MkdirTemp(e.opts.StateDir, "canary-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
	if err := layOut(in, out); err != nil {
		return err
	}
	parent := filepath.Join(status.Cgroup.Mount, "thenforce")
	path := filepath.Join(parent, filepath.Base(base))
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	defer func() {
		err = errors.Join(err, removeCgroup(path))
		os.Remove(parent) // only where nothing else is in it
	}()
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()

	open, closeAll, err := canaryObjects()
	if err != nil {
		return err
	}
	defer closeAll()
	jail, err := e.createJail(JailSpec{
		Cgroup: dir, CgroupPath: path, Open: open, flags: uint32(enforcerTfJailFlagTF_JAIL_CANARY),
		Sets: engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: in},
			Objects:   []engine.Object{{Path: in, Rights: allRights, Source: engine.SourceWorkspace}},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.dropLocked(jail.slot, jail.id, jail.Grants)) }()

	child, err := startCanary(dir)
	if err != nil {
		return err
	}
	replace := strings.NewReplacer("%IN", in, "%OUT", out)
	var failed []error
	for _, c := range canaries {
		if err := e.try(child, c, replace, out); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", hookNames[c.hook], err))
		}
	}
	failed = append(failed, child.stop())
	failed = append(failed, e.proveInheritance(path, out))
	return errors.Join(failed...)
}

const allRights = engine.Read | engine.Write | engine.Create | engine.Delete | engine.Exec | engine.Connect

// layOut makes what the canaries work on.
func layOut(in, out string) error {
	for _, dir := range []string{in, out} {
		if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o700); err != nil {
			return err
		}
		for _, name := range []string{"file", "victim"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(canaryText), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// canaryObjects grants what the child needs to run at all: this very program, and the libraries it may be linked to.
func canaryObjects() (open []OpenObject, closeAll func(), err error) {
	closeAll = func() {
		for _, o := range open {
			o.File.Close()
		}
	}
	exe, err := os.OpenFile("/proc/self/exe", unix.O_PATH, 0)
	if err != nil {
		return nil, nil, err
	}
	open = append(open, OpenObject{File: exe, Path: "/proc/self/exe", Rights: engine.Read | engine.Exec, Source: engine.SourcePreset})
	for _, path := range []string{"/usr", "/lib", "/lib64"} {
		f, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
		if err != nil {
			continue // not there, or a link into /usr
		}
		open = append(open, OpenObject{File: f, Path: path, Rights: engine.Read | engine.Exec, Source: engine.SourcePreset})
	}
	return open, closeAll, nil
}

// try runs one pair and compares the child's errnos and the kernel's counters.
func (e *Enforcer) try(child *canaryChild, c canary, replace *strings.Replacer, out string) error {
	want := c.errno
	if want == 0 {
		want = unix.EACCES
	}
	for _, half := range []struct {
		words         []string
		errno         unix.Errno
		allow, denied uint64
	}{
		{c.deny, want, 0, 1},
		{c.allow, 0, 1, 0},
	} {
		var words []string
		for _, w := range half.words {
			words = append(words, replace.Replace(w))
		}
		before, err := e.canaryCount(c.hook)
		if err != nil {
			return err
		}
		got, err := child.do(words)
		if err != nil {
			return err
		}
		after, err := e.canaryCount(c.hook)
		if err != nil {
			return err
		}
		what := strings.Join(half.words, " ")
		if got != half.errno {
			return fmt.Errorf("%s: got %s, want %s", what, errnoName(got), errnoName(half.errno))
		}
		if after.Allowed-before.Allowed != half.allow || after.Denied-before.Denied != half.denied {
			return fmt.Errorf("%s: the program counted %d allowed and %d denied, want %d and %d", what,
				after.Allowed-before.Allowed, after.Denied-before.Denied, half.allow, half.denied)
		}
		if half.denied == 1 && c.intact != nil {
			if err := c.intact(out); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return nil
}

func (e *Enforcer) canaryCount(hook int) (enforcerTfCanaryCount, error) {
	var count enforcerTfCanaryCount
	err := e.canary.Lookup(uint32(hook), &count)
	return count, err
}

// proveInheritance makes a child cgroup of the jailed one: a task in it must be denied, and once it is removed the
// kernel must have forgotten it.
func (e *Enforcer) proveInheritance(path, out string) error {
	sub := filepath.Join(path, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		return fmt.Errorf("cgroup_mkdir: %w", err)
	}
	dir, err := os.Open(sub)
	if err != nil {
		return errors.Join(err, removeCgroup(sub))
	}
	defer dir.Close()
	id, err := CgroupID(dir)
	if err != nil {
		return errors.Join(err, removeCgroup(sub))
	}
	tried := func() error {
		child, err := startCanary(dir)
		if err != nil {
			return err
		}
		errno, err := child.do([]string{"open", filepath.Join(out, "file")})
		if err == nil && errno != unix.EACCES {
			err = fmt.Errorf("a task in a new child cgroup got %s, want EACCES", errnoName(errno))
		}
		return errors.Join(err, child.stop())
	}()
	if tried != nil {
		tried = fmt.Errorf("cgroup_mkdir: %w", tried)
	}
	if err := removeCgroup(sub); err != nil {
		return errors.Join(tried, err)
	}
	var member enforcerTfMember
	if err := e.members.Lookup(id, &member); !errors.Is(err, ebpf.ErrKeyNotExist) {
		tried = errors.Join(tried, fmt.Errorf("cgroup_rmdir: a removed cgroup is still a member (%v)", err))
	}
	return tried
}

// removeCgroup removes an empty cgroup. Tasks that were just waited for may take a moment to leave it.
func removeCgroup(path string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
}

// ---- the child ----

// canaryName is the argv[0] that turns a program which imports this package into the canary's child.
const canaryName = "thenforce-canary"

func init() {
	if len(os.Args) > 0 && os.Args[0] == canaryName {
		canaryMain()
	}
}

// canaryMain does what it reads, a line each, and answers each with an errno. Words are split at tabs.
func canaryMain() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(int(perform(strings.Split(in.Text(), "\t"))))
	}
	os.Exit(0)
}

func perform(words []string) unix.Errno {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	var err error
	switch words[0] {
	case "ready":
	case "open":
		var fd int
		if fd, err = unix.Open(arg(1), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	case "mknod":
		err = unix.Mknod(arg(1), unix.S_IFREG|0o600, 0)
	case "mkdir":
		err = unix.Mkdir(arg(1), 0o700)
	case "symlink":
		err = unix.Symlink("target", arg(1))
	case "unlink":
		err = unix.Unlink(arg(1))
	case "rmdir":
		err = unix.Rmdir(arg(1))
	case "link":
		err = unix.Link(arg(1), arg(2))
	case "rename":
		err = unix.Rename(arg(1), arg(2))
	case "truncate":
		err = unix.Truncate(arg(1), 0)
	case "chmod":
		err = unix.Chmod(arg(1), 0o640)
	case "chown":
		err = unix.Chown(arg(1), os.Getuid(), os.Getgid())
	default:
		return unix.ENOSYS
	}
	var errno unix.Errno
	errors.As(err, &errno)
	return errno
}

type canaryChild struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
	timer  *time.Timer
}

// canaryTime bounds one child; an emulated guest needs seconds.
const canaryTime = 2 * time.Minute

func startCanary(cgroup *os.File) (*canaryChild, error) {
	c := &canaryChild{cmd: &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{canaryName}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd()), Setpgid: true},
	}}
	c.cmd.Stderr = &c.stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start canary: %w", err)
	}
	c.timer = time.AfterFunc(canaryTime, func() { c.cmd.Process.Kill() })
	// The Go runtime opens files while it starts; once the child answers, it only does what it is told.
	if _, err := c.do([]string{"ready"}); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *canaryChild) do(words []string) (unix.Errno, error) {
	if _, err := fmt.Fprintln(c.in, strings.Join(words, "\t")); err != nil {
		return 0, fmt.Errorf("ask canary: %w", err)
	}
	if !c.out.Scan() {
		return 0, fmt.Errorf("canary ended: %s", strings.TrimSpace(c.stderr.String()))
	}
	var errno int
	if _, err := fmt.Sscan(c.out.Text(), &errno); err != nil {
		return 0, fmt.Errorf("canary said %q", c.out.Text())
	}
	return unix.Errno(errno), nil
}

func (c *canaryChild) stop() error {
	c.in.Close()
	err := c.cmd.Wait()
	c.timer.Stop()
	if err != nil {
		return fmt.Errorf("canary: %w: %s", err, strings.TrimSpace(c.stderr.String()))
	}
	return nil
}

func errnoName(errno unix.Errno) string {
	if errno == 0 {
		return "success"
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return fmt.Sprintf("errno %d", int(errno))
}
