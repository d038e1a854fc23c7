// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
)

func TestInspect(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "dir d\nfile f\nlink l -> f\nlink dangling -> nothing\nhard h -> f")
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	defer socket.Close()

	for name, kind := range map[string]engine.Kind{
		"d": engine.KindDir, "f": engine.KindFile, "l": engine.KindSymlink, "dangling": engine.KindSymlink,
		"fifo": engine.KindFIFO, "s": engine.KindSocket,
	} {
		path := filepath.Join(dir, name)
		e, err := p.Inspect(path)
		if err != nil {
			t.Error(err)
			continue
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if e.Kind != kind || uint64(e.Dev) != st.Dev || e.Ino != st.Ino || e.ChangeTime.UnixNano() != st.Ctim.Nano() {
			t.Errorf("%s is %+v, lstat says %+v", name, e, st)
		}
		if e.MountID == 0 || e.MountRoot || e.Magic {
			t.Errorf("%s is %+v: it lies on a mount, is the root of none, and not magic", name, e)
		}
	}
	f, _ := p.Inspect(filepath.Join(dir, "f"))
	h, _ := p.Inspect(filepath.Join(dir, "h"))
	d, _ := p.Inspect(filepath.Join(dir, "d"))
	if !f.SameObject(&h) || f.SameObject(&d) {
		t.Error("the hard link is the same object, and the directory another")
	}
	if null, err := p.Inspect("/dev/null"); err != nil || null.Kind != engine.KindCharDevice {
		t.Errorf("/dev/null is %+v, %v", null, err)
	}

	// The kernel and the mount table speak of the same mount.
	table, err := p.Mounts()
	must(t, err)
	mount, ok := table.ByUniqueID(f.MountID)
	if !f.UniqueMountID {
		mount, ok = table.ByID(f.MountID)
	}
	if want, _ := table.Lookup(dir); !ok || mount != want {
		t.Errorf("the file lies on %+v, the mount table says %+v", mount, want)
	}
}

func TestInspectErrors(t *testing.T) {
	p := newProbes(t)
	dir := publicDir(t)
	tree(t, dir, "file f\nlink loop -> loop\ndir shut/d")
	shut(t, filepath.Join(dir, "shut"))
	for path, want := range map[string]error{
		"n":                                  unix.ENOENT,
		"n/n":                                unix.ENOENT,
		"f/x":                                unix.ENOTDIR,
		"loop/x":                             unix.ELOOP,
		strings.Repeat("n", 256):             unix.ENAMETOOLONG,
		strings.Repeat("n/", unix.PathMax/2): unix.ENAMETOOLONG,
		"a\x00b":                             unix.EINVAL,
		"shut/d":                             unix.EACCES,
	} {
		asNobody(func() {
			_, err := p.Inspect(dir + "/" + path)
			pathErr := (*fs.PathError)(nil)
			if !errors.As(err, &pathErr) || !errors.Is(err, want) {
				t.Errorf("%.20q is %v, want a PathError with %v", path, err, want)
			}
		})
	}
}

func TestReadDirAndLink(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "file a/b\nfile a/c\nlink a/l -> c\nlink to -> a")
	names, err := p.ReadDir(filepath.Join(dir, "a"))
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"b", "c", "l"}) {
		t.Errorf("a holds %q, %v", names, err)
	}
	if names, err := p.ReadDir(filepath.Join(dir, "to")); err == nil {
		t.Errorf("a link was followed to %q", names)
	}
	if target, err := p.ReadLink(filepath.Join(dir, "to")); err != nil || target != "a" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if _, err := p.ReadLink(filepath.Join(dir, "a")); err == nil {
		t.Error("a directory has a target")
	}
	if fold, err := p.FoldsCase(dir); fold || err != nil {
		t.Errorf("FoldsCase is %v, %v", fold, err)
	}
	if _, err := p.FoldsCase(filepath.Join(dir, "to")); err == nil {
		t.Error("FoldsCase follows a link")
	}
}

// TestMagicLinks follows everything and gets nowhere through the links of procfs
// that lead to objects, even where they lead back into the workspace.
func TestMagicLinks(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "file f content\nlink cwd -> /proc/self/cwd\nlink root -> /proc/self/root")
	t.Chdir(dir)
	everything := engine.ContainmentOptions{FollowSymlinks: true, FollowMountPoints: true}
	g := &Guard{Workspace: bind(t, "/", p), Options: everything, Probes: p}
	for target, code := range map[string]engine.Code{
		"proc/self/cwd/f":        engine.CodeMagicLink,
		"proc/self/root" + dir:   engine.CodeMagicLink,
		"proc/self/exe":          engine.CodeMagicLink,
		"proc/self/fd/0":         engine.CodeMagicLink,
		"proc/self/ns/mnt":       engine.CodeMagicLink,
		"proc/thread-self/cwd":   engine.CodeMagicLink,
		dir + "/cwd/f":           engine.CodeMagicLink,
		dir + "/root" + dir:      engine.CodeMagicLink,
		"proc/self/comm":         engine.CodeWithin, // self is a plain link
		"proc/mounts":            engine.CodeWithin,
		dir + "/f":               engine.CodeWithin,
		"proc/self/root/../comm": engine.CodeWithin, // ".." is taken away as text
	} {
		d := engine.CheckContainment(g.Workspace, target, everything, p)
		if d.Code != code {
			t.Errorf("%s is %s (%s), want %s", target, d.Code, d.Reason, code)
		}
		f, err := g.Open(target)
		if err == nil {
			f.Close()
		}
		if magic := errors.Is(err, engine.ErrMagicLink); magic != (code == engine.CodeMagicLink) || !magic && err != nil {
			t.Errorf("opening %s is %v", target, err)
		}
	}
}

// TestRootOfAll binds "/". The directory of the test may be on another mount.
func TestRootOfAll(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, "file f content")
		g := &Guard{Workspace: bind(t, "/", p), Probes: p}
		g.Options.FollowMountPoints = true
		for _, target := range []string{dir + "/f", strings.TrimPrefix(dir, "/") + "/f", "../../.." + dir + "/f"} {
			content, err := g.ReadFile(target)
			if err != nil || string(content) != "content" {
				t.Errorf("%s reads %q, %v", target, content, err)
			}
		}
		if f, err := g.Open("/"); err != nil {
			t.Error(err)
		} else {
			f.Close()
		}
		if err := g.Remove("/"); !errors.Is(err, ErrRoot) {
			t.Errorf("removing / is %v", err)
		}
	})
}

// TestNames opens files whose names are unusual and valid.
func TestNames(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		g := &Guard{Workspace: bind(t, realTempDir(t), p), Probes: p}
		deep := strings.Repeat("d/", 300) + "f"
		must(t, os.MkdirAll(filepath.Join(g.Workspace.CanonicalRoot, filepath.Dir(deep)), 0o755))
		for _, name := range []string{"\xff\xfe", " ", "new\nline", "tab\t", `back\slash`, "-rf", "...", "NUL", "C:", "e\u0301", "\u00e9", strings.Repeat("x", 255), deep} {
			if err := g.WriteFile(name, []byte(name), 0o600); err != nil {
				t.Errorf("write %.20q: %v", name, err)
				continue
			}
			if content, err := g.ReadFile(name); err != nil || string(content) != name {
				t.Errorf("%.20q reads %q, %v", name, content, err)
			}
			if err := g.Remove(name); err != nil {
				t.Errorf("remove %.20q: %v", name, err)
			}
		}
	})
}

// TestTooLong checks a name of one byte more than a name may have, which cannot
// be looked at. (Windows says that there is none.)
func TestTooLong(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		g := &Guard{Workspace: bind(t, realTempDir(t), p), Probes: p}
		long := strings.Repeat("x", 256)
		for _, target := range []string{long, long + "/x"} {
			d := engine.CheckContainment(g.Workspace, target, g.Options, p)
			if d.Outcome != engine.EnforcementUnverified || d.Code != engine.CodeInspectFailed {
				t.Errorf("got %+v", d)
			}
			if err := g.WriteFile(target, nil, 0o600); !errors.Is(err, ErrUnverified) {
				t.Errorf("writing it is %v, want ErrUnverified", err)
			}
		}
	})
}

// TestUnreadable looks below a directory that may not be searched.
func TestUnreadable(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := publicDir(t)
		tree(t, dir, "file shut/f content\nfile open content")
		shut(t, filepath.Join(dir, "shut"))
		must(t, os.Chmod(filepath.Join(dir, "open"), 0))
		asNobody(func() {
			g := &Guard{Workspace: engine.Bind(dir, p), Probes: p}
			d := engine.CheckContainment(g.Workspace, "shut/f", g.Options, p)
			if d.Outcome != engine.EnforcementUnverified || d.Code != engine.CodeInspectFailed {
				t.Errorf("below an unreadable directory: %+v", d)
			}
			if _, err := g.ReadFile("shut/f"); !errors.Is(err, ErrUnverified) {
				t.Errorf("reading below an unreadable directory: %v", err)
			}
			if err := g.Remove("shut/f"); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("removing below an unreadable directory: %v", err)
			}
			if d := engine.CheckContainment(g.Workspace, "open", g.Options, p); d.Outcome != engine.Allowed {
				t.Errorf("an unreadable file lies within, got %+v", d)
			}
			if _, err := g.ReadFile("open"); !errors.Is(err, unix.EACCES) {
				t.Errorf("reading an unreadable file: %v, want EACCES", err)
			}
			for _, root := range []string{"shut", "shut/below"} {
				w := engine.Bind(filepath.Join(dir, root), p)
				if w.BindingStatus != engine.Blocked || !errors.Is(w.Err(), fs.ErrPermission) || len(w.WorkspaceID) != 16 {
					t.Errorf("%s, which cannot be read, is bound as %+v: %v", root, w, w.Err())
				}
			}
		})
	})
}

func TestGenerationIn(t *testing.T) {
	handle := func(words ...uint32) (bytes []byte) {
		for _, w := range words {
			bytes = binary.NativeEndian.AppendUint32(bytes, w)
		}
		return bytes
	}
	for _, test := range []struct {
		name   string
		kind   int32
		handle []byte
		want   uint64
		known  bool
	}{
		{"ext4", 0x01, handle(11, 7), 7, true},
		{"tmpfs", 0x01, handle(7, 11, 0), 7, true},
		{"xfs with large inode numbers", 0x81, handle(11, 1, 7), 7, true},
		{"btrfs", 0x4d, handle(11, 0, 256, 0, 7), 7, true},
		{"a generation with the highest bit", 0x01, handle(11, 1<<31), 1 << 31, true},
		{"with a parent", 0x02, handle(11, 7, 12, 8), 0, false},
		{"overlayfs", 0xf8, handle(1, 2, 3), 0, false},
		{"cut short", 0x01, handle(11), 0, false},
		{"empty", 0x01, nil, 0, false},
	} {
		if got, known := generationIn(test.kind, test.handle); got != test.want || known != test.known {
			t.Errorf("%s: %d, %v; want %d, %v", test.name, got, known, test.want, test.known)
		}
	}
}

// checkGeneration compares the generation of a directory with what the file
// system says itself, and holds that one made anew by the same name has another
// number or another generation.
func checkGeneration(t *testing.T, p *Probes, dir string) {
	t.Helper()
	path := filepath.Join(dir, "generation")
	type numbers struct{ ino, generation uint64 }
	seen := make(map[numbers]bool)
	for range 8 {
		must(t, os.Mkdir(path, 0o755))
		e, err := p.Inspect(path)
		must(t, err)
		got, ok, err := p.Generation(path)
		if err != nil || !ok {
			t.Fatalf("the generation is %d, %v, %v", got, ok, err)
		}
		fd, err := openDir(path)
		must(t, err)
		const getVersion = 0x80087601 // FS_IOC_GETVERSION of linux/fs.h, not in x/sys
		want, err := unix.IoctlGetUint32(fd, getVersion)
		unix.Close(fd)
		if err == nil && got != uint64(want) {
			t.Errorf("the generation is %d, the file system says %d", got, want)
		} else if err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Error(err)
		}
		if now := (numbers{e.Ino, got}); seen[now] {
			t.Errorf("two directories, one after the other, are %+v", now)
		} else {
			seen[now] = true
		}
		must(t, os.Remove(path))
	}
	if _, _, err := p.Generation(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of what is not there: %v", err)
	}
	if _, ok, err := p.Generation("/proc"); ok || err != nil {
		t.Errorf("of procfs: %v, %v", ok, err)
	}
}

func TestGeneration(t *testing.T) {
	p := newProbes(t)
	checkGeneration(t, p, realTempDir(t))
	// Links are not followed.
	dir := realTempDir(t)
	tree(t, dir, "file f content\nlink l -> f")
	f, _, err := p.Generation(filepath.Join(dir, "f"))
	must(t, err)
	if l, ok, err := p.Generation(filepath.Join(dir, "l")); !ok || err != nil || l == f {
		t.Errorf("a link has the generation %d, %v, %v; what it leads to %d", l, ok, err, f)
	}
}

// TestSpecial opens what is neither file nor directory, and does not wait.
func TestSpecial(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
		socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
		must(t, err)
		defer socket.Close()
		g := &Guard{Workspace: bind(t, dir, p), Probes: p}
		for _, name := range []string{"fifo", "socket"} {
			for _, op := range []string{"read ", "write ", "append ", "create "} {
				if _, err := perform(g, dir, op+name+" x"); !errors.Is(err, ErrSpecial) || !errors.Is(err, fs.ErrPermission) {
					t.Errorf("%s%s is %v, want ErrSpecial", op, name, err)
				}
			}
			if err := g.Rename(name, "renamed"); err != nil {
				t.Error(err)
			}
			if err := g.Remove("renamed"); err != nil {
				t.Error(err)
			}
		}
		g = &Guard{Workspace: bind(t, "/dev", p), Probes: p}
		if _, err := g.Open("null"); !errors.Is(err, ErrSpecial) {
			t.Errorf("/dev/null is %v, want ErrSpecial", err)
		}
	})
}

// TestOpenedFile checks what the caller gets: a file that waits as usual, has
// the flags that were asked for, and is not inherited.
func TestOpenedFile(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, "file f content")
		old := unix.Umask(0o022)
		defer unix.Umask(old)
		g := &Guard{Workspace: bind(t, dir, p), Probes: p}
		for name, flag := range map[string]int{"f": os.O_RDWR | os.O_APPEND, "n": os.O_RDWR | os.O_APPEND | os.O_CREATE} {
			f, err := g.OpenFile(name, flag, 0o751)
			must(t, err)
			defer f.Close()
			if filepath.Clean(f.Name()) != filepath.Join(dir, name) { // os.Root puts in a "."
				t.Errorf("the name is %q", f.Name())
			}
			status, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
			must(t, err)
			if status&unix.O_NONBLOCK != 0 || status&unix.O_APPEND == 0 || status&unix.O_ACCMODE != unix.O_RDWR {
				t.Errorf("%s has the flags %#x", name, status)
			}
			inherit, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			must(t, err)
			if inherit&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s is inherited by programs", name)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "n")); err != nil || info.Mode() != 0o751&^0o022 {
			t.Errorf("the mode of a created file is %v, %v", info.Mode(), err)
		}
	})
}

// TestDescriptors does everything there is, and nothing stays open.
func TestDescriptors(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, guarded)
		root := filepath.Join(dir, "ws")
		g := &Guard{Workspace: bind(t, root, p), Probes: p}
		before := descriptors(t)
		for _, test := range operations {
			g.Options = test.options
			_, _ = perform(g, root, test.op)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors are open after %d before", after, before)
		}
	})
}
