//go:build vm

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newCgroup makes an empty cgroup, and removes it at the end with whatever is in it.
func newCgroup(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/sys/fs/cgroup", "jail-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
		var err error
		for range 500 {
			if err = os.Remove(path); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error(err)
	})
	return path
}

// newJail makes a jail on a cgroup, with the workspace of a place, and gives its id.
func newJail(t *testing.T, p place, cgroup string, args ...string) string {
	t.Helper()
	r := thenforce(t, append([]string{"jail", "create", "--cgroup", cgroup, "--workspace", p.work}, args...)...)
	id := strings.TrimSpace(r.stdout)
	if r.code != 0 || len(id) != 12 {
		t.Fatal(r)
	}
	t.Cleanup(func() { exec.Command("thenforce", "jail", "delete", id).Run() })
	return id
}

func inJail(t *testing.T, id, script string) result {
	t.Helper()
	return thenforce(t, "jail", "exec", id, "--", "sh", "-c", script)
}

// wantIn runs a script in a jail and compares what it comes to.
func wantIn(t *testing.T, id, script string, code int, stdout string) {
	t.Helper()
	if r := inJail(t, id, script); r.code != code || r.stdout != stdout {
		t.Errorf("%s: want %d and %q: %v", script, code, stdout, r)
	}
}

func must(t *testing.T, args ...string) result {
	t.Helper()
	r := thenforce(t, args...)
	if r.code != 0 {
		t.Fatalf("%v: %v", args, r)
	}
	return r
}

// wantFailure runs a command that has to fail with a code and one line that says something.
func wantFailure(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	r := thenforce(t, args...)
	if r.code != code || !strings.Contains(r.stderr, says) || strings.Count(r.stderr, "\n") != 1 || r.stdout != "" {
		t.Errorf("%v: want %d and %q: %v", args, code, says, r)
	}
}

func TestJailExec(t *testing.T) {
	p := newPlace(t)
	id := newJail(t, p, newCgroup(t))
	wantIn(t, id, "pwd; echo x >new; cat new", 0, p.work+"\nx\n")
	wantIn(t, id, "cat "+p.outside+"/secret", 1, "")
	wantIn(t, id, "exit 7", 7, "")
	wantIn(t, id, "kill -KILL $$", 137, "")
	if r := thenforce(t, "jail", "exec", id, "--user", "dev", "--", "id", "-u"); r.code != 0 || r.stdout != "1000\n" {
		t.Error(r)
	}
	wantFailure(t, 127, "no-such-command", "jail", "exec", id, "--", "no-such-command")
	wantFailure(t, 125, "takes a jail and a command", "jail", "exec", id)
	wantFailure(t, 125, "no such jail", "jail", "exec", "nobody", "--", "true")
	// What it has started stays in the jail.
	wantIn(t, id, "sleep 1000 >/dev/null 2>&1 </dev/null & echo started", 0, "started\n")
	show := showJail(t, id)
	if show.State != "armed" || show.Denials == 0 {
		t.Errorf("%+v", show)
	}
	must(t, "jail", "delete", id)
	wantFailure(t, 125, "no such jail", "jail", "exec", id, "--", "cat", p.outside+"/secret")
}

type shownJail struct {
	ID, Name, Parent, Mode, State, Workspace string
	Grants                                   int
	Denials                                  uint64
	GrantList                                []struct {
		Path, Rights, Source, ExpansionID string
		Expires                           *time.Time
	}
	Denied  []string
	Caveats []struct {
		PID        int
		Kind, Path string
	}
}

func showJail(t *testing.T, id string) shownJail {
	t.Helper()
	var out shownJail
	if err := json.Unmarshal([]byte(must(t, "jail", "show", "--json", id).stdout), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestJailGrantAndRevoke(t *testing.T) {
	p := newPlace(t)
	id := newJail(t, p, newCgroup(t), "--workspace-rights", "rx", "--deny", "denied", "--name", "grants")
	os.Mkdir(p.work+"/dist", 0o755)
	wantIn(t, "grants", "echo x >dist/a", 1, "")
	write := strings.TrimSpace(must(t, "jail", "grant", "grants", p.work+"/dist", "--actions", "write_file", "--reason", "a release").stdout)
	wantIn(t, id, "echo x >dist/a && cat dist/a", 0, "x\n")
	wantIn(t, id, "rm dist/a 2>/dev/null || echo no", 0, "no\n")
	remove := strings.TrimSpace(must(t, "jail", "grant", id, p.work+"/dist", "--actions", "delete,list_dir", "--expires", "1h", "--reason", "a release").stdout)
	wantIn(t, id, "rm dist/a && echo yes", 0, "yes\n")

	show := showJail(t, id)
	var found []string
	for _, g := range show.GrantList {
		if g.Source == "expansion" {
			found = append(found, fmt.Sprintf("%s %s %s %v", g.ExpansionID, g.Path, g.Rights, g.Expires != nil))
		}
	}
	want := []string{write + " " + p.work + "/dist =wc false", remove + " " + p.work + "/dist =rd true"}
	if fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", found, want)
	}
	if r := must(t, "jail", "show", id); !strings.Contains(r.stdout, "expansion "+write) {
		t.Error(r)
	}

	must(t, "jail", "revoke", id, write)
	wantIn(t, id, "echo x >dist/a", 1, "")
	wantFailure(t, 1, "revoked before", "jail", "revoke", id, write)
	wantFailure(t, 1, "there is none", "jail", "revoke", id, "0000000000000001")
	must(t, "jail", "revoke", id, remove)

	short := strings.TrimSpace(must(t, "jail", "grant", id, p.work+"/dist", "--actions", "write_file", "--expires", "4s", "--reason", "soon over").stdout)
	wantIn(t, id, "echo x >dist/a && echo yes", 0, "yes\n")
	time.Sleep(4 * time.Second)
	wantIn(t, id, "echo x >dist/a", 1, "")
	for _, g := range showJail(t, id).GrantList {
		if g.ExpansionID == short {
			t.Error("an expansion that has expired is shown")
		}
	}

	if err := os.Symlink(p.outside, p.work+"/link"); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, 1, "leads through a symbolic link to "+p.outside, "jail", "grant", id, p.work+"/link", "--actions", "read_file", "--reason", "x")
	wantFailure(t, 1, "replace the policy instead", "jail", "grant", id, p.outside, "--actions", "read_file", "--reason", "x")
	wantFailure(t, 1, "no such file", "jail", "grant", id, p.work+"/nowhere", "--actions", "read_file", "--reason", "x")
	wantFailure(t, 2, "use some of read_file", "jail", "grant", id, p.work, "--actions", "read", "--reason", "x")
	wantFailure(t, 2, "--reason is missing", "jail", "grant", id, p.work, "--actions", "read_file")
	wantFailure(t, 2, "above 0", "jail", "grant", id, p.work, "--actions", "read_file", "--reason", "x", "--expires", "0s")
}

// A list says which jail is around which, and so does a jail by itself.
func TestJailInJailIsShown(t *testing.T) {
	p := newPlace(t)
	group := newCgroup(t)
	inside := filepath.Join(group, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(inside) })
	outer := newJail(t, p, group)
	inner := newJail(t, p, inside)
	parents := map[string]string{}
	for line := range strings.Lines(must(t, "jail", "list", "--json").stdout) {
		var j shownJail
		if err := json.Unmarshal([]byte(line), &j); err != nil {
			t.Fatal(err)
		}
		parents[j.ID] = j.Parent
	}
	if len(parents) != 2 || parents[outer] != "" || parents[inner] != outer {
		t.Errorf("%s in %s: the list says %v", inner, outer, parents)
	}
	var row []string
	for line := range strings.Lines(must(t, "jail", "list").stdout) {
		if words := strings.Fields(line); words[0] == inner {
			row = words
		}
	}
	if len(row) < 2 || row[1] != outer { // it has no name
		t.Errorf("the table says %q", row)
	}
	if show := showJail(t, inner); show.Parent != outer {
		t.Errorf("%+v", show)
	}
	for id, want := range map[string]bool{inner: true, outer: false} {
		if r := must(t, "jail", "show", id); strings.Contains(r.stdout, "inside     "+outer+"\n") != want {
			t.Errorf("inside: want %v: %v", want, r)
		}
	}
	must(t, "jail", "delete", outer)
	if show := showJail(t, inner); show.Parent != "" {
		t.Errorf("with nothing around it any more: %+v", show)
	}
}

func TestJailModeAndReplace(t *testing.T) {
	p := newPlace(t)
	id := newJail(t, p, newCgroup(t))
	denied := "cat " + p.outside + "/secret 2>/dev/null || echo denied"
	wantIn(t, id, denied, 0, "denied\n")
	must(t, "jail", "mode", id, "monitor")
	wantIn(t, id, denied, 0, secret+"\n")
	if show := showJail(t, id); show.Mode != "monitor" {
		t.Errorf("%+v", show)
	}
	must(t, "jail", "mode", id, "enforce")
	wantIn(t, id, denied, 0, "denied\n")
	wantFailure(t, 2, "use enforce or monitor", "jail", "mode", id, "watch")

	file := filepath.Join(p.base, "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\nworkspace: w\nworkspaceRights: ro\ngrants:\n- {path: ../outside, rights: ro, reason: to look}\ndeny: [.env]\n")
	must(t, "jail", "replace", id, "--policy", file)
	wantIn(t, id, denied, 0, secret+"\n")
	wantIn(t, id, "echo x >new", 1, "")
	if show := showJail(t, id); show.Mode != "enforce" || len(show.Denied) != 1 || show.Denied[0] != p.work+"/.env" {
		t.Errorf("%+v", show)
	}
	write("version: 1\nworkspace: w\ngrants:\n- {path: ../nowhere, rights: ro}\n")
	wantFailure(t, 1, "policy.yaml:4:10: grants[0].path", "jail", "replace", id, "--policy", file)
	write("version: 1\nworkspace: w\nresources: {pids: 10}\n")
	wantFailure(t, 1, "policy.yaml:3:12: resources: cannot be limited", "jail", "replace", id, "--policy", file)
	wantFailure(t, 2, "--policy is missing", "jail", "replace", id)
	wantIn(t, id, denied, 0, secret+"\n") // as before
	if r := thenforce(t, "status"); r.code != 0 {
		t.Error(r)
	}
}

// A run's jail keeps its private /tmp when its policy is replaced.
func TestReplacePolicyOfARun(t *testing.T) {
	p := newPlace(t)
	cmd := exec.Command("thenforce", "run", "--name", "replaced", "--workspace", p.work, "--", "sh", "-c",
		"echo ready; read line; echo x >/tmp/own && cat /tmp/own "+p.outside+"/secret")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil || line != "ready" {
		t.Fatal(line, err)
	}
	must(t, "jail", "replace", "replaced", "--workspace", p.work, "--grant", p.outside+":ro")
	fmt.Fprintln(in, "go")
	var first, second string
	fmt.Fscanln(out, &first)
	fmt.Fscanln(out, &second)
	if err := cmd.Wait(); err != nil || first != "x" || second != secret {
		t.Errorf("%q %q, %v", first, second, err)
	}
}

// Tasks that were there before keep what they hold, and jail show tells.
func TestJailCaveats(t *testing.T) {
	p := newPlace(t)
	cgroup := newCgroup(t)
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("sh", "-c", "exec 7<"+p.outside+"/secret 8<"+p.work+"; sleep 1000")
	cmd.Dir = p.outside
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/fd/8", cmd.Process.Pid)); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the shell did not start")
		}
	}
	r := must(t, "jail", "create", "--cgroup", cgroup, "--workspace", p.work)
	id := strings.TrimSpace(r.stdout)
	t.Cleanup(func() { exec.Command("thenforce", "jail", "delete", id).Run() })
	if !strings.Contains(r.stderr, "that it would not let them open") {
		t.Error(r)
	}
	found := map[string]bool{}
	for _, c := range showJail(t, id).Caveats {
		if c.PID == cmd.Process.Pid {
			found[c.Kind+" "+c.Path] = true
		}
	}
	for _, want := range []string{"cwd " + p.outside, "fd " + p.outside + "/secret"} {
		if !found[want] {
			t.Errorf("%s is not told: %v", want, found)
		}
	}
	for what := range found {
		if strings.Contains(what, p.work) || strings.HasPrefix(what, "root") {
			t.Errorf("%s is told", what)
		}
	}
}

// run takes everything a policy file says.
func TestRunWithPolicyFile(t *testing.T) {
	must(t, "status", "--verify") // the time that a grant has begins before the programs are loaded
	p := newPlace(t)
	file := filepath.Join(p.base, "policy.yaml")
	text := `version: 1
workspace: w
workspaceRights: rwx
grants:
  - {path: ../outside, rights: ro, expires: 15s}
  - {path: ../nowhere, rights: ro, optional: true}
deny: [.env]
resources: {memory: 64MiB, pids: 40, cpus: 0.5}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(p.work+"/.env", []byte("SECRET=1\n"), 0o644)
	// The time of a grant begins when the policy is read: loading and proving the programs is not to be part of it.
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	script := `cat ../outside/secret; cat .env || echo denied
		while cat ../outside/secret >/dev/null; do sleep 1; done; echo expired`
	r := thenforce(t, "run", "--policy", file, "--cwd", p.work, "--", "sh", "-c", script)
	if r.code != 0 || r.stdout != secret+"\ndenied\nexpired\n" {
		t.Error(r)
	}
	limits := thenforce(t, "run", "--policy", file, "--pids", "50", "--grant", "/sys/fs/cgroup:ro", "--cwd", p.work, "--", "sh", "-c",
		"cd /sys/fs/cgroup$(sed -n s/0:://p /proc/self/cgroup) && cat memory.max pids.max cpu.max")
	if limits.code != 0 || limits.stdout != strconv.Itoa(64<<20)+"\n50\n50000 100000\n" {
		t.Error(limits)
	}
	assertNothingLeft(t)
}

// An expansion ends by the time since boot: no process is alive, and setting the clock moves nothing.
func TestExpiryByTimeSinceBoot(t *testing.T) {
	p := newPlace(t)
	id := newJail(t, p, newCgroup(t), "--workspace-rights", "rx")
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	t.Cleanup(func() {
		real := time.Unix(now.Unix()).Add(time.Since(start))
		ts := unix.NsecToTimespec(real.UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Error(err)
		}
	})
	set := func(by time.Duration) {
		t.Helper()
		ts := unix.NsecToTimespec(time.Unix(now.Unix()).Add(time.Since(start) + by).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Fatal(err)
		}
	}
	// The process in the jail is there before: no command of thenforce runs from the grant to the end.
	cmd := exec.Command("thenforce", "jail", "exec", id, "--", "sh", "-c", "while read line; do if echo x >f; then echo yes; else echo no; fi; done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	try := func(when, want string) {
		t.Helper()
		var got string
		fmt.Fprintln(in, "try")
		if _, err := fmt.Fscanln(out, &got); err != nil || got != want {
			t.Errorf("%s: got %q (%v), want %q", when, got, err, want)
		}
	}
	try("before", "no")
	const life = 8 * time.Second
	granted := time.Now()
	must(t, "jail", "grant", id, p.work, "--actions", "write_file", "--expires", life.String(), "--reason", "a test")
	over := time.Now().Add(life)
	try("granted", "yes")
	set(-24 * time.Hour)
	try("with the clock a day back", "yes")
	set(24 * time.Hour)
	if time.Since(granted) < life-time.Second {
		try("with the clock a day ahead", "yes")
	}
	set(-24 * time.Hour)
	time.Sleep(time.Until(over) + 100*time.Millisecond)
	try("when its time is over, with the clock a day back", "no")
	// The journal, which goes by the clock, still has it as active: the next command puts that right.
	r := thenforce(t, "jail", "list")
	if r.code != 0 || !strings.Contains(r.stderr, "has expired by the time since boot, and not by the clock, which was set back: revoked") {
		t.Error(r)
	}
	if r := thenforce(t, "jail", "list"); r.code != 0 || r.stderr != "" {
		t.Errorf("a second time: %v", r)
	}
	try("after that", "no")
}

// A time namespace has a clock of its own, and an expansion ends by the kernel's.
func TestProfileFullTimeNamespace(t *testing.T) {
	p := newPlace(t)
	if err := errors.Join(os.Mkdir(p.base+"/ro", 0o755), os.WriteFile(p.base+"/ro/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	id := newJail(t, p, newCgroup(t), "--grant", p.base+"/ro:ro")
	for _, start := range []string{"0", "1000000"} {
		cmd := exec.Command("unshare", "--time", "--boottime", start, "--fork", "thenforce", "jail", "grant", id, p.base+"/ro/file",
			"--actions", "write_file", "--expires", "4s", "--reason", "a test")
		if r := finish(t, cmd); r.code != 0 {
			t.Fatal(r)
		}
		wantIn(t, id, "echo >>"+p.base+"/ro/file && echo wrote", 0, "wrote\n")
		time.Sleep(5 * time.Second)
		wantIn(t, id, "echo >>"+p.base+"/ro/file || echo denied", 0, "denied\n")
	}
}
