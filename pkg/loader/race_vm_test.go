//go:build vm

package loader

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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

var _ = addOperations(map[string]func([]string) error{"race": raceToRead})

// raceToRead opens and reads for some seconds, by turns, whatever lies at paths, and writes down what came of each.
// Meanwhile it goes from one working directory to the other.
func raceToRead(a []string) error {
	seconds, result, stations := number(a[0]), a[1], strings.Split(a[2], ":")
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
		path, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		tries = append(tries, &try{name: name, path: path})
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for {
		err := unix.Chdir(stations[0])
		if err == nil {
			break
		}
		if err != unix.ENOENT || time.Now().After(end) {
			return err
		}
	}
	buf := make([]byte, len(outsideMark))
	for turn := 0; time.Now().Before(end); turn++ {
		if turn%8 == 7 {
			unix.Chdir(stations[turn/8%len(stations)]) // it may be away just now
		}
		for _, t := range tries {
			fd, errno := openPlain(t.path)
			switch errno {
			case noErrno:
				n, err := unix.Read(fd, buf)
				unix.Close(fd)
				if err == unix.EISDIR { // another test's, above it all
					t.notThere++
					continue
				}
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

// tried is what came of the tries of one path: how many read, how many of them read outsideMark, how many were denied,
// for how many nothing was there.
type tried struct{ read, marked, denied, notThere int }

const shortRace = 3 * time.Second

// raceTime is how long a jail is raced.
func raceTime() time.Duration {
	if inSoak() {
		return time.Minute
	}
	return shortRace
}

// race lets a child race, and gives what came of it by path.
func race(t *testing.T, child *canaryChild, length time.Duration, result string, stations, paths []string) map[string]tried {
	t.Helper()
	words := append([]string{"race", fmt.Sprint(int(length.Seconds())), result, strings.Join(stations, ":")}, paths...)
	if errno, err := child.do(words); err != nil || errno != 0 {
		t.Fatalf("race: %s, %v", errnoName(errno), err)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]tried{}
	for line := range strings.Lines(string(text)) {
		var name string
		var n tried
		if _, err := fmt.Sscan(line, &name, &n.read, &n.marked, &n.denied, &n.notThere); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found[name] = n
	}
	return found
}

// racer starts a child in a jail whose workspace is a directory.
func racer(t *testing.T, e *Enforcer, workspace string, deny ...string) *canaryChild {
	t.Helper()
	_, child := jailed(t, e, engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: workspace},
		Objects:   []engine.Object{{Path: workspace, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
		Deny:      deny,
	})
	return child
}

// While somebody outside renames, exchanges, replaces and mounts around it, a jail reads not a byte of a file that never
// was inside, and what lies still inside it can always read.
func TestProfileTwoRace(t *testing.T) {
	for _, place := range racePlaces {
		t.Run(place.name, func(t *testing.T) { testRace(t, place.make(t)) })
	}
}

var racePlaces = []place{{name: "ext4", make: func(*testing.T) string { return "/mnt/ext4" }}, {name: "overlayfs", make: overlayIn}}

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
	names := []string{
		"in/file", "./file", // of these the first lies still
		"out/double/secret", "in/double/secret", "out/safe/secret", // the secret leaves its directory before that comes in
		"in/moves/../secret", "./../secret", "./../../secret", "in/moves/deep/../../secret", // by a directory that goes out
		"in/link", "in/mnt/secret", "in/over/secret", "in/swap/secret", "in/swap/deep/secret", "out/secret",
	}
	whole := func(name string) string {
		if strings.HasPrefix(name, "./") {
			return name
		}
		return base + "/" + name // not cleaned: ".." is the point of some
	}
	var paths []string
	for _, name := range names {
		paths = append(paths, whole(name))
	}
	stations := []string{at("in"), at("in/moves"), at("in/moves/deep")}
	stop := outsiders(t, at)
	free, err := startCanary(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { free.stop() })
	// With no jail each way to a secret is one: what has no readers there proves nothing in the jail. Some are open for
	// moments only.
	ways := []string{"out/double/secret", "./../secret", "./../../secret", "in/link", "in/mnt/secret", "in/over/secret", "out/secret"}
	for try := 0; len(ways) > 0 && try < 10; try++ {
		seen := race(t, free, shortRace, at("in/result"), stations, paths)
		ways = slices.DeleteFunc(ways, func(name string) bool { return seen[whole(name)].marked > 0 })
	}
	if len(ways) > 0 {
		t.Errorf("with no jail nobody could read %q", ways)
	}
	child := racer(t, e, at("in"))
	seen := race(t, child, raceTime(), at("in/result"), stations, paths)
	turns := stop()
	denied := 0
	for _, name := range names {
		n := seen[whole(name)]
		t.Logf("%-30s %+v", name, n)
		if n.marked > 0 {
			t.Errorf("%s: a file outside was read %d times", name, n.marked)
		}
		denied += n.denied
	}
	t.Logf("%d turns of those outside", turns)
	if n := seen[whole("in/file")]; n.denied > 0 || n.notThere > 0 || n.read == 0 {
		t.Errorf("what lies still: %+v", n)
	}
	if denied == 0 || turns == 0 {
		t.Errorf("%d denials and %d turns", denied, turns)
	}
}

// An object leaves its directory, and then that directory comes into the workspace: whoever walks from the one to the
// other meanwhile sees a way inside that never was. The way is long here, so that there is time.
func TestProfileTwoDoubleMove(t *testing.T) {
	for _, place := range racePlaces {
		t.Run(place.name, func(t *testing.T) { testDoubleMove(t, place.make(t)) })
	}
}

func testDoubleMove(t *testing.T, on string) {
	e := openVerified(t)
	base, err := os.MkdirTemp(on, "double-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
	deep := deepDir(out+"/double", 900)
	for _, dir := range []string{in, deep, out + "/safe"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(deep+"/secret", []byte(outsideMark), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in+"/file", []byte("inside"), 0o644); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, dir := range []string{in, out, deep, out + "/safe"} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	inFD, outFD, deepFD, safeFD := fds[0], fds[1], fds[2], fds[3]
	free, err := startCanary(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer free.stop()
	child := racer(t, e, in)
	pin(t, child.cmd.Process.Pid, 0)
	pin(t, free.cmd.Process.Pid, 0)

	var ended atomic.Bool
	var moves sync.WaitGroup
	turns := 0
	moves.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with its place
		pin(t, 0, 1)
		for ; !ended.Load(); turns++ {
			err := errors.Join(unix.Renameat(deepFD, "secret", safeFD, "secret"), unix.Renameat(outFD, "double", inFD, "double"),
				unix.Renameat(inFD, "double", outFD, "double"), unix.Renameat(safeFD, "secret", deepFD, "secret"))
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	paths := []string{"./secret", in + "/file"}
	outside := race(t, free, shortRace, in+"/result", []string{deep}, paths)
	inside := race(t, child, raceTime(), in+"/result", []string{deep}, paths)
	ended.Store(true)
	moves.Wait()
	t.Logf("%d turns; outside %+v, inside %+v", turns, outside, inside)
	if outside["./secret"].marked == 0 {
		t.Error("with no jail nobody could read the secret")
	}
	if n := inside["./secret"]; n.marked > 0 || n.read > 0 || n.denied == 0 {
		t.Errorf("what never was inside: %+v", n)
	}
	if n := inside[in+"/file"]; n.denied > 0 || n.notThere > 0 || n.read == 0 {
		t.Errorf("what lies still: %+v", n)
	}
}

// An object below a denied name is moved out of the workspace: it is denied where it was and where it is. Whoever counts the
// names from it upwards meanwhile must not take those of the one place for those of the other.
func TestProfileTwoDeniedMove(t *testing.T) {
	e := openVerified(t)
	base := tmpfsIn(t)
	in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
	half := deepDir(in+"/a/denied", 450)
	deep := deepDir(half, 450)
	for _, dir := range []string{deepDir(in+"/a/free", 900), out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{deepDir(in+"/a/free", 900) + "/secret": outsideMark, in + "/file": "inside"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	child := racer(t, e, in, in+"/a/denied")
	// Only now, so that it is denied by its name and not as an object that was there.
	if err := os.Rename(in+"/a/free", in+"/a/denied"); err != nil {
		t.Fatal(err)
	}
	above, err := unix.Open(filepath.Dir(half), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(above)
	pin(t, child.cmd.Process.Pid, 0)
	var ended atomic.Bool
	var moves sync.WaitGroup
	turns := 0
	moves.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with its place
		pin(t, 0, 1)
		for ; !ended.Load(); turns++ {
			// Not at once: a way that moves all the time is a denial for that alone.
			for _, move := range []func() error{
				func() error { return unix.Renameat(above, "d", unix.AT_FDCWD, out+"/d") },
				func() error { return unix.Renameat(unix.AT_FDCWD, out+"/d", above, "d") },
			} {
				if err := move(); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(turns%16) * 100 * time.Microsecond)
			}
		}
	})
	seen := race(t, child, raceTime(), in+"/result", []string{deep}, []string{"./secret", in + "/file"})
	ended.Store(true)
	moves.Wait()
	t.Logf("%d turns; %+v", turns, seen)
	if n := seen["./secret"]; n.read > 0 || n.denied == 0 || turns == 0 {
		t.Errorf("what is denied in both places: %+v", n)
	}
	if n := seen[in+"/file"]; n.denied > 0 || n.read == 0 {
		t.Errorf("what lies still: %+v", n)
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
