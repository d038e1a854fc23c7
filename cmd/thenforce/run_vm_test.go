//go:build vm

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These tests run the built thenforce, found on PATH, as its user does, on a real kernel.

// result is what one call of thenforce came to.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
}

func thenforce(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, exec.Command("thenforce", args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// place is a workspace with an outside that holds a secret.
type place struct {
	base, work, outside string
}

const secret = "SECRET-OF-THE-OUTSIDE"

func newPlace(t *testing.T) place {
	t.Helper()
	base, err := os.MkdirTemp("/", "place-") // not below /tmp: that is private in a run
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	p := place{base, filepath.Join(base, "w"), filepath.Join(base, "outside")}
	for _, dir := range []string{p.work, p.outside, p.work + "-evil"} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		os.Chmod(dir, 0o777)
	}
	for _, file := range []string{p.outside + "/secret", p.work + "-evil/secret"} {
		if err := os.WriteFile(file, []byte(secret+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

type eventLine struct {
	Time                                          time.Time
	Jail, Comm, Hook, Op, Path, Errno, Code, Mode string
	PID                                           uint32
	Count                                         uint64
}

// eventsSince gives the events after an instant. (--since counts back from when thenforce looks, which is later.)
func eventsSince(t *testing.T, start time.Time) []eventLine {
	t.Helper()
	r := thenforce(t, "events", "--json")
	if r.code != 0 {
		t.Fatal(r)
	}
	var events []eventLine
	for line := range strings.Lines(r.stdout) {
		var e eventLine
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Time.After(start) {
			events = append(events, e)
		}
	}
	return events
}

// assertNothingLeft checks that no jail, cgroup, pin staging or temporary folder survived a run.
func assertNothingLeft(t *testing.T) {
	t.Helper()
	if r := thenforce(t, "jail", "list", "--json"); r.code != 0 || r.stdout != "" {
		t.Errorf("jails left: %v", r)
	}
	if _, err := os.Stat("/sys/fs/cgroup/thenforce"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cgroup left: %v", err)
	}
	for _, dir := range []string{"/run/thenforce", "/run/thenforce/jails"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "lock" && e.Name() != "jails" {
				t.Errorf("left in %s: %s", dir, e.Name())
			}
		}
	}
	entries, _ := os.ReadDir("/sys/fs/bpf/thenforce")
	for _, e := range entries {
		if e.Name() != "v1" {
			t.Errorf("pins left: %s", e.Name())
		}
	}
}

func TestRunConfines(t *testing.T) {
	p := newPlace(t)
	start := time.Now()
	script := fmt.Sprintf("echo ok >%[1]s/new; cat %[1]s/new; cat %[2]s/secret", p.work, p.outside)
	r := thenforce(t, "run", "--workspace", p.work, "--", "sh", "-c", script)
	if r.code != 1 { // cat's, and so the shell's
		t.Errorf("want exit code 1: %v", r)
	}
	if r.stdout != "ok\n" || !strings.Contains(r.stderr, "Permission denied") {
		t.Error(r)
	}
	events := eventsSince(t, start)
	if len(events) != 1 {
		t.Fatalf("want one event: %+v", events)
	}
	e := events[0]
	if e.Path != p.outside+"/secret" || e.Comm != "cat" || e.PID == 0 || e.Code != "no-grant" || e.Errno != "EACCES" ||
		e.Op != "read" || e.Hook != "file_open" || e.Mode != "enforce" || e.Count != 1 {
		t.Errorf("event: %+v", e)
	}
	assertNothingLeft(t)
}

// Every way to name an outside object comes to the same object.
func TestRunConfinesHoweverNamed(t *testing.T) {
	p := newPlace(t)
	for name, target := range map[string]string{
		"link": p.outside + "/secret", "dirlink": p.outside, "rellink": "../outside/secret", "self": "/proc/self/root" + p.outside + "/secret",
	} {
		if err := os.Symlink(target, filepath.Join(p.work, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{
		"link", "dirlink/secret", "rellink", "self",
		"../outside/secret", "./../w/../outside/secret", p.outside + "/secret",
		"/proc/self/root" + p.outside + "/secret", "/proc/self/cwd/../outside/secret", "/proc/thread-self/root" + p.outside + "/secret",
		p.work + "-evil/secret",
	} {
		start := time.Now()
		r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c", `cat "$1"; exit 7`, "sh", path)
		if r.code != 7 || strings.Contains(r.stdout, secret) || !strings.Contains(r.stderr, "Permission denied") {
			t.Errorf("%s: %v", path, r)
		}
		want := p.outside + "/secret"
		if strings.HasPrefix(path, p.work+"-evil") {
			want = path
		}
		if events := eventsSince(t, start); len(events) != 1 || events[0].Path != want {
			t.Errorf("%s: events %+v", path, events)
		}
	}
}

// Whatever changes something outside is denied, and changes nothing.
func TestRunDeniesEveryChange(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.outside+"/dir", 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, p.outside)
	os.WriteFile(p.work+"/mine", []byte("mine\n"), 0o644)
	for _, test := range []struct{ command, op, path string }{
		{"echo x >../outside/new", "create", "/outside/new"},
		{"echo x >>../outside/secret", "write", "/outside/secret"},
		{": >../outside/secret", "write", "/outside/secret"},
		{"mkdir ../outside/d", "create", "/outside/d"},
		{"ln -s x ../outside/l", "create", "/outside/l"},
		{"mkfifo ../outside/p", "create", "/outside/p"},
		{"mknod n c 1 3", "create", "/w/n"},
		{"rm -f ../outside/secret", "delete", "/outside/secret"},
		{"rmdir ../outside/dir", "delete", "/outside/dir"},
		{"ln mine ../outside/l", "link", "/outside/l"},
		{"ln ../outside/secret l", "link", "/outside/secret"},
		{"mv mine ../outside/mine", "rename", "/outside/mine"},
		{"mv ../outside/secret s", "rename", "/outside/secret"},
		{"mv -f mine ../outside/secret", "rename", "/outside/secret"},
		{"chmod 666 ../outside/secret", "attributes", "/outside/secret"},
		{"chown 1 ../outside/secret", "attributes", "/outside/secret"},
		{"truncate -s 0 ../outside/secret", "write", "/outside/secret"},
		{"mv ../w ../v", "rename", "/w"}, // the workspace itself is not the jail's to move
		{"rmdir ../w", "delete", "/w"},
	} {
		start := time.Now()
		r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c", test.command)
		if r.code == 0 {
			t.Errorf("%s: it succeeded: %v", test.command, r)
		}
		events := eventsSince(t, start)
		if len(events) == 0 || events[0].Op != test.op || events[0].Path != p.base+test.path || events[0].Errno != "EACCES" {
			t.Errorf("%s: events %+v, want %s of %s; %v", test.command, events, test.op, p.base+test.path, r)
		}
		if after := tree(t, p.outside); after != before {
			t.Errorf("%s: the outside changed from\n%sto\n%s", test.command, before, after)
		}
	}
	if text, err := os.ReadFile(p.work + "/mine"); err != nil || string(text) != "mine\n" {
		t.Errorf("the jail's own file: %q, %v", text, err)
	}
}

// tree lists a directory so that every change shows.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d links %d\n", path, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Work inside is not hindered.
func TestRunWorksInside(t *testing.T) {
	p := newPlace(t)
	script := `set -e
mkdir -p a/b; echo one >a/b/f; ln a/b/f a/g; ln -s b/f a/s; cat a/s; mv a/g a/h; mv a c; cat c/h
chmod 700 c; truncate -s 1 c/h; rm c/h; rm -r c; mkfifo p; rm p
echo x >/dev/null; cat /dev/null; head -c 4 /dev/urandom >r; rm r
echo t >/tmp/t; cat /tmp/t; cat /proc/self/comm; cat /proc/$$/comm; cat /proc/cpuinfo >/dev/null
echo piped | cat /dev/stdin; echo out >/dev/stdout; ls /dev/fd >/dev/null || true
`
	r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c", script)
	if want := "one\none\nt\ncat\nsh\npiped\nout\n"; r.code != 0 || r.stdout != want || r.stderr != "" {
		t.Errorf("%v\nwant %q", r, want)
	}
}

// firstOpen is a program whose very first instructions open a file: no loader, no runtime. It exits with the errno.
func firstOpen(path string) []byte {
	const base, header = 0x400000, 64 + 56
	code := []byte{
		0x48, 0x8d, 0x3d, 0, 0, 0, 0, // lea rdi, [rip+path]
		0x31, 0xf6, // xor esi, esi (O_RDONLY)
		0xb8, 2, 0, 0, 0, // mov eax, open
		0x0f, 0x05, // syscall
		0x89, 0xc7, // mov edi, eax
		0xf7, 0xdf, // neg edi
		0xb8, 60, 0, 0, 0, // mov eax, exit
		0x0f, 0x05, // syscall
	}
	code[3] = byte(len(code) - 7)
	body := append(append(code, path...), 0)
	var b bytes.Buffer
	le := func(size int, v uint64) {
		for range size {
			b.WriteByte(byte(v))
			v >>= 8
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	le(2, 2)
	le(2, 62)
	le(4, 1)
	le(8, base+header)
	le(8, 64)
	le(8, 0)
	le(4, 0)
	le(2, 64)
	le(2, 56)
	le(2, 1)
	le(6, 0)
	le(4, 1) // PT_LOAD
	le(4, 5) // r-x
	le(8, 0)
	le(8, base)
	le(8, base)
	le(8, uint64(header+len(body)))
	le(8, uint64(header+len(body)))
	le(8, 0x1000)
	b.Write(body)
	return b.Bytes()
}

func TestNotEvenTheFirstInstructionIsFree(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"early"} {
		if err := os.WriteFile(filepath.Join(p.work, name), firstOpen(p.outside+"/secret"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Outside a jail it opens: exit code 256 - the descriptor.
	free := exec.Command(p.work + "/early")
	if r := finish(t, free); r.code < 200 {
		t.Fatalf("outside a jail the program must open the file: %v", r)
	}
	for range 20 {
		if r := thenforce(t, "run", "--workspace", p.work, "--", p.work+"/early"); r.code != int(unix.EACCES) {
			t.Fatalf("want errno %d as exit code: %v", unix.EACCES, r)
		}
	}
}

// The exec of CMD is judged as well.
func TestRunJudgesItsOwnExec(t *testing.T) {
	p := newPlace(t)
	prog := p.outside + "/prog"
	if err := os.WriteFile(prog, firstOpen("/"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := thenforce(t, "run", "--workspace", p.work, "--", prog)
	if r.code != 126 || !strings.Contains(r.stderr, "--grant "+p.outside+":rx") {
		t.Errorf("want 126 and the grant to add: %v", r)
	}
	if r := thenforce(t, "run", "--workspace", p.work, "--grant", p.outside+":rx", "--", prog); r.code != int(unix.EACCES) {
		t.Errorf("with the grant: %v", r)
	}
	if r := thenforce(t, "run", "--workspace", p.work, "--", "no-such-command"); r.code != 127 {
		t.Errorf("want 127: %v", r)
	}
	assertNothingLeft(t)
}

// A process in a child cgroup that is made after the start is in the jail too.
func TestChildCgroupMadeLater(t *testing.T) {
	p := newPlace(t)
	cmd := exec.Command("thenforce", "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c",
		`echo $$ >pid; while [ ! -e go ]; do sleep 0.05; done; cat /proc/self/cgroup; cat ../outside/secret`)
	done := make(chan result, 1)
	go func() { done <- finish(t, cmd) }()
	pid := strings.TrimSpace(waitFor(t, p.work+"/pid"))
	list := thenforce(t, "jail", "list", "--json")
	var jail struct{ Cgroup string }
	if err := json.Unmarshal([]byte(list.stdout), &jail); err != nil {
		t.Fatalf("%v: %v", err, list)
	}
	// A chain of them: each inherits from the one before. Controllers are not enabled, so processes may be anywhere.
	child := jail.Cgroup
	for _, name := range []string{"a", "b", "c"} {
		child = filepath.Join(child, name)
		if err := os.Mkdir(child, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(child+"/cgroup.procs", []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.work+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := <-done
	if r.code != 1 || !strings.Contains(r.stdout, "/a/b/c") || strings.Contains(r.stdout, secret) || !strings.Contains(r.stderr, "Permission denied") {
		t.Error(r)
	}
	assertNothingLeft(t)
}

// waitFor gives the content of a file once it is there and not empty.
func waitFor(t *testing.T, path string) string {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(text), "\n") {
			return string(text)
		}
	}
	t.Fatalf("%s did not appear", path)
	return ""
}

// Deep trees work at the bottom and are judged there.
func TestThreeHundredDirectoriesDeep(t *testing.T) {
	p := newPlace(t)
	deep := strings.Repeat("/d", 300)
	for _, root := range []string{p.work, p.outside} {
		if err := os.MkdirAll(root+deep, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+deep+"/file", []byte(secret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work+deep, "--", "sh", "-c",
		"echo deep >new && cat new file; cat "+p.outside+deep+"/file")
	if r.code != 1 || r.stdout != "deep\n"+secret || !strings.Contains(r.stderr, "Permission denied") {
		t.Error(r)
	}
	events := eventsSince(t, start)
	if len(events) != 1 || events[0].Path != p.outside+deep+"/file" {
		t.Errorf("events: %+v", events)
	}
}

func TestUserDropsEverything(t *testing.T) {
	p := newPlace(t)
	r := thenforce(t, "run", "--workspace", p.work, "--user", "1000:1000", "--", "sh", "-c",
		`id -u; id -G; grep -E '^(Cap|NoNewPrivs|Groups)' /proc/self/status; echo mine >`+p.work+`/f; echo "$HOME $USER"`)
	if r.code != 0 {
		t.Fatal(r)
	}
	lines := strings.Split(r.stdout, "\n")
	if lines[0] != "1000" || lines[1] != "1000" {
		t.Errorf("user and groups: %v", lines[:2])
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.HasPrefix(name, "Cap") && strings.Trim(value, "0") != "":
			t.Errorf("capabilities are left: %s", line)
		case name == "NoNewPrivs" && value != "1":
			t.Errorf("privileges can be gained: %s", line)
		case name == "Groups" && value != "1000" && value != "":
			t.Errorf("groups are left: %s", line)
		}
	}
	if !strings.Contains(r.stdout, "/home/dev dev") {
		t.Errorf("HOME and USER: %s", r.stdout)
	}
	var st unix.Stat_t
	if err := unix.Stat(p.work+"/f", &st); err != nil || st.Uid != 1000 {
		t.Errorf("owner of what it made: %d, %v", st.Uid, err)
	}
	// A name brings the groups of the database and none of root's.
	if r := thenforce(t, "run", "--workspace", p.work, "--user", "nobody", "--", "id", "-G"); strings.Contains(" "+r.stdout, " 0") {
		t.Errorf("group 0 is left: %v", r)
	}
}

func TestBadWorkspaces(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.base+"/locked", 0o700); err != nil {
		t.Fatal(err)
	}
	eio := brokenFileSystem(t)
	// Something that works first, so that what is loaded and pinned is not counted as left behind.
	if r := thenforce(t, "run", "--workspace", p.work, "--", "true"); r.code != 0 {
		t.Fatal(r)
	}
	before := tree(t, "/sys/fs/bpf") + mounts(t)
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"missing", []string{"--workspace", p.base + "/nope"}, []string{p.base + "/nope", "no such file"}},
		{"a file", []string{"--workspace", p.outside + "/secret"}, []string{p.outside + "/secret", "not a directory"}},
		{"not searchable", []string{"--workspace", p.base + "/locked", "--user", "1000:1000"}, []string{p.base + "/locked", "permission denied"}},
		{"I/O error", []string{"--workspace", eio + "/dir"}, []string{eio, "input/output error"}},
		{"empty", []string{"--workspace", ""}, []string{"--workspace", "empty"}},
	} {
		args := append(append([]string{"run"}, test.args...), "--", "true")
		cmd := exec.Command("thenforce", args...)
		cmd.Dir = "/"
		r := finish(t, cmd)
		if r.code != 125 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: want 125 and one line: %v", test.name, r)
		}
		for _, want := range test.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%s: %q lacks %q", test.name, r.stderr, want)
			}
		}
	}
	if after := tree(t, "/sys/fs/bpf") + mounts(t); after != before {
		t.Errorf("something was left behind: before\n%s\nafter\n%s", before, after)
	}
	assertNothingLeft(t)
}

func mounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Signals reach the command, and all is removed afterwards.
func TestSignalsReachTheCommandAndAllIsRemoved(t *testing.T) {
	p := newPlace(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		os.Remove(p.work + "/ready")
		cmd := exec.Command("thenforce", "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c",
			`sleep 1000 & echo x >ready; wait`)
		done := make(chan result, 1)
		if err := startInto(t, cmd, done); err != nil {
			t.Fatal(err)
		}
		waitFor(t, p.work+"/ready")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.code != 128+int(sig) {
			t.Errorf("%v: want exit code %d: %v", sig, 128+int(sig), r)
		}
		assertNothingLeft(t)
	}
	// One that the command catches is its own affair.
	os.Remove(p.work + "/ready")
	cmd := exec.Command("thenforce", "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c",
		`trap 'exit 42' TERM; echo x >ready; while :; do sleep 0.1; done`)
	done := make(chan result, 1)
	if err := startInto(t, cmd, done); err != nil {
		t.Fatal(err)
	}
	waitFor(t, p.work+"/ready")
	cmd.Process.Signal(syscall.SIGTERM)
	if r := <-done; r.code != 42 {
		t.Errorf("want the command's own exit code 42: %v", r)
	}
	assertNothingLeft(t)
}

func startInto(t *testing.T, cmd *exec.Cmd, done chan<- result) error {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		cmd.Wait()
		code := cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			code = 128 + int(ws.Signal())
		}
		done <- result{code, stdout.String(), stderr.String()}
	}()
	return nil
}

// What a command leaves running ends with it.
func TestNothingOutlivesTheCommand(t *testing.T) {
	p := newPlace(t)
	r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c",
		`trap '' TERM; (setsid sleep 1001 >/dev/null 2>&1 &); (trap '' TERM; setsid sleep 1002 >/dev/null 2>&1 &); echo x >ready`)
	if r.code != 0 {
		t.Fatal(r)
	}
	out, err := exec.Command("ps").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "sleep 100") {
		t.Errorf("still running:\n%s", out)
	}
	assertNothingLeft(t)
}

// A killed thenforce leaves its command jailed; when that has ended too, the next command clears up.
func TestKilledThenforce(t *testing.T) {
	p := newPlace(t)
	cmd := exec.Command("thenforce", "run", "--workspace", p.work, "--cwd", p.work, "--", "sh", "-c",
		`echo x >ready; while [ ! -e go ]; do sleep 0.05; done; cat ../outside/secret >stolen 2>error; echo x >done`)
	if err := cmd.Start(); err != nil { // without pipes, which the orphan would hold open
		t.Fatal(err)
	}
	waitFor(t, p.work+"/ready")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if r := thenforce(t, "jail", "list", "--json"); strings.Count(r.stdout, "\n") != 1 {
		t.Errorf("the jail has to stay: %v", r)
	}
	if err := os.WriteFile(p.work+"/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, p.work+"/done")
	if text, err := os.ReadFile(p.work + "/stolen"); err != nil || len(text) != 0 {
		t.Errorf("the orphan read %q, %v", text, err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for r := thenforce(t, "jail", "list", "--json"); r.stdout != "" && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		r = thenforce(t, "jail", "list", "--json")
	}
	assertNothingLeft(t)
	// A verification that was killed leaves nothing either.
	for _, after := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second} {
		verify := exec.Command("thenforce", "status", "--verify")
		if err := verify.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		verify.Process.Kill()
		verify.Wait()
	}
	if r := thenforce(t, "run", "--workspace", p.work, "--", "true"); r.code != 0 {
		t.Errorf("the next run: %v", r)
	}
	assertNothingLeft(t)
}

// A jail on an existing cgroup holds for what is in it, and ends when deleted.
func TestJailOnExistingCgroup(t *testing.T) {
	p := newPlace(t)
	const group = "/sys/fs/cgroup/mine"
	if err := os.MkdirAll(group+"/old", 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		os.Remove(group + "/old")
		os.Remove(group)
	}()
	r := thenforce(t, "jail", "create", "--cgroup", group, "--workspace", p.work, "--name", "mine", "--json")
	if r.code != 0 {
		t.Fatal(r)
	}
	in := func(group string) result {
		return finish(t, exec.Command("sh", "-c", "echo $$ >"+group+"/cgroup.procs; cat "+p.outside+"/secret"))
	}
	for _, g := range []string{group, group + "/old"} {
		if r := in(g); strings.Contains(r.stdout, secret) {
			t.Errorf("%s: %v", g, r)
		}
	}
	if r := thenforce(t, "jail", "create", "--cgroup", group, "--workspace", p.work); r.code != 1 || !strings.Contains(r.stderr, "in use") {
		t.Errorf("a second jail on the cgroup: %v", r)
	}
	if r := thenforce(t, "unload"); r.code != 1 || !strings.Contains(r.stderr, "live") {
		t.Errorf("unload with a live jail: %v", r)
	}
	if r := thenforce(t, "jail", "delete", "mine"); r.code != 0 {
		t.Fatal(r)
	}
	if r := in(group); !strings.Contains(r.stdout, secret) {
		t.Errorf("after the jail ended: %v", r)
	}
	if r := thenforce(t, "jail", "delete", "mine"); r.code != 1 {
		t.Errorf("delete again: %v", r)
	}
	// A jail whose cgroup goes is collected.
	if r := thenforce(t, "jail", "create", "--cgroup", group+"/old", "--workspace", p.work); r.code != 0 {
		t.Fatal(r)
	}
	if err := os.Remove(group + "/old"); err != nil {
		t.Fatal(err)
	}
	assertNothingLeft(t)
}

// In monitor mode nothing is denied and everything is told.
func TestMonitorMode(t *testing.T) {
	p := newPlace(t)
	start := time.Now()
	r := thenforce(t, "run", "--mode", "monitor", "--workspace", p.work, "--", "cat", p.outside+"/secret")
	if r.code != 0 || r.stdout != secret+"\n" {
		t.Error(r)
	}
	events := eventsSince(t, start)
	if len(events) != 1 || events[0].Mode != "monitor" || events[0].Code != "no-grant" {
		t.Errorf("events: %+v", events)
	}
}

func TestReportAndFailOnDenial(t *testing.T) {
	p := newPlace(t)
	file := p.base + "/report.json"
	r := thenforce(t, "run", "--workspace", p.work, "--report", file, "--fail-on-denial", "--", "sh", "-c", "cat "+p.outside+"/secret; true")
	if r.code != 3 {
		t.Errorf("want exit code 3: %v", r)
	}
	var report struct {
		Jail        string
		Enforcement struct{ State string }
		Exit        struct {
			Code int
			From string
		}
		Denials []struct {
			Path    string
			Suggest struct{ Grant string }
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if report.Enforcement.State != "verified" || report.Exit.Code != 3 || len(report.Denials) != 1 ||
		report.Denials[0].Suggest.Grant != p.outside+"/secret:ro" || report.Jail == "" {
		t.Errorf("report: %s", text)
	}
	if r := thenforce(t, "run", "--workspace", p.work, "--report", "/nope/report", "--", "touch", p.work+"/ran"); r.code != 125 {
		t.Errorf("a report that cannot be written: %v", r)
	}
	if _, err := os.Stat(p.work + "/ran"); err == nil {
		t.Error("the command ran though its report could not be written")
	}
	assertNothingLeft(t)
}

// A command that can change the place of its own report leads thenforce nowhere by that.
func TestReportWhereTheCommandIs(t *testing.T) {
	for _, swap := range []string{"rm -rf rep; ln -s ../outside rep", "rm rep/r.json; mkfifo rep/r.json", "rm rep/r.json; ln -s ../../outside/secret rep/r.json"} {
		p := newPlace(t)
		if err := os.Mkdir(p.work+"/rep", 0o777); err != nil {
			t.Fatal(err)
		}
		before := tree(t, p.outside)
		cmd := exec.Command("timeout", "20", "thenforce", "run", "--workspace", p.work, "--cwd", p.work, "--report", p.work+"/rep/r.json", "--", "sh", "-c", swap)
		if r := finish(t, cmd); r.code != 0 && r.code != 125 {
			t.Errorf("%s: %v", swap, r)
		}
		if after := tree(t, p.outside); after != before {
			t.Errorf("%s: the outside changed from\n%sto\n%s", swap, before, after)
		}
	}
	assertNothingLeft(t)
}

// No grant opens what jails rest on.
func TestGrantsOfTheEnforcersOwn(t *testing.T) {
	p := newPlace(t)
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/bpf", "/run", "/run/thenforce"} {
		r := thenforce(t, "run", "--workspace", p.work, "--grant", path+":rw", "--", "true")
		if r.code != 125 || !strings.Contains(r.stderr, path) {
			t.Errorf("%s: want 125 and a reason: %v", path, r)
		}
	}
	// Nor does one around them that follows mounts.
	r := thenforce(t, "run", "--workspace", "/", "--workspace-rights", "rwx", "--follow-mounts", "--", "true")
	if r.code == 0 {
		r = thenforce(t, "run", "--workspace", "/", "--follow-mounts", "--", "sh", "-c", "echo $$ >/sys/fs/cgroup/cgroup.procs; cat /proc/self/cgroup; rm -r /sys/fs/bpf/thenforce")
		if !strings.Contains(r.stdout, "/thenforce/") {
			t.Errorf("it left its cgroup: %v", r)
		}
	}
	if r := thenforce(t, "status"); r.code != 0 {
		t.Errorf("status afterwards: %v", r)
	}
	assertNothingLeft(t)
}

// Grants widen, narrow and are told apart by rights.
func TestGrants(t *testing.T) {
	p := newPlace(t)
	os.Mkdir(p.work+"/ro", 0o755)
	os.WriteFile(p.work+"/ro/f", []byte("x\n"), 0o644)
	os.Mkdir(p.work+"/none", 0o755)
	os.WriteFile(p.work+"/none/f", []byte("x\n"), 0o644)
	r := thenforce(t, "run", "--workspace", p.work, "--cwd", p.work, "--grant", p.outside+":ro", "--grant", p.work+"/ro:ro",
		"--grant", p.work+"/none:none", "--", "sh", "-c", `
cat ../outside/secret
cat ro/f
echo x >ro/f   || echo "write: $?"
echo x >ro/new || echo "create: $?"
rm ro/f        || echo "delete: $?"
mv ro gone     || echo "rename: $?"
cat none/f     || echo "none: $?"
ln ro/f linked || echo "gain: $?"
mv -f ro/f moved 2>/dev/null || echo "move: $?"
`)
	want := secret + "\nx\nwrite: 1\ncreate: 1\ndelete: 1\nrename: 1\nnone: 1\ngain: 1\nmove: 1\n"
	if r.stdout != want {
		t.Errorf("got %q\nwant %q\n%v", r.stdout, want, r)
	}
}

func TestStatusVerify(t *testing.T) {
	r := thenforce(t, "status", "--verify", "--json")
	var status struct {
		State string
		Hooks []struct {
			Name                       string
			Required, Attached, Proven bool
		}
		Proof struct{ BootID string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &status); err != nil || r.code != 0 {
		t.Fatalf("%v: %v", err, r)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if status.State != "verified" || status.Proof.BootID != strings.TrimSpace(string(boot)) {
		t.Errorf("status: %s", r.stdout)
	}
	for _, h := range status.Hooks {
		if !h.Required || !h.Attached || !h.Proven {
			t.Errorf("hook: %+v", h)
		}
	}
	if r := thenforce(t, "status"); r.code != 0 || !strings.HasPrefix(r.stdout, "enforcement: verified\n") {
		t.Error(r)
	}
}

// A kernel whose list lacks bpf takes the programs and never runs them: nothing may start there.
func TestProfileNoLSM(t *testing.T) {
	p := newPlace(t)
	run := []string{"run", "--workspace", p.work}
	r := thenforce(t, append(run, "--", "touch", p.work+"/ran")...)
	if r.code != 125 || !strings.Contains(r.stderr, "lsm-inactive") || !strings.Contains(r.stderr, "lsm=") {
		t.Errorf("want 125, the reason and its fix: %v", r)
	}
	if _, err := os.Stat(p.work + "/ran"); err == nil {
		t.Error("the command ran")
	}
	if r := thenforce(t, "status"); r.code != 5 || !strings.Contains(r.stdout, "unverified") || !strings.Contains(r.stdout, "lsm-inactive") {
		t.Errorf("status: %v", r)
	}
	if r := thenforce(t, "status", "--verify"); r.code != 5 {
		t.Errorf("status --verify: %v", r)
	}
	r = thenforce(t, append(run, "--allow-unverified", "--", "cat", p.outside+"/secret")...)
	if r.code != 0 || r.stdout != secret+"\n" || !strings.Contains(r.stderr, "lsm-inactive") {
		t.Errorf("--allow-unverified: %v", r)
	}
	if r := thenforce(t, "jail", "create", "--cgroup", "/sys/fs/cgroup", "--workspace", p.work); r.code != 5 {
		t.Errorf("jail create: %v", r)
	}
	if _, err := os.Stat("/sys/fs/bpf/thenforce"); err == nil {
		t.Error("pins were made")
	}
	assertNothingLeft(t)
}

// Lockdown forbids BPF to read kernel memory, so the programs cannot work.
func TestProfileLockdown(t *testing.T) {
	p := newPlace(t)
	r := thenforce(t, "run", "--workspace", p.work, "--", "touch", p.work+"/ran")
	if r.code != 125 || !strings.Contains(r.stderr, "lockdown") {
		t.Errorf("want 125 and the reason: %v", r)
	}
	if r := thenforce(t, "status", "--verify"); r.code != 5 || !strings.Contains(r.stdout, "lockdown:") {
		t.Errorf("status: %v", r)
	}
	assertNothingLeft(t)
}

// brokenFileSystem mounts a file system on which every look-up is an I/O error, and gives its path. It is served here:
// the least of the FUSE protocol.
func brokenFileSystem(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse.Fd())
	if err := unix.Mount("broken", dir, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		fuse.Close()
	})
	go serveErrors(fuse)
	return dir
}

// serveErrors answers as linux/fuse.h has it: FUSE_INIT with a version, everything else with EIO.
func serveErrors(fuse *os.File) {
	const opInit = 26
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(int(fuse.Fd()), buf)
		if err != nil || n < 40 {
			return
		}
		opcode := uint32(buf[4]) | uint32(buf[5])<<8
		reply := make([]byte, 16, 80)
		copy(reply[8:16], buf[8:16]) // the request's number
		if opcode == opInit {
			reply = append(reply, make([]byte, 64)...)
			reply[16], reply[20] = 7, 31 // the protocol's version
			reply[16+20], reply[16+21] = 0, 2
		} else {
			putInt32(reply[4:], -int32(unix.EIO))
		}
		putInt32(reply, int32(len(reply)))
		if _, err := unix.Write(int(fuse.Fd()), reply); err != nil && !errors.Is(err, unix.ENOENT) {
			return
		}
	}
}

func putInt32(b []byte, v int32) {
	for i := range 4 {
		b[i] = byte(v >> (8 * i))
	}
}
