// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"io/fs"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// TestRevalidateLive takes a snapshot, changes something, and takes another.
func TestRevalidateLive(t *testing.T) {
	t0 := time.Date(2026, 7, 17, 9, 0, 0, 123, time.UTC)
	file := memfs.Node{Kind: engine.KindFile, Ino: 100, Generation: 7, Changed: t0}
	tests := []struct {
		name, target string
		change       func(*memfs.FS)
		available    bool
		want         engine.RevalidationReason
	}{
		{"nothing", "src/g", func(*memfs.FS) {}, true, ""},
		{"something else", "src/g", func(f *memfs.FS) { f.MustBuild("file /srv/repo/src/other\nfile /srv/repo/f ino=9999") }, true, ""},
		{"replaced", "src/g", func(f *memfs.FS) { n := file; n.Ino = 101; must(f.Add("/srv/repo/src/g", n)) }, true, engine.ResourceIdentityChanged},
		{"another generation of the number", "src/g", func(f *memfs.FS) { n := file; n.Generation = 8; must(f.Add("/srv/repo/src/g", n)) }, true, engine.ResourceIdentityChanged},
		{"generation not known any more", "src/g", func(f *memfs.FS) { n := file; n.Generation = 0; must(f.Add("/srv/repo/src/g", n)) }, true, engine.ResourceIdentityChanged},
		{"another device", "src/g", func(f *memfs.FS) { n := file; n.Dev = 43; must(f.Add("/srv/repo/src/g", n)) }, true, engine.ResourceIdentityChanged},
		{"changed", "src/g", func(f *memfs.FS) { n := file; n.Changed = t0.Add(1); must(f.Add("/srv/repo/src/g", n)) }, true, engine.ResourceIdentityChanged},
		{"removed", "src/g", func(f *memfs.FS) { must(f.Remove("/srv/repo/src/g")) }, true, engine.ResourceIdentityChanged},
		{"made a link", "src/g", func(f *memfs.FS) { f.MustBuild("link /srv/repo/src/g -> ../f") }, true, engine.ResourceIdentityChanged},
		{"moved with its directory", "src/g", func(f *memfs.FS) { must(f.Rename("/srv/repo/src", "/srv/repo/old")) }, true, engine.ResourceIdentityChanged},
		{"directory replaced around it", "src/g", func(f *memfs.FS) { f.MustBuild("dir /srv/repo/src ino=9999") }, true, engine.ResourceIdentityChanged},
		{"mounted over", "src/g", func(f *memfs.FS) { f.MustMount(memfs.Mount{Point: "/srv/repo/src/g", Dev: 42}) }, true, engine.ResourceIdentityChanged},
		{"new file still missing", "src/new", func(*memfs.FS) {}, true, ""},
		{"new file made by another", "src/new", func(f *memfs.FS) { f.MustBuild("file /srv/repo/src/new") }, true, engine.ResourceIdentityChanged},
		{"new file's directory replaced", "src/new", func(f *memfs.FS) { f.MustBuild("dir /srv/repo/src ino=9999") }, true, engine.ResourceIdentityChanged},
		{"link leads elsewhere", "l", func(f *memfs.FS) { f.MustBuild("link /srv/repo/l -> src/deep/x") }, true, engine.ResourceIdentityChanged},
		{"link replaced, to the same", "l", func(f *memfs.FS) { f.MustBuild("link /srv/repo/l -> ./f ino=9999") }, true, ""},
		{"enforcement lost", "src/g", func(*memfs.FS) {}, false, engine.EnforcementStateChanged},
		{"resource and enforcement", "src/g", func(f *memfs.FS) { must(f.Remove("/srv/repo/src/g")) }, false, engine.ResourceIdentityChanged},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := linux(t, "link /srv/repo/l -> f")
			must(fsys.Add("/srv/repo/src/g", file))
			w := bind(t, "/srv/repo", fsys)
			opts := engine.ContainmentOptions{FollowSymlinks: true}
			original, d := engine.Snapshot(w, tt.target, opts, true, fsys)
			if d.Outcome != engine.Allowed {
				t.Fatalf("the first look: %+v", d)
			}
			tt.change(fsys)
			current, _ := engine.Snapshot(w, tt.target, opts, tt.available, fsys)
			want := engine.RevalidationResult{Stale: tt.want != "", Reason: tt.want}
			if got := engine.Revalidate(original, current); got != want {
				t.Errorf("Revalidate = %+v, want %+v\n%s", got, want, cmp.Diff(original, current))
			}
			if got := engine.Revalidate(current, original); got != want {
				t.Errorf("the other way round: %+v, want %+v", got, want)
			}
		})
	}
}

// TestGenerationOnDemand has a probe that tells a generation only when it is asked.
func TestGenerationOnDemand(t *testing.T) {
	fsys := linux(t, "dir /srv/repo/d")
	p := &generations{FS: fsys, of: map[string]uint64{"/srv/repo": 1, "/srv/repo/d": 2, "/srv/repo/f": 3}}
	w := bind(t, "/srv/repo", p)
	check := func(outcome engine.Outcome, code engine.Code) {
		t.Helper()
		for name, d := range map[string]engine.ContainmentDecision{
			"check":  engine.CheckContainment(w, "f", followNone, p),
			"walk":   engine.WalkContainment(w, "f", followNone, p).Decision,
			"locate": engine.Locate(w, "f", followNone, p).Decision,
			"batch":  engine.CheckAll(w, []string{"f"}, followNone, p)[0],
		} {
			if d.Outcome != outcome || d.Code != code {
				t.Errorf("%s: %+v, want %s, %s", name, d, outcome, code)
			}
		}
	}
	check(engine.Allowed, engine.CodeWithin)
	snapshot := func(target string) engine.BoundarySnapshot {
		s, _ := engine.Snapshot(w, target, followNone, true, p)
		return s
	}
	file, missing := snapshot("f"), snapshot("d/new")
	if live := file.Live; live.Object.Generation != 3 || live.Parent.Generation != 1 || !live.Object.HasGeneration {
		t.Errorf("the snapshot of a file has %+v", live)
	}
	if live := missing.Live; live.Parent.Generation != 2 || live.Object.HasGeneration || !live.Missing {
		t.Errorf("the snapshot of a file to be made has %+v", live)
	}

	// The same numbers, another object.
	p.of["/srv/repo/f"] = 4
	if got := engine.Revalidate(file, snapshot("f")); got.Reason != engine.ResourceIdentityChanged {
		t.Errorf("of a file made anew: %+v", got)
	}
	p.of["/srv/repo/d"] = 4
	if got := engine.Revalidate(missing, snapshot("d/new")); got.Reason != engine.ResourceIdentityChanged {
		t.Errorf("of a directory made anew: %+v", got)
	}
	p.of["/srv/repo"] = 4
	check(engine.Conflict, engine.CodeRootChanged)
	p.of["/srv/repo"] = 1
	check(engine.Allowed, engine.CodeWithin)
	p.err = memfs.Errno("EIO")
	check(engine.EnforcementUnverified, engine.CodeInspectFailed)
	p.err = fs.ErrNotExist // gone between the two looks
	check(engine.Conflict, engine.CodeRootChanged)
	if w := engine.Bind("/srv/repo", p); w.BindingStatus != engine.Blocked {
		t.Errorf("bound without the generation: %+v", w)
	}

	// In the end of a batch it is another root.
	p.err = nil
	p.later = p.looks + 2
	if d := engine.CheckAll(w, []string{"f", "f", "f"}, followNone, p); d[0].Code != engine.CodeRootChanged {
		t.Errorf("replaced during a batch: %+v", d)
	}
}

// generations is a probe that has generations by path. From the look number later
// on it has another for the root.
type generations struct {
	*memfs.FS
	of    map[string]uint64
	err   error
	looks int
	later int
}

func (g *generations) Generation(path string) (uint64, bool, error) {
	g.looks++
	if g.later > 0 && g.looks >= g.later {
		g.of["/srv/repo"] = 99
	}
	n, ok := g.of[path]
	return n, ok, g.err
}

func TestRevalidateText(t *testing.T) {
	base := engine.BoundarySnapshot{ResourceIdentity: new("/a"), WorkspaceID: "w", EnforcementAvailable: true}
	for name, tt := range map[string]struct {
		change func(*engine.BoundarySnapshot)
		want   engine.RevalidationReason
	}{
		"same":             {func(*engine.BoundarySnapshot) {}, ""},
		"resource":         {func(s *engine.BoundarySnapshot) { s.ResourceIdentity = new("/b") }, engine.ResourceIdentityChanged},
		"no resource":      {func(s *engine.BoundarySnapshot) { s.ResourceIdentity = nil }, engine.ResourceIdentityChanged},
		"empty resource":   {func(s *engine.BoundarySnapshot) { s.ResourceIdentity = new("") }, engine.ResourceIdentityChanged},
		"only one is live": {func(s *engine.BoundarySnapshot) { s.Live = &engine.LiveIdentity{} }, engine.ResourceIdentityChanged},
		"workspace":        {func(s *engine.BoundarySnapshot) { s.WorkspaceID = "v"; s.EnforcementAvailable = false }, engine.WorkspaceIdentityChanged},
		"enforcement":      {func(s *engine.BoundarySnapshot) { s.EnforcementAvailable = false }, engine.EnforcementStateChanged},
	} {
		current := base
		tt.change(&current)
		if got := engine.Revalidate(base, current); got.Reason != tt.want || got.Stale != (tt.want != "") {
			t.Errorf("%s: %+v, want %q", name, got, tt.want)
		}
	}
}

func TestSnapshotJSON(t *testing.T) {
	fsys := linux(t, "dir /srv/repo ino=4")
	must(fsys.Add("/srv/repo/g", memfs.Node{Kind: engine.KindFile, Ino: 1 << 60, Generation: 7, Changed: time.Date(2026, 7, 17, 9, 0, 0, 5, time.UTC)}))
	w := bind(t, "/srv/repo", fsys)
	s, _ := engine.Snapshot(w, "g", engine.ContainmentOptions{}, false, fsys)
	sameJSON(t, s, `{
		"resourceIdentity": "/srv/repo/g",
		"workspaceId": "203fce37fbfc82f3",
		"enforcementAvailable": false,
		"live": {
			"object": {"dev": "42", "ino": "1152921504606846976", "generation": "7", "mountId": "21"},
			"parent": {"dev": "42", "ino": "4", "mountId": "21"},
			"changeTime": "2026-07-17T09:00:00.000000005Z"
		}
	}`)
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back engine.BoundarySnapshot
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if got := engine.Revalidate(s, back); got.Stale {
		t.Errorf("stale after a round over the wire: %+v", got)
	}
	denied, d := engine.Snapshot(w, "../x", engine.ContainmentOptions{}, false, fsys)
	if denied.ResourceIdentity != nil || denied.Live != nil || d.Outcome != engine.Denied {
		t.Errorf("of a path outside: %+v, %+v", denied, d)
	}
}
