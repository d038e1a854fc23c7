//go:build vm

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
)

// explained is what explain --json prints, as far as it is looked at here.
type explained struct {
	Outcome engine.Outcome
	Kernel  struct {
		State, Outcome, Code, Object, Jail, Engine, Apart string
		Grant                                             struct{ Path string }
		BugReport                                         *struct {
			Version, Kernel, Mountinfo string
			Jail                       shownJail
		}
	}
}

func explainIt(t *testing.T, id, op, path string) (explained, result) {
	t.Helper()
	var x explained
	r := thenforce(t, "explain", "--json", "--jail", id, "--op", op, path)
	if r.stdout == "" {
		t.Fatalf("%s %s: %v", op, path, r)
	}
	if err := json.Unmarshal([]byte(r.stdout), &x); err != nil {
		t.Fatalf("%s %s: %v in %v", op, path, err, r)
	}
	return x, r
}

// What explain says of a jail is what happens to its tasks, and the engine says so too.
func TestExplainJail(t *testing.T) {
	p := newPlace(t)
	shell := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-e", "-c", script)
		cmd.Dir = p.base
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	shell(`mkdir ro w/none w/sub w/secret ro/dir; echo x | tee ro/file w/file w/none/file w/sub/file w/secret/file
		cp /bin/busybox w/busybox; ln -s ../outside/secret w/out; ln -s sub/file w/in; ln w/file w/hard; mknod w/null c 1 3; mkfifo w/fifo`)
	id := newJail(t, p, newCgroup(t), "--grant", p.base+"/ro:ro", "--grant", p.work+"/none:none", "--deny", "secret", "--deny", "later/one", "--name", "explained")
	paths := []string{
		"file", "hard", "sub", "sub/file", "none", "none/file", "secret", "secret/file", "later", "later/one", "busybox", "out", "in", "null", "fifo",
		"missing", "none/missing", ".", "../outside/secret", p.base + "/ro", p.base + "/ro/file", p.base + "/ro/new", "/", "/etc/passwd", "/etc/shadow",
		"/usr/bin", "/dev/null", "/dev/zero", "/proc/self/status", "/proc/1/status", "/nowhere/at/all", p.outside,
	}
	ops := engine.Ops()
	if os.Getenv("THENFORCE_VM_SOAK") == "" {
		ops = []engine.Op{engine.OpCreate, engine.OpRead}
		if os.Getenv("THENFORCE_VM_SERIES") != "6.12" {
			ops, paths = ops[1:], paths[:16]
		}
	}
	asked := 0
	for _, path := range paths {
		for _, op := range ops {
			x, r := explainIt(t, id, string(op), path)
			k := x.Kernel
			if k.BugReport != nil || r.code == 1 {
				t.Errorf("%s %s: engine %s, kernel %s %s: %s", op, path, k.Engine, k.Outcome, k.Code, r.stderr)
			}
			if k.State == "asked" {
				asked++
				want := map[string]int{"allowed": 0, "denied": 3}[k.Outcome]
				if r.code != want {
					t.Errorf("%s %s: exit code %d for %s", op, path, r.code, k.Outcome)
				}
				if k.Engine == "" {
					t.Logf("%s %s: %s %s, apart: %s", op, path, k.Outcome, k.Code, k.Apart)
				}
			}
		}
	}
	if asked < len(paths)*len(ops)*2/3 {
		t.Errorf("the kernel was asked only %d times", asked)
	}

	// By what the tasks get. With one in the jail, what is asked about is what that one finds.
	if x, r := explainIt(t, id, "read", "/proc/self/status"); x.Kernel.State != "not-asked" || r.code != 3 {
		t.Errorf("/proc/self of no task: %+v %v", x.Kernel, r)
	}
	wantIn(t, id, "sleep 1000 >/dev/null 2>&1 </dev/null & echo started", 0, "started\n")
	for _, row := range []struct{ op, path, script, code, grant string }{
		{"read", "file", "cat file", "ok", p.work},
		{"read", "in", "cat in", "ok", p.work},
		{"read", "out", "cat out", "no-grant", ""},
		{"read", "none/file", "cat none/file", "rights", p.work + "/none"},
		{"read", "secret/file", "cat secret/file", "denied-name", ""},
		{"write", p.base + "/ro/file", "echo y >>" + p.base + "/ro/file", "rights", p.base + "/ro"},
		{"read", p.base + "/ro/file", "cat " + p.base + "/ro/file", "ok", p.base + "/ro"},
		{"exec", "busybox", "./busybox true", "ok", p.work},
		{"create", "sub/new", "echo >sub/new", "ok", p.work},
		{"create", p.outside + "/new", "echo >" + p.outside + "/new", "no-grant", ""},
		{"delete", "sub/file", "rm sub/file", "ok", p.work},
		{"read", "null", "cat null", "device-node", p.work},
		{"read", "/proc/self/status", "cat /proc/self/status", "ok", ""},
		{"create", "none", "mkdir none", "rights", p.work + "/none"},
	} {
		x, _ := explainIt(t, id, row.op, row.path)
		r := thenforce(t, "jail", "exec", id, "--", "sh", "-c", "cd "+p.work+" && "+row.script)
		if x.Kernel.Code != row.code || x.Kernel.Grant.Path != row.grant || (r.code == 0) != (x.Kernel.Code == "ok") {
			t.Errorf("%s %s: %+v, and %s: %v", row.op, row.path, x.Kernel, row.script, r)
		}
	}
	// An expansion counts for both.
	must(t, "jail", "grant", id, p.base+"/ro", "--actions", "write_file", "--reason", "test")
	if x, _ := explainIt(t, id, "write", p.base+"/ro/file"); x.Kernel.Outcome != "allowed" || x.Kernel.Engine != "allowed" {
		t.Errorf("expanded: %+v", x.Kernel)
	}
	r := thenforce(t, "explain", "--jail", "explained", "--op", "write", "none/file")
	if r.code != 3 || !strings.Contains(r.stdout, "\nkernel    denied  rights: ") || !strings.Contains(r.stdout, "by the policy grant on "+p.work+"/none") {
		t.Error(r)
	}

	wantFailure(t, 2, "leave out", "explain", "--jail", id, "--deny", "x", "file")
	wantFailure(t, 1, "no such jail", "explain", "--jail", "nobody", "file")
	wantFailure(t, 2, "--op", "explain", "--jail", id, "--op", "jump", "file")

	// Somebody's hand in what was recorded: engine and kernel do not say the same, and that is reported with everything.
	record := "/run/thenforce/jails/" + id + ".policy.json"
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"path":"`+p.work+`/none"`, `"path":"`+p.work+`/sub"`, 1)
	if err := os.WriteFile(record, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	x, r := explainIt(t, id, "read", "sub")
	if b := x.Kernel.BugReport; r.code != 1 || b == nil || b.Version == "" || b.Kernel == "" || b.Jail.ID != id || len(b.Jail.GrantList) == 0 ||
		!strings.Contains(b.Mountinfo, "/sys/fs/bpf") || !strings.Contains(r.stderr, "disagree") {
		t.Errorf("changed record: %+v %v", x.Kernel, r)
	}
	if r := thenforce(t, "explain", "--jail", id, "sub"); r.code != 1 || !strings.Contains(r.stdout, "DIFFERENCE: the engine says denied and the kernel allowed") {
		t.Error(r)
	}
	if err := os.WriteFile(record, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A jail around the one that is asked has its say, and a jail's own mount namespace shows other things.
func TestExplainJailElsewhere(t *testing.T) {
	p := newPlace(t)
	outer := newCgroup(t)
	around := newJail(t, p, outer, "--deny", "secret")
	inner := filepath.Join(outer, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(inner) })
	os.WriteFile(p.work+"/secret", nil, 0o644)
	id := newJail(t, p, inner, "--grant", p.outside+":ro")
	for path, jail := range map[string]string{"secret": around, p.outside + "/secret": around, "/nowhere": ""} {
		x, _ := explainIt(t, id, "read", path)
		if x.Kernel.Jail != jail || x.Kernel.Outcome == "allowed" || x.Kernel.BugReport != nil {
			t.Errorf("%s: %+v", path, x.Kernel)
		}
	}

	cmd := exec.Command("thenforce", "run", "--name", "apart", "--workspace", p.work, "--", "sh", "-c", "echo x >/tmp/explained; echo ready; read end")
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
	defer func() {
		in.Close()
		cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/tmp/explained"); !errors.Is(err, syscall.ENOENT) {
		t.Fatal(err)
	}
	x, r := explainIt(t, "apart", "read", "/tmp/explained")
	if x.Kernel.Outcome != "allowed" || x.Kernel.Apart == "" || r.code != 0 {
		t.Errorf("in a private /tmp: %+v %v", x.Kernel, r)
	}
	if x, _ := explainIt(t, "apart", "read", p.work); x.Kernel.Outcome != "allowed" || x.Kernel.Engine != "allowed" {
		t.Errorf("the workspace: %+v", x.Kernel)
	}
}

// What differs from jail to jail and from task to task: links that are not followed, a terminal of one's own, entries in
// /proc, and a mode in which nothing is denied. Each answer is compared with what a task gets.
func TestExplainJailByItsTasks(t *testing.T) {
	p := newPlace(t)
	for _, err := range []error{
		os.Mkdir(p.work+"/dir", 0o755), os.WriteFile(p.work+"/dir/file", []byte("x\n"), 0o644),
		os.Symlink("dir", p.work+"/to-dir"), os.Symlink("dir/file", p.work+"/to-file"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	group := newCgroup(t)
	id := newJail(t, p, group, "--no-symlinks")
	inside, monitored := newCgroup(t), ""
	monitored = newJail(t, p, inside, "--mode", "monitor", "--name", "monitored")
	same := func(jail, path, code string) {
		t.Helper()
		x, r := explainIt(t, jail, "read", path)
		got := thenforce(t, "jail", "exec", jail, "--", "cat", filepath.Join(p.work, path))
		if x.Kernel.Code != code || x.Kernel.BugReport != nil || (got.code == 0) != (code == "ok") {
			t.Errorf("%s: %+v %v, and cat: %v", path, x.Kernel, r, got)
		}
	}
	same(id, "dir/file", "ok")
	same(id, "to-file", "forbidden-operation")
	same(id, "to-dir/file", "forbidden-operation")
	same(monitored, "to-file", "ok")
	if r := thenforce(t, "explain", "--jail", id, "to-dir/file"); r.code != 3 || !strings.Contains(r.stdout, "follows none of its own trees") {
		t.Error(r)
	}
	if r := thenforce(t, "explain", "--jail", monitored, p.outside+"/secret"); r.code != 3 || !strings.Contains(r.stdout, "monitor mode, and lets it go") {
		t.Error(r)
	}
	if r := thenforce(t, "jail", "exec", monitored, "--", "cat", p.outside+"/secret"); r.code != 0 {
		t.Error(r)
	}
	if x, _ := explainIt(t, id, "read", "/dev/stdin"); x.Kernel.State != "not-asked" {
		t.Errorf("/dev/stdin of no task: %+v", x.Kernel)
	}

	// The terminal of whoever asks is not a task's; a task's own is.
	d := startOnTerminal(t, exec.Command("sh", "-i"))
	d.send("thenforce explain --jail " + id + " $(tty); echo code=$?\n")
	d.expect(`code=3\r`)
	d.send("sleep 1000 & echo $! >" + group + "/cgroup.procs; thenforce explain --jail " + id + " $(tty); echo code=$?\n")
	d.expect(`code=0\r`)
	d.send("thenforce explain --jail " + id + " --op write /dev/stdout; echo code=$?; kill %1\n")
	d.expect(`code=0\r`)
}
