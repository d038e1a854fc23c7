package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for something that has to come.
const patience = 30 * time.Second

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// alive reports whether a process is there and not a zombie.
func alive(pid int) bool {
	_, ok := readStat(pid)
	return ok
}

// frontProcess is the front end as a process of its own, for what concerns a whole process.
type frontProcess struct {
	cmd    *exec.Cmd
	dir    string // Has the files report and started.
	parent string // The cgroup that it makes its own in, gone at its end.
	pipe   *os.File
	out    *bufio.Reader // Of pipe.
	stderr bytes.Buffer
}

func newFront(t *testing.T, flags ...string) *frontProcess {
	t.Helper()
	f := &frontProcess{dir: t.TempDir(), parent: filepath.Join(newGroup(t).Path(), "folder")}
	flags = append([]string{"-parent", f.parent, "-report", filepath.Join(f.dir, "report"),
		"-started", filepath.Join(f.dir, "started")}, flags...)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f.cmd = exec.Command(exe, flags...)
	f.cmd.Env = append(os.Environ(), partVar+"="+partFront)
	f.cmd.Stderr = &f.stderr
	t.Cleanup(func() {
		if f.cmd.Process != nil {
			f.cmd.Process.Kill()
			f.cmd.Wait()
		}
		if t.Failed() && f.stderr.Len() > 0 {
			t.Logf("stderr: %s", &f.stderr)
		}
	})
	return f
}

// command appends what the front end shall run; without a path it is the probe.
func (f *frontProcess) command(args ...string) {
	if len(args) == 0 || !strings.HasPrefix(args[0], "/") {
		exe, err := os.Executable()
		if err != nil {
			panic(err)
		}
		args = append([]string{exe}, args...)
	}
	f.cmd.Args = append(f.cmd.Args, args...)
}

func (f *frontProcess) start(t *testing.T) {
	t.Helper()
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.pipe = out.(*os.File)
	f.out = bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// line returns the next line that the command prints.
func (f *frontProcess) line(t *testing.T) string {
	t.Helper()
	f.pipe.SetReadDeadline(time.Now().Add(patience))
	line, err := f.out.ReadString('\n')
	if err != nil {
		t.Fatalf("read a line of the command: %v, %s", err, &f.stderr)
	}
	return strings.TrimSuffix(line, "\n")
}

// pid returns the command's process id.
func (f *frontProcess) pid(t *testing.T) int {
	t.Helper()
	var pid int
	eventually(t, "the command's pid", func() bool {
		data, err := os.ReadFile(filepath.Join(f.dir, "started"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(string(data))
		return err == nil
	})
	return pid
}

// wait waits for the front end's end, and returns its exit code and what it reported. Its cgroup must be gone.
func (f *frontProcess) wait(t *testing.T) (int, Result) {
	t.Helper()
	f.pipe.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, f.out); err != nil {
		t.Fatalf("wait for the end: %v, %s", err, &f.stderr)
	}
	f.cmd.Wait()
	if _, err := os.Stat(f.parent); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cgroup was left behind in %s (%v)", f.parent, err)
	}
	var r Result
	data, err := os.ReadFile(filepath.Join(f.dir, "report"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.cmd.ProcessState.ExitCode(), r
}

func (f *frontProcess) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := f.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// state runs the probe to its end and returns what it found.
func (f *frontProcess) state(t *testing.T) state {
	t.Helper()
	f.start(t)
	var s state
	if err := json.NewDecoder(f.out).Decode(&s); err != nil {
		t.Fatalf("%v, %s", err, &f.stderr)
	}
	if code, _ := f.wait(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	return s
}
