// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

// tracedVariable holds what a process does whose system calls are counted: its
// name, and the root and target of a workspace.
const tracedVariable = "THENFORCE_TEST_TRACED"

// tracedRounds is how often it does that.
const tracedRounds = 50

// traced are the things that are counted. Each returns what does it once.
var traced = map[string]func(p *Probes, workspace engine.WorkspaceIdentity, target string) func(){
	"check": func(p *Probes, workspace engine.WorkspaceIdentity, target string) func() {
		return func() { engine.CheckContainment(workspace, target, engine.ContainmentOptions{}, p) }
	},
	"walk": func(p *Probes, workspace engine.WorkspaceIdentity, target string) func() {
		return func() { engine.WalkContainment(workspace, target, engine.ContainmentOptions{}, p) }
	},
	"batch of 64": func(p *Probes, workspace engine.WorkspaceIdentity, target string) func() {
		g := &Guard{Workspace: workspace, Probes: p}
		targets := make([]string, 64)
		for i := range targets {
			targets[i] = target
		}
		return func() { g.CheckAll(targets) }
	},
	"open": func(p *Probes, workspace engine.WorkspaceIdentity, target string) func() {
		g := &Guard{Workspace: workspace, Probes: p}
		return func() {
			if f, err := g.Open(target); err == nil {
				f.Close()
			}
		}
	},
}

// In a traced process nothing else runs. The thread here is the first one, which
// has the number of the process.
func init() {
	what, rest, ok := strings.Cut(os.Getenv(tracedVariable), "\n")
	if !ok {
		return
	}
	root, target, _ := strings.Cut(rest, "\n")
	p, err := NewProbes()
	if err != nil {
		panic(err)
	}
	workspace := engine.Bind(root, p)
	if d := engine.CheckContainment(workspace, target, engine.ContainmentOptions{}, p); d.Outcome != engine.Allowed {
		panic(fmt.Sprintf("%+v", d))
	}
	once := traced[what](p, workspace, target)
	once()
	debug.SetGCPercent(-1)
	if _, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); errno != 0 {
		panic(errno)
	}
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		panic(err)
	}
	mark := func() { unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0) }
	mark()
	for range tracedRounds {
		once()
	}
	mark()
	os.Exit(0)
}

// systemCalls returns how many system calls doing something once takes, by number.
func systemCalls(t *testing.T, what, root, target string) map[uint64]int {
	t.Helper()
	// The thread that starts a process traces it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	env := append(os.Environ(), tracedVariable+"="+what+"\n"+root+"\n"+target, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"traced"}, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	must(t, err)
	counts, marks, signal := make(map[uint64]int), 0, 0
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		switch {
		case status.Exited() && status.ExitStatus() == 0 && marks == 2:
			for nr, n := range counts {
				counts[nr] = n / tracedRounds // less than one is the runtime's, now and then
			}
			return counts
		case status.Exited(), status.Signaled():
			t.Fatalf("%s: the traced process ended with %#x after %d marks", what, status, marks)
		case status.StopSignal() == unix.SIGSTOP && marks == 0:
			// Stops at system calls are told from those of a signal by bit 7.
			must(t, unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL))
			signal = 0
		case status.StopSignal() == unix.SIGTRAP|0x80:
			signal = 0
			if nr, entry := syscallInfo(t, pid); entry && nr == unix.SYS_GETPPID {
				marks++
			} else if entry && marks == 1 {
				counts[nr]++
			}
		default:
			signal = int(status.StopSignal())
		}
		must(t, unix.PtraceSyscall(pid, signal))
	}
}

// syscallInfo returns which system call a stopped process is in, and whether it
// is about to enter it (PTRACE_GET_SYSCALL_INFO, Linux 5.3).
func syscallInfo(t *testing.T, pid int) (nr uint64, entry bool) {
	t.Helper()
	var info [88]byte // struct ptrace_syscall_info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), uintptr(len(info)), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	const opEntry = 1
	return binary.NativeEndian.Uint64(info[24:]), info[0] == opEntry
}

// TestSystemCalls counts every system call, ten components below the root and
// twenty: one for each component and three more where a check walks, six of any
// depth where it sweeps.
func TestSystemCalls(t *testing.T) {
	root := filepath.Join(realTempDir(t), "workspace")
	for _, depth := range []int{10, 20} {
		target := strings.Repeat("directory/", depth-1) + "file"
		tree(t, root, "file "+target+" content")
		for _, test := range []struct {
			what string
			most int
		}{
			{"check", 6},
			{"walk", depth + 3},
			{"batch of 64", 64 + 14},
			{"open", 16},
		} {
			total := 0
			counts := systemCalls(t, test.what, root, target)
			// Go's scheduler makes these when it pleases.
			delete(counts, unix.SYS_FUTEX)
			delete(counts, unix.SYS_SCHED_YIELD)
			for _, n := range counts {
				total += n
			}
			if total > test.most {
				t.Errorf("%s of a path %d deep takes %d system calls, want %d at most: by number %v", test.what, depth, total, test.most, counts)
			}
			t.Logf("%s, %d deep: %d system calls", test.what, depth, total)
		}
		must(t, os.RemoveAll(root))
	}
}
