// SPDX-License-Identifier: Apache-2.0

//go:build unix

package scan

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFindings(t *testing.T) {
	dir := tempDir(t)
	ws, out := filepath.Join(dir, "ws"), filepath.Join(dir, "out")
	write(t, dir, "ws/src/file", "out/secret", "ws/set-uid", "ws/set-gid", "ws/ordinary")
	must(t, os.MkdirAll(filepath.Join(ws, "set-gid-dir"), 0o755))
	for name, target := range map[string]string{
		"src/in":          "../src/file",
		"src/in-absolute": filepath.Join(ws, "src/file"),
		"src/dangling":    "nowhere/at/all",
		"src/up-and-back": "../../ws/src/file",
		"src/out":         "../../out/secret",
		"src/out-dir":     out,
		"src/out-through": "../src/out-dir/secret",
		"src/above":       "../..",
		"src/loop":        "loop",
		"src/root":        "/",
	} {
		must(t, os.Symlink(target, filepath.Join(ws, name)))
	}
	must(t, unix.Mkfifo(filepath.Join(ws, "pipe"), 0o600))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(ws, "socket")})
	must(t, err)
	defer listener.Close()
	must(t, unix.Chmod(filepath.Join(ws, "set-uid"), 0o4755))
	must(t, unix.Chmod(filepath.Join(ws, "set-gid"), 0o2755))
	must(t, unix.Chmod(filepath.Join(ws, "set-gid-dir"), 0o2755))
	write(t, ws, "clash/control\n", "clash/bidi\u202e")
	want := []string{
		"fifo pipe",
		"link-escape src/above",
		"link-escape src/out",
		"link-escape src/out-dir",
		"link-escape src/out-through",
		"link-escape src/root",
		"link-loop src/loop",
		"name-control clash/bidi\u202e",
		"name-control clash/control\n",
		"set-id set-gid",
		"set-id set-uid",
		"socket socket",
	}
	if runtime.GOOS == "linux" { // others may fold names, or refuse them
		write(t, ws, "clash/a", "clash/A", "clash/e\u0301", "clash/\u00e9", "clash/\u00c9", "clash/\xff", "clash/\xfe")
		want = append(want, "name-clash clash/A a", "name-clash clash/e\u0301 \u00c9 \u00e9", "name-not-utf8 clash/\xfe", "name-not-utf8 clash/\xff")
		slices.Sort(want)
	}
	got, p := scan(t, ws)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if p.Trouble != 0 || p.Vanished != 0 {
		t.Errorf("progress: %+v", p)
	}
}

// Names that clash are found wherever batches end.
func TestClashAcrossBatches(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // its directories may take both names for one
	}
	dir := tempDir(t)
	names := []string{"Clash", "clash"}
	for i := range 2*batchSize + 10 {
		names = append(names, "file"+strings.Repeat("x", i%10)+string(rune('a'+i%26))+time.Duration(i).String())
	}
	write(t, dir, names...)
	got, _ := scan(t, dir)
	if diff := cmp.Diff([]string{"name-clash Clash clash"}, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestDeviceNodes(t *testing.T) {
	// Only root makes device nodes; every system has some in /dev.
	got, _ := scan(t, "/dev")
	if !slices.Contains(got, "device-node null") {
		t.Errorf("/dev/null is not found: %.2000v", got)
	}
}

// Who cannot read a directory is told that it was not looked at.
func TestUnreadable(t *testing.T) {
	const variable = "THENFORCE_TEST_UNREADABLE"
	if dir := os.Getenv(variable); dir != "" {
		got, p := scan(t, dir)
		if diff := cmp.Diff([]string{"unreadable closed"}, got); diff != "" || p.Trouble != 1 || p.Findings != 0 {
			t.Errorf("findings (-want +got):\n%s%+v", diff, p)
		}
		return
	}
	dir, err := os.MkdirTemp("", "scan")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	dir, err = filepath.EvalSymlinks(dir)
	must(t, err)
	write(t, dir, "open/file")
	must(t, os.Mkdir(filepath.Join(dir, "closed"), 0))
	program, err := os.Open(os.Args[0])
	must(t, err)
	defer program.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestUnreadable$", "-test.v")
	if os.Geteuid() == 0 { // who may read everything
		// The test's own binary lies where nobody else comes; what is open can be executed.
		cmd.Path, cmd.ExtraFiles = "/dev/fd/3", []*os.File{program}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir, cmd.Env = "/", append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnreadable") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Whatever happens to the tree meanwhile, a scan ends, and what it reports lies in the workspace: the outside is full
// of what would be findings.
func TestRaces(t *testing.T) {
	dir := tempDir(t)
	ws, out := filepath.Join(dir, "ws"), filepath.Join(dir, "out")
	must(t, os.MkdirAll(filepath.Join(ws, "keep"), 0o755))
	must(t, os.MkdirAll(filepath.Join(out, "sub"), 0o755))
	must(t, unix.Mkfifo(filepath.Join(out, "OUTSIDE"), 0o600))
	must(t, unix.Mkfifo(filepath.Join(out, "sub/OUTSIDE"), 0o600))
	for i := range 200 {
		write(t, ws, "keep/"+time.Duration(i).String())
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	churn := func(step func()) {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					step()
				}
			}
		})
	}
	swap, aside := filepath.Join(ws, "swap"), filepath.Join(ws, "aside")
	churn(func() { // a directory becomes a link out, and back
		os.MkdirAll(filepath.Join(swap, "sub"), 0o755)
		os.Rename(swap, aside)
		os.Symlink(out, swap)
		os.Remove(swap)
		os.Rename(aside, swap)
	})
	churn(func() { // files come and go
		name := filepath.Join(ws, "keep", "temporary")
		os.WriteFile(name, nil, 0o600)
		os.Remove(name)
	})
	churn(func() { // a directory becomes a pipe, which nobody must wait for
		name := filepath.Join(ws, "pipe")
		os.Mkdir(name, 0o755)
		os.Remove(name)
		unix.Mkfifo(name, 0o600)
		os.Remove(name)
	})
	deadline := time.Now().Add(2 * time.Second)
	scans := 0
	for time.Now().Before(deadline) {
		scans++
		s := newScan(t, ws, func(f Finding) error {
			if strings.Contains(f.Path, "OUTSIDE") {
				t.Errorf("it was led out: %+v", f)
			}
			return nil
		})
		must(t, s.Run("."))
		if p := s.Progress(); p.Entries < 202 {
			t.Errorf("what was there all the time was not seen: %+v", p)
		}
	}
	close(stop)
	group.Wait()
	if scans < 5 {
		t.Errorf("only %d scans", scans)
	}
}

// A directory that is not the one that was seen is not read, and that is trouble.
func TestReplacedDirectory(t *testing.T) {
	dir := tempDir(t)
	write(t, dir, "a/file", "b/file")
	must(t, os.Symlink("b", filepath.Join(dir, "link")))
	var found []Finding
	s := newScan(t, dir, func(f Finding) error { found = append(found, f); return nil })
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	s.root = root
	a, err := s.look("a")
	must(t, err)
	for _, rel := range []string{"b", "link", "a/file"} {
		found = nil
		if newWorker(s).open(&directory{rel: rel, seen: a}) || len(found) != 1 || found[0].Code != Changed {
			t.Errorf("%s in the place of a: %+v", rel, found)
		}
	}
	found = nil
	if newWorker(s).open(&directory{rel: "gone", seen: a}) || len(found) != 0 || s.Progress().Vanished != 1 {
		t.Errorf("a directory that is gone: %+v", found)
	}
}
