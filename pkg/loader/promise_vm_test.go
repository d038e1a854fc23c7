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
	"time"

	"github.com/creack/pty"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// The product's promise in one table: what a process in a jail tries, and what comes of it. %IN is the workspace (all
// rights), %RO a grant to be read, %NONE a grant of nothing inside the workspace, %OUT is outside, %MNT a directory of
// the outside that the host bind-mounted into the workspace, %OTHER another jail's workspace; %HOST a process outside,
// %PEER one in the jail.
//
// A denied row has its errno and the code of its one event; an allowed row has neither and leaves none.
var promise = []struct {
	operation string
	errno     unix.Errno
	code      string
	path      string // of the event; empty: the operation's last word
}{
	// Reading.
	{operation: "open %IN/file"},
	{operation: "open %RO/file"},
	{"open %OUT/file", eacces, "no-grant", ""},
	{"open %OTHER/file", eacces, "no-grant", ""},
	{"open %NONE/file", eacces, "rights", ""},
	{"open %MNT/file", eacces, "mount-boundary", ""},
	{"open %IN/to-out", eacces, "no-grant", "%OUT/file"},
	{"open %IN/../out/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/self/root%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/self/cwd%OUT/file", eacces, "no-grant", "%OUT/file"},
	{"open /proc/%HOST/status", eacces, "no-grant", "/proc/%HOST/status"},
	{operation: "open /proc/%PEER/status"},
	{operation: "open /proc/self/status"},
	// Terminals: those the jail makes itself, and nobody else's. Devices: the granted ones.
	{operation: "pty"},
	{"type", eperm, "ioctl", "/dev/ptmx"},
	{"open %TTY", eacces, "no-grant", "%TTY"},
	{operation: "open /dev/null"},
	{"open /dev/kmsg", eacces, "no-grant", ""},
	// Making names.
	{operation: "mknod %IN/new"},
	{"mknod %OUT/new", eacces, "no-grant", ""},
	{"mknod %RO/new", eacces, "rights", ""},
	{"mknod %NONE/new", eacces, "rights", ""},
	{"mknod %MNT/new", eacces, "mount-boundary", ""},
	{"mkdir %OUT/d", eacces, "no-grant", ""},
	{"mkdir %RO/d", eacces, "rights", ""},
	{"symlink %OUT/s", eacces, "no-grant", ""},
	{"symlink %RO/s", eacces, "rights", ""},
	// Removing and moving them.
	{"unlink %OUT/file", eacces, "no-grant", ""},
	{"unlink %RO/file", eacces, "rights", ""},
	{"unlink %MNT/file", eacces, "mount-boundary", ""},
	{"rmdir %OUT/dir", eacces, "no-grant", ""},
	{"rmdir %RO/dir", eacces, "rights", ""},
	{"rmdir %IN", eacces, "no-grant", "%IN"},
	{"link %OUT/file %IN/l", eacces, "no-grant", "%OUT/file"},
	{"link %IN/file %OUT/l", eacces, "no-grant", "%OUT/l"},
	{"link %RO/file %IN/l", unix.EXDEV, "rights-gain", "%IN/l"},
	{"link %NONE/file %IN/l", eacces, "rights", "%NONE/file"},
	{"rename %IN/file %OUT/m", eacces, "no-grant", "%OUT/m"},
	{"rename %OUT/file %IN/m", eacces, "no-grant", "%OUT/file"},
	{"rename %IN/file %OUT/file", eacces, "no-grant", "%OUT/file"},
	{"rename %IN/file %RO/m", eacces, "rights", "%RO/m"},
	{"rename %RO/file %IN/m", eacces, "rights", "%RO/file"},
	{"rename %NONE %IN/m", eacces, "rights", "%NONE"},
	{"rename %IN %OUT/m", eacces, "no-grant", "%IN"},
	{"exchange %IN/file %OUT/file", eacces, "no-grant", "%OUT/file"},
	{"exchange %OUT/file %IN/file", eacces, "no-grant", "%OUT/file"},
	{"exchange %IN/file %NONE/file", eacces, "rights", "%NONE/file"},
	{operation: "exchange %IN/file %IN/victim"},
	// Denied names: %DENIED is there, with a further hard link %IN/link; %IN/git/hooks is not yet, nor is %IN/git.
	{"open %DENIED/file", eacces, "denied-name", ""},
	{"open %IN/link", eacces, "denied-name", ""},
	{"mknod %DENIED/new", eacces, "denied-name", ""},
	{"unlink %DENIED/file", eacces, "denied-name", ""},
	{"rmdir %DENIED", eacces, "denied-name", ""},
	{"rename %DENIED %IN/m", eacces, "denied-name", "%DENIED"},
	{"link %DENIED/file %IN/l", eacces, "denied-name", "%DENIED/file"},
	{"chmod %DENIED/file", eacces, "denied-name", ""},
	{"utimes %DENIED/file", eacces, "denied-name", "(fs)"},
	{"watch %DENIED", eacces, "denied-name", ""},
	{"mknod %IN/.env", eacces, "denied-name", ""},
	{"create %IN/.env", eacces, "denied-name", ""},
	{"mkdir %IN/.env", eacces, "denied-name", ""},
	{"symlink %IN/.env", eacces, "denied-name", ""},
	{"link %IN/file %IN/.env", eacces, "denied-name", "%IN/.env"},
	{"rename %IN/file %IN/.env", eacces, "denied-name", "%IN/.env"},
	{"create %RO/../in/.env", eacces, "denied-name", "%IN/.env"},
	{operation: "mknod %IN/.env2"},
	{operation: "mknod %IN/.en"},
	{"mknod %IN/.eight-up", eacces, "denied-name", ""},
	{operation: "mknod %IN/.eight-u"},
	{operation: "mknod %IN/.eight-uq"},
	{"mknod %LONG", eacces, "denied-name", ""},
	{operation: "mknod %SHORT"},
	{"symlink %IN/git", eacces, "denied-name", ""},
	{"mknod %IN/git", eacces, "denied-name", ""},
	{"link %IN/file %IN/git", eacces, "denied-name", "%IN/git"},
	{"rename %IN/dir %IN/git", eacces, "denied-name", "%IN/git"},
	{operation: "mkdir %IN/git"},
	{"mkdir %IN/git/hooks", eacces, "denied-name", ""},
	{"rename %IN/dir %IN/git/hooks", eacces, "denied-name", "%IN/git/hooks"},
	{"rename %IN/git %IN/g", eacces, "denied-name", "%IN/git"},
	{"exchange %IN/git %IN/dir", eacces, "denied-name", "%IN/git"},
	{"exchange %IN/dir %IN/git", eacces, "denied-name", "%IN/git"},
	{"rmdir %IN/git", eacces, "denied-name", ""},
	{operation: "mknod %IN/git/config"},
	{operation: "utimes %IN/git"},
	// Changing.
	{"truncate %OUT/file", eacces, "no-grant", ""},
	{"truncate %RO/file", eacces, "rights", ""},
	{"chmod %OUT/file", eacces, "no-grant", ""},
	{"chmod %RO/file", eacces, "rights", ""},
	{"chown %OUT/file", eacces, "no-grant", ""},
	{"utimes %OUT/file", eacces, "no-grant", "(fs)"},
	{"utimes %RO/file", eacces, "rights", "(fs)"},
	{operation: "utimes %IN/file"},
	{"setxattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"removexattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"setacl %OUT/file", eacces, "no-grant", "(fs)"},
	// Executing and mapping.
	{operation: "mapexec %IN/file"},
	{"mapexec %RO/file", eacces, "rights", ""},
	{"protect %RO/file", eacces, "rights", ""},
	// What acts on more than the file.
	{"ioctl %IN/file 0x80045a7f", eperm, "ioctl", "%IN/file"},
	{operation: "ioctl %IN/file 0x541b"},
	{"setown %IN/file %HOST", eperm, "forbidden-operation", "%IN/file"},
	{operation: "setown %IN/file 0"},
	{"lease %RO/file", eperm, "rights", ""},
	{operation: "lease %IN/file"},
	{operation: "ioctl %IN/file 0x540f"}, // TIOCGPGRP: the kernel's own ENOTTY
	{operation: "open /proc"},
	{"open /proc/1", eacces, "no-grant", ""},
	{"watch %OUT/file", eacces, "no-grant", ""},
	{operation: "watch %IN/file"},
	{"mount %IN/dir", eperm, "forbidden-operation", "-"},
	{"chroot %IN", eperm, "forbidden-operation", "-"},
	{"hostname", eperm, "forbidden-operation", "-"},
	{"bpf", eperm, "forbidden-operation", "-"},
	{"cgroup /sys/fs/cgroup", eperm, "forbidden-operation", "-"},
	{"personality", eperm, "forbidden-operation", "-"},
	// Other processes and sockets.
	{"trace %HOST", eacces, "other-jail", "/proc/%HOST"},
	{operation: "trace %PEER"},
	{"kill %HOST", eperm, "other-jail", "/proc/%HOST"},
	{operation: "kill %PEER"},
	{"setpgid %HOST", eperm, "other-jail", "-"},
	{operation: "setpgid 0"},
	{"setrlimit %HOST", eperm, "other-jail", "/proc/%HOST"},
	{"setnice %HOST", eperm, "other-jail", "/proc/%HOST"},
	{"setscheduler %HOST", eperm, "other-jail", "/proc/%HOST"},
	{"setioprio %HOST", eperm, "other-jail", "/proc/%HOST"},
	{"connect %OUT/stream", eacces, "no-grant", ""},
	{"connect %RO/stream", eacces, "rights", ""},
	{operation: "connect %IN/stream"},
	{"send %OUT/datagram", eacces, "no-grant", ""},
	{operation: "send %IN/datagram"},
}

// Privileged rows end in another check of the kernel for those who are not root.
var forRootOnly = map[string]bool{
	"chroot": true, "hostname": true, "mknod": false, "chown": false, "setnice": false,
}

func TestPromiseOnTmpfs(t *testing.T) { testPromise(t, tmpfsIn(t)) }

func TestPromiseOnExt4(t *testing.T) { testPromise(t, "/mnt/ext4") }

func TestPromiseOnOverlay(t *testing.T) {
	base := tmpfsIn(t)
	for _, dir := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)
	merged := filepath.Join(base, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	testPromise(t, merged)
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

func testPromise(t *testing.T, on string) {
	e := openVerified(t)
	for _, user := range []uint32{0, 1000} {
		t.Run("uid "+strconv.Itoa(int(user)), func(t *testing.T) { newStage(t, e, on, user).run(t) })
	}
}

// stage is a jail with everything around it that the rows need.
type stage struct {
	e       *Enforcer
	scene   scene
	jail    *Jail
	user    uint32
	replace *strings.Replacer
}

func newStage(t *testing.T, e *Enforcer, on string, user uint32) *stage {
	t.Helper()
	base, err := os.MkdirTemp(on, "promise-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	p := &stage{e: e, user: user}
	dirs := map[string]string{}
	for _, name := range []string{"in", "in/none", "in/mnt", "in/denied", "ro", "out", "other"} {
		dir := filepath.Join(base, name)
		dirs[name] = dir
		if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o777); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"file", "victim", "linked"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(canaryText), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.scene.listen(dir); err != nil {
			t.Fatal(err)
		}
	}
	// Everything belongs to the user, so that what is denied is denied by the jail and nothing else.
	err = filepath.WalkDir(base, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(user), int(user)))
	})
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(base, 0o755)
	if err := errors.Join(os.Symlink(dirs["out"]+"/file", dirs["in"]+"/to-out"), os.Link(dirs["in/denied"]+"/linked", dirs["in"]+"/link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dirs["out"], dirs["in/mnt"], "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dirs["in/mnt"], unix.MNT_DETACH) })

	if err := p.scene.makeCgroup("/sys/fs/cgroup", "promise-"); err != nil {
		t.Fatal(err)
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	p.jail, err = e.CreateJail(JailSpec{
		Cgroup: p.scene.cgroup, CgroupPath: p.scene.path, Open: open,
		Sets: engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: dirs["in"]},
			Objects: []engine.Object{
				{Path: dirs["in"], Rights: engine.AllRights, Source: engine.SourceWorkspace},
				{Path: dirs["ro"], Rights: engine.Read, Source: engine.SourcePolicy},
				{Path: dirs["in/none"], Rights: engine.None, Source: engine.SourcePolicy},
				{Path: "/dev/null", Rights: engine.Read | engine.Write, Source: engine.SourcePreset},
				{Path: "/dev/ptmx", Rights: engine.Read | engine.Write, Source: engine.SourcePreset},
			},
			Deny: []string{dirs["in/denied"], dirs["in/denied"] + "/linked", dirs["in"] + "/.env", dirs["in"] + "/git/hooks",
				dirs["in"] + "/.eight-up", dirs["in"] + "/" + strings.Repeat("n", 255)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		if p.jail.ID != "" {
			err = p.e.DeleteJail(p.jail.ID)
		}
		if err := errors.Join(err, p.scene.close()); err != nil {
			t.Error(err)
		}
	})
	attr := func() *syscall.SysProcAttr {
		a := &syscall.SysProcAttr{Setpgid: true}
		if user != 0 {
			a.Credential = &syscall.Credential{Uid: user, Gid: user}
		}
		return a
	}
	if p.scene.peer, err = startCanary(p.scene.cgroup, nil, attr()); err != nil {
		t.Fatal(err)
	}
	if p.scene.child, err = startCanary(p.scene.cgroup, nil, attr()); err != nil {
		t.Fatal(err)
	}
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	if err := os.Chown(slave.Name(), int(user), int(user)); err != nil {
		t.Fatal(err)
	}
	host, err := startCanary(nil, nil, attr()) // the same user's, and outside
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.stop() })
	p.replace = strings.NewReplacer("%IN", dirs["in"], "%RO", dirs["ro"], "%NONE", dirs["in/none"], "%OUT", dirs["out"],
		"%MNT", dirs["in/mnt"], "%DENIED", dirs["in/denied"],
		"%LONG", dirs["in"]+"/"+strings.Repeat("n", 255), "%SHORT", dirs["in"]+"/"+strings.Repeat("n", 254), "%OTHER", dirs["other"], "%TTY", slave.Name(),
		"%HOST", strconv.Itoa(host.cmd.Process.Pid), "%PEER", strconv.Itoa(p.scene.peer.cmd.Process.Pid))
	return p
}

func (p *stage) run(t *testing.T) {
	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	p.take(t, events)
	out := filepath.Dir(p.replace.Replace("%OUT/x"))
	before := snapshot(t, out)
	for _, row := range promise {
		words := strings.Fields(p.replace.Replace(row.operation))
		if p.user != 0 && forRootOnly[words[0]] {
			continue
		}
		errno, err := p.scene.child.do(words)
		if err != nil {
			t.Fatalf("%s: %v", row.operation, err)
		}
		seen := p.take(t, events)
		if errno == unix.ENOSYS && words[0] == "personality" {
			continue // a kernel without io_uring
		}
		if row.errno == 0 && (errno == unix.EOPNOTSUPP || errno == unix.ENOTTY) {
			continue // a file system without it
		}
		if errno != row.errno {
			t.Errorf("%s: got %s, want %s; events %+v", row.operation, errnoName(errno), errnoName(row.errno), seen)
			continue
		}
		if row.code == "" {
			if len(seen) != 0 {
				t.Errorf("%s: allowed, and yet events %+v", row.operation, seen)
			}
			continue
		}
		want := row.errno
		if words[0] == "trace" {
			want = eperm // the hook's answer; readlink(2) makes EACCES of it
		}
		if len(seen) != 1 || seen[0].Code != row.code || seen[0].Errno != errnoName(want) || seen[0].Jail != p.jail.ID {
			t.Errorf("%s: want one event with %s: %+v", row.operation, row.code, seen)
			continue
		}
		p.comparePath(t, row.operation, row.path, words, seen[0])
	}
	if after := snapshot(t, out); after != before {
		t.Errorf("the outside changed from\n%sto\n%s", before, after)
	}
}

func (p *stage) comparePath(t *testing.T, operation, want string, words []string, e Event) {
	t.Helper()
	switch want {
	case "-":
		if strings.HasPrefix(e.Path, "/proc/") {
			return // the process itself
		}
		want = ""
	case "(fs)": // from the file system's root: the tail has to agree
		if last := words[1]; !strings.HasPrefix(e.Path, "(") || !strings.HasSuffix(e.Path, filepath.Base(filepath.Dir(last))+"/"+filepath.Base(last)) {
			t.Errorf("%s: path %q", operation, e.Path)
		}
		return
	case "":
		want = words[len(words)-1]
	default:
		want = p.replace.Replace(want)
	}
	if e.Path != want {
		t.Errorf("%s: path %q, want %q", operation, e.Path, want)
	}
}

// take gives the events of the stage's jail that are in the ring.
func (p *stage) take(t *testing.T, events *EventReader) []Event {
	t.Helper()
	var seen []Event
	for {
		e, err := events.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return seen
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.Jail == p.jail.ID {
			seen = append(seen, e)
		}
	}
}

// snapshot tells a tree so that every change shows.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d links %d at %d\n", path, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink, st.Mtim.Sec)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
