//go:build vm

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// traced is a command that was run to its end, or killed in front of one of the system calls by which it changes
// something. Between two of them it changes nothing but its own memory and, in order, what it has mapped of the maps.
type traced struct {
	calls  int // by which it changed something, up to the end
	killed bool
	last   string // the call that it was killed in front of
	status unix.WaitStatus
	out    string
}

// changing are the system calls by which a process can leave something behind, or free it.
var changing = map[uint64]string{
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_MKDIR: "mkdir", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_RMDIR: "rmdir",
	unix.SYS_RENAME: "rename", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_UNLINK: "unlink",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_MKNODAT: "mknodat",
	unix.SYS_FLOCK: "flock", unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FSYNC: "fsync",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_MEMBARRIER: "membarrier", unix.SYS_KILL: "kill",
	unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_CHROOT: "chroot", unix.SYS_EXIT_GROUP: "exit_group",
	unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_SENDMSG: "sendmsg", unix.SYS_WAITID: "waitid",
}

// changingCommands are those of bpf(2).
var changingCommands = map[uint64]string{
	unix.BPF_MAP_CREATE: "create map", unix.BPF_MAP_UPDATE_ELEM: "update", unix.BPF_MAP_DELETE_ELEM: "delete",
	unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM: "look up and delete", unix.BPF_PROG_LOAD: "load", unix.BPF_OBJ_PIN: "pin",
	unix.BPF_LINK_CREATE: "link", unix.BPF_RAW_TRACEPOINT_OPEN: "open tracepoint",
}

// stopInfo is struct ptrace_syscall_info of linux/ptrace.h, as it is when a call is entered.
type stopInfo struct {
	op     uint8
	_      [3]uint8
	arch   uint32
	ip, sp uint64
	nr     uint64
	args   [6]uint64
}

// change names what a stopped thread is about to change, if it is.
func change(tid int) (string, bool) {
	const (
		getSyscallInfo = 0x420e
		entered        = 1
	)
	var info stopInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	switch {
	case errno != 0 || info.op != entered:
		return "", false
	case info.nr == unix.SYS_BPF:
		name, ok := changingCommands[info.args[0]]
		return "bpf: " + name, ok
	case info.nr == unix.SYS_OPENAT:
		return "openat", info.args[2]&(unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_RDWR) != 0
	}
	name, ok := changing[info.nr]
	return name, ok
}

// trace runs a command under ptrace(2) and kills it with SIGKILL in front of the at-th call by which it changes something;
// at 0 lets it end. Processes that it started are not traced.
func trace(t *testing.T, stdin string, args []string, at int) (r traced) {
	t.Helper()
	runtime.LockOSThread() // only this thread can trace it, and see its stops
	defer runtime.UnlockOSThread()
	out, err := os.CreateTemp(t.TempDir(), "out-")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := os.CreateTemp(t.TempDir(), "in-")
	if err == nil {
		_, err = in.WriteString(stdin)
	}
	if err == nil {
		_, err = in.Seek(0, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer cmd.Process.Release()
	wait := func() (int, unix.WaitStatus) {
		var status unix.WaitStatus
		for {
			tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				t.Fatalf("wait for %v: %v", args, err)
			}
			return tid, status
		}
	}
	wait() // for its exec
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		t.Fatal(err)
	}
	tid, signal := pid, 0
	for {
		if err := unix.PtraceSyscall(tid, signal); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
		var status unix.WaitStatus
		tid, status = wait()
		signal = 0
		switch {
		case tid == pid && (status.Exited() || status.Signaled()):
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			r.status, r.out = status, string(text)
			return r
		case !status.Stopped():
		case status.StopSignal() == unix.SIGTRAP|0x80:
			what, ok := change(tid)
			if !ok || r.killed {
				break
			}
			if r.calls++; r.calls == at {
				r.killed, r.last = true, what
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		case status.StopSignal() == unix.SIGTRAP, status.StopSignal() == unix.SIGSTOP: // of clone, at both ends
		default:
			signal = int(status.StopSignal())
		}
	}
}

// victim is a command that is killed. Its functions use what the world has.
type victim struct {
	name string
	// prepare makes what the command is to work on, and gives the command.
	prepare func() (stdin string, args []string)
	// atOnce checks what has to hold right after the kill, and later what has to after a next command.
	atOnce, later func()
	// restore makes the world as it was.
	restore func()
	// alone: no jail may live meanwhile.
	alone bool
	// calls is about how many there are by which it changes something.
	calls int
}

// killing is the world in which thenforce is killed: a jail that has to hold all the time, the "keeper", with a process in
// it, and a cgroup with another one in it for jails that come and go.
type killing struct {
	t      *testing.T
	base   string
	exe    string
	keeper *canaryChild
	what   string // is being tried, for messages
}

const (
	keeperGroup = "/sys/fs/cgroup/keeper"
	victimGroup = "/sys/fs/cgroup/victim"
)

func (w *killing) errorf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s: %s", w.what, fmt.Sprintf(format, args...))
}

// call runs thenforce; it has to succeed.
func (w *killing) call(args ...string) string {
	w.t.Helper()
	var stderr strings.Builder
	cmd := exec.Command("thenforce", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%s: then thenforce %v: %v: %s", w.what, args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// keep is the keeper's policy: by a it may read the file a, by b the file b.
func (w *killing) keep(file string) []string {
	return []string{"--preset", "none", "--workspace", w.base + "/work", "--workspace-rights", "rx",
		"--grant", w.exe + ":rx", "--grant", w.base + "/" + file + ":ro"}
}

func (w *killing) makeKeeper() {
	w.t.Helper()
	w.call(append([]string{"jail", "create", "--cgroup", keeperGroup, "--name", "keeper"}, w.keep("a")...)...)
	w.startKeeper()
}

func (w *killing) startKeeper() {
	w.t.Helper()
	w.stopKeeper()
	w.keeper = w.startIn(keeperGroup)
}

func (w *killing) stopKeeper() {
	w.t.Helper()
	if w.keeper != nil {
		if err := w.keeper.stop(); err != nil {
			w.t.Error(err)
		}
		w.keeper = nil
	}
}

func (w *killing) startIn(group string) *canaryChild {
	w.t.Helper()
	dir, err := os.Open(group)
	if err != nil {
		w.t.Fatal(err)
	}
	defer dir.Close()
	child, err := startCanary(dir, nil, nil)
	if err != nil {
		w.t.Fatalf("%s: in %s: %v", w.what, group, err)
	}
	return child
}

func (w *killing) do(child *canaryChild, words string) unix.Errno {
	w.t.Helper()
	errno, err := child.do(strings.Fields(words))
	if err != nil {
		w.t.Fatalf("%s: %s: %v", w.what, words, err)
	}
	return errno
}

// wantKept checks that the keeper holds, whatever has happened.
func (w *killing) wantKept(when string) {
	w.t.Helper()
	if w.keeper == nil {
		return
	}
	for words, want := range map[string]unix.Errno{
		"open " + w.base + "/out/file": eacces, "create " + w.base + "/out/new": eacces, "open " + w.base + "/work/file": noErrno,
	} {
		if got := w.do(w.keeper, words); got != want {
			w.errorf("%s, %s: %s, want %s", when, words, errnoName(got), errnoName(want))
		}
	}
}

// wantOnePolicy checks that the keeper may read a or b.
func (w *killing) wantOnePolicy() {
	w.t.Helper()
	a, b := w.do(w.keeper, "open "+w.base+"/a"), w.do(w.keeper, "open "+w.base+"/b")
	if (a == noErrno) == (b == noErrno) {
		w.errorf("of two policies in turn: %s and %s", errnoName(a), errnoName(b))
	}
}

// isListed reports whether there is a jail of that name.
func (w *killing) isListed(name string) bool {
	w.t.Helper()
	for line := range strings.Lines(w.call("jail", "list", "--json")) {
		var j struct{ Name, State string }
		if err := json.Unmarshal([]byte(line), &j); err != nil {
			w.t.Fatalf("%s: %v: %s", w.what, err, line)
		}
		if j.Name == name {
			return true
		}
	}
	return false
}

// wantAllOrNothing checks that the jail on the victims' cgroup is there for the whole tree, or not at all.
func (w *killing) wantAllOrNothing() {
	w.t.Helper()
	listed := w.isListed("victim")
	for _, group := range []string{victimGroup, victimGroup + "/sub"} {
		child := w.startIn(group)
		if denied := w.do(child, "open "+w.base+"/out/file") == eacces; denied != listed {
			w.errorf("listed: %v, and in %s denied: %v", listed, group, denied)
		}
		if err := child.stop(); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *killing) deleteVictim() {
	w.t.Helper()
	if w.isListed("victim") {
		w.call("jail", "delete", "victim")
	}
}

func (w *killing) createVictim() []string {
	return []string{"jail", "create", "--cgroup", victimGroup, "--name", "victim", "--preset", "none",
		"--workspace", w.base + "/work", "--grant", w.exe + ":rx"}
}

// expansions gives those that the keeper has, by what is said of it.
func (w *killing) expansions() (ids []string) {
	w.t.Helper()
	var show struct {
		GrantList []struct{ ExpansionID string }
	}
	if err := json.Unmarshal([]byte(w.call("jail", "show", "keeper", "--json")), &show); err != nil {
		w.t.Fatal(err)
	}
	for _, g := range show.GrantList {
		if g.ExpansionID != "" {
			ids = append(ids, g.ExpansionID)
		}
	}
	return ids
}

// wantExpansionAsShown checks that the keeper may write where it is said to, and only then.
func (w *killing) wantExpansionAsShown() {
	w.t.Helper()
	shown := len(w.expansions()) > 0
	if allowed := w.do(w.keeper, "truncate "+w.base+"/work/dist/file") == noErrno; allowed != shown {
		w.errorf("an expansion is shown: %v, and holds: %v", shown, allowed)
	}
}

func (w *killing) revokeAll() {
	w.t.Helper()
	for _, id := range w.expansions() {
		w.call("jail", "revoke", "keeper", id)
	}
}

func (w *killing) grant() []string {
	return []string{"jail", "grant", "keeper", w.base + "/work/dist", "--actions", "write_file", "--reason", "a test"}
}

// container makes what a runtime has made when it calls the hook, and gives the state that it hands over.
func (w *killing) container() (state string) {
	w.t.Helper()
	sleeper := exec.Command("sleep", "1000")
	dir, err := os.Open(victimGroup + "/sub")
	if err != nil {
		w.t.Fatal(err)
	}
	defer dir.Close()
	sleeper.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := sleeper.Start(); err != nil {
		w.t.Fatal(err)
	}
	go sleeper.Wait()
	return fmt.Sprintf(`{"ociVersion":"1.0.2","id":"victim","status":"creating","pid":%d,"bundle":%q}`, sleeper.Process.Pid, w.base+"/bundle")
}

// endContainer ends it, and the jail with it.
func (w *killing) endContainer() {
	w.t.Helper()
	emptyCgroup(w.t, victimGroup+"/sub")
	w.deleteVictim()
}

// emptyCgroup kills what is in a cgroup and waits for its end.
func emptyCgroup(t *testing.T, group string) {
	t.Helper()
	if err := os.WriteFile(group+"/cgroup.kill", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !isEmpty(group); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not get empty", group)
		}
	}
}

// waitForOrphans waits until what a killed run left running has ended.
func (w *killing) waitForOrphans() {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		populated := false
		groups, err := filepath.Glob("/sys/fs/cgroup/thenforce/*")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, group := range groups {
			if _, err := os.Stat(group); err == nil && !isEmpty(group) {
				populated = true
			}
		}
		if !populated {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: what it left does not end", w.what)
		}
	}
}

func (w *killing) wantNothingStolen() {
	w.t.Helper()
	if text, err := os.ReadFile(w.base + "/run/stolen"); err == nil && len(text) > 0 {
		w.errorf("its command read %q outside", text)
	}
}

// victims are all commands that change something, and some that do not.
func (w *killing) victims() []victim {
	plain := func(args ...string) func() (string, []string) {
		return func() (string, []string) { return "", args }
	}
	victims := []victim{
		{name: "run", calls: 208, prepare: plain("run", "--workspace", w.base+"/run", "--cwd", w.base+"/run", "--", "sh", "-c", "cat "+w.base+"/out/file >stolen; true"),
			later: func() { w.waitForOrphans(); w.wantNothingStolen() }, restore: func() { os.Remove(w.base + "/run/stolen"); w.call("jail", "list") }},
		{name: "jail create", calls: 27, prepare: func() (string, []string) { return "", w.createVictim() }, later: w.wantAllOrNothing, restore: w.deleteVictim},
		{name: "jail delete", calls: 26, prepare: func() (string, []string) {
			w.call(w.createVictim()...)
			return "", []string{"jail", "delete", "victim"}
		}, later: w.wantAllOrNothing, restore: w.deleteVictim},
		{name: "jail grant", calls: 30, prepare: func() (string, []string) { return "", w.grant() }, later: w.wantExpansionAsShown, restore: w.revokeAll},
		{name: "jail revoke", calls: 32, prepare: func() (string, []string) {
			return "", []string{"jail", "revoke", "keeper", w.call(w.grant()...)}
		}, later: w.wantExpansionAsShown, restore: w.revokeAll},
		{name: "jail replace", calls: 30, prepare: func() (string, []string) {
			return "", append([]string{"jail", "replace", "keeper"}, w.keep("b")...)
		}, atOnce: w.wantOnePolicy, later: w.wantOnePolicy, restore: func() {
			w.call(append([]string{"jail", "replace", "keeper"}, w.keep("a")...)...)
		}},
		{name: "jail mode", calls: 23, prepare: func() (string, []string) {
			w.call(w.createVictim()...)
			return "", []string{"jail", "mode", "victim", "monitor"}
		}, later: func() {
			child := w.startIn(victimGroup + "/sub")
			monitored := strings.Contains(w.call("jail", "show", "victim", "--json"), `"mode":"monitor"`)
			if allowed := w.do(child, "open "+w.base+"/out/file") == noErrno; allowed != monitored {
				w.errorf("monitored: %v, allowed: %v", monitored, allowed)
			}
			if err := child.stop(); err != nil {
				w.t.Error(err)
			}
		}, restore: w.deleteVictim},
		{name: "hook, start", calls: 30, prepare: func() (string, []string) { return w.container(), []string{"hook"} }, restore: w.endContainer},
		{name: "hook, end", calls: 25, prepare: func() (string, []string) {
			state := w.container()
			cmd := exec.Command("thenforce", "hook")
			cmd.Stdin = strings.NewReader(state)
			if out, err := cmd.CombinedOutput(); err != nil {
				w.t.Fatalf("%v: %s", err, out)
			}
			emptyCgroup(w.t, victimGroup+"/sub")
			return strings.Replace(state, "creating", "stopped", 1), []string{"hook"}
		}, restore: w.endContainer},
		{name: "status --verify", calls: 400, prepare: plain("status", "--verify")},
		{name: "events", calls: 20, prepare: plain("events", "--json")},
		{name: "unload", calls: 92, prepare: plain("unload"), alone: true},
		{name: "first load", calls: 400, prepare: func() (string, []string) {
			w.call("unload")
			return "", []string{"run", "--workspace", w.base + "/run", "--", "true"}
		}, later: w.waitForOrphans, restore: func() { w.call("jail", "list") }, alone: true},
	}
	if inSoak() { // it takes a minute
		victims = append(victims, victim{name: "upgrade", calls: 1500, prepare: func() (string, []string) {
			if out, err := otherBuild("open"); err != nil {
				w.t.Fatalf("another build takes over: %v: %s", err, out)
			}
			return "", []string{"run", "--workspace", w.base + "/run", "--", "true"}
		}, later: w.waitForOrphans, restore: func() { w.call("jail", "list") }})
	}
	return victims
}

var (
	anyID   = regexp.MustCompile(`[0-9a-f]{12}`)
	pidName = regexp.MustCompile(`^/proc/[0-9]+$`)
)

// leftovers lists all that thenforce could have left on this machine, so that two lists can be compared.
func (w *killing) leftovers() (list []string) {
	w.t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/run/thenforce", "/sys/fs/bpf"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && (d.IsDir() || dir != "/sys/fs/cgroup") {
				list = append(list, anyID.ReplaceAllString(path, "ID"))
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		w.t.Fatal(err)
	}
	list = append(list, fmt.Sprintf("mounts: %d", strings.Count(string(mounts), "\n")))
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, proc := range procs {
		if exe, err := os.Readlink(proc + "/exe"); err == nil && pidName.MatchString(proc) && filepath.Base(exe) == "thenforce" {
			list = append(list, "a process of thenforce")
		}
	}
	e, err := OpenLoaded(Options{})
	if err != nil || e == nil {
		w.t.Fatalf("%s: adopt: %v", w.what, err)
	}
	defer e.Close()
	slots := 0
	for i := range e.jailSlots {
		if e.jailSlots[i].Id != 0 {
			slots++
		}
	}
	list = append(list, fmt.Sprintf("slots: %d, live: %d, members: %d, grants: %d, names: %d, expansions: %d, terminals: %d, armed: %d",
		slots, len(e.liveSlots()), entriesOf[uint64, enforcerTfMember](w.t, e.members),
		entriesOf[enforcerTfGrantKey, enforcerTfGrant](w.t, e.grants), entriesOf[enforcerTfNameKey, enforcerTfName](w.t, e.names),
		entriesOf[enforcerTfGrantKey, enforcerTfExpanded](w.t, e.expansions), entriesOf[enforcerTfPtyKey, uint64](w.t, e.ptys),
		entriesOf[uint64, uint32](w.t, e.armed)))
	times := map[string]int{} // ids are left out, so one line may be of several
	for _, name := range list {
		times[name]++
	}
	list = list[:0]
	for name, n := range times {
		list = append(list, fmt.Sprintf("%s (%d)", name, n))
	}
	return list
}

// round kills a victim in front of a call, if it comes to that, and checks everything.
func (w *killing) round(v victim, at int) traced {
	w.t.Helper()
	w.what = fmt.Sprintf("%s, to be killed at call %d", v.name, at)
	if v.alone {
		w.stopKeeper()
		w.call("jail", "delete", "keeper")
	} else {
		w.startKeeper()
	}
	stdin, args := v.prepare()
	r := trace(w.t, stdin, append([]string{"thenforce"}, args...), at)
	w.what = fmt.Sprintf("%s, killed at call %d (%s)", v.name, at, r.last)
	if !r.killed && (!r.status.Exited() || r.status.ExitStatus() != 0) {
		w.t.Fatalf("%s: not killed, and ended with %#x: %s", v.name, r.status, r.out)
	}
	w.wantKept("at once")
	for _, check := range []func(){v.atOnce, func() { w.call("jail", "list") }, func() { w.wantKept("after jail list") }, v.later} {
		if check != nil {
			check()
		}
	}
	// What starts a command repairs what lists jails need not care for.
	w.call("run", "--workspace", w.base+"/run", "--", "true")
	w.wantKept("after a run")
	if status := Inspect(Options{}); status.State != engine.Verified {
		w.errorf("the state is %v: %v", status.State, status.Reasons)
	}
	w.call("events", "--json")
	if v.restore != nil {
		v.restore()
	}
	if v.alone {
		w.makeKeeper()
	}
	return r
}

// newKilling makes the world.
func newKilling(t *testing.T) *killing {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &killing{t: t, base: tmpfsIn(t), exe: exe, what: "at the start"}
	w.layOut()
	openVerified(t)
	t.Cleanup(func() {
		w.stopKeeper()
		for _, name := range []string{"keeper", "victim"} {
			exec.Command("thenforce", "jail", "delete", name).Run()
		}
		for _, group := range []string{keeperGroup, victimGroup + "/sub", victimGroup} {
			os.WriteFile(group+"/cgroup.kill", []byte("1"), 0)
			if err := removeCgroup(group); err != nil {
				t.Error(err)
			}
		}
		os.RemoveAll("/etc/thenforce")
	})
	w.makeKeeper()
	w.call("run", "--workspace", w.base+"/run", "--", "true")
	w.stopKeeper()
	return w
}

// seeded gives what a test chooses by. THENFORCE_TEST_SEED repeats a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("THENFORCE_TEST_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("THENFORCE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Whatever process of thenforce is killed, and whenever: jails hold, nothing is left after the next command, and that one
// works.
func TestKilledAtAnyMoment(t *testing.T) {
	random := seeded(t)
	rounds := 1
	switch {
	case inSoak():
		rounds = 60
	case inFull():
		rounds = 6
	}
	w := newKilling(t)
	before := w.leftovers()
	victims := w.victims()
	for killed, i := 0, 0; killed < rounds; i++ {
		if i%len(victims) == 0 {
			random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		}
		v := &victims[i%len(victims)]
		at := 1 + random.IntN(v.calls)
		r := w.round(*v, at)
		if r.killed {
			killed++
			t.Logf("%s killed at call %d of about %d, %q", v.name, at, v.calls, r.last)
		} else {
			v.calls = r.calls
		}
		w.stopKeeper()
		now := w.leftovers()
		w.compare("left", now, before)
		w.compare("gone", before, now)
		before = now // is told once
		if t.Failed() && !inSoak() {
			return
		}
	}
}

// compare tells what is in one list and not in the other.
func (w *killing) compare(what string, one, other []string) {
	w.t.Helper()
	for _, name := range one {
		if !slices.Contains(other, name) {
			w.errorf("%s: %s", what, name)
		}
	}
}

func (w *killing) layOut() {
	w.t.Helper()
	for _, dir := range []string{"work/dist", "out", "run", "bundle/rootfs/work", "bundle/rootfs/proc"} {
		if err := os.MkdirAll(filepath.Join(w.base, dir), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"a": "", "b": "", "work/file": "", "work/dist/file": "", "out/file": "a secret\n",
		"bundle/config.json": `{"ociVersion":"1.0.2","root":{"path":"rootfs"}}`,
	} {
		if err := os.WriteFile(filepath.Join(w.base, name), []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	proc := w.base + "/bundle/rootfs/proc"
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Unmount(proc, unix.MNT_DETACH) })
	const policies = "/etc/thenforce/policies"
	if err := errors.Join(os.MkdirAll(policies, 0o755),
		os.WriteFile("/etc/thenforce/hook.yaml", []byte("version: 1\npolicy: container\ntimeout: 1m\n"), 0o644),
		os.WriteFile(policies+"/container.yaml", []byte("version: 1\nworkspace: /work\npresets: []\n"), 0o644),
		os.Mkdir(keeperGroup, 0o755), os.MkdirAll(victimGroup+"/sub", 0o755)); err != nil {
		w.t.Fatal(err)
	}
}
