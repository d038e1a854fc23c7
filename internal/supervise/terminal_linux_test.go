package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// console is a program on a terminal of its own, and the person in front of it.
type console struct {
	t      *testing.T
	master *os.File
	fd     int // The master's number, for ioctls.
	cmd    *exec.Cmd
	ended  chan struct{}

	mu   sync.Mutex
	out  bytes.Buffer
	read int // How much of out the person has taken notice of.
}

// openConsole starts a program as the session leader of a new terminal.
func openConsole(t *testing.T, name string, args ...string) *console {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(newGroup(t).Path(), "folder")
	bin := t.TempDir()
	// "run" is the front end, "probe" the probe.
	for name, line := range map[string]string{
		"run":   fmt.Sprintf("%s=%s exec %s -parent %s -exit \"$@\"", partVar, partFront, exe, parent),
		"probe": fmt.Sprintf("%s=%s exec %s \"$@\"", partVar, partProbe, exe),
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := &console{t: t, ended: make(chan struct{})}
	c.cmd = exec.Command(name, args...)
	c.cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PS1=", "PS2=", "TERM=dumb", "HISTFILE=", "ENV=")
	if strings.Contains(name, "/") || name == "bash" || name == "sh" {
		c.cmd.Path, err = exec.LookPath(name)
	} else {
		c.cmd.Path, err = filepath.Join(bin, name), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Err = nil
	master, err := pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	// As pty leaves it, a read blocks its thread, and Close would not hang up before that read returns.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	master.Close()
	c.master, c.fd = os.NewFile(uintptr(fd), "pty"), fd
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.master.Read(buf)
			c.mu.Lock()
			c.out.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() {
		c.cmd.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() {
		c.master.Close() // Hangs up: all jobs get SIGHUP.
		c.cmd.Process.Kill()
		<-c.ended
		deadline := time.Now().Add(patience)
		for exists := true; exists; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(parent); err != nil {
				exists = false
			} else if time.Now().After(deadline) {
				t.Errorf("a cgroup is left in %s", parent)
				break
			}
		}
		if t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Logf("the terminal showed: %q", c.out.String())
		}
	})
	return c
}

// openShell starts an interactive bash without echo, so that what is typed is not taken for an answer.
func openShell(t *testing.T) *console {
	t.Helper()
	c := openConsole(t, "bash", "--norc", "--noprofile", "--noediting", "-o", "pipefail", "-i")
	c.typing("stty -echo; echo shell-is-rea\"\"dy\n")
	c.expect("shell-is-ready")
	return c
}

func (c *console) typing(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

const (
	ctrlC         = "\x03"
	ctrlD         = "\x04"
	ctrlZ         = "\x1a"
	ctrlBackslash = "\x1c"
)

// expect waits until the text appears after what was expected before, and returns what stood between.
func (c *console) expect(text string) string {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		c.mu.Lock()
		rest := c.out.String()[c.read:]
		i := strings.Index(rest, text)
		if i >= 0 {
			c.read += i + len(text)
		}
		c.mu.Unlock()
		if i >= 0 {
			return rest[:i]
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%q does not come, only %q", text, rest)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// finish leaves the shell, and takes the console's word that no job is left.
func (c *console) finish() {
	c.t.Helper()
	c.typing("jobs; echo no-more-jobs; exit\n")
	if jobs := c.expect("no-more-jobs"); strings.Contains(jobs, "Stopped") || strings.Contains(jobs, "Running") {
		c.t.Errorf("jobs are left: %q", jobs)
	}
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Error("the shell does not end")
	}
}

func TestCtrlC(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, key, line, want string }{
		{"default", ctrlC, "run sh -c 'echo ready; exec sleep 1000'", "code=130"},
		{"quit", ctrlBackslash, "ulimit -c 0; run sh -c 'echo ready; exec sleep 1000'", "code=131"},
		// Once: a second one would print again, or end the shell in its trap.
		{"handled", ctrlC, `run sh -c 'trap "echo got; n=x\$n" INT; echo ready; while [ -z "$n" ]; do sleep 0.01; done; sleep 0.1; echo n=$n=; exit 5'`,
			"got\r\nn=x=\r\ncode=5"},
		{"in a pipeline", ctrlC, "run sh -c 'echo ready >&2; exec sleep 1000' | cat", "code=130"},
		{"without a terminal as stdin", ctrlC, "run sh -c 'echo ready; exec sleep 1000' </dev/null", "code=130"},
		// What is started by the command gets it too.
		{"children", ctrlC, `run sh -c 'trap "" INT; sh -c "trap \"echo child; exit 0\" INT; echo ready; while :; do sleep 0.01; done"; exit 4'`,
			"child\r\ncode=4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "children" {
				// A shell cannot trap what it was started to ignore: let the outer one catch it.
				tt.line = strings.Replace(tt.line, `trap "" INT`, `trap : INT`, 1)
			}
			c := openShell(t)
			c.typing(tt.line + "\n")
			c.expect("ready")
			c.typing(tt.key)
			// Not on the line of the command: a shell gives up the line when SIGINT ended a part of it.
			c.typing("echo code=$?\n")
			before := c.expect(tt.want)
			if strings.Contains(before, "got") || strings.Contains(before, "code=") {
				t.Errorf("before %q came %q", tt.want, before)
			}
			c.finish()
		})
	}
}

// Ctrl-C ends the script or loop that the command is a part of, as it does without thenforce.
func TestCtrlCEndsScript(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, line string }{
		{"bash loop", "while :; do run sh -c 'echo ready; exec sleep 1000'; done"},
		{"bash script", "bash -c 'run sh -c \"echo ready; exec sleep 1000\"; echo went on'"},
		{"dash script", "sh -c 'run sh -c \"echo ready; exec sleep 1000\"; echo went on'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := openShell(t)
			c.typing(tt.line + "\n")
			c.expect("ready")
			c.typing(ctrlC)
			c.typing("echo back in the shell\n")
			if before := c.expect("back in the shell"); strings.Contains(before, "went on") || strings.Contains(before, "ready") {
				t.Errorf("it went on: %q", before)
			}
			c.finish()
		})
	}
}

const reader = "run sh -c 'echo ready; read x; echo got-$x; exit 6'"

func TestCtrlZ(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, line string }{
		{"plain", reader},
		{"twice", reader},
		{"inside a script", "sh -c '" + strings.ReplaceAll(reader, "'", `"`) + "; exit $?'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// In double quotes the inner variables would be the outer shell's.
			line := tt.line
			if strings.HasPrefix(line, "sh") {
				line = strings.ReplaceAll(line, "$x", `\$x`)
			}
			c := openShell(t)
			c.typing(line + "\n")
			c.expect("ready")
			c.typing(ctrlZ)
			c.expect("Stopped")
			// The shell has the terminal, and reads from it.
			c.typing("echo in the shell\n")
			c.expect("in the shell")
			if tt.name == "twice" {
				c.typing("fg >/dev/null\n")
				c.foregroundIs("sh")
				c.typing(ctrlZ)
				c.expect("Stopped")
			}
			c.typing("fg >/dev/null; echo code=$?\n")
			c.foregroundIs("sh")
			c.typing("hello\n")
			c.expect("got-hello")
			c.expect("code=6")
			c.finish()
		})
	}
}

// foregroundIs waits until the leader of the terminal's foreground group is a program of that name inside the jail (not
// the shell and not thenforce).
func (c *console) foregroundIs(name string) {
	c.t.Helper()
	eventually(c.t, name+" in the foreground", func() bool {
		group, err := unix.IoctlGetInt(c.fd, unix.TIOCGPGRP)
		if err != nil {
			return false
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", group))
		if err != nil || strings.TrimSpace(string(comm)) != name {
			return false
		}
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", group))
		return err == nil && strings.Contains(string(cgroups), filepath.Base(testRoot))
	})
}

func TestStopByProgram(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	// SIGSTOP cannot be caught, and is another "Stopped".
	c.typing("run sh -c 'kill -STOP $$; read x; echo got-$x'\n")
	c.expect("Stopped")
	c.typing("fg >/dev/null\n")
	c.foregroundIs("sh")
	c.typing("hello\n")
	c.expect("got-hello")
	c.finish()
}

// The command's group does not keep the terminal when it stops: not every parent takes it by force as bash does.
func TestTerminalAfterStop(t *testing.T) {
	t.Parallel()
	c := openConsole(t, "probe", "shell", "run", "sh", "-c", "echo ready; exec sleep 1000")
	c.expect("ready")
	c.typing(ctrlZ)
	c.expect("stopped true job has the terminal true")
	<-c.ended
}

// A command that could not be started has not taken the terminal with it.
func TestTerminalAfterFailedStart(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	c.typing("sh -c 'run /nowhere; echo code=$?; read x; echo got-$x'\n")
	c.expect("code=127")
	c.typing("hello\n")
	c.expect("got-hello")
	c.finish()
}

// A job that was stopped as a whole and goes on in the background leaves the terminal alone when it ends.
func TestTerminalAfterBackgroundEnd(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	c.typing("sh -c 'run probe signals; echo script-goes-on'\n")
	c.expect("ready")
	command, err := unix.IoctlGetInt(c.fd, unix.TIOCGPGRP)
	if err != nil {
		t.Fatal(err)
	}
	of, ok := readStat(command)
	if !ok {
		t.Fatal("the command is gone")
	}
	front, ok := readStat(of.parent)
	if !ok {
		t.Fatal("the front end is gone")
	}
	unix.Kill(-front.group, unix.SIGSTOP)
	c.expect("Stopped")
	c.typing("bg\n")
	c.expect("SIGCONT")
	unix.Kill(command, unix.SIGUSR2)
	c.expect("script-goes-on")
	c.typing("read x; echo got-$x\nhello\n")
	c.expect("got-hello")
	c.finish()
}

func TestBackgroundJob(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	// It stops when it reads, and goes on in the foreground.
	c.typing(strings.ReplaceAll(reader, "ready", "started") + " &\n")
	c.expect("started")
	c.typing("wait -n; jobs -l\n")
	c.expect("Stopped (tty input)")
	c.typing("fg >/dev/null; echo code=$?\n")
	c.foregroundIs("sh")
	c.typing("hello\n")
	c.expect("got-hello")
	c.expect("code=6")
	// One that only works in the background does so after Ctrl-Z and bg too, and the shell keeps the terminal.
	c.typing("run sh -c 'echo ready; exec sleep 1000'\n")
	c.expect("ready")
	c.typing(ctrlZ)
	c.expect("Stopped")
	c.typing("bg\n")
	c.typing("echo shell-has-it; read x; echo read-$x\n")
	c.expect("shell-has-it")
	c.typing("answer\n")
	c.expect("read-answer")
	c.typing("kill %1; wait %1; echo code=$?\n")
	c.expect("code=143")
	c.finish()
}

// In a pipeline the others keep the terminal until the command asks for it.
func TestPipeline(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	c.typing("run sh -c 'echo one; exec sleep 1000' | sh -c 'read l; echo line-$l; read x </dev/tty; echo tty-$x'\n")
	c.expect("line-one")
	c.typing("hello\n")
	c.expect("tty-hello")
	c.typing(ctrlC)
	c.typing("echo code=$?\n")
	c.expect("code=130")
	// And Ctrl-Z stops both sides.
	c.typing("run probe signals | (trap '' INT; exec cat)\n")
	c.expect("ready")
	c.typing(ctrlZ)
	c.expect("Stopped")
	c.typing("fg >/dev/null\n")
	c.expect("SIGCONT")
	c.typing(ctrlC)
	c.expect("SIGINT")
	c.typing(ctrlZ)
	c.expect("Stopped")
	c.typing("kill -KILL $(ps -o pid= --ppid $(jobs -p)); fg; echo code=$?\n")
	c.expect("code=137")
	// The command asks for the terminal and gets it.
	c.typing("echo x | run sh -c 'read a </dev/tty; echo got-$a' | cat\n")
	c.foregroundIs("sh")
	c.typing("hello\n")
	c.expect("got-hello")
	c.finish()
}

func TestWindowSize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, line string }{
		{"foreground", "run probe signals"},
		{"in a pipeline", "run probe signals | (trap '' INT QUIT; exec cat)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := openShell(t)
			c.typing(tt.line + "\n")
			c.expect("ready")
			if err := unix.IoctlSetWinsize(c.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
				t.Fatal(err)
			}
			c.expect("SIGWINCH")
			c.typing(ctrlC) // Comes after a second SIGWINCH if there were one.
			if between := c.expect("SIGINT"); strings.Contains(between, "SIGWINCH") {
				t.Errorf("the change of size came twice")
			}
			c.typing("echo " + ctrlBackslash)
			c.expect("SIGQUIT")
			c.typing(ctrlZ)
			c.expect("Stopped")
			c.typing("stty size; kill -USR2 %1; fg >/dev/null\necho the end\n")
			c.expect("30 100")
			c.expect("the end")
			c.finish()
		})
	}
}

// A command that dies with the terminal in raw mode leaves it as it was.
func TestRawMode(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	c.typing("run probe raw; echo code=$?; stty -a; echo end\n")
	c.expect("code=137")
	if modes := c.expect("end"); strings.Contains(modes, "-icanon") || strings.Contains(modes, "-opost") {
		t.Errorf("the terminal is left in raw mode: %s", modes)
	}
	c.finish()
}

// An interactive shell as the command has its own job control.
func TestShellInside(t *testing.T) {
	t.Parallel()
	c := openShell(t)
	c.typing("run env PS1= bash --norc --noprofile --noediting -i\n")
	c.typing("stty -echo; echo inner-rea\"\"dy\n")
	c.expect("inner-ready")
	c.typing("sh -c 'echo job; read x; echo got-$x'\n")
	c.expect("job")
	c.typing(ctrlZ)
	c.expect("Stopped")
	c.typing("echo inside-$((40+2))\n")
	c.expect("inside-42")
	c.typing("fg >/dev/null\n")
	c.typing("hello\n")
	c.expect("got-hello")
	c.typing("suspend\n")
	c.expect("Stopped")
	c.typing("echo outside-$((40+2)); fg >/dev/null; echo code=$?\n")
	c.expect("outside-42")
	c.foregroundIs("bash")
	c.typing("exit 9\n")
	c.expect("code=9")
	c.finish()
}

// Without a shell that could continue it, as from "ssh -t host thenforce run", Ctrl-Z stops nothing.
func TestOrphanedGroup(t *testing.T) {
	t.Parallel()
	c := openConsole(t, "run", "sh", "-c", "stty -echo; trap 'echo cont' CONT; echo ready; while ! read x; do :; done; echo got-$x")
	c.expect("ready")
	c.foregroundIs("sh")
	c.typing(ctrlZ)
	c.expect("cont")
	c.typing("hello\n")
	c.expect("got-hello")
	select {
	case <-c.ended:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

// When the terminal hangs up, the command ends and nothing is left.
func TestHangup(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"run sleep 1000", "run sleep 1000 | cat", "run sleep 1000 &"} {
		c := openShell(t)
		c.typing("cd /; " + line + "\n")
		c.typing("\n")
		eventually(t, "the command", func() bool { return c.running("sleep") })
		c.master.Close()
		eventually(t, "the end of the command", func() bool { return !c.running("sleep") })
	}
}

// running reports whether a program of that name is in the console's session.
func (c *console) running(name string) bool {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range comms {
		comm, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		var pid int
		fmt.Sscanf(path, "/proc/%d/comm", &pid)
		if s, ok := readStat(pid); ok && s.session == c.cmd.Process.Pid {
			return true
		}
	}
	return false
}

func TestOrphaned(t *testing.T) {
	// A session leader's group is orphaned: its parent is in another session.
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	startAndRead(t, cmd)
	if !orphaned(cmd.Process.Pid) {
		t.Error("a new session's group is not orphaned")
	}
	// A child's own group is not, as long as we live.
	cmd = exec.Command("sh", "-c", "sleep 1000 & echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	startAndRead(t, cmd)
	if orphaned(cmd.Process.Pid) {
		t.Error("a child's group is orphaned")
	}
}

func startAndRead(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}
