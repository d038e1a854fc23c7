// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// linuxTree is what most walks on Linux start from.
const linuxTree = `
	dir  /srv/repo
	file /srv/repo/f
	dir  /srv/repo/src/deep
	file /srv/repo/src/deep/x
	file /outside/secret
`

// linux returns a tree whose probe tells mount ids, as Linux does since 5.8.
func linux(t testing.TB, more string) *memfs.FS {
	t.Helper()
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MountIDs = true
	if err := fsys.Build(linuxTree + more); err != nil {
		t.Fatal(err)
	}
	return fsys
}

// bind binds a root that has to be there.
func bind(t testing.TB, root string, probes engine.Probes) engine.WorkspaceIdentity {
	t.Helper()
	w := engine.Bind(root, probes)
	if err := w.Err(); err != nil {
		t.Fatalf("Bind(%q): %v", root, err)
	}
	return w
}

var (
	followLinks  = engine.ContainmentOptions{FollowSymlinks: true}
	followMounts = engine.ContainmentOptions{FollowMountPoints: true}
	followAll    = engine.ContainmentOptions{FollowSymlinks: true, FollowJunctions: true, FollowMountPoints: true, FollowReparsePoints: true}
	followNone   = engine.ContainmentOptions{}
)

// expect checks one containment and the invariants of every answer.
func expect(t *testing.T, w engine.WorkspaceIdentity, target string, opts engine.ContainmentOptions, probes engine.Probes, outcome engine.Outcome, code engine.Code, resolved string) {
	t.Helper()
	got := engine.CheckContainment(w, target, opts, probes)
	if got.Outcome != outcome || got.Code != code || got.ResolvedPath != resolved {
		t.Errorf("CheckContainment(%q) = %s %s %q (%s); want %s %s %q", target, got.Outcome, got.Code, got.ResolvedPath, got.Reason, outcome, code, resolved)
	}
	if got.Reason == "" {
		t.Errorf("CheckContainment(%q) gives no reason", target)
	}
	walk := engine.WalkContainment(w, target, opts, probes)
	if walk.Decision != got {
		t.Errorf("WalkContainment(%q) = %+v, CheckContainment %+v", target, walk.Decision, got)
	}
	if n := len(walk.Steps); n > 0 {
		// The step that decided is in the trace, unless all was well.
		var codes []engine.Code
		for _, s := range walk.Steps {
			codes = append(codes, s.Code)
		}
		if got.Code != engine.CodeWithin && !strings.Contains(fmt.Sprint(codes), string(got.Code)) {
			t.Errorf("the steps of %q say %v, the decision %s", target, codes, got.Code)
		}
	}
}

func TestWalkLinux(t *testing.T) {
	tests := []struct {
		name     string
		tree     string
		mounts   []memfs.Mount
		target   string
		opts     engine.ContainmentOptions
		outcome  engine.Outcome
		code     engine.Code
		resolved string
	}{
		{"file", "", nil, "src/deep/x", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/src/deep/x"},
		{"root with a slash", "", nil, "/srv/repo/", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"directory with a slash", "", nil, "src/", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/src"},
		{"file with a slash", "", nil, "f/", followNone, engine.Denied, engine.CodeNotDirectory, ""},
		{"file with a dot below", "", nil, "f/.", followNone, engine.Denied, engine.CodeNotDirectory, ""},
		{"file in the middle", "", nil, "f/x", followNone, engine.Denied, engine.CodeNotDirectory, ""},
		{"fifo in the middle", "fifo /srv/repo/p", nil, "p/x", followNone, engine.Denied, engine.CodeNotDirectory, ""},
		{"new file", "", nil, "src/new", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/src/new"},
		{"new directory with a slash", "", nil, "src/new/", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/src/new"},
		{"below what is missing", "", nil, "new/x", followNone, engine.EnforcementUnverified, engine.CodeMissingComponent, ""},
		{"outside", "", nil, "../x", followNone, engine.Denied, engine.CodeOutside, ""},
		{"sibling with the same prefix", "", nil, "/srv/repo-evil", followNone, engine.Denied, engine.CodeOutside, ""},
		{"NUL", "", nil, "f\x00", followNone, engine.Denied, engine.CodeNULInPath, ""},
		{"64 KiB", "", nil, strings.Repeat("a/", engine.MaxPath/2), followNone, engine.EnforcementUnverified, engine.CodeMissingComponent, ""},
		{"more than 64 KiB", "", nil, strings.Repeat("a/", engine.MaxPath/2) + "a", followNone, engine.Denied, engine.CodeUnsafePath, ""},
		{"invalid UTF-8", "file \"/srv/repo/\\xff\\xfe\"", nil, "\xff\xfe", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/\xff\xfe"},
		{"a name of Windows is a name", "", nil, `C:\x`, followNone, engine.Allowed, engine.CodeWithin, `/srv/repo/C:\x`},
		{"unreadable in the middle", "error /srv/repo/l err=EACCES", nil, "l/x", followAll, engine.EnforcementUnverified, engine.CodeInspectFailed, ""},
		{"stale handle", "error /srv/repo/l err=ESTALE", nil, "l", followAll, engine.EnforcementUnverified, engine.CodeInspectFailed, ""},
		{"no directory any more", "error /srv/repo/l err=ENOTDIR", nil, "l", followAll, engine.Denied, engine.CodeNotDirectory, ""},

		{"link", "link /srv/repo/l -> f", nil, "l", followNone, engine.Denied, engine.CodeSymlink, ""},
		{"link followed", "link /srv/repo/l -> f", nil, "l", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link to a file with a slash", "link /srv/repo/l -> f", nil, "l/", followLinks, engine.Denied, engine.CodeNotDirectory, ""},
		{"link whose target has a slash, to a file", "link /srv/repo/l -> f/", nil, "l", followLinks, engine.Denied, engine.CodeNotDirectory, ""},
		{"link whose target has a slash, to a directory", "link /srv/repo/l -> src/", nil, "l", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/src"},
		{"link whose target has a slash, to a link to a file", "link /srv/repo/l -> m/\nlink /srv/repo/m -> f", nil, "l", followLinks, engine.Denied, engine.CodeNotDirectory, ""},
		{"link through a file and up again", "link /srv/repo/l -> f/../src", nil, "l", followLinks, engine.Denied, engine.CodeNotDirectory, ""},
		{"link through nothing and up again", "link /srv/repo/l -> nothere/../src", nil, "l", followLinks, engine.EnforcementUnverified, engine.CodeMissingComponent, ""},
		{"link physically up", "link /srv/repo/d -> src/deep\nlink /srv/repo/l -> d/../..", nil, "l/f", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link above the root and back by another name", "link /srv/repo/l -> ../../outside/../srv/repo/f", nil, "l", followLinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"link above the root and back by its own", "link /srv/repo/l -> ../../srv/../srv/./repo//f", nil, "l", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link far above the root and back", "link /srv/repo/l -> ../../../../../srv/repo/f", nil, "l", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link that ends at the root's parent", "link /srv/repo/l -> ../../srv", nil, "l", followLinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"link to a sibling with the root's prefix", "link /srv/repo/l -> ../repo-evil", nil, "l", followLinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"link to /", "link /srv/repo/l -> /", nil, "l", followLinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"link to / and in by the rest of the path", "link /srv/repo/l -> /", nil, "l/srv/repo/f", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link to itself", "link /srv/repo/l -> l", nil, "l", followLinks, engine.Denied, engine.CodeLinkLoop, ""},
		{"link to itself and deeper", "link /srv/repo/l -> l/x", nil, "l", followLinks, engine.Denied, engine.CodeLinkLoop, ""},
		{"link without a target", "link /srv/repo/l", nil, "l", followLinks, engine.EnforcementUnverified, engine.CodeInspectFailed, ""},
		{"link with NUL in its target", `link /srv/repo/l -> "f\x00"`, nil, "l", followLinks, engine.Denied, engine.CodeUnsafePath, ""},
		{"dangling link, last", "link /srv/repo/l -> src/new", nil, "l", followLinks, engine.Allowed, engine.CodeWithin, "/srv/repo/src/new"},
		{"escape behind a conflict", "dir /srv/repo/mnt dev=77\nlink /srv/repo/mnt/l -> /etc dev=77", nil, "mnt/l", followLinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"unverified behind a conflict", "dir /srv/repo/mnt dev=77", nil, "mnt/a/b", followLinks, engine.EnforcementUnverified, engine.CodeMissingComponent, ""},

		{"magic link by the probe's word", "link /srv/repo/l -> f magic", nil, "l", followAll, engine.Denied, engine.CodeMagicLink, ""},
		{"link deep in procfs", "dir /srv/repo/proc dev=5\ndir /srv/repo/proc/1 dev=5\nlink /srv/repo/proc/1/cwd -> /srv/repo dev=5", []memfs.Mount{{Point: "/srv/repo/proc", Dev: 5, FSType: "proc"}}, "proc/1/cwd", followAll, engine.Denied, engine.CodeMagicLink, ""},
		{"self in procfs", "dir /srv/repo/proc dev=5\ndir /srv/repo/proc/1 dev=5\nlink /srv/repo/proc/self -> 1 dev=5", []memfs.Mount{{Point: "/srv/repo/proc", Dev: 5, FSType: "proc"}}, "proc/self", followAll, engine.Allowed, engine.CodeWithin, "/srv/repo/proc/1"},
		{"descriptors bind mounted", "dir /srv/repo/fd dev=5\nlink /srv/repo/fd/3 -> /srv/repo/f dev=5", []memfs.Mount{{Point: "/srv/repo/fd", Dev: 5, FSType: "proc", Root: "/1/fd"}}, "fd/3", followAll, engine.Denied, engine.CodeMagicLink, ""},

		{"mount point", "dir /srv/repo/mnt dev=77", []memfs.Mount{{Point: "/srv/repo/mnt", Dev: 77}}, "mnt/new", followNone, engine.Denied, engine.CodeMountPoint, ""},
		{"mount point followed", "dir /srv/repo/mnt dev=77", []memfs.Mount{{Point: "/srv/repo/mnt", Dev: 77}}, "mnt/new", followMounts, engine.Allowed, engine.CodeWithin, "/srv/repo/mnt/new"},
		{"bind mount on the same device", "dir /srv/repo/mnt", []memfs.Mount{{Point: "/srv/repo/mnt", Dev: 42}}, "mnt/new", followNone, engine.Denied, engine.CodeMountPoint, ""},
		{"file on a file", "", []memfs.Mount{{Point: "/srv/repo/f", Dev: 42}}, "f", followNone, engine.Denied, engine.CodeMountPoint, ""},
		{"file on a file followed", "", []memfs.Mount{{Point: "/srv/repo/f", Dev: 42}}, "f", followMounts, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"ids and not devices decide", "dir /srv/repo/mnt dev=77", []memfs.Mount{{Point: "/srv/repo/mnt", Dev: 99}}, "mnt/new", followMounts, engine.Allowed, engine.CodeWithin, "/srv/repo/mnt/new"},
		{"mount in a mount", "dir /srv/repo/a/b", []memfs.Mount{{Point: "/srv/repo/a", Dev: 42}, {Point: "/srv/repo/a/b", Dev: 42}}, "a/b", followMounts, engine.Allowed, engine.CodeWithin, "/srv/repo/a/b"},
		{"link out of a mount", "dir /srv/repo/a\nlink /srv/repo/a/l -> ../f", []memfs.Mount{{Point: "/srv/repo/a", Dev: 42}}, "a/l", followAll, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},
		{"link into a mount", "link /srv/repo/l -> src/deep/x", []memfs.Mount{{Point: "/srv/repo/src", Dev: 42}}, "l", followLinks, engine.Denied, engine.CodeMountPoint, ""},
		{"the root itself is a mount point", "", []memfs.Mount{{Point: "/srv/repo", Dev: 42}}, "f", followNone, engine.Allowed, engine.CodeWithin, "/srv/repo/f"},

		{"subvolume", "dir /srv/repo/sub dev=43", nil, "sub", followNone, engine.Conflict, engine.CodeDeviceChanged, "/srv/repo/sub"},
		{"subvolume and mounts followed", "dir /srv/repo/sub dev=43", nil, "sub/new", followAll, engine.Conflict, engine.CodeDeviceChanged, "/srv/repo/sub/new"},
		{"file of another device", "file /srv/repo/g dev=43", nil, "g", followNone, engine.Conflict, engine.CodeDeviceChanged, "/srv/repo/g"},
		{"file of another device on overlayfs", "file /srv/repo/o/g dev=43", []memfs.Mount{{Point: "/srv/repo/o", Dev: 42, FSType: "overlay"}}, "o/g", followMounts, engine.Allowed, engine.CodeWithin, "/srv/repo/o/g"},
		{"directory of another device on overlayfs", "dir /srv/repo/o/g dev=43", []memfs.Mount{{Point: "/srv/repo/o", Dev: 42, FSType: "overlay"}}, "o/g", followMounts, engine.Conflict, engine.CodeDeviceChanged, "/srv/repo/o/g"},
	}
	for _, tt := range tests {
		for _, ids := range []string{"ids", "unique ids"} {
			t.Run(tt.name+"/"+ids, func(t *testing.T) {
				fsys := linux(t, tt.tree)
				fsys.UniqueIDs = ids == "unique ids"
				for _, m := range tt.mounts {
					fsys.MustMount(m)
				}
				w := bind(t, "/srv/repo", fsys)
				expect(t, w, tt.target, tt.opts, fsys, tt.outcome, tt.code, tt.resolved)
			})
		}
	}
}

// TestWalkWithoutIDs is for kernels before 5.8, where devices have to do.
func TestWalkWithoutIDs(t *testing.T) {
	build := func(tree string, mounts ...memfs.Mount) *memfs.FS {
		fsys := linux(t, tree)
		fsys.MountIDs = false
		for _, m := range mounts {
			fsys.MustMount(m)
		}
		return fsys
	}
	mnt := func(dev mountmap.KernelDev) memfs.Mount { return memfs.Mount{Point: "/srv/repo/mnt", Dev: dev} }
	tree := "dir /srv/repo/mnt dev=77"

	fsys := build(tree, mnt(77))
	expect(t, bind(t, "/srv/repo", fsys), "mnt", followMounts, fsys, engine.Allowed, engine.CodeWithin, "/srv/repo/mnt")
	fsys = build(tree, mnt(99))
	expect(t, bind(t, "/srv/repo", fsys), "mnt", followMounts, fsys, engine.Conflict, engine.CodeMountDeviceMismatch, "/srv/repo/mnt")
	fsys = build(tree, mnt(99), mnt(77))
	expect(t, bind(t, "/srv/repo", fsys), "mnt", followMounts, fsys, engine.Allowed, engine.CodeWithin, "/srv/repo/mnt")
	fsys = build(tree, mnt(77), mnt(99))
	expect(t, bind(t, "/srv/repo", fsys), "mnt", followMounts, fsys, engine.Conflict, engine.CodeMountDeviceMismatch, "/srv/repo/mnt")
	// A mount that another one higher up hides is no boundary.
	fsys = build("dir /srv/repo/a/b", memfs.Mount{Point: "/srv/repo/a/b", Dev: 42}, memfs.Mount{Point: "/srv/repo/a", Dev: 42})
	expect(t, bind(t, "/srv/repo/a", fsys), "b", followNone, fsys, engine.Allowed, engine.CodeWithin, "/srv/repo/a/b")
	// A device of 33 bits is no device of Linux, and confirms nothing.
	fsys = build(fmt.Sprintf("dir /srv/repo/mnt dev=%d", uint64(1)<<32|77), mnt(77))
	expect(t, bind(t, "/srv/repo", fsys), "mnt", followMounts, fsys, engine.Conflict, engine.CodeMountDeviceMismatch, "/srv/repo/mnt")
}

func TestWalkUnverifiable(t *testing.T) {
	fsys := linux(t, "link /srv/repo/l -> f")
	w := bind(t, "/srv/repo", fsys)
	expect(t, w, "f", followNone, nil, engine.EnforcementUnverified, engine.CodeNoProbe, "")

	fsys.MountErr = errors.New("gone")
	expect(t, w, "f", followNone, fsys, engine.EnforcementUnverified, engine.CodeMountTable, "")
	fsys.MountErr = nil

	blocked := engine.Bind("/nothere", fsys)
	expect(t, blocked, "f", followNone, fsys, engine.Denied, engine.CodeBindingBlocked, "")
	expect(t, engine.WorkspaceIdentity{}, "f", followNone, fsys, engine.Denied, engine.CodeBindingBlocked, "")

	w.VolumeIdentity = nil
	expect(t, w, "f", followNone, fsys, engine.EnforcementUnverified, engine.CodeInspectFailed, "")
	expect(t, w, "l", followNone, fsys, engine.Denied, engine.CodeSymlink, "") // a denial outranks it

	relative := engine.WorkspaceIdentity{CanonicalRoot: "repo", BindingStatus: engine.Bound, Platform: engine.PlatformFor("linux")}
	expect(t, relative, "f", followNone, fsys, engine.Denied, engine.CodeUnsafePath, "")
}

func TestWalkRootChanged(t *testing.T) {
	fsys := linux(t, "link /srv/repo/l -> f")
	w := bind(t, "/srv/repo", fsys)

	check := func(change string, target string, outcome engine.Outcome, code engine.Code, resolved string) {
		t.Helper()
		fsys := linux(t, "link /srv/repo/l -> f")
		switch change {
		case "removed":
			if err := fsys.Remove("/srv/repo"); err != nil {
				t.Fatal(err)
			}
		default:
			if err := fsys.Build(change); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, w, target, followLinks, fsys, outcome, code, resolved)
	}
	check("removed", "f", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("file /srv", "f", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("removed", ".", engine.Conflict, engine.CodeRootChanged, "/srv/repo")
	check("removed", "../x", engine.Denied, engine.CodeOutside, "")
	check("dir /srv/repo ino=9999", "f", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("dir /srv/repo ino=9999", "l", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("dir /srv/repo dev=43 ino=3", "f", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("dir /srv/repo ino=9999", "f/x", engine.Denied, engine.CodeNotDirectory, "")
	check("dir /srv/repo ino=9999", "no/x", engine.EnforcementUnverified, engine.CodeMissingComponent, "")
	check("file /srv/repo", "f", engine.Conflict, engine.CodeRootChanged, "/srv/repo/f")
	check("link /srv/repo -> /outside", "secret", engine.Conflict, engine.CodeRootChanged, "/srv/repo/secret")
	check("error /srv/repo err=EIO", "f", engine.EnforcementUnverified, engine.CodeInspectFailed, "")

	// The same inode number in another life.
	if err := fsys.Build("dir /gen/repo ino=500 gen=1"); err != nil {
		t.Fatal(err)
	}
	w = bind(t, "/gen/repo", fsys)
	expect(t, w, "new", followNone, fsys, engine.Allowed, engine.CodeWithin, "/gen/repo/new")
	if err := fsys.Build("dir /gen/repo ino=500 gen=2"); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "new", followNone, fsys, engine.Conflict, engine.CodeRootChanged, "/gen/repo/new")
}

func TestWalkRootIsSlash(t *testing.T) {
	fsys := linux(t, "link /l -> ../../srv/repo/f\nlink /abs -> /outside/secret")
	w := bind(t, "/", fsys)
	for target, resolved := range map[string]string{
		"": "/", "/": "/", "..": "/", "srv/repo/f": "/srv/repo/f", "/srv/repo/f": "/srv/repo/f", "../outside": "/outside", "new": "/new",
		"l": "/srv/repo/f", "abs": "/outside/secret", "l/": "",
	} {
		got := engine.CheckContainment(w, target, followLinks, fsys)
		if got.ResolvedPath != resolved || (got.Outcome == engine.Allowed) != (resolved != "") {
			t.Errorf("CheckContainment(%q) = %+v, want %q", target, got, resolved)
		}
	}
}

// TestWalkLinkLimit follows 40 links and not one more.
func TestWalkLinkLimit(t *testing.T) {
	var chain strings.Builder
	to := "f"
	for i := range 41 {
		fmt.Fprintf(&chain, "link /srv/repo/c%d -> %s\n", i+1, to)
		to = fmt.Sprintf("c%d", i+1)
	}
	fsys := linux(t, chain.String())
	w := bind(t, "/srv/repo", fsys)
	expect(t, w, "c40", followLinks, fsys, engine.Allowed, engine.CodeWithin, "/srv/repo/f")
	expect(t, w, "c41", followLinks, fsys, engine.Denied, engine.CodeLinkLoop, "")
}

// TestWalkDeepRoot leads above a root of several names and back in.
func TestWalkDeepRoot(t *testing.T) {
	fsys := linux(t, `
		file /a/b/c/d/f
		link /a/b/c/d/up2 -> ../../c/d/f
		link /a/b/c/d/up3 -> ../../../b/c/d/f
		link /a/b/c/d/twice -> ../../../b/../b/c/d/f
		link /a/b/c/d/wrong -> ../../../c/d/f
		link /a/b/c/d/short -> ../../../b
	`)
	w := bind(t, "/a/b/c/d", fsys)
	for _, name := range []string{"up2", "up3", "twice"} {
		expect(t, w, name, followLinks, fsys, engine.Allowed, engine.CodeWithin, "/a/b/c/d/f")
	}
	for _, name := range []string{"wrong", "short"} {
		expect(t, w, name, followLinks, fsys, engine.Denied, engine.CodeLinkEscape, "")
	}
}

// TestWalkPoorProbe has probes that do not tell everything.
func TestWalkPoorProbe(t *testing.T) {
	fsys := linux(t, "dir /srv/repo/mnt")
	fsys.MustMount(memfs.Mount{Point: "/srv/repo/mnt", Dev: 42})
	w := bind(t, "/srv/repo", fsys)
	// Linux 5.8 knows mount ids and no STATX_ATTR_MOUNT_ROOT on some paths.
	noRoot := editing{fsys, func(e *engine.Entry) { e.MountRoot = false }}
	expect(t, w, "mnt", followNone, noRoot, engine.Denied, engine.CodeMountPoint, "")
	expect(t, w, "mnt", followMounts, noRoot, engine.Allowed, engine.CodeWithin, "/srv/repo/mnt")
	// An id that the table knows for another place confirms nothing.
	elsewhere := editing{fsys, func(e *engine.Entry) {
		if e.MountRoot {
			e.MountID = 21
		}
	}}
	expect(t, w, "mnt", followMounts, elsewhere, engine.Conflict, engine.CodeMountDeviceMismatch, "/srv/repo/mnt")
	noKind := editing{fsys, func(e *engine.Entry) {
		if e.Kind == engine.KindFile {
			e.Kind = engine.KindUnknown
		}
	}}
	expect(t, w, "f", followNone, noKind, engine.EnforcementUnverified, engine.CodeInspectFailed, "")
	expect(t, w, "src", followNone, noKind, engine.Allowed, engine.CodeWithin, "/srv/repo/src")
}

// editing changes what a probe found.
type editing struct {
	*memfs.FS
	edit func(*engine.Entry)
}

func (p editing) Inspect(path string) (engine.Entry, error) {
	e, err := p.FS.Inspect(path)
	p.edit(&e)
	return e, err
}

// TestWalkYoungMount has a mount that is younger than the table the probe gave.
func TestWalkYoungMount(t *testing.T) {
	fsys := linux(t, "dir /srv/repo/mnt")
	old, err := fsys.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	w := bind(t, "/srv/repo", fsys)
	fsys.MustMount(memfs.Mount{Point: "/srv/repo/mnt", Dev: 42})
	slow := &slowTable{FS: fsys, tables: []*mountmap.Table{old}}
	expect := func(want engine.Outcome, code engine.Code) {
		t.Helper()
		if got := engine.CheckContainment(w, "mnt", followMounts, slow); got.Outcome != want || got.Code != code {
			t.Errorf("CheckContainment = %+v, want %s %s", got, want, code)
		}
	}
	expect(engine.Allowed, engine.CodeWithin)
	// Asked twice, it is still not there.
	slow.tables = []*mountmap.Table{old, old, old}
	expect(engine.Conflict, engine.CodeMountDeviceMismatch)
}

// slowTable returns some old tables before the current one.
type slowTable struct {
	*memfs.FS
	tables []*mountmap.Table
}

func (s *slowTable) Mounts() (*mountmap.Table, error) {
	if len(s.tables) == 0 {
		return s.FS.Mounts()
	}
	table := s.tables[0]
	s.tables = s.tables[1:]
	return table, nil
}

// TestWalkBudget counts what a check costs.
func TestWalkBudget(t *testing.T) {
	deep := strings.Repeat("d/", 300)
	fsys := linux(t, "dir /srv/repo/a/b/c/d/e/f/g/h/i\nfile /srv/repo/a/b/c/d/e/f/g/h/i/j\ndir /srv/repo/"+deep+"\nlink /srv/repo/l -> a/b/c\nlink /srv/repo/m -> /srv/repo/l")
	w := bind(t, "/srv/repo", fsys)
	for target, components := range map[string]int{
		".": 0, "f": 1, "a/b/c/d/e/f/g/h/i/j": 10, deep: 300, deep + "new": 301, "l/d": 1 + 3 + 1, "m/d": 1 + 1 + 3 + 1,
	} {
		before := fsys.Inspections()
		if got := engine.CheckContainment(w, target, followAll, fsys); got.Outcome != engine.Allowed {
			t.Fatalf("CheckContainment(%q) = %+v", target, got)
		}
		// The root, and each component once.
		if n := fsys.Inspections() - before; n > components+1 {
			t.Errorf("%q costs %d inspections, want at most %d", target, n, components+1)
		}
	}
}

func TestWalkAllocations(t *testing.T) {
	fsys := &still{FS: linux(t, "")}
	w := bind(t, "/srv/repo", fsys)
	for _, target := range []string{"a/b/c/d/e/f/g/h/i/j", "/srv/repo/a/b/c/d/e/f/g/h/i/j"} {
		if n := testing.AllocsPerRun(100, func() { engine.CheckContainment(w, target, followNone, fsys) }); n > 2 {
			t.Errorf("CheckContainment(%q) allocates %v times", target, n)
		}
	}
	result := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			engine.CheckContainment(w, "a/b/c/d/e/f/g/h/i/j", followNone, fsys)
		}
	})
	if n := result.AllocedBytesPerOp(); n >= 2<<10 {
		t.Errorf("a check of ten components allocates %d bytes", n)
	}
}

// still is a probe that costs nothing: every path is the same directory.
type still struct{ *memfs.FS }

func (s *still) Inspect(string) (engine.Entry, error) {
	return engine.Entry{Kind: engine.KindDir, Dev: 42, Ino: 7, MountID: 21}, nil
}

func BenchmarkCheckContainment(b *testing.B) {
	fsys := &still{FS: linux(b, "")}
	w := bind(b, "/srv/repo", fsys)
	for _, depth := range []int{1, 10, 100} {
		target := strings.TrimSuffix(strings.Repeat("d/", depth), "/")
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				engine.CheckContainment(w, target, followNone, fsys)
			}
		})
	}
}

// TestSweep has a probe that proves the way at one look.
func TestSweep(t *testing.T) {
	fsys := &sweeper{FS: linux(t, "link /srv/repo/l -> src\ndir /srv/repo/sub dev=43")}
	w := bind(t, "/srv/repo", fsys)
	before := fsys.Inspections()
	if got := engine.CheckContainment(w, "src/deep/x", followNone, fsys); got.Outcome != engine.Allowed || got.ResolvedPath != "/srv/repo/src/deep/x" {
		t.Errorf("swept: %+v", got)
	}
	if n := fsys.Inspections() - before; n != 2 {
		t.Errorf("%d inspections, want the root's and the sweep's", n)
	}
	for _, target := range []string{"l/deep", "src/deep/x/", "sub", "src/new", "nothere/x", "f/x", "."} {
		swept := engine.CheckContainment(w, target, followNone, fsys)
		walked := engine.CheckContainment(w, target, followNone, fsys.FS)
		if swept != walked {
			t.Errorf("CheckContainment(%q) = %+v swept, %+v walked", target, swept, walked)
		}
	}
	// A sweep says nothing about the root.
	if err := fsys.Build("dir /srv/repo ino=9999"); err != nil {
		t.Fatal(err)
	}
	if got := engine.CheckContainment(w, "src/deep/x", followNone, fsys); got.Outcome != engine.Conflict || got.ResolvedPath != "/srv/repo/src/deep/x" {
		t.Errorf("swept below another root: %+v", got)
	}
}

type sweeper struct{ *memfs.FS }

// Sweep looks at path alone, which memfs refuses to do through a link.
func (s *sweeper) Sweep(root, path string) (engine.Entry, bool) {
	e, err := s.Inspect(path)
	return e, err == nil && e.Kind != engine.KindSymlink && !e.MountRoot
}

func TestCheckAll(t *testing.T) {
	fsys := linux(t, "link /srv/repo/l -> src\ndir /srv/repo/mnt")
	fsys.MustMount(memfs.Mount{Point: "/srv/repo/mnt", Dev: 42})
	w := bind(t, "/srv/repo", fsys)
	targets := []string{"src/deep/x", "src/deep/y", "src/deep/z", "src/deep/x/", "l/deep", "../x", "mnt/x", "no/x", "", "f"}
	before := fsys.Inspections()
	got := engine.CheckAll(w, targets, followLinks, fsys)
	spent := fsys.Inspections() - before
	for i, target := range targets {
		if want := engine.CheckContainment(w, target, followLinks, fsys); got[i] != want {
			t.Errorf("CheckAll of %q = %+v, CheckContainment %+v", target, got[i], want)
		}
	}
	// Directories: /srv/repo, src, src/deep, mnt; twice each. Others: x (3
	// times, as file, as new names), y, z, l, no, f.
	if spent > 2*4+8 {
		t.Errorf("%d inspections", spent)
	}
	for _, d := range engine.CheckAll(w, targets, followLinks, nil) {
		if d.Code != engine.CodeNoProbe {
			t.Errorf("without a probe: %+v", d)
		}
	}
	if got := engine.CheckAll(w, nil, followLinks, fsys); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestCheckAllInvalidation changes the tree after a directory was remembered:
// an answer from memory would let a link or a mount pass.
func TestCheckAllInvalidation(t *testing.T) {
	targets := []string{"src/deep/x", "src/deep/y"}
	for name, change := range map[string]func(*memfs.FS){
		"a directory becomes a link": func(f *memfs.FS) { f.MustBuild("link /srv/repo/src -> /outside") },
		"a directory becomes a mount point": func(f *memfs.FS) {
			f.MustMount(memfs.Mount{Point: "/srv/repo/src", Dev: 42})
		},
		"the root is replaced":         func(f *memfs.FS) { f.MustBuild("dir /srv/repo ino=9999") },
		"a directory is replaced":      func(f *memfs.FS) { f.MustBuild("dir /srv/repo/src dev=43") },
		"a directory cannot be read":   func(f *memfs.FS) { f.MustBuild("error /srv/repo/src/deep err=EIO") },
		"the mount table is gone":      func(f *memfs.FS) { f.ClearMounts() },
		"a directory is taken away":    func(f *memfs.FS) { must(f.Remove("/srv/repo/src")) },
		"an unrelated mount is made":   func(f *memfs.FS) { f.MustMount(memfs.Mount{Point: "/outside", Dev: 42}) },
		"an unrelated file is created": func(f *memfs.FS) { f.MustBuild("file /srv/repo/src/deep/new") },
	} {
		t.Run(name, func(t *testing.T) {
			fsys := linux(t, "")
			w := bind(t, "/srv/repo", fsys)
			// After the second target's last component was looked at.
			probes := &changing{FS: fsys, at: "/srv/repo/src/deep/y", change: change}
			got := engine.CheckAll(w, targets, followNone, probes)
			if probes.change != nil {
				t.Fatal("nothing was changed")
			}
			for i, target := range targets {
				if want := engine.CheckContainment(w, target, followNone, fsys); got[i] != want {
					t.Errorf("%q: %+v; after the change it is %+v", target, got[i], want)
				}
			}
		})
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// changing makes a change once, when a path was inspected.
type changing struct {
	*memfs.FS
	at     string
	change func(*memfs.FS)
}

func (c *changing) Inspect(path string) (engine.Entry, error) {
	e, err := c.FS.Inspect(path)
	if change := c.change; path == c.at && change != nil {
		c.change = nil
		change(c.FS)
	}
	return e, err
}
