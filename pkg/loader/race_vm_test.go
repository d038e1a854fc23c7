//go:build vm

package loader

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// outsideMark begins every file that never was inside.
const outsideMark = "never inside"

// openPlain is open(2) for reading, without the runtime's help, which would take a race's time.
func openPlain(path *byte) (fd int, errno unix.Errno) {
	dir := unix.AT_FDCWD
	n, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(path)), unix.O_RDONLY|unix.O_NONBLOCK, 0, 0, 0)
	return int(n), errno
}

// raceToRead opens and reads for some seconds, by turns, whatever lies at paths below a base, and writes down what came
// of each. It goes from directory to directory meanwhile, and opens by its working directory as well.
func raceToRead(a []string) error {
	seconds, result, base := number(a[0]), a[1], a[2]
	type try struct {
		name                           string
		path                           *byte
		read, marked, denied, notThere int
	}
	var tries []*try
	for _, name := range a[3:] {
		if name == "" {
			continue
		}
		at := name
		if !strings.HasPrefix(at, "./") {
			at = filepath.Clean(base) + "/" + at // not cleaned: ".." is the point of some
		}
		path, err := unix.BytePtrFromString(at)
		if err != nil {
			return err
		}
		tries = append(tries, &try{name: name, path: path})
	}
	if err := unix.Chdir(base + "/in"); err != nil {
		return err
	}
	buf := make([]byte, len(outsideMark))
	for end, turn := time.Now().Add(time.Duration(seconds)*time.Second), 0; time.Now().Before(end); turn++ {
		if turn%8 == 0 { // either may be away just now
			unix.Chdir(base + [...]string{"/in/moves", "/in", "/in/moves/deep"}[turn/8%3])
		}
		for _, t := range tries {
			fd, errno := openPlain(t.path)
			switch errno {
			case noErrno:
				n, err := unix.Read(fd, buf)
				unix.Close(fd)
				if err != nil {
					return err
				}
				t.read++
				if string(buf[:n]) == outsideMark {
					t.marked++
				}
			case unix.EACCES:
				t.denied++
			default:
				t.notThere++
			}
		}
	}
	var text bytes.Buffer
	for _, t := range tries {
		fmt.Fprintln(&text, t.name, t.read, t.marked, t.denied, t.notThere)
	}
	return os.WriteFile(result, text.Bytes(), 0o644)
}

// While somebody outside renames, exchanges, replaces and mounts around it, a jail reads not a byte of a file that never
// was inside, and what lies still inside it can always read.
func TestProfileTwoRace(t *testing.T) {
	for _, place := range []place{{name: "ext4", make: func(*testing.T) string { return "/mnt/ext4" }}, {name: "overlayfs", make: overlayIn}} {
		t.Run(place.name, func(t *testing.T) { testRace(t, place.make(t)) })
	}
}

func testRace(t *testing.T, on string) {
	e := openVerified(t)
	base, err := os.MkdirTemp(on, "race-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	// No mount can be moved out of one that is shared.
	if err := unix.Mount("", on, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Mount("", on, "", unix.MS_SHARED, "") })
	at := func(name string) string { return filepath.Join(base, name) }
	for _, dir := range []string{"in/moves/deep", "in/mnt", "in/over", "in/swap", "out/double", "out/safe", "out/stage", "out/swap", "out/moves", "out/deep"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"in/file": "inside", "in/over/file": "inside", "in/moves/deep/file": "inside",
		"out/secret": outsideMark, "out/double/secret": outsideMark, "out/moves/secret": outsideMark, "out/deep/secret": outsideMark, "secret": outsideMark,
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("file", at("in/link")); err != nil {
		t.Fatal(err)
	}
	paths := []string{
		"in/file", "./file", // of these the first lies still
		"out/double/secret", "in/double/secret", "out/safe/secret", // the secret leaves its directory before that comes in
		"in/moves/../secret", "./../secret", "./../../secret", "in/moves/deep/../../secret", // by a directory that goes out
		"in/link", "in/mnt/secret", "in/over/secret", "in/swap/secret", "in/swap/deep/secret", "out/secret",
	}
	length := 3 * time.Second
	if inSoak() {
		length = time.Minute
	}
	race := func(child *canaryChild, length time.Duration) map[string][4]int {
		t.Helper()
		result := at("in/result")
		words := append([]string{"race", fmt.Sprint(int(length.Seconds())), result, base}, paths...)
		if errno, err := child.do(words); err != nil || errno != 0 {
			t.Fatalf("race: %s, %v", errnoName(errno), err)
		}
		text, err := os.ReadFile(result)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string][4]int{}
		for line := range strings.Lines(string(text)) {
			var name string
			var n [4]int
			if _, err := fmt.Sscan(line, &name, &n[0], &n[1], &n[2], &n[3]); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			found[name] = n
		}
		return found
	}

	stop := outsiders(t, at)
	free, err := startCanary(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { free.stop() })
	// With no jail each way to a secret is one: what has no readers there proves nothing in the jail.
	seen := race(free, max(3*time.Second, length/10))
	for _, name := range []string{"out/double/secret", "./../secret", "./../../secret", "in/link", "in/mnt/secret", "in/over/secret", "out/secret"} {
		if seen[name][1] == 0 {
			t.Errorf("with no jail nobody could read %s: %v", name, seen[name])
		}
	}

	var s scene
	if err := s.makeCgroup("/sys/fs/cgroup", "race-"); err != nil {
		t.Fatal(err)
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	jail, err := e.CreateJail(JailSpec{Cgroup: s.cgroup, CgroupPath: s.path, Open: open, Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: at("in")},
		Objects:   []engine.Object{{Path: at("in"), Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	child, err := startCanary(s.cgroup, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(child.stop(), e.DeleteJail(jail.ID), s.close()); err != nil {
			t.Error(err)
		}
	})
	seen = race(child, length)
	turns := stop()
	denied, total := 0, 0
	for _, name := range paths {
		n := seen[name]
		t.Logf("%-30s read %d, of them outside %d; denied %d, not there %d", name, n[0], n[1], n[2], n[3])
		if n[1] > 0 {
			t.Errorf("%s: a file outside was read %d times", name, n[1])
		}
		denied += n[2]
		total += n[0] + n[1] + n[2] + n[3]
	}
	t.Logf("%d tries, %d turns of those outside", total, turns)
	if n := seen["in/file"]; n[2] > 0 || n[3] > 0 || n[0] == 0 {
		t.Errorf("what lies still: %v", n)
	}
	if denied == 0 || turns == 0 {
		t.Errorf("%d denials and %d turns", denied, turns)
	}
}

// outsiders start to change things around a jail, each at its own place, until the function that is returned is called:
// it gives how many turns they had, and everything is where it was before.
func outsiders(t *testing.T, at func(string) string) func() int {
	t.Helper()
	rename := func(from, to string) error { return unix.Rename(at(from), at(to)) }
	// Most may be refused for a moment, with EBUSY, where a mount is about.
	here := func(err error) error {
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	turns := []func() error{
		func() error { // the secret out of its directory, the directory in, and back
			return errors.Join(rename("out/double/secret", "out/safe/secret"), rename("out/double", "in/double"),
				rename("in/double", "out/double"), rename("out/safe/secret", "out/double/secret"))
		},
		func() error { // a directory of the workspace out, where a secret is beside it, and back
			return errors.Join(rename("in/moves", "out/moves/moves"), rename("out/moves/moves", "in/moves"))
		},
		func() error { // one below it
			return errors.Join(here(rename("in/moves/deep", "out/deep/deep")), here(rename("out/deep/deep", "in/moves/deep")))
		},
		func() error { // a directory with nothing in it for one of the workspace
			return unix.Renameat2(unix.AT_FDCWD, at("in/swap"), unix.AT_FDCWD, at("out/swap"), unix.RENAME_EXCHANGE)
		},
		func() error { // a link that leads in, or out
			os.Remove(at("in/link.new"))
			err := errors.Join(unix.Symlink("../out/secret", at("in/link.new")), rename("in/link.new", "in/link"))
			return errors.Join(err, unix.Symlink("file", at("in/link.new")), rename("in/link.new", "in/link"))
		},
		func() error { // the outside, mounted into the workspace
			return errors.Join(unix.Mount(at("out"), at("in/mnt"), "", unix.MS_BIND, ""), unix.Unmount(at("in/mnt"), unix.MNT_DETACH))
		},
		func() error { // and over a directory that has files; moved there, too
			if err := unix.Mount(at("out"), at("out/stage"), "", unix.MS_BIND, ""); err != nil {
				return here(err)
			}
			err := unix.Mount(at("out/stage"), at("in/over"), "", unix.MS_MOVE, "")
			return errors.Join(err, unix.Unmount(at("in/over"), unix.MNT_DETACH))
		},
	}
	var (
		ended atomic.Bool
		count atomic.Int64
		all   sync.WaitGroup
	)
	for i, turn := range turns {
		all.Go(func() {
			for !ended.Load() {
				if err := turn(); err != nil {
					t.Errorf("outsider %d: %v", i, err)
					return
				}
				count.Add(1)
			}
		})
	}
	stop := sync.OnceValue(func() int {
		ended.Store(true)
		all.Wait()
		return int(count.Load())
	})
	t.Cleanup(func() { stop() })
	return stop
}
