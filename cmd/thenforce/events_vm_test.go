//go:build vm

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thenforce/thenforce/internal/eventlog"
	"golang.org/x/sys/unix"
)

// asFlooder has this program be denied one thing, again and again, for as long as it says.
const asFlooder = "THENFORCE_TEST_FLOODER"

func init() {
	d, err := time.ParseDuration(os.Getenv(asFlooder))
	if err != nil {
		return
	}
	if err := flood(os.Args[1], d); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// flood says that it is ready, waits for a line, opens what is denied, and prints how often it was. From its first line on
// it does nothing else that a jail judges.
func flood(path string, d time.Duration) error {
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	n := 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 64 {
			if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EACCES) {
				return fmt.Errorf("open %s: %d, %v after %d denials", path, fd, err, n)
			}
			n++
		}
	}
	_, err := fmt.Println(n)
	return err
}

// One process is denied as fast as it can be, while nobody reads and while "events --follow" does on the other CPU. Every
// denial is printed by the command or told lost by it, and by status, to the last one. How fast the flooder is besides a reader is
// told, and in make soak held to the half of what it is without; on a machine that does other work that says little.
func TestProfileTwoEventsInFlood(t *testing.T) {
	duration, rounds := 3*time.Second, 1
	if os.Getenv("THENFORCE_VM_SOAK") != "" {
		duration, rounds = 10*time.Second, 3
	}
	var best float64
	for range rounds {
		alone := floodOnce(t, duration, false)
		read := floodOnce(t, duration, true)
		ratio := float64(read) / float64(alone)
		t.Logf("%d denials in %v with no reader, %d with one: %.2f", alone, duration, read, ratio)
		best = max(best, ratio)
	}
	if rounds > 1 && best < 0.5 {
		t.Errorf("with a reader the flooder reaches %.2f of its rate at best", best)
	}
	assertNothingLeft(t)
}

// floodOnce gives the number of denials, all of which are accounted for.
func floodOnce(t *testing.T, d time.Duration, reader bool) uint64 {
	t.Helper()
	p := newPlace(t)
	for _, name := range []string{"events.jsonl", "events.1.jsonl"} {
		if err := os.RemoveAll(filepath.Join(eventlog.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const group = "/sys/fs/cgroup/flood"
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(group)
	r := thenforce(t, "jail", "create", "--cgroup", group, "--workspace", p.work, "--json")
	var jail jailJSON
	if err := json.Unmarshal([]byte(r.stdout), &jail); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	lost := func() uint64 {
		var status struct{ Events struct{ Lost uint64 } }
		r := thenforce(t, "status", "--json")
		if err := json.Unmarshal([]byte(r.stdout), &status); err != nil {
			t.Fatal(err, r)
		}
		return status.Events.Lost
	}
	if n := lost(); n != 0 {
		t.Fatalf("%d events are lost before the flood", n)
	}
	path := p.outside + "/secret"
	events := filepath.Join(p.base, "events")
	stop := func() {}
	if reader {
		stop = follow(t, jail.ID, events)
	}
	counted := startFlooder(t, group, path, d)
	stop()
	if !reader {
		r := thenforce(t, "events", "--json", "--jail", jail.ID)
		if err := os.WriteFile(events, []byte(r.stdout), 0o600); err != nil || r.code != 0 {
			t.Fatal(err, r)
		}
	}
	delivered, told := delivered(t, events, path)
	t.Logf("reader %t: %d denials, %d delivered, %d lost", reader, counted, delivered, told)
	if delivered+told != counted {
		t.Errorf("reader %t: %d delivered and %d lost are not the %d that were denied", reader, delivered, told, counted)
	}
	if n := lost(); n != told {
		t.Errorf("reader %t: status says that %d are lost, events %d", reader, n, told)
	}
	if r := thenforce(t, "jail", "delete", jail.ID); r.code != 0 {
		t.Error(r)
	}
	return counted
}

// startFlooder runs a flooder on the second CPU and gives what it counted.
func startFlooder(t *testing.T, group, path string, d time.Duration) uint64 {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, path)
	cmd.Env = append(os.Environ(), asFlooder+"="+d.String(), "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, 1, cmd)
	answers := bufio.NewReader(out)
	_, started := answers.ReadString('\n')
	err = os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0)
	_, asked := io.WriteString(in, "go\n")
	text, read := io.ReadAll(answers)
	if err := errors.Join(started, err, asked, read, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("the flooder counted %q: %v", text, err)
	}
	return n
}

// follow has "thenforce events" write to a file on the first CPU, until the function that it gives is called.
func follow(t *testing.T, jail, file string) (stop func()) {
	t.Helper()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("thenforce", "events", "--json", "--follow", "--jail", jail)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	startOn(t, 0, cmd)
	time.Sleep(2 * time.Second) // until it reads
	return func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Fatal(err)
		}
	}
}

// startOn starts a command that stays on one CPU: a process has the CPUs of the thread that forks.
func startOn(t *testing.T, cpu int, cmd *exec.Cmd) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	one.Set(cpu)
	err := errors.Join(unix.SchedGetaffinity(0, &all), unix.SchedSetaffinity(0, &one), cmd.Start(), unix.SchedSetaffinity(0, &all))
	if err != nil {
		t.Fatal(err)
	}
}

// delivered adds up the events about a path, and what was lost; another event is an error, for the flooder does nothing else.
func delivered(t *testing.T, file, path string) (n, lost uint64) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e struct {
			eventLine
			Lost uint64
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Path != path && e.Lost == 0 {
			t.Errorf("something else was denied: %s", line)
		}
		n += e.Count
		lost += e.Lost
	}
	return n, lost
}
