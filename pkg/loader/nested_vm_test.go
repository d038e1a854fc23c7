//go:build vm

package loader

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// nest is a chain of cgroups, each inside the one before, with directories to grant.
type nest struct {
	e       *Enforcer
	dirs    map[string]string
	cgroups []*os.File
	scene   scene
}

func newNest(t *testing.T, levels int) *nest {
	t.Helper()
	n := &nest{e: openVerified(t), dirs: map[string]string{}}
	base := tmpfsIn(t)
	for _, name := range []string{"a", "b", "c", "abc"} {
		n.dirs[name] = filepath.Join(base, name)
		if err := os.Mkdir(n.dirs[name], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(n.dirs[name], "file"), []byte(canaryText), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.scene.makeCgroup("/sys/fs/cgroup", "nest-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.scene.close(); err != nil {
			t.Error(err)
		}
	})
	path := n.scene.path
	for range levels {
		dir, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		n.cgroups = append(n.cgroups, dir)
		path = filepath.Join(path, "inner")
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		// Innermost first; those who died in it are still there for a moment.
		var cgroups []string
		filepath.WalkDir(n.scene.path, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				cgroups = append(cgroups, path)
			}
			return nil
		})
		for _, path := range slices.Backward(cgroups) {
			if err := removeCgroup(path); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// jail makes a jail at a level of the chain, with the named directories.
func (n *nest) jail(t *testing.T, level int, grants ...string) *Jail {
	t.Helper()
	j, err := n.try(level, grants...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.e.DeleteJail(j.ID); err != nil && !strings.Contains(err.Error(), ErrNoJail.Error()) {
			t.Error(err)
		}
	})
	return j
}

func (n *nest) try(level int, grants ...string) (*Jail, error) {
	open, closeAll, err := canaryObjects()
	if err != nil {
		return nil, err
	}
	defer closeAll()
	sets := engine.AllowedSets{Workspace: engine.WorkspaceIdentity{CanonicalRoot: n.dirs[grants[0]]}}
	for _, name := range grants {
		sets.Objects = append(sets.Objects, engine.Object{Path: n.dirs[name], Rights: engine.AllRights, Source: engine.SourceWorkspace})
	}
	cgroup := n.cgroups[level]
	return n.e.CreateJail(JailSpec{Cgroup: cgroup, CgroupPath: cgroup.Name(), Open: open, Sets: sets})
}

// expect starts a process at a level and compares what it may open with what is said: "a" yes, "-a" no.
func (n *nest) expect(t *testing.T, when string, level int, said ...string) {
	t.Helper()
	child, err := startCanary(n.cgroups[level], nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer child.stop()
	n.ask(t, when, child, said...)
}

func (n *nest) ask(t *testing.T, when string, child *canaryChild, said ...string) {
	t.Helper()
	for _, word := range said {
		name, denied := strings.CutPrefix(word, "-")
		errno, err := child.do([]string{"open", filepath.Join(n.dirs[name], "file")})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if denied != (errno == eacces) {
			t.Errorf("%s: open %s: %s", when, name, errnoName(errno))
		}
	}
}

func TestBothOfNestedJailsHold(t *testing.T) {
	n := newNest(t, 2)
	outer := n.jail(t, 0, "a", "abc")
	inner := n.jail(t, 1, "b", "abc")
	n.expect(t, "outer", 0, "a", "abc", "-b", "-c")
	n.expect(t, "inner", 1, "-a", "abc", "-b", "-c")

	jails, err := n.e.Jails()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jails {
		if j.ID == inner.ID && j.Parent != outer.ID || j.ID == outer.ID && j.Parent != "" {
			t.Errorf("jail %s says its parent is %q", j.ID, j.Parent)
		}
	}

	// A process of the outer jail has power over the inner one's, and not the other way round.
	out, err := startCanary(n.cgroups[0], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer out.stop()
	in, err := startCanary(n.cgroups[1], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer in.stop()
	for _, c := range []struct {
		from, to *canaryChild
		want     unix.Errno
	}{{out, in, 0}, {in, out, eperm}} {
		if errno, err := c.from.do([]string{"kill", strconv.Itoa(c.to.cmd.Process.Pid)}); err != nil || errno != c.want {
			t.Errorf("kill: %s, want %s (%v)", errnoName(errno), errnoName(c.want), err)
		}
	}

	if err := n.e.DeleteJail(inner.ID); err != nil {
		t.Fatal(err)
	}
	n.ask(t, "the inner one deleted", in, "a", "abc", "-b", "-c")
	n.expect(t, "the inner one deleted, a new process", 1, "a", "abc", "-b", "-c")
	if err := n.e.DeleteJail(outer.ID); err != nil {
		t.Fatal(err)
	}
	n.ask(t, "both deleted", in, "a", "abc", "b", "c")
}

func TestDeletingTheOuterJailLeavesTheInner(t *testing.T) {
	n := newNest(t, 3)
	outer := n.jail(t, 0, "a", "abc")
	n.jail(t, 1, "b", "abc")
	n.jail(t, 2, "c", "abc")
	n.expect(t, "three jails", 2, "-a", "-b", "-c", "abc")
	if err := n.e.DeleteJail(outer.ID); err != nil {
		t.Fatal(err)
	}
	n.expect(t, "without the outermost, middle", 1, "-a", "b", "-c", "abc")
	n.expect(t, "without the outermost, innermost", 2, "-a", "-b", "-c", "abc")
	n.expect(t, "without the outermost, itself", 0, "a", "b", "c", "abc")
}

// The jail around another one, and one between two, may come later.
func TestJailAroundAnother(t *testing.T) {
	n := newNest(t, 3)
	n.jail(t, 2, "c", "abc")
	child, err := startCanary(n.cgroups[2], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer child.stop()
	n.ask(t, "alone", child, "-a", "-b", "c", "abc")
	n.jail(t, 0, "a", "c", "abc")
	n.ask(t, "inside another", child, "-a", "-b", "c", "abc")
	middle := n.jail(t, 1, "b", "abc")
	n.ask(t, "with one between", child, "-a", "-b", "-c", "abc")
	n.expect(t, "between", 1, "-a", "-b", "-c", "abc")
	// A cgroup made now belongs to the jail it is made in.
	if err := os.Mkdir(filepath.Join(n.cgroups[1].Name(), "later"), 0o755); err != nil {
		t.Fatal(err)
	}
	later, err := os.Open(filepath.Join(n.cgroups[1].Name(), "later"))
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	late, err := startCanary(later, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer late.stop()
	n.ask(t, "a cgroup made later", late, "-a", "-b", "-c", "abc")
	if err := n.e.DeleteJail(middle.ID); err != nil {
		t.Fatal(err)
	}
	n.ask(t, "the middle one deleted", child, "-a", "-b", "c", "abc")
	n.ask(t, "the middle one deleted, in the later cgroup", late, "a", "-b", "c", "abc")
}

func TestTooManyNestedJails(t *testing.T) {
	most := int(enforcerTfLimitTF_MAX_INNER)
	n := newNest(t, most+1)
	for level := 1; level <= most; level++ {
		n.jail(t, level, "abc")
	}
	n.expect(t, "the innermost", most, "abc", "-a")
	if _, err := n.try(0, "a"); err == nil || !strings.Contains(err.Error(), "inside one another") {
		t.Errorf("one more around: %v", err)
	}
	// The refused one left nothing behind.
	n.expect(t, "after the refusal", 0, "a", "b")
	n.expect(t, "after the refusal, the innermost", most, "abc", "-a")
}
