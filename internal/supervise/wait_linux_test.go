package supervise

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestResult(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		timeout time.Duration
		want    Result
	}{
		{"success", []string{"true"}, 0, Result{}},
		{"own code", []string{"sh", "-c", "exit 42"}, 0, Result{Code: 42}},
		{"highest code", []string{"sh", "-c", "exit 255"}, 0, Result{Code: 255}},
		{"own 127", []string{"sh", "-c", "exit 127"}, 0, Result{Code: 127}},
		{"SIGTERM", []string{"sh", "-c", "kill -TERM $$"}, 0, Result{Code: 143, Signal: unix.SIGTERM}},
		{"SIGKILL", []string{"sh", "-c", "kill -KILL $$"}, 0, Result{Code: 137, Signal: unix.SIGKILL}},
		{"a code that looks like a signal", []string{"sh", "-c", "exit 143"}, 0, Result{Code: 143}},
		{"in time", []string{"sh", "-c", "exit 3"}, time.Hour, Result{Code: 3}},
		{"timeout", []string{"sleep", "1000"}, 20 * time.Millisecond, Result{Code: 143, Signal: unix.SIGTERM, TimedOut: true}},
		{"timeout, of a whole group", []string{"sh", "-c", "sleep 1000; true"}, 20 * time.Millisecond,
			Result{Code: 143, Signal: unix.SIGTERM, TimedOut: true}},
		{"timeout, stopped", []string{"sh", "-c", "kill -STOP $$"}, 20 * time.Millisecond,
			Result{Code: 143, Signal: unix.SIGTERM, TimedOut: true}},
		// The time is long enough for the shell to set its trap; were it not, the row would fail and not pass.
		{"timeout, answered with success", []string{"sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done"},
			500 * time.Millisecond, Result{Code: 143, TimedOut: true}},
		{"timeout, ignored", []string{"sh", "-c", "trap '' TERM; while :; do sleep 1000; done"},
			500 * time.Millisecond, Result{Code: 137, Signal: unix.SIGKILL, TimedOut: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, got, err := output(t, Command{Args: tt.args, Cgroup: newGroup(t), Timeout: tt.timeout})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Processes that do their best to survive end with the command, and their cgroups go.
func TestLeftBehind(t *testing.T) {
	for _, kinds := range []string{"polite", "group", "setsid", "fork", "stopped", "polite group setsid fork stopped"} {
		t.Run(kinds, func(t *testing.T) {
			t.Parallel()
			c := probeCommand(t, append([]string{"leave"}, strings.Fields(kinds)...)...)
			// A cgroup that was made below meanwhile.
			below := filepath.Join(c.Cgroup.Path(), "a/b")
			c.Prepare = func(View) error { return os.MkdirAll(below, 0o755) }
			start := time.Now()
			out, res, err := output(t, c)
			if err != nil || res.Code != 7 {
				t.Fatalf("%+v, %v, %s", res, err, out)
			}
			pids := strings.Fields(out)
			if len(pids) != len(strings.Fields(kinds)) {
				t.Errorf("the probe printed %q", out)
			}
			for _, pid := range pids {
				if n, err := strconv.Atoi(pid); err != nil || alive(n) {
					t.Errorf("%s (%v) is still alive", pid, err)
				}
			}
			if _, err := os.Stat(filepath.Dir(below)); err == nil {
				t.Error("the cgroups below are still there")
			}
			if took := time.Since(start); kinds == "polite" && took >= Grace {
				t.Errorf("polite ones took %v", took)
			}
		})
	}
}

// Each forwarded signal reaches the command, and once.
func TestForwardedSignals(t *testing.T) {
	f := newFront(t)
	f.command("signals")
	f.start(t)
	if got := f.line(t); got != "ready" {
		t.Fatalf("got %q", got)
	}
	f.pid(t)
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGWINCH,
		unix.SIGCONT, unix.SIGTERM, unix.SIGUSR2} {
		f.signal(t, sig)
		// A second copy of the signal before would be this line.
		if got, want := f.line(t), unix.SignalName(sig); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if code, res := f.wait(t); code != 0 || res != (Result{}) {
		t.Errorf("exit code %d, %+v", code, res)
	}
}

// What signals of the terminal mean concerns the command's process group, the others the command alone.
func TestForwardedToGroup(t *testing.T) {
	for _, tt := range []struct {
		sig   syscall.Signal
		child bool
	}{{unix.SIGINT, true}, {unix.SIGHUP, false}} {
		f := newFront(t)
		name := strings.TrimPrefix(unix.SignalName(tt.sig), "SIG")
		// The inner shell is told at the end by USR1, which ends it silently if the signal did not. It is started
		// with SIGINT ignored, as every background command, and a shell cannot trap that.
		f.command("/bin/sh", "-c", `trap : $0; trap 'kill -USR1 $c 2>/dev/null; wait; exit 5' TERM
			env --default-signal=INT sh -c 'trap "echo child; exit" $0; trap exit USR1; echo ready; while :; do sleep 0.01; done' $0 &
			c=$!; echo ready; while :; do sleep 0.01; done`, name)
		f.start(t)
		f.line(t)
		f.line(t)
		f.signal(t, tt.sig)
		if tt.child {
			if got := f.line(t); got != "child" {
				t.Errorf("%s: got %q", name, got)
			}
		}
		f.signal(t, unix.SIGTERM)
		rest, _ := f.out.ReadString(0)
		if code, _ := f.wait(t); code != 5 || rest != "" {
			t.Errorf("%s: exit code %d, and %q", name, code, rest)
		}
	}
}

func TestIgnoredSignals(t *testing.T) {
	bit := func(sig syscall.Signal) uint64 { return 1 << (sig - 1) }
	for _, tt := range []struct {
		trap string
		want uint64
	}{
		{":", 0},
		{"trap '' HUP", bit(unix.SIGHUP)},
		{"trap '' INT QUIT", bit(unix.SIGINT) | bit(unix.SIGQUIT)},
	} {
		f := newFront(t)
		f.command("/usr/bin/grep", "SigIgn", "/proc/self/status")
		f.cmd.Args = append([]string{"sh", "-c", tt.trap + `; exec "$@"`, "sh"}, f.cmd.Args...)
		f.cmd.Path = "/bin/sh"
		f.start(t)
		got, err := strconv.ParseUint(strings.Fields(f.line(t))[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		mask := bit(unix.SIGHUP) | bit(unix.SIGINT) | bit(unix.SIGQUIT) | bit(unix.SIGTERM) | bit(unix.SIGTTOU) | bit(unix.SIGTSTP)
		if got&mask != tt.want {
			t.Errorf("after %q the command ignores %x, want %x", tt.trap, got&mask, tt.want)
		}
		f.wait(t)
	}
	// A hangup does not end a command that nohup(1) has started.
	f := newFront(t)
	f.command("/bin/sh", "-c", "echo ready; read x; echo still here")
	f.cmd.Args = append([]string{"nohup"}, f.cmd.Args...)
	f.cmd.Path = "/usr/bin/nohup"
	in, err := f.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.start(t)
	f.line(t)
	f.signal(t, unix.SIGHUP)
	in.Write([]byte("\n"))
	if got := f.line(t); got != "still here" {
		t.Errorf("got %q", got)
	}
	if code, _ := f.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// An interrupt that comes while the jail is being made ends the start in an orderly way.
func TestInterruptedStart(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		block := filepath.Join(t.TempDir(), "go")
		f := newFront(t, "-block", block)
		f.command("/bin/echo", "it ran")
		f.start(t)
		eventually(t, "Prepare", func() bool {
			_, err := os.Stat(block + ".at")
			return err == nil
		})
		f.signal(t, sig)
		// It is caught, not deadly; when the signal is there can be seen from outside.
		eventually(t, "the signal to be taken", func() bool { return !pending(t, f.cmd.Process.Pid, sig) })
		if err := os.WriteFile(block, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := f.out.ReadString(0)
		if code, _ := f.wait(t); code != 128+int(sig) || out != "" {
			t.Errorf("%v: exit code %d, %q, %s", sig, code, out, &f.stderr)
		}
	}
}

// pending reports whether a signal is still waiting to be taken by a process.
func pending(t *testing.T, pid int, sig syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		for _, name := range []string{"SigPnd:", "ShdPnd:"} {
			if mask, ok := strings.CutPrefix(line, name); ok {
				set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				if set&(1<<(sig-1)) != 0 {
					return true
				}
			}
		}
	}
	return false
}

// A second Ctrl-C cuts the grace time of what the command left behind.
func TestHurriedEnd(t *testing.T) {
	f := newFront(t)
	f.command("leave", "setsid")
	f.start(t)
	pid := f.pid(t)
	eventually(t, "the command's end", func() bool { return !exists(pid) })
	start := time.Now()
	f.signal(t, unix.SIGINT)
	if code, _ := f.wait(t); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(start); took >= Grace {
		t.Errorf("took %v, the whole grace time", took)
	}
}

// exists reports whether there is a process, even a zombie.
func exists(pid int) bool { return unix.Kill(pid, 0) != unix.ESRCH }

func TestDieWithParent(t *testing.T) {
	for _, die := range []bool{true, false} {
		f := newFront(t, "-die-with-parent="+strconv.FormatBool(die))
		f.command("signals")
		f.start(t)
		f.line(t)
		pid := f.pid(t)
		if err := f.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Not Wait, which would wait for the command to close its output.
		if _, err := f.cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		if die {
			eventually(t, "the command's death", func() bool { return !alive(pid) })
		} else {
			// It goes on, and answers.
			unix.Kill(pid, unix.SIGUSR1)
			if got := f.line(t); got != "SIGUSR1" {
				t.Errorf("got %q", got)
			}
			unix.Kill(pid, unix.SIGKILL)
			eventually(t, "the command's death", func() bool { return !alive(pid) })
		}
		eventually(t, "the removal of the cgroups", func() bool {
			dirs, err := filepath.Glob(f.parent + "/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range append(dirs, f.parent) {
				os.Remove(dir)
			}
			return !exists(pid) && len(dirs) == 0
		})
	}
}
