//go:build vm

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var inScope = regexp.MustCompile(`^0::(/system\.slice/thenforce-[0-9a-f]{12}\.scope)/(jail|supervisor)\n$`)

// scopeOf is the unit of a process and its place in it.
func scopeOf(t *testing.T, pid int) (unit, place string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := inScope.FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("process %d is in %q", pid, text)
	}
	return filepath.Base(m[1]), m[2]
}

func property(t *testing.T, unit, name string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "--property="+name, "--value", unit).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// waitUntil gives systemd the time it needs.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 30 s: %s", what)
		}
	}
}

func assertNoScope(t *testing.T, unit string) {
	t.Helper()
	waitUntil(t, unit+" is gone", func() bool { return property(t, unit, "LoadState") == "not-found" })
	if _, err := os.Stat("/sys/fs/cgroup/system.slice/" + unit); err == nil {
		t.Errorf("the cgroup of %s is left", unit)
	}
	assertNothingLeft(t)
}

// begin starts a jailed command that prints its process id first, and gives that.
func begin(t *testing.T, args ...string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command("thenforce", append([]string{"run", "--workspace", newPlace(t).work, "--preset", "system"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	if err == nil {
		_, err = fmt.Sscan(line, &pid)
	}
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return cmd, pid
}

func TestProfileSystemdScope(t *testing.T) {
	cmd, pid := begin(t, "--memory", "64m", "--pids", "20", "--", "sh", "-c", "echo $$; exec sleep 600")
	unit, place := scopeOf(t, pid)
	if place != jailName {
		t.Errorf("the command is in %s/%s", unit, place)
	}
	if own, place := scopeOf(t, cmd.Process.Pid); own != unit || place != supervisorName {
		t.Errorf("thenforce is in %s/%s", own, place)
	}
	if state, delegated := property(t, unit, "ActiveState"), property(t, unit, "Delegate"); state != "active" || delegated != "yes" {
		t.Errorf("%s is %s, delegated: %s", unit, state, delegated)
	}
	jail := "/sys/fs/cgroup/system.slice/" + unit + "/jail/"
	for file, want := range map[string]string{"memory.max": "67108864\n", "pids.max": "20\n"} {
		if text, err := os.ReadFile(jail + file); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v", file, text, err)
		}
	}
	// systemd leaves alone what it delegated.
	if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if again, place := scopeOf(t, pid); again != unit || place != jailName {
		t.Errorf("after a reload the command is in %s/%s", again, place)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	assertNoScope(t, unit)
}

// Killed, thenforce leaves a command that is jailed, in a scope that ends with it.
func TestProfileSystemdScopeOutlivesThenforce(t *testing.T) {
	outside := newPlace(t).outside
	cmd, pid := begin(t, "--", "sh", "-c", "echo $$; until cat "+outside+"/go; do sleep 1; done 2>/dev/null")
	unit, _ := scopeOf(t, pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	waitUntil(t, "thenforce has left its scope", func() bool {
		text, err := os.ReadFile("/sys/fs/cgroup/system.slice/" + unit + "/supervisor/cgroup.procs")
		return err != nil || len(text) == 0
	})
	if err := os.WriteFile(outside+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // the command looks every second
	if again, place := scopeOf(t, pid); again != unit || place != jailName {
		t.Errorf("the command is in %s/%s", again, place)
	}
	if state := property(t, unit, "ActiveState"); state != "active" {
		t.Errorf("%s is %s", unit, state)
	}
	// An administrator ends it as any other unit.
	if out, err := exec.Command("systemctl", "stop", unit).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	assertNoScope(t, unit)
}

// Where systemd cannot be asked, the command runs all the same, in a cgroup of thenforce's own.
func TestProfileSystemdOutOfReach(t *testing.T) {
	const socket = "/run/systemd/private"
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(socket+".away", socket); err != nil {
			t.Error(err)
		}
	})
	r := thenforce(t, "run", "--workspace", newPlace(t).work, "--", "cat", "/proc/self/cgroup")
	if r.code != 0 || !strings.HasPrefix(r.stdout, "0::/thenforce/") || !strings.Contains(r.stderr, "without systemd") {
		t.Error(r)
	}
	assertNothingLeft(t)
}

// The names that internal/cgroup gives.
const (
	jailName       = "jail"
	supervisorName = "supervisor"
)
