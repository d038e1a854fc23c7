//go:build vm

package loader

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Each test here lets the programs remember a verdict (bpf/cache.h), changes what it rested on, and opens something that
// only a verdict which is remembered too long would allow.

var _ = addOperations(map[string]func([]string) error{"keep-opening": keepOpening})

// keepOpening opens a file again and again for so many seconds. It fails with ENOENT unless it succeeded once.
func keepOpening(a []string) error {
	seconds, err := strconv.Atoi(a[1])
	if err != nil {
		return err
	}
	opened := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		for range 100 {
			if fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(fd)
				opened++
			}
		}
	}
	if opened == 0 {
		return unix.ENOENT
	}
	return nil
}

// memory is a jail with a workspace, and a process in it.
type memory struct {
	*testing.T
	e       *Enforcer
	in, out string // the workspace and what is outside, on one file system
	scene   scene
	jail    *Jail
	child   *canaryChild
}

var remembers = map[string]func(t *testing.T) string{
	"tmpfs": tmpfsIn,
	"ext4":  func(t *testing.T) string { return "/mnt/ext4" },
}

// eachFileSystem runs a test on every file system of the small guest on which verdicts are remembered.
func eachFileSystem(t *testing.T, test func(m *memory)) {
	for name, dir := range remembers {
		t.Run(name, func(t *testing.T) { test(newMemory(t, dir(t))) })
	}
}

func newMemory(t *testing.T, on string, more ...engine.Object) *memory {
	t.Helper()
	m := &memory{T: t, e: openVerified(t)}
	base, err := os.MkdirTemp(on, "memory-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	m.in, m.out = filepath.Join(base, "in"), filepath.Join(base, "out")
	m.mkdir(m.in, m.out)
	if err := m.scene.makeCgroup("/sys/fs/cgroup", "memory-"); err != nil {
		t.Fatal(err)
	}
	m.cleanup(m.scene.close)
	for i := range more {
		more[i].Path = m.path(more[i].Path)
		m.write(more[i].Path)
	}
	m.confine(more...)
	if m.child, err = startCanary(m.scene.cgroup, nil, nil); err != nil {
		t.Fatal(err)
	}
	m.cleanup(m.child.stop)
	return m
}

func (m *memory) cleanup(f func() error) {
	m.Cleanup(func() {
		if err := f(); err != nil {
			m.Error(err)
		}
	})
}

// path makes "in/a" and "out/a" absolute.
func (m *memory) path(name string) string {
	if rest, ok := strings.CutPrefix(name, "in"); ok && (rest == "" || rest[0] == '/') {
		return m.in + rest
	}
	if rest, ok := strings.CutPrefix(name, "out"); ok && (rest == "" || rest[0] == '/') {
		return m.out + rest
	}
	return name
}

// confine makes the jail anew: what the process itself needs, and these.
func (m *memory) confine(objects ...engine.Object) {
	m.Helper()
	if m.jail != nil {
		if err := m.e.DeleteJail(m.jail.ID); err != nil {
			m.Fatal(err)
		}
	} else {
		m.cleanup(func() error { return m.e.DeleteJail(m.jail.ID) })
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		m.Fatal(err)
	}
	defer closeAll()
	workspace := engine.Object{Path: m.in, Rights: engine.AllRights, Source: engine.SourceWorkspace}
	if len(objects) > 0 && objects[0].Path == m.in {
		workspace, objects = objects[0], objects[1:]
	}
	m.jail, err = m.e.CreateJail(JailSpec{Cgroup: m.scene.cgroup, CgroupPath: m.scene.path, Open: open, Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: m.in}, Objects: append([]engine.Object{workspace}, objects...),
	}})
	if err != nil {
		m.Fatal(err)
	}
}

// write makes files with the directories they lie in. A file that has a granted file's number, on another file system, is
// judged anew each time; here that would hide what is tested, so such a number is left to a file that nobody needs.
func (m *memory) write(names ...string) {
	m.Helper()
	for _, name := range names {
		name = m.path(name)
		m.mkdir(filepath.Dir(name))
		for {
			if err := os.WriteFile(name, []byte(canaryText), 0o644); err != nil {
				m.Fatal(err)
			}
			ino := m.number(name)
			if *m.e.cells(enforcerTfGrantKey{Ino: ino}, enforcerTfGrant{})[1] == 0 {
				break
			}
			if err := os.Rename(name, fmt.Sprintf("%s/spare-%d", filepath.Dir(m.in), ino)); err != nil {
				m.Fatal(err)
			}
		}
	}
}

func (m *memory) mkdir(names ...string) {
	m.Helper()
	for _, name := range names {
		if err := os.MkdirAll(m.path(name), 0o755); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *memory) try(tries string) unix.Errno {
	m.Helper()
	words := strings.Fields(tries)
	for i := range words {
		words[i] = m.path(words[i])
	}
	errno, err := m.child.do(words)
	if err != nil {
		m.Fatalf("%s: %v", tries, err)
	}
	return errno
}

func (m *memory) want(errno unix.Errno, tries string) {
	m.Helper()
	if got := m.try(tries); got != errno {
		m.Errorf("%s: got %s, want %s", tries, errnoName(got), errnoName(errno))
	}
}

// know opens a file until its directory is remembered.
func (m *memory) know(name string) {
	m.Helper()
	ino := m.number(filepath.Dir(m.path(name)))
	for range 20 {
		m.want(noErrno, "open "+name)
		for _, v := range m.remembered() {
			if v.Ino == ino {
				return
			}
		}
	}
	m.Fatalf("the directory of %s is not remembered", name)
}

func (m *memory) number(name string) uint64 {
	m.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(m.path(name), &st); err != nil {
		m.Fatal(err)
	}
	return st.Ino
}

// verdict gives what is remembered of a directory.
func (m *memory) verdict(name string) enforcerTfVerdict {
	m.Helper()
	ino := m.number(name)
	for _, v := range m.remembered() {
		if v.Ino == ino {
			return v
		}
	}
	m.Fatalf("%s is not remembered", name)
	return enforcerTfVerdict{}
}

// plant puts a verdict where the one of a directory is looked for. So a test can make one that differs from a good one by
// a single thing, where by itself it would differ by several.
func (m *memory) plant(v enforcerTfVerdict, name string) {
	m.Helper()
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		m.Fatal(err)
	}
	// As place_of in bpf/cache.h.
	place := (uint32(m.number(name)) ^ uint32(m.jail.CgroupID)<<16) * 0x9E3779B9 >> (32 - enforcerTfLimitTF_VERDICT_BITS)
	if err := m.e.verdicts.Put(place, slices.Repeat([]enforcerTfVerdict{v}, cpus)); err != nil {
		m.Fatal(err)
	}
}

// remembered gives what is remembered for the jail's own cgroup and would be found now, moves aside.
func (m *memory) remembered() (list []enforcerTfVerdict) {
	m.Helper()
	var key uint32
	var each []enforcerTfVerdict
	iter := m.e.verdicts.Iterate()
	for iter.Next(&key, &each) {
		for _, v := range each {
			if v.Cgroup == m.jail.CgroupID && v.Epoch == m.e.state.Epoch {
				list = append(list, v)
			}
		}
	}
	if err := iter.Err(); err != nil {
		m.Fatal(err)
	}
	return list
}

func (m *memory) rename(from, to string) {
	m.Helper()
	if err := os.Rename(m.path(from), m.path(to)); err != nil {
		m.Fatal(err)
	}
}

func TestMemoryOfMovedDirectory(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "in/a/b/c/file")
		m.know("in/d/file")
		m.rename("in/d", "out/d")
		m.want(eacces, "open out/d/file")
		m.rename("out/d", "in/d")
		m.want(noErrno, "open in/d/file")

		// It is enough that something further up moves.
		m.know("in/a/b/c/file")
		m.rename("in/a", "out/a")
		m.want(eacces, "open out/a/b/c/file")
	})
}

func TestMemoryOfExchangedDirectories(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "out/d/file")
		m.know("in/d/file")
		if err := unix.Renameat2(unix.AT_FDCWD, m.path("in/d"), unix.AT_FDCWD, m.path("out/d"), unix.RENAME_EXCHANGE); err != nil {
			m.Fatal(err)
		}
		m.want(eacces, "open out/d/file")
		m.want(noErrno, "open in/d/file")
	})
}

// A file that moves takes nothing of its old directory along.
func TestMemoryOfMovedFile(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "out/d/other")
		m.know("in/d/file")
		m.rename("in/d/file", "out/d/file")
		m.want(eacces, "open out/d/file")
		m.rename("out/d/other", "in/d/other")
		m.want(noErrno, "open in/d/other")
	})
}

// A jail that takes the place of another on the same cgroup begins with nothing.
func TestMemoryOfAnotherJail(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "in/keep/file")
		m.know("in/d/file")
		before := m.verdict("in/d")
		m.confine(engine.Object{Path: m.path("in/d"), Rights: engine.None, Source: engine.SourcePolicy})
		m.want(eacces, "open in/d/file")
		m.know("in/keep/file")
		// The loader has moved files of its own. Without that as well nothing is left of the jail before.
		before.Moves = m.verdict("in/keep").Moves
		m.plant(before, "in/d")
		m.want(eacces, "open in/d/file")
		m.confine(engine.Object{Path: m.in, Rights: engine.Write, Source: engine.SourceWorkspace})
		m.want(eacces, "open in/keep/file")
	})
}

// Cgroups are remembered each for itself.
func TestMemoryOfAnotherCgroup(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "out/d/file")
		other := &memory{T: m.T, e: m.e, in: m.out, out: m.in}
		if err := other.scene.makeCgroup("/sys/fs/cgroup", "memory-"); err != nil {
			m.Fatal(err)
		}
		other.cleanup(other.scene.close)
		other.confine()
		child, err := startCanary(other.scene.cgroup, nil, nil)
		if err != nil {
			m.Fatal(err)
		}
		other.child = child
		other.cleanup(child.stop)
		m.know("in/d/file")
		other.know("in/d/file") // what m calls out
		m.want(eacces, "open out/d/file")
		m.plant(other.verdict("in/d"), "out/d") // two cgroups seldom share a place
		m.want(eacces, "open out/d/file")
		other.want(eacces, "open out/d/file")
	})
}

func TestMemoryOfExpiry(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("out/d/file")
		ends := time.Now().Add(3 * time.Second)
		m.confine(engine.Object{Path: m.path("out/d"), Rights: engine.Read, Source: engine.SourcePolicy, Expires: ends})
		m.know("out/d/file")
		time.Sleep(time.Until(ends) + 100*time.Millisecond)
		m.want(eacces, "open out/d/file")
	})
}

func TestMemoryOfRights(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("out/d/file")
		m.confine(engine.Object{Path: m.path("out/d"), Rights: engine.Read, Source: engine.SourcePolicy})
		m.know("out/d/file")
		m.want(eacces, "truncate out/d/file")
		m.want(eacces, "mapexec out/d/file")
		m.want(eacces, "create out/d/file")
		m.want(eacces, "create out/d/new")
		m.want(eacces, "mkdir out/d/new")
	})
}

// What is itself a grant is not what its directory is, by no name; nor is a device node.
func TestMemoryOfOwnGrants(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file", "in/d/none", "in/e/file")
		if err := os.Link(m.path("in/d/none"), m.path("in/e/link")); err != nil {
			m.Fatal(err)
		}
		if err := unix.Mknod(m.path("in/d/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			m.Fatal(err)
		}
		m.confine(engine.Object{Path: m.path("in/d/none"), Rights: engine.None, Source: engine.SourcePolicy})
		m.know("in/d/file")
		m.know("in/e/file")
		m.want(eacces, "open in/d/none")
		m.want(eacces, "open in/e/link")
		m.want(eacces, "open in/d/null")
		// And the other way around: a file that is granted, in a directory that is not.
		m.write("out/d/file", "out/d/other")
		if err := os.Link(m.path("out/d/file"), m.path("out/d/link")); err != nil {
			m.Fatal(err)
		}
		m.confine(engine.Object{Path: m.path("out/d/file"), Rights: engine.Read, Source: engine.SourcePolicy})
		for range 3 {
			m.want(noErrno, "open out/d/file")
			m.want(noErrno, "open out/d/link")
			m.want(eacces, "open out/d/other")
		}
	})
}

// A file whose number shares a cell of the filter with a granted one is looked up by itself, but what holds for one of
// its names is not remembered for the others.
func TestMemoryOfSharedCells(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/file")
		if err := os.Link(m.path("in/file"), m.path("out/link")); err != nil {
			m.Fatal(err)
		}
		cell := m.e.cells(enforcerTfGrantKey{Ino: m.number("in/file")}, enforcerTfGrant{})[1]
		*cell++
		defer func() { *cell-- }()
		for range 3 {
			m.want(noErrno, "open in/file")
			m.want(eacces, "open out/link")
		}
	})
}

// The same directory, reached by a mount whose root is further down than the grant, is not in the grant; see
// mount-boundary. Mounts come and go, so that addresses are used again.
func TestMemoryOfAnotherMount(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/a/b/file")
		m.mkdir("out/mnt")
		mount := func(from string) {
			m.Helper()
			if err := unix.Mount(m.path(from), m.path("out/mnt"), "", unix.MS_BIND, ""); err != nil {
				m.Fatal(err)
			}
		}
		unmount := func() {
			m.Helper()
			if err := unix.Unmount(m.path("out/mnt"), 0); err != nil {
				m.Fatal(err)
			}
		}
		m.know("in/a/b/file")
		for range 30 {
			mount("in")
			m.want(noErrno, "open out/mnt/a/b/file")
			m.want(noErrno, "open out/mnt/a/b/file")
			unmount()
			mount("in/a")
			m.want(eacces, "open out/mnt/b/file")
			unmount()
			mount("in/a/b")
			m.want(eacces, "open out/mnt/file")
			unmount()
		}
		// With nothing mounted in between: to mount moves the sequence of rename_lock too (d_set_mounted).
		mount("in/a")
		m.know("in/a/b/file")
		m.want(eacces, "open out/mnt/b/file")
		unmount()
		// A file by itself as a mount.
		m.write("out/point")
		if err := unix.Mount(m.path("in/a/b/file"), m.path("out/point"), "", unix.MS_BIND, ""); err != nil {
			m.Fatal(err)
		}
		m.want(eacces, "open out/point")
		if err := unix.Unmount(m.path("out/point"), 0); err != nil {
			m.Fatal(err)
		}
	})
}

// What is mounted over the workspace while its jail runs is not the workspace, to whom goes there by its path; who is below
// it already still is.
func TestMountOverTheWorkspace(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/file", "in/d/file", "out/file", "out/d/file")
		m.know("in/file")
		m.know("in/d/file")
		m.want(noErrno, "hold in/d")
		for _, from := range []string{"out", "in/d", "tmpfs"} {
			kind, flags := "", uintptr(unix.MS_BIND)
			if from == "tmpfs" {
				kind, flags = from, 0
			}
			if err := unix.Mount(m.path(from), m.in, kind, flags, ""); err != nil {
				m.Fatal(err)
			}
			if from == "tmpfs" {
				m.write("in/file")
			}
			m.want(eacces, "open in/file")
			m.want(noErrno, "openheld file")
			m.want(eacces, "openheld ../file") // up to the mount point, and on to what is mounted there
			if err := unix.Unmount(m.in, 0); err != nil {
				m.Fatal(err)
			}
			m.want(noErrno, "open in/file")
		}
	})
}

// A number that is given to another directory brings nothing along. ext4 gives out the lowest one that is free.
func TestMemoryOfReusedNumbers(t *testing.T) {
	m := newMemory(t, "/mnt/ext4")
	m.mkdir("out/more")
	for range 5 {
		m.write("in/d/file")
		m.know("in/d/file")
		ino := m.number("in/d")
		if err := os.RemoveAll(m.path("in/d")); err != nil {
			m.Fatal(err)
		}
		if err := unix.Mkdir(m.path("out/d"), 0o755); err != nil {
			m.Fatal(err)
		}
		got := m.number("out/d")
		m.write("out/d/file")
		m.want(eacces, "open out/d/file")
		if err := os.RemoveAll(m.path("out/d")); err != nil {
			m.Fatal(err)
		}
		if got == ino {
			return
		}
	}
	m.Fatal("the file system never gave the number of a removed directory to another one")
}

// overlayfs has no generations, and its numbers are those of its layers: nothing is remembered there.
func TestMemoryOfReusedNumbersOnOverlay(t *testing.T) {
	base := tmpfsIn(t)
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir("/mnt/ext4/overlay-"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll("/mnt/ext4/overlay-" + dir) })
	}
	for _, dir := range []string{"lower", "merged"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(base, "merged")
	options := fmt.Sprintf("lowerdir=%s/lower,upperdir=/mnt/ext4/overlay-upper,workdir=/mnt/ext4/overlay-work", base)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	m := newMemory(t, merged)
	for range 5 {
		m.write("in/d/file")
		for range 3 {
			m.want(noErrno, "open in/d/file")
		}
		if err := os.RemoveAll(m.path("in/d")); err != nil {
			m.Fatal(err)
		}
		m.write("out/d/file")
		m.want(eacces, "open out/d/file")
		if err := os.RemoveAll(m.path("out/d")); err != nil {
			m.Fatal(err)
		}
	}
	if list := m.remembered(); len(list) > 0 {
		// The jail has other grants, on other file systems.
		for _, v := range list {
			if v.Ino == m.number("in") {
				t.Errorf("remembered on overlayfs: %+v", v)
			}
		}
	}
}

// More directories than there are places, inside and outside: none is taken for another.
func TestMemoryOfManyDirectories(t *testing.T) {
	m := newMemory(t, tmpfsIn(t))
	const dirs = 1500
	for i := range dirs {
		m.write(fmt.Sprintf("in/%d/file", i), fmt.Sprintf("out/%d/file", i))
	}
	random := rand.New(rand.NewSource(1))
	for range 3000 {
		i := strconv.Itoa(random.Intn(dirs))
		m.want(noErrno, "open in/"+i+"/file")
		m.want(eacces, "open out/"+strconv.Itoa(random.Intn(dirs))+"/file")
	}
	if n := len(m.remembered()); n < dirs/4 {
		t.Errorf("only %d directories are remembered", n)
	}
}

// Two directories that share a place, and by chance have one generation too: ext4 gives a random one.
func TestMemoryOfAnotherNumber(t *testing.T) {
	m := newMemory(t, "/mnt/ext4")
	m.write("in/d/file", "out/d/file")
	dir, err := os.Open(m.path("out/d"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const getVersion = 0x80087601 // FS_IOC_GETVERSION
	generation, err := unix.IoctlGetUint32(int(dir.Fd()), getVersion)
	if err != nil {
		t.Fatal(err)
	}
	m.know("in/d/file")
	v := m.verdict("in/d")
	v.Generation = generation
	m.plant(v, "out/d")
	m.want(eacces, "open out/d/file")
}

// While somebody outside moves one directory after the other out of the workspace, what is made in one after that cannot
// be opened. None comes back: a file whose directory has, would be judged by where that lies when it is judged.
func TestMemoryRacesMoves(t *testing.T) {
	eachFileSystem(t, func(m *memory) {
		m.write("in/d/file")
		keeper, err := startCanary(m.scene.cgroup, nil, nil)
		if err != nil {
			m.Fatal(err)
		}
		m.cleanup(keeper.stop)
		stop := make(chan struct{})
		outsider := make(chan error, 1)
		go func() {
			moves := 0
			for {
				select {
				case <-stop:
					if moves < 100 {
						outsider <- fmt.Errorf("only %d moves", moves)
					}
					outsider <- nil
					return
				default:
				}
				err := errors.Join(os.Rename(m.path("in/d"), m.path("out/d")), os.WriteFile(m.path("out/d/secret"), nil, 0o644),
					os.Rename(m.path("out/d"), m.path("out/"+strconv.Itoa(moves))), os.Mkdir(m.path("in/d"), 0o755),
					os.WriteFile(m.path("in/d/file"), nil, 0o644))
				if err != nil {
					outsider <- err
					return
				}
				moves++
			}
		}()
		// One keeps the directory remembered, the other looks for the secret.
		warm := make(chan error, 1)
		go func() {
			_, err := keeper.do([]string{"keep-opening", m.path("in/d/file"), "5"})
			warm <- err
		}()
		if got := m.try("keep-opening out/d/secret 5"); got != unix.ENOENT {
			m.Errorf("the secret was opened (%s)", errnoName(got))
		}
		if err := <-warm; err != nil {
			m.Error(err)
		}
		close(stop)
		if err := <-outsider; err != nil {
			m.Error(err)
		}
	})
}
