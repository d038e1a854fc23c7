package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/thenforce/thenforce/internal/cgroup"
)

var groups atomic.Int64

// newGroup makes a cgroup that must be empty and removable at the end of the test.
func newGroup(t *testing.T) *cgroup.Group {
	t.Helper()
	g, err := cgroup.Create(testRoot, strconv.FormatInt(groups.Add(1), 10), cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := g.Processes(); err != nil || len(left) != 0 {
			t.Errorf("left in the cgroup: %v (%v)", left, err)
			g.Kill()
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		g.Close()
	})
	return g
}

// probeCommand is a Command that runs the probe.
func probeCommand(t *testing.T, args ...string) Command {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Command{
		Args:   append([]string{exe}, args...),
		Env:    append(os.Environ(), partVar+"="+partProbe),
		Cgroup: newGroup(t),
	}
}

// output runs c to its end and returns what it wrote to stdout.
func output(t *testing.T, c Command) (string, Result, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout = w
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	p, err := Start(c)
	w.Close()
	if err != nil {
		return "", Result{}, err
	}
	var out bytes.Buffer
	copied := make(chan struct{})
	go func() {
		io.Copy(&out, r)
		close(copied)
	}()
	res, err := p.Wait()
	<-copied
	return out.String(), res, err
}

// observe runs the probe and returns what it found.
func observe(t *testing.T, c Command) state {
	t.Helper()
	out, res, err := output(t, c)
	if err != nil || res.Code != 0 {
		t.Fatalf("run the probe: %+v, %v, %q", res, err, out)
	}
	var s state
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return s
}

func TestBornInCgroup(t *testing.T) {
	c := probeCommand(t)
	s := observe(t, c)
	if !strings.HasSuffix(c.Cgroup.Path(), s.Cgroup) || s.Cgroup == "/" {
		t.Errorf("the command was in cgroup %q, want %s", s.Cgroup, c.Cgroup.Path())
	}
	if s.Group != s.Pid {
		t.Errorf("the command is %d in process group %d, want one of its own", s.Pid, s.Group)
	}
	if s.Status["NoNewPrivs"] != "0" {
		t.Error("no_new_privs is set without being asked for")
	}
}

// What clone3(2) refuses is no fault of the command.
func TestCgroupRefusal(t *testing.T) {
	c := probeCommand(t)
	if err := os.Mkdir(filepath.Join(c.Cgroup.Path(), "gone"), 0o755); err != nil {
		t.Fatal(err)
	}
	gone, err := cgroup.Open(filepath.Join(c.Cgroup.Path(), "gone"))
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if err := gone.Remove(); err != nil {
		t.Fatal(err)
	}
	c.Cgroup = gone
	_, err = Start(c)
	if err == nil || ExitCode(err) != 125 {
		t.Errorf("start in a cgroup that is gone: %v (exit code %d), want an error of our own", err, ExitCode(err))
	}
	var ce *CommandError
	if errors.As(err, &ce) {
		t.Errorf("the command is blamed: %v", err)
	}
}
