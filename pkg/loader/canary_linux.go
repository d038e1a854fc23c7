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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// A canary proves one hook: an operation that must be denied and, where the hook ever allows one, an operation that
// must work. The words are those of operations; %IN is the canary's workspace, %OUT a folder outside, %RO one granted
// to be read, %HOST a process outside, %PEER one in the jail, %CGROUP the root of the cgroups.
type canary struct {
	hook  string
	deny  string
	errno unix.Errno // that the denied one fails with; 0 where the caller is not told
	allow string     // empty where every jail is denied
	// others are errnos by which the allowed one may fail for want of something else than permission.
	others []unix.Errno
	// before prepares something outside, for the denied and for the allowed operation.
	before func(*scene, bool) error
	// intact checks that the denied one had no effect.
	intact func(*scene) error
	// namespace: the operation takes a process that is root of a user namespace.
	namespace bool
	// privileged: the kernel asks for a capability first that no jail has, so the denied one is tried with it.
	privileged bool
}

const (
	eacces = unix.EACCES
	eperm  = unix.EPERM
)

var xattrErrnos = []unix.Errno{unix.EOPNOTSUPP, unix.ENODATA}

var canaries = []canary{
	{hook: "file_open", deny: "open %OUT/file", errno: eacces, allow: "open %IN/file"},
	{hook: "path_mknod", deny: "mknod %OUT/new", errno: eacces, allow: "mknod %IN/new", intact: absent("new")},
	{hook: "path_mkdir", deny: "mkdir %OUT/newdir", errno: eacces, allow: "mkdir %IN/newdir", intact: absent("newdir")},
	{hook: "path_symlink", deny: "symlink %OUT/link", errno: eacces, allow: "symlink %IN/link", intact: absent("link")},
	{hook: "inode_follow_link", deny: "open %IN/link", errno: eacces, allow: "path /proc/self"},
	{hook: "path_unlink", deny: "unlink %OUT/file", errno: eacces, allow: "unlink %IN/victim", intact: unchanged},
	{hook: "path_rmdir", deny: "rmdir %OUT/dir", errno: eacces, allow: "rmdir %IN/dir", intact: present("dir")},
	{hook: "path_link", deny: "link %IN/file %OUT/hard", errno: eacces, allow: "link %IN/file %IN/hard", intact: absent("hard")},
	{hook: "path_rename", deny: "rename %IN/hard %OUT/moved", errno: eacces, allow: "rename %IN/hard %IN/moved", intact: absent("moved")},
	{hook: "path_truncate", deny: "truncate %OUT/file", errno: eacces, allow: "truncate %IN/moved", intact: unchanged},
	{hook: "path_chmod", deny: "chmod %OUT/file", errno: eacces, allow: "chmod %IN/file", intact: unchanged},
	{hook: "path_chown", deny: "chown %OUT/file", errno: eacces, allow: "chown %IN/file", intact: unchanged},
	{hook: "inode_setattr", deny: "utimes %OUT/file", errno: eacces, allow: "utimes %IN/file", intact: unchanged},
	{hook: "inode_setxattr", deny: "setxattr %OUT/file", errno: eacces, allow: "setxattr %IN/file", others: xattrErrnos},
	{hook: "inode_removexattr", deny: "removexattr %OUT/file", errno: eacces, allow: "removexattr %IN/file", others: xattrErrnos},
	{hook: "inode_set_acl", deny: "setacl %OUT/file", errno: eacces, allow: "setacl %IN/file", others: xattrErrnos},
	{hook: "inode_remove_acl", deny: "removeacl %OUT/file", errno: eacces, allow: "removeacl %IN/file", others: xattrErrnos},
	{hook: "inode_file_setattr", deny: "filesetattr %OUT/file", errno: eacces, allow: "filesetattr %IN/file", others: xattrErrnos},
	{hook: "file_ioctl", deny: "ioctl %IN/file 0x80045a7f", errno: eperm, allow: "ioctl %IN/file 0x541b"},
	{hook: "file_ioctl_compat", deny: "compat %IN/file 0x80045a7f", errno: eperm, allow: "compat %IN/file 0x541b",
		others: []unix.Errno{unix.EFAULT}},
	{hook: "file_fcntl", deny: "setown %IN/file %HOST", errno: eperm, allow: "setown %IN/file 0"},
	{hook: "file_receive", deny: "receive", errno: eacces, allow: "receive", before: passDescriptor},
	{hook: "mmap_file", deny: "mapexec %RO/file", errno: eacces, allow: "mapexec %IN/file"},
	{hook: "file_mprotect", deny: "protect %RO/file", errno: eacces, allow: "protect %IN/file"},
	{hook: "path_notify", deny: "watch %OUT/file", errno: eacces, allow: "watch %IN/file"},
	{hook: "sb_mount", deny: "mount %IN/newdir", errno: eperm},
	{hook: "sb_remount", deny: "remount %IN/mnt", errno: eperm, namespace: true},
	{hook: "sb_umount", deny: "umount %IN/mnt", errno: eperm, namespace: true},
	{hook: "sb_pivotroot", deny: "pivot %IN/mnt", errno: eperm, namespace: true},
	{hook: "move_mount", deny: "movemount %IN/newdir", errno: eperm, namespace: true},
	{hook: "path_chroot", deny: "chroot %IN", errno: eperm},
	{hook: "ptrace_access_check", deny: "trace %HOST", errno: eacces, allow: "trace %PEER"},
	{hook: "ptrace_traceme", deny: "traceme", errno: eperm},
	{hook: "task_kill", deny: "kill %HOST", errno: eperm, allow: "kill %PEER"},
	{hook: "file_send_sigiotask", deny: "sigio " + strconv.Itoa(outsideFD), allow: "sigio " + strconv.Itoa(insideFD)},
	{hook: "task_setrlimit", deny: "setrlimit %HOST", errno: eperm, allow: "setrlimit %PEER"},
	{hook: "task_setnice", deny: "setnice %HOST", errno: eperm, allow: "setnice %PEER"},
	{hook: "task_setscheduler", deny: "setscheduler %HOST", errno: eperm, allow: "setscheduler %PEER"},
	{hook: "task_setioprio", deny: "setioprio %HOST", errno: eperm, allow: "setioprio %PEER"},
	{hook: "task_alloc", deny: "cgroup %CGROUP", errno: eperm},
	{hook: "unix_stream_connect", deny: "connect %OUT/stream", errno: eacces, allow: "connect %IN/stream"},
	{hook: "unix_may_send", deny: "send %OUT/datagram", errno: eacces, allow: "send %IN/datagram"},
	{hook: "bpf", deny: "bpf", errno: eperm},
	{hook: "perf_event_open", deny: "perf", errno: eperm, privileged: true},
	{hook: "kernel_module_request", deny: "family", errno: unix.EAFNOSUPPORT},
	{hook: "capable", deny: "hostname", errno: eperm},
	{hook: "sb_kern_mount", deny: "kernmount", errno: eperm, namespace: true},
	{hook: "fs_context_parse_param", deny: "parameter", errno: eperm, namespace: true},
	{hook: "task_setpgid", deny: "setpgid %GROUP", errno: eperm, allow: "setpgid 0"},
	{hook: "uring_override_creds", deny: "personality", errno: eperm, privileged: true},
}

// scene is what the canaries act in: folders on a file system of their own, a jail, and processes.
type scene struct {
	in, out, ro   string
	cgroup        *os.File
	path          string // of the cgroup
	jail          *Jail
	socket        int // the host's end of the socket that descriptors are passed over
	files         []*os.File
	child, peer   *canaryChild
	root          *canaryChild // root of a user namespace
	group         *canaryChild // leads a process group of the host, in the same session
	replace       *strings.Replacer
	closeAtTheEnd []func() error
}

// canaryPrefix begins the names of the canaries' cgroups.
const canaryPrefix = "canary-"

const canaryText = "a canary's secret\n"

func absent(name string) func(*scene) error {
	return func(s *scene) error {
		if _, err := os.Lstat(filepath.Join(s.out, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it made %s all the same", name)
		}
		return nil
	}
}

func present(name string) func(*scene) error {
	return func(s *scene) error {
		_, err := os.Lstat(filepath.Join(s.out, name))
		return err
	}
}

// unchanged: the file outside is as it was laid out.
func unchanged(s *scene) error {
	fi, err := os.Lstat(filepath.Join(s.out, "file"))
	if err != nil {
		return err
	}
	if fi.Size() != int64(len(canaryText)) || fi.Mode() != 0o600 || fi.ModTime().Unix() < 1000 {
		return errors.New("it changed the file all the same")
	}
	return nil
}

// passDescriptor sends the child one for the file outside, or for the one inside.
func passDescriptor(s *scene, deny bool) error {
	dir := s.in
	if deny {
		dir = s.out
	}
	f, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Sendmsg(s.socket, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
}

// proveAndReport runs all canaries and records the proof. The caller holds the lock.
func (e *Enforcer) proveAndReport() engine.EnforcementStatus {
	status := look(e.opts)
	before, _, _ := e.attached()
	if err := e.writeProof(nil, 0); err != nil { // whatever was proven before counts no longer
		status.Add(engine.MapMismatch, "write proof: "+err.Error())
	}
	absent, err := e.prove(status.Cgroup.Mount)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			status.Add(engine.CanaryFailed, strings.TrimSpace(line))
		}
	}
	after, _, _ := e.attached()
	for i := range after {
		if after[i] != before[i] {
			status.Add(engine.CanaryFailed, attachments[i].name+" was replaced while it was tested")
		}
	}
	if !hasBlocking(status) {
		if err := e.writeProof(after, absent); err != nil {
			status.Add(engine.MapMismatch, "write proof: "+err.Error())
		}
	}
	e.report(&status, true)
	status.Settle()
	return status
}

// prove runs all canaries on a thread of their own. The thread has its own mount namespace with a fresh file system in
// it, which is gone with the thread however it ends; so nothing depends on how the host mounts its temporary folders.
// It says which operations this kernel does not have.
func (e *Enforcer) prove(cgroups string) (absent absence, err error) {
	done := make(chan error, 1)
	base := e.canaryDir()
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- e.proveHere(base, cgroups, &absent)
	}()
	err = <-done
	os.Remove(base) // empty, as the host sees it
	return absent, err
}

// canaryDir is where the canaries' file system is mounted, for their thread only.
func (e *Enforcer) canaryDir() string { return filepath.Join(e.opts.StateDir, "canary") }

func (e *Enforcer) proveHere(base, cgroups string, absent *absence) (err error) {
	s := &scene{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.layOut(base); err != nil {
		return fmt.Errorf("prepare canaries: %w", err)
	}
	if err := s.makeCgroup(cgroups, canaryPrefix); err != nil {
		return fmt.Errorf("prepare canaries: %w", err)
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		return err
	}
	defer closeAll()
	s.jail, err = e.createJail(JailSpec{
		Cgroup: s.cgroup, CgroupPath: s.path, Open: open, flags: uint32(enforcerTfJailFlagTF_JAIL_CANARY),
		Sets: engine.AllowedSets{
			Workspace:  engine.WorkspaceIdentity{CanonicalRoot: s.in},
			NoSymlinks: true, // asked only where the hook is attached
			Objects: []engine.Object{
				{Path: s.in, Rights: engine.AllRights, Source: engine.SourceWorkspace},
				{Path: s.ro, Rights: engine.Read, Source: engine.SourcePolicy},
			},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.dropLocked(s.jail)) }()
	if err := s.startChildren(cgroups); err != nil {
		return err
	}
	var failed []error
	for _, c := range canaries {
		if i := slices.IndexFunc(attachments, func(a attachment) bool { return a.name == c.hook }); i < 0 || !e.expected(i) {
			continue
		}
		err := absent.learn(c.hook)
		if err == nil && !absent.has(c.hook) {
			err = e.try(s, c)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", c.hook, err))
		}
	}
	failed = append(failed, e.proveInheritance(s), e.proveTerminals(base, absent), e.proveArming(s, cgroups, open),
		e.proveDeath(base, cgroups))
	return errors.Join(failed...)
}

// layOut makes a file system, visible to this thread only, and what the canaries work on.
func (s *scene) layOut(base string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("thenforce", base, "tmpfs", unix.MS_NOSUID, "size=4m,mode=0700"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", base, err)
	}
	s.in, s.out, s.ro = filepath.Join(base, "in"), filepath.Join(base, "out"), filepath.Join(base, "ro")
	for _, dir := range []string{s.in, s.out, s.ro} {
		for _, sub := range []string{"dir", "mnt"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
				return err
			}
		}
		for _, name := range []string{"file", "victim"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(canaryText), 0o600); err != nil {
				return err
			}
		}
		if err := s.listen(dir); err != nil {
			return err
		}
	}
	return nil
}

// listen makes sockets that nobody serves: to connect or send to them succeeds all the same.
func (s *scene) listen(dir string) error {
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.closeAtTheEnd = append(s.closeAtTheEnd, func() error { return unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, name)}); err != nil {
			return fmt.Errorf("bind socket: %w", err)
		}
		if kind == unix.SOCK_STREAM {
			if err := unix.Listen(fd, 8); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *scene) makeCgroup(mount, prefix string) error {
	parent := filepath.Join(mount, groupsName)
	// What a killed verification left: whoever verifies now holds the lock, so none of these is at work.
	stale, err := filepath.Glob(filepath.Join(parent, canaryPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		endCanaries(path)
	}
	return s.mkdirCgroup(parent, prefix)
}

func (s *scene) mkdirCgroup(parent, prefix string) error {
	err := os.MkdirAll(parent, 0o755)
	if err != nil {
		return err
	}
	if s.path, err = os.MkdirTemp(parent, prefix); err != nil {
		return err
	}
	s.closeAtTheEnd = append(s.closeAtTheEnd, func() error {
		err := removeCgroup(s.path)
		os.Remove(parent) // only where nothing else is in it
		return err
	})
	s.cgroup, err = os.Open(s.path)
	return err
}

// startChildren starts the process that tries, its peer in the jail, and one that is root of a user namespace and
// enters the jail once it has mounted something.
func (s *scene) startChildren(cgroups string) error {
	var err error
	if s.peer, err = startCanary(s.cgroup, nil, nil); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.socket = pair[0]
	s.closeAtTheEnd = append(s.closeAtTheEnd, func() error { return unix.Close(s.socket) })
	extra := []*os.File{os.NewFile(uintptr(pair[1]), "socket")}
	for _, owner := range []int{os.Getpid(), s.peer.cmd.Process.Pid} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.files = append(s.files, r)
		extra = append(extra, w)
		if err := askForSignals(r, owner); err != nil {
			return err
		}
	}
	s.child, err = startCanary(s.cgroup, extra, nil)
	for _, f := range extra {
		f.Close()
	}
	if err != nil {
		return err
	}
	if s.group, err = startCanary(nil, nil, nil); err != nil {
		return err
	}
	if s.root, err = startCanary(nil, nil, &syscall.SysProcAttr{
		Setpgid: true, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
	}); err != nil {
		return err
	}
	if errno, err := s.root.do([]string{"setup", filepath.Join(s.in, "mnt")}); err != nil || errno != noErrno {
		return fmt.Errorf("mount in a user namespace: %s %w", errnoName(errno), err)
	}
	if err := os.WriteFile(filepath.Join(s.path, "cgroup.procs"), []byte(strconv.Itoa(s.root.cmd.Process.Pid)), 0); err != nil {
		return err
	}
	s.replace = strings.NewReplacer("%IN", s.in, "%OUT", s.out, "%RO", s.ro, "%CGROUP", cgroups,
		"%HOST", strconv.Itoa(os.Getpid()), "%PEER", strconv.Itoa(s.peer.cmd.Process.Pid),
		"%GROUP", strconv.Itoa(s.group.cmd.Process.Pid))
	return nil
}

// askForSignals has the kernel send SIGIO to owner when there is something to read. (Go ignores SIGIO.)
func askForSignals(f *os.File, owner int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(fd, unix.F_SETOWN, owner)
		}
		if err == nil {
			_, err = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_ASYNC)
		}
		failed = err
	})
	return errors.Join(err, failed)
}

// close ends the children and removes what was made outside the thread's own file system.
func (s *scene) close() error {
	var errs []error
	for _, c := range []*canaryChild{s.child, s.peer, s.root, s.group} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	for _, f := range s.files {
		f.Close()
	}
	if s.cgroup != nil {
		s.cgroup.Close()
	}
	for _, f := range slices.Backward(s.closeAtTheEnd) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
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
func (e *Enforcer) try(s *scene, c canary) error {
	child := s.child
	if c.namespace {
		child = s.root
	}
	errno, counted, err := e.attempt(s, c, child, true)
	if err != nil {
		return err
	}
	if errno != c.errno {
		return fmt.Errorf("%s: got %s, want %s", c.deny, errnoName(errno), errnoName(c.errno))
	}
	if counted != (enforcerTfCanaryCount{Denied: 1}) {
		return fmt.Errorf("%s: the program counted %d allowed and %d denied, want 0 and 1", c.deny, counted.Allowed, counted.Denied)
	}
	if c.intact != nil {
		if err := c.intact(s); err != nil {
			return fmt.Errorf("%s: %w", c.deny, err)
		}
	}
	if c.allow == "" {
		return nil
	}
	errno, counted, err = e.attempt(s, c, child, false)
	if err != nil {
		return err
	}
	if errno != noErrno && !slices.Contains(c.others, errno) {
		return fmt.Errorf("%s: got %s, want success", c.allow, errnoName(errno))
	}
	if counted != (enforcerTfCanaryCount{Allowed: 1}) {
		return fmt.Errorf("%s: the program counted %d allowed and %d denied, want 1 and 0", c.allow, counted.Allowed, counted.Denied)
	}
	return nil
}

func words(s *scene, operation string) []string { return strings.Fields(s.replace.Replace(operation)) }

// attempt has the child try one half and says what the kernel's counter moved by.
func (e *Enforcer) attempt(s *scene, c canary, child *canaryChild, deny bool) (unix.Errno, enforcerTfCanaryCount, error) {
	var none enforcerTfCanaryCount
	operation := c.allow
	if deny {
		operation = c.deny
	}
	if c.before != nil {
		if err := c.before(s, deny); err != nil {
			return 0, none, err
		}
	}
	hook := uint32(slices.Index(hookNames[:], c.hook))
	before, err := e.canaryCount(hook)
	if err != nil {
		return 0, none, err
	}
	flags := &e.jailSlots[s.jail.slot].Flags
	if c.privileged {
		atomic.OrUint32(flags, uint32(enforcerTfJailFlagTF_JAIL_PRIVILEGED))
	}
	errno, err := child.do(words(s, operation))
	atomic.AndUint32(flags, ^uint32(enforcerTfJailFlagTF_JAIL_PRIVILEGED))
	if err != nil {
		return 0, none, fmt.Errorf("%s: %w", operation, err)
	}
	after, err := e.canaryCount(hook)
	return errno, enforcerTfCanaryCount{Allowed: after.Allowed - before.Allowed, Denied: after.Denied - before.Denied}, err
}

func (e *Enforcer) canaryCount(hook uint32) (enforcerTfCanaryCount, error) {
	var count enforcerTfCanaryCount
	err := e.canary.Lookup(hook, &count)
	return count, err
}

// endCanaries kills what is left in the cgroup of an abandoned verification, and removes it with its child.
func endCanaries(cgroup string) {
	os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0)
	removeCgroup(filepath.Join(cgroup, "sub"))
	removeCgroup(cgroup)
	os.Remove(filepath.Dir(cgroup)) // only where nothing else is in it
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

// canaryChild is a process that does what it is told; see canaryMain.
type canaryChild struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
	timer  *time.Timer
}

// canaryTime bounds one child; an emulated guest needs seconds.
const canaryTime = 3 * time.Minute

// startCanary starts a child, in a cgroup where one is given.
func startCanary(cgroup *os.File, extra []*os.File, attr *syscall.SysProcAttr) (*canaryChild, error) {
	if attr == nil {
		attr = &syscall.SysProcAttr{Setpgid: true}
	}
	if cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(cgroup.Fd())
	}
	c := &canaryChild{cmd: &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{canaryName}, Dir: "/", ExtraFiles: extra, SysProcAttr: attr,
		Env: []string{"GODEBUG=asyncpreemptoff=1"}, // the runtime's own signals would be counted
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
		return 0, fmt.Errorf("canary ended: %.200s", strings.TrimSpace(c.stderr.String()))
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
		return fmt.Errorf("canary: %w: %.200s", err, strings.TrimSpace(c.stderr.String()))
	}
	return nil
}

// faulted reports whether a child that was stopped died of a fault of its own: Go's runtime, which takes the signal, says so.
func (c *canaryChild) faulted() bool {
	return !c.cmd.ProcessState.Success() && strings.Contains(c.stderr.String(), "[signal SIGSEGV")
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
