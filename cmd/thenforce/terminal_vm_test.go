//go:build vm

package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// dialogue is a person at a terminal.
type dialogue struct {
	t    *testing.T
	tty  *os.File
	seen chan []byte
	text strings.Builder
}

func startOnTerminal(t *testing.T, cmd *exec.Cmd) *dialogue {
	t.Helper()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 77})
	if err != nil {
		t.Fatal(err)
	}
	d := &dialogue{t: t, tty: tty, seen: make(chan []byte, 64)}
	go func() {
		defer close(d.seen)
		for {
			buf := make([]byte, 4096)
			n, err := tty.Read(buf)
			if n > 0 {
				d.seen <- buf[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { tty.Close() })
	return d
}

func (d *dialogue) send(text string) {
	d.t.Helper()
	if _, err := d.tty.WriteString(text); err != nil {
		d.t.Fatal(err)
	}
}

// expect waits for a pattern in what came since the last one that was found.
func (d *dialogue) expect(pattern string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(60 * time.Second)
	for {
		if at := re.FindStringIndex(d.text.String()); at != nil {
			rest := d.text.String()[at[1]:]
			d.text.Reset()
			d.text.WriteString(rest)
			return
		}
		select {
		case part, ok := <-d.seen:
			if !ok {
				d.t.Fatalf("the terminal closed before %q; it shows %q", pattern, d.text.String())
			}
			d.text.Write(part)
		case <-deadline:
			d.t.Fatalf("no %q on the terminal; it shows %q", pattern, d.text.String())
		}
	}
}

// A shell in a jail on a terminal behaves as one outside does.
func TestShellOnTerminal(t *testing.T) {
	p := newPlace(t)
	cmd := exec.Command("sh", "-i") // the person's own shell
	cmd.Env = append(os.Environ(), "PS1=outer> ")
	d := startOnTerminal(t, cmd)
	d.expect("outer> ")
	d.send(fmt.Sprintf("PS1='inner> ' thenforce run --quiet --workspace %s -- sh -i\n", p.work))
	d.expect("inner> ")
	d.send("tty; echo x >$(tty) && echo wrote; stty size\n")
	d.expect(`/dev/pts/\d+`)
	d.expect("wrote")
	d.expect("33 77")
	d.send("echo y >/dev/tty && echo again\n")
	d.expect("again")

	// The window's size reaches the jail.
	if err := pty.Setsize(d.tty, &pty.Winsize{Rows: 44, Cols: 99}); err != nil {
		t.Fatal(err)
	}
	d.send("stty size\n")
	d.expect("44 99")

	// Ctrl-C ends what runs in the foreground, and only that.
	d.send("sleep 1000; echo status $?\n")
	time.Sleep(500 * time.Millisecond) // for sleep to be in the foreground; too early, and the shell gets it, as ever
	d.send("\x03")
	d.expect("inner> ")
	d.send("echo alive\n")
	d.expect("alive\r\n")

	// Jobs within the jail.
	d.send("sleep 1001\n")
	time.Sleep(500 * time.Millisecond)
	d.send("\x1a")
	d.expect("Stopped")
	d.send("jobs; kill -9 %1; wait; echo killed\n")
	d.expect("killed\r\n")

	// The secret is out of reach all the while, and leaving gives the person's shell its terminal back.
	d.send("cat " + p.outside + "/secret; exit 5\n")
	d.expect("Permission denied")
	d.expect("outer> ")
	d.send("echo left with $?\n")
	d.expect("left with 5")

	// thenforce itself is a job of the outer shell: stopped and continued with its command.
	d.send(fmt.Sprintf("thenforce run --quiet --workspace %s -- sh -c 'sleep 2; echo finished'\n", p.work))
	time.Sleep(time.Second)
	d.send("\x1a")
	d.expect("Stopped")
	d.expect("outer> ")
	d.send("fg\n")
	d.expect("finished\r\n")
	d.send("exit\n")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	assertNothingLeft(t)
}

// Nobody else's terminal can be typed to. (Those a jail makes itself: TestPromise in pkg/loader.)
func TestTerminalsOfOthers(t *testing.T) {
	p := newPlace(t)
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	r := thenforce(t, "run", "--workspace", p.work, "--", "sh", "-c", "echo typed >"+slave.Name())
	if r.code == 0 || !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf("somebody else's terminal: %v", r)
	}
}

// A workspace below /tmp is where the host has it, though the rest of /tmp is private.
func TestWorkspaceBelowTmp(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "ws-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	beside := dir + "-beside"
	if err := os.WriteFile(beside, []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(beside)
	r := thenforce(t, "run", "--workspace", dir, "--cwd", dir, "--", "sh", "-c",
		"echo kept >kept; echo gone >/tmp/gone; cat /tmp/gone; cat "+beside+"; echo s >/dev/shm/s; cat /dev/shm/s")
	if r.code != 0 || r.stdout != "gone\ns\n" || strings.Contains(r.stdout+r.stderr, secret) {
		t.Error(r)
	}
	if text, err := os.ReadFile(dir + "/kept"); err != nil || string(text) != "kept\n" {
		t.Errorf("the workspace: %q, %v", text, err)
	}
	for _, path := range []string{"/tmp/gone", "/dev/shm/s"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is the host's", path)
		}
	}
	assertNothingLeft(t)
}
