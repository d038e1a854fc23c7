// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/thenforce/thenforce/pkg/engine"
)

// mounted makes mounts of every kind in a workspace.
func mounted(t *testing.T) (root string) {
	t.Helper()
	dir := realTempDir(t)
	root = filepath.Join(dir, "ws")
	tree(t, dir, `
		file ws/f content
		file ws/d/f content
		dir ws/bind
		dir ws/self
		dir ws/tmp
		dir ws/stack
		file ws/file content
		file side/f mounted
		dir side/deep
		file side/g mounted
	`)
	side := filepath.Join(dir, "side")
	for _, m := range []struct{ source, target, fsType string }{
		{side, "bind", ""},
		{filepath.Join(root, "d"), "self", ""}, // of the same device, even the same tree
		{"none", "tmp", "tmpfs"},
		{"none", "stack", "tmpfs"},
		{side, "stack", ""},
		{filepath.Join(side, "g"), "file", ""},
		{"none", "bind/deep", "tmpfs"},
	} {
		target := filepath.Join(root, m.target)
		flags := uintptr(unix.MS_BIND)
		if m.fsType != "" {
			flags = 0
		}
		mount(t, m.source, target, m.fsType, flags)
		t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
	}
	must(t, os.WriteFile(filepath.Join(root, "tmp/f"), []byte("tmpfs"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "bind/deep/f"), []byte("deep"), 0o600))
	return root
}

func TestMounts(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	for _, test := range []struct{ target, content string }{
		{"bind/f", "mounted"},
		{"self/f", "content"},
		{"tmp/f", "tmpfs"},
		{"stack/f", "mounted"}, // the one on top counts
		{"file", "mounted"},
		{"bind/deep/f", "deep"},
		{"d/../bind/f", "mounted"},
	} {
		forEachBackend(t, func(t *testing.T, p *Probes) {
			root := mounted(t)
			g := &Guard{Workspace: bind(t, root, p), Probes: p}
			if d := engine.CheckContainment(g.Workspace, test.target, g.Options, p); d.Outcome != engine.Denied || d.Code != engine.CodeMountPoint {
				t.Errorf("%s, not following, is %+v", test.target, d)
			}
			for _, op := range []string{"read ", "write ", "append ", "remove "} {
				if test.target == "file" && op == "remove " {
					continue // below
				}
				if _, err := perform(g, root, op+test.target); !errors.Is(err, engine.ErrEscape) {
					t.Errorf("%s%s is %v, want ErrEscape", op, test.target, err)
				}
			}
			if err := g.Remove("file"); !errors.Is(err, unix.EBUSY) {
				t.Errorf("removing a mount point is %v, want EBUSY", err)
			}
			if content, err := g.ReadFile("d/f"); err != nil || string(content) != "content" {
				t.Errorf("beside the mounts it reads %q, %v", content, err)
			}

			g.Options.FollowMountPoints = true
			if d := engine.CheckContainment(g.Workspace, test.target, g.Options, p); d.Outcome != engine.Allowed {
				t.Errorf("%s, following, is %+v", test.target, d)
			}
			if content, err := g.ReadFile(test.target); err != nil || string(content) != test.content {
				t.Errorf("%s, following, reads %q, %v", test.target, content, err)
			}
			if err := g.WriteFile(filepath.Dir(test.target)+"/new", []byte("new"), 0o600); err != nil {
				t.Error(err)
			}
			if err := g.Rename(filepath.Dir(test.target)+"/new", filepath.Dir(test.target)+"/renamed"); err != nil {
				t.Error(err)
			}
			if err := g.Remove(filepath.Dir(test.target) + "/renamed"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMountAppears mounts after the table was read: the next check knows.
func TestMountAppears(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	forEachBackend(t, func(t *testing.T, p *Probes) {
		dir := realTempDir(t)
		tree(t, dir, "file ws/d/f content\nfile side/f mounted")
		target := filepath.Join(dir, "ws/d")
		g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p}
		for range 20 {
			if _, err := g.ReadFile("d/f"); err != nil {
				t.Fatal(err)
			}
			mount(t, filepath.Join(dir, "side"), target, "", unix.MS_BIND)
			if d := engine.CheckContainment(g.Workspace, "d/f", g.Options, p); d.Code != engine.CodeMountPoint {
				t.Fatalf("right after the mount: %+v", d)
			}
			g.Options.FollowMountPoints = true
			if content, err := g.ReadFile("d/f"); err != nil || string(content) != "mounted" {
				t.Fatalf("right after the mount, following, it reads %q, %v", content, err)
			}
			g.Options.FollowMountPoints = false
			must(t, unix.Unmount(target, 0))
		}
		// Between the walk and the lookup.
		g.walked = func() {
			g.walked = nil
			mount(t, filepath.Join(dir, "side"), target, "", unix.MS_BIND)
		}
		if content, err := g.ReadFile("d/f"); !errors.Is(err, engine.ErrEscape) {
			t.Errorf("mounted after the walk, it reads %q, %v", content, err)
		}
		must(t, unix.Unmount(target, 0))
	})
}

// TestNoProcfs looks at a system whose mount table cannot be had, or is another's.
func TestNoProcfs(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	early := newProbes(t) // keeps the real table
	dir := realTempDir(t)
	tree(t, dir, "file f content")
	for _, test := range []struct {
		name  string
		cover func() error
		code  engine.EnforcementCode
	}{
		{"forged", func() error {
			if err := unix.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
				return err
			}
			if err := os.MkdirAll("/proc/thread-self", 0o755); err != nil {
				return err
			}
			return os.WriteFile("/proc/thread-self/mountinfo", []byte("1 1 0:1 / / rw - ext4 none rw\n"), 0o644)
		}, engine.ProcfsUntrusted},
		{"gone", func() error {
			// The test's own files keep it busy: cover it with something empty.
			return unix.Mount("none", "/proc", "tmpfs", 0, "")
		}, engine.ProcfsUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			must(t, test.cover())
			defer func() { must(t, unix.Unmount("/proc", unix.MNT_DETACH)) }()
			p, err := NewProbes()
			must(t, err)
			defer p.Close()
			g := &Guard{Workspace: engine.Bind(dir, p), Probes: p}
			if d := engine.CheckContainment(g.Workspace, "f", g.Options, p); d.Outcome != engine.EnforcementUnverified || d.Code != engine.CodeMountTable {
				t.Errorf("without a mount table: %+v", d)
			}
			if _, err := g.ReadFile("f"); !errors.Is(err, ErrUnverified) {
				t.Errorf("reading without a mount table: %v", err)
			}
			if err := g.Remove("f"); !errors.Is(err, ErrUnverified) {
				t.Errorf("removing without a mount table: %v", err)
			}
			status := Status()
			if status.State != engine.Unverified || !slices.Contains(status.Blocking(), test.code) || status.Mountinfo == "ok" {
				t.Errorf("the status is %+v", status)
			}
			if d := engine.CheckContainment(bind(t, dir, early), "f", g.Options, early); d.Outcome != engine.Allowed {
				t.Errorf("with the table opened before: %+v", d)
			}
		})
	}
	// The table comes back without new probes.
	if d := engine.CheckContainment(bind(t, dir, early), "f", engine.ContainmentOptions{}, early); d.Outcome != engine.Allowed {
		t.Errorf("with procfs back: %+v", d)
	}
}

// TestProperties makes random trees of directories, files, links and mounts and
// holds for random targets that the check with and without Sweep, the batch and
// the open agree, on both backends; that what is opened lies below the root and
// at the resolved path by /proc/self/fd; that no marker is read; and that
// openat2(RESOLVE_BENEATH) agrees where it asks the same question.
func TestProperties(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	seen := make(map[engine.Code]int)
	properties(t, seen)
	sawEnough(t, seen)
}

// properties counts the codes of all targets in seen.
func properties(t *testing.T, seen map[engine.Code]int) {
	probes := backends(t)
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "thenforce")
		must(t, err)
		// The workspace is not the whole of what is made, so that links and ".."
		// have somewhere to lead.
		defer os.RemoveAll(dir)
		root := filepath.Join(dir, "ws")
		made, unmount := randomTree(t, r, dir, root)
		defer unmount()
		options := engine.ContainmentOptions{
			FollowSymlinks:    rapid.Bool().Draw(r, "symlinks"),
			FollowMountPoints: rapid.Bool().Draw(r, "mounts"),
		}
		targets := rapid.SliceOfN(target(root, made), 1, 8).Draw(r, "targets")
		for name, p := range probes {
			g := &Guard{Workspace: bind(t, root, p), Options: options, Probes: p}
			batch := g.CheckAll(targets)
			for i, target := range targets {
				seen[batch[i].Code]++
				if err := agree(g, target, batch[i]); err != nil {
					r.Fatalf("%s, %q: %v\n%s", name, target, err, describe(dir))
				}
			}
		}
	})
}

// sawEnough fails where the trees were too plain to prove much.
func sawEnough(t *testing.T, seen map[engine.Code]int) {
	t.Helper()
	t.Logf("codes seen: %v", seen)
	for _, code := range []engine.Code{engine.CodeWithin, engine.CodeOutside, engine.CodeSymlink, engine.CodeMountPoint,
		engine.CodeMissingComponent, engine.CodeNotDirectory} {
		if seen[code] == 0 {
			t.Errorf("no target was %s", code)
		}
	}
}

var (
	name = rapid.SampledFrom([]string{"a", "b", "c"})
	path = rapid.Map(rapid.SliceOfN(name, 1, 4), func(names []string) string { return strings.Join(names, "/") })
)

// target draws a path as a caller might give it, often one of those that were
// made or one below.
func target(root string, made []string) *rapid.Generator[string] {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "a", "b", "c", "..", ".", "", "n"}), 0, 6)
	return rapid.Custom(func(r *rapid.T) string {
		p := strings.Join(parts.Draw(r, "parts"), "/")
		if len(made) > 0 && rapid.Bool().Draw(r, "known") {
			p = rapid.SampledFrom(made).Draw(r, "path") + rapid.SampledFrom([]string{"", "/a", "/b", "/n", "/../c"}).Draw(r, "more")
		}
		switch rapid.IntRange(0, 4).Draw(r, "form") {
		case 0:
			p = root + "/" + p
		case 1:
			p += "/"
		case 2:
			p = strings.TrimPrefix(p, "/")
		}
		return p
	})
}

// randomTree fills root. It returns the paths of what it made there, and what
// takes the mounts away.
func randomTree(t *testing.T, r *rapid.T, dir, root string) (made []string, unmount func()) {
	tree(t, dir, "dir ws\noutside out/secret\noutside out/a/b\nfile side/a/b inside\nfile side/c inside")
	in, err := os.OpenRoot(root)
	must(t, err)
	defer in.Close()
	link := rapid.OneOf(
		path,
		rapid.Map(path, func(p string) string { return "../" + p }),
		rapid.Map(path, func(p string) string { return "../../" + p }),
		rapid.Map(path, func(p string) string { return root + "/" + p }),
		rapid.Map(path, func(p string) string { return "../ws/" + p }),
		rapid.SampledFrom([]string{".", "..", "../..", "../out", "../../out/a/b", dir + "/out", dir + "/out/secret",
			"/", root, root + "/", "a/../b", "b/", "c/.", "/proc/self/cwd", "/proc/self/root" + root}),
	)
	for range rapid.IntRange(5, 16).Draw(r, "objects") {
		at := path.Draw(r, "path")
		_ = in.MkdirAll(filepath.Dir(at), 0o755)
		switch rapid.SampledFrom([]string{"dir", "file", "link", "fifo"}).Draw(r, "kind") {
		case "dir":
			err = in.MkdirAll(at, 0o755)
		case "file":
			// Not into a FIFO that is there already.
			var f *os.File
			if f, err = in.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				_, _ = f.WriteString("inside")
				f.Close()
			}
		case "link":
			err = in.Symlink(link.Draw(r, "target"), at)
		case "fifo":
			if err = unix.ELOOP; onlyBelow(root, filepath.Dir(at)) {
				err = unix.Mkfifo(filepath.Join(root, at), 0o600)
			}
		}
		if err == nil {
			made = append(made, at)
		}
	}
	var mounts []string
	for range rapid.IntRange(0, 3).Draw(r, "mounts") {
		if len(made) == 0 {
			break
		}
		// Wherever the path leads to, if not through links.
		at := rapid.SampledFrom(made).Draw(r, "mount point")
		if !onlyBelow(root, at) {
			continue
		}
		source, fsType, flags := filepath.Join(dir, "side"), "", uintptr(unix.MS_BIND)
		switch rapid.SampledFrom([]string{"bind", "self", "tmpfs", "file"}).Draw(r, "mount") {
		case "self":
			source = root
		case "tmpfs":
			source, fsType, flags = "none", "tmpfs", 0
		case "file":
			source = filepath.Join(dir, "side/c")
		}
		where := filepath.Join(root, at)
		if unix.Mount(source, where, fsType, flags, "") == nil {
			mounts = append(mounts, where)
		}
	}
	return made, func() {
		for _, where := range slices.Backward(mounts) {
			must(t, unix.Unmount(where, unix.MNT_DETACH))
		}
	}
}

// onlyBelow reports whether rel exists below root and no link is on the way.
func onlyBelow(root, rel string) bool {
	path := filepath.Join(root, rel)
	real, err := filepath.EvalSymlinks(path)
	return err == nil && real == path
}

// agree checks everything that has to hold for one target. batch is what
// CheckAll said.
func agree(g *Guard, target string, batch engine.ContainmentDecision) error {
	d := engine.CheckContainment(g.Workspace, target, g.Options, struct{ engine.Probes }{g.Probes})
	if swept := engine.CheckContainment(g.Workspace, target, g.Options, g.Probes); swept != d {
		return fmt.Errorf("walked it is %+v, swept %+v", d, swept)
	}
	if batch != d {
		return fmt.Errorf("walked it is %+v, in a batch %+v", d, batch)
	}
	walk, found := engine.WalkContainment(g.Workspace, target, g.Options, g.Probes), engine.Locate(g.Workspace, target, g.Options, g.Probes)
	walk.Steps = nil
	if found.Parent == (engine.ObjectID{}) && !found.Missing {
		walk.Parent = engine.ObjectID{}
	}
	if walk.Decision != d || diff(walk, found) {
		return fmt.Errorf("walked it is %+v, located %+v", walk, found)
	}
	file, err := g.Open(target)
	if err == nil {
		defer file.Close()
	}
	if oracleErr := beneathAgrees(g, target, d, file); oracleErr != nil {
		return oracleErr
	}
	switch {
	case d.Outcome == engine.Allowed && err == nil:
		return isAt(g, file, d.ResolvedPath)
	case d.Outcome == engine.Allowed:
		// Either nothing is there, or nothing that is opened.
		var st unix.Stat_t
		statErr := unix.Lstat(d.ResolvedPath, &st)
		if errors.Is(err, os.ErrNotExist) && errors.Is(statErr, unix.ENOENT) || errors.Is(err, ErrSpecial) && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			return nil
		}
		return fmt.Errorf("allowed, and opening it is %v", err)
	case err == nil:
		return fmt.Errorf("opened, and the check says %+v", d)
	}
	refused := (*RefusedError)(nil)
	if !errors.As(err, &refused) || refused.Decision != d {
		return fmt.Errorf("the check says %+v, the open %v", d, err)
	}
	return nil
}

// diff reports whether two walks, without steps, saw different things.
func diff(a, b engine.Walk) bool {
	return a.Decision != b.Decision || a.Root != b.Root || a.Parent != b.Parent || a.Object != b.Object || a.Kind != b.Kind || a.Missing != b.Missing
}

// isAt checks that an open file lies below the root, and where.
func isAt(g *Guard, file *os.File, resolved string) error {
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	root := g.Workspace.CanonicalRoot
	if at != root && !strings.HasPrefix(at, root+"/") {
		return fmt.Errorf("what was opened lies at %q, outside", at)
	}
	if at != resolved {
		return fmt.Errorf("what was opened lies at %q, the check said %q", at, resolved)
	}
	content := make([]byte, len(marker))
	if n, _ := file.Read(content); string(content[:n]) == marker {
		return errors.New("the marker was read")
	}
	return nil
}

// beneathAgrees asks the kernel the same question where it can: without links
// its answer is the engine's; with links it refuses some that lead back in, so
// what it opens has to be allowed, and to be the same.
func beneathAgrees(g *Guard, target string, d engine.ContainmentDecision, file *os.File) error {
	root := g.Workspace.CanonicalRoot
	clean, err := engine.Resolve(root, target)
	if err != nil {
		return nil // lexically outside: the kernel takes ".." another way
	}
	rel, err := filepath.Rel(root, clean)
	if err != nil {
		return err
	}
	if demandsDirectory(target) {
		rel += "/"
	}
	resolve := uint64(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS)
	if !g.Options.FollowSymlinks {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	if !g.Options.FollowMountPoints {
		resolve |= unix.RESOLVE_NO_XDEV
	}
	top, err := openat(unix.AT_FDCWD, root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	fd, err := openat2(top, rel, unix.O_PATH, resolve)
	if err != nil {
		if !g.Options.FollowSymlinks && file != nil {
			return fmt.Errorf("opened, and openat2 says %v", err)
		}
		return nil
	}
	defer unix.Close(fd)
	if d.Outcome != engine.Allowed {
		return fmt.Errorf("openat2 opens it, and the check says %+v", d)
	}
	if file == nil {
		return nil // not opened for what it is
	}
	var ours, theirs unix.Stat_t
	if err := errors.Join(unix.Fstat(int(file.Fd()), &ours), unix.Fstat(fd, &theirs)); err != nil {
		return err
	}
	if ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return errors.New("openat2 opens another object")
	}
	return nil
}

// describe lists a tree for a message, mounts included.
func describe(dir string) string {
	var b strings.Builder
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		target, _ := os.Readlink(path)
		fmt.Fprintf(&b, "%s %s\n", path, target)
		return err
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			b.WriteString(line)
		}
	}
	return b.String()
}
