// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// world is a random tree below and around /srv/repo, kept twice: in a memfs for
// the engine, and as plain maps for a second opinion.
type world struct {
	fsys  *memfs.FS
	kinds map[string]string // path -> "dir", "file", or "link"
	links map[string]string
	moved map[string]bool // mount points
	text  []string
}

func drawWorld(t *rapid.T, mounts bool) *world {
	w := &world{kinds: map[string]string{}, links: map[string]string{}, moved: map[string]bool{}, fsys: memfs.New(engine.PlatformFor("linux"))}
	w.fsys.MountIDs = true
	add := func(kind, p, target string) {
		w.kinds[p] = kind
		line := kind + " " + p
		if kind == "link" {
			w.links[p] = target
			line += " -> " + target
		}
		w.text = append(w.text, line)
		w.fsys.MustBuild(line)
	}
	for _, dir := range []string{"/", "/srv", "/srv/repo", "/out"} {
		add("dir", dir, "")
	}
	add("file", "/out/secret", "")
	names := []string{"a", "b", "c", "srv", "repo"}
	target := rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(rapid.SampledFrom(append(names, "..", "..", ".", "", "out", "secret")), 1, 5).Draw(t, "parts")
		p := strings.Join(parts, "/")
		if rapid.Bool().Draw(t, "absolute") {
			p = "/" + p
		}
		if p == "" {
			p = "."
		}
		return p
	})
	dirs := []string{"/srv/repo"}
	for range rapid.IntRange(0, 10).Draw(t, "objects") {
		p := path.Join(rapid.SampledFrom(dirs).Draw(t, "dir"), rapid.SampledFrom(names).Draw(t, "name"))
		if w.kinds[p] != "" {
			continue
		}
		kind := rapid.SampledFrom([]string{"dir", "dir", "file", "link", "link"}).Draw(t, "kind")
		switch kind {
		case "link":
			add(kind, p, target.Draw(t, "target"))
		default:
			add(kind, p, "")
			if kind == "dir" {
				dirs = append(dirs, p)
			}
			if mounts && rapid.IntRange(0, 5).Draw(t, "mount") == 0 {
				w.moved[p] = true
				w.text = append(w.text, "mount "+p)
				w.fsys.MustMount(memfs.Mount{Point: p, Dev: 42})
			}
		}
	}
	return w
}

// resolve is the second opinion: the path as a kernel resolves it that knows
// nothing but the root, written as a recursion over a list of names. It returns
// where the path leads and whether the last name is missing.
func (w *world) resolve(root string, at []string, todo []string, links *int) ([]string, string) {
	rootNames := strings.Split(root[1:], "/")
	for i, name := range todo {
		last := true
		for _, more := range todo[i+1:] {
			if more != "" {
				last = false
			}
		}
		here := "/" + strings.Join(at, "/")
		inside := len(at) >= len(rootNames) && strings.Join(at[:len(rootNames)], "/") == strings.Join(rootNames, "/")
		switch {
		case name == "" || name == ".":
			continue
		case name == "..":
			if len(at) > 0 {
				at = at[:len(at)-1]
			}
			continue
		case !inside:
			if name != rootNames[len(at)] {
				return nil, "escape"
			}
			at = append(at[:len(at):len(at)], name)
			continue
		}
		next := path.Join(here, name)
		if w.moved[next] {
			return nil, "mount"
		}
		switch w.kinds[next] {
		case "":
			if !last {
				return nil, "missing"
			}
			return append(at[:len(at):len(at)], name), "new"
		case "file":
			if i < len(todo)-1 {
				return nil, "notdir"
			}
			at = append(at[:len(at):len(at)], name)
		case "dir":
			at = append(at[:len(at):len(at)], name)
		case "link":
			if *links++; *links > 40 {
				return nil, "loop"
			}
			target := strings.Split(w.links[next], "/")
			from := at
			if w.links[next][0] == '/' {
				from = nil
			}
			return w.resolve(root, from, append(target, todo[i+1:]...), links)
		}
	}
	if strings.HasPrefix("/"+strings.Join(at, "/")+"/", root+"/") {
		return at, ""
	}
	return nil, "escape"
}

// TestWalkAgainstModel compares the walk with the second opinion on random trees
// with links and mounts.
func TestWalkAgainstModel(t *testing.T) { rapid.Check(t, walkAgainstModel) }

func FuzzWalk(f *testing.F) {
	// What rapid draws from has to be long enough, or it draws nothing.
	for i := range byte(8) {
		noise := make([]byte, 2<<10)
		rand.NewChaCha8([32]byte{i}).Read(noise)
		f.Add(noise)
	}
	f.Fuzz(rapid.MakeFuzz(walkAgainstModel))
}

func walkAgainstModel(t *rapid.T) {
	world := drawWorld(t, true)
	const root = "/srv/repo"
	w := engine.Bind(root, world.fsys)
	target := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "srv", "repo", "..", ".", ""}), 1, 5).Draw(t, "target"), "/")
	got := engine.CheckContainment(w, target, engine.ContainmentOptions{FollowSymlinks: true}, world.fsys)

	lexical, err := engine.Resolve(root, target)
	if err != nil {
		if got.Outcome != engine.Denied || got.Code != engine.CodeOutside {
			t.Fatalf("%q is lexically outside, the walk says %+v", target, got)
		}
		return
	}
	todo := strings.Split(strings.TrimPrefix(strings.TrimPrefix(lexical, root), "/"), "/")
	if strings.HasSuffix(target, "/") || strings.HasSuffix(target, "/.") {
		todo = append(todo, "")
	}
	links := 0
	at, problem := world.resolve(root, strings.Split(root[1:], "/"), todo, &links)
	want := map[string]engine.Code{
		"": engine.CodeWithin, "new": engine.CodeWithin, "escape": engine.CodeLinkEscape, "mount": engine.CodeMountPoint,
		"missing": engine.CodeMissingComponent, "notdir": engine.CodeNotDirectory, "loop": engine.CodeLinkLoop,
	}[problem]
	resolved := ""
	if want == engine.CodeWithin {
		resolved = "/" + strings.Join(at, "/")
	}
	if got.Code != want || got.ResolvedPath != resolved {
		t.Fatalf("CheckContainment(%q) = %s %q, the model says %s %q of\n%s", target, got.Code, got.ResolvedPath, want, resolved, strings.Join(world.text, "\n"))
	}
	// With nothing followed an answer can only get worse.
	strict := engine.CheckContainment(w, target, engine.ContainmentOptions{}, world.fsys)
	if strict.Outcome == engine.Allowed && strict != got {
		t.Fatalf("%q: %+v where links are not followed, %+v where they are", target, strict, got)
	}
	// What is allowed is allowed under its resolved name, without links.
	if got.Outcome == engine.Allowed {
		again := engine.CheckContainment(w, got.ResolvedPath, engine.ContainmentOptions{}, world.fsys)
		if again.Outcome != engine.Allowed || again.ResolvedPath != got.ResolvedPath {
			t.Fatalf("%q leads to %q, which is %+v", target, got.ResolvedPath, again)
		}
	}
	walk := engine.WalkContainment(w, target, engine.ContainmentOptions{FollowSymlinks: true}, world.fsys)
	if walk.Decision != got || walk.Missing != (problem == "new") {
		t.Fatalf("WalkContainment(%q) = %+v", target, walk)
	}
	all := engine.CheckAll(w, []string{target, target, "a/b"}, engine.ContainmentOptions{FollowSymlinks: true}, world.fsys)
	if all[0] != got || all[1] != got {
		t.Fatalf("CheckAll = %+v, CheckContainment %+v", all[0], got)
	}
}

// TestDecideNeverWidens takes policies at random: an answer of allowed always has
// a walk that is allowed, a grant that holds the right, and no denied name.
func TestDecideNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := drawWorld(t, true)
		p := engine.Policy{
			Workspace:       "/srv/repo",
			WorkspaceRights: engine.Rights(rapid.IntRange(0, 63).Draw(t, "rights")),
			FollowSymlinks:  rapid.Bool().Draw(t, "links"),
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "grants") {
			p.Grants = append(p.Grants, engine.Grant{
				Path:   rapid.SampledFrom([]string{"/srv/repo/a", "/srv/repo/a/b", "/srv/repo/b", "/out", "/out/secret"}).Draw(t, fmt.Sprint("grant", i)),
				Rights: engine.Rights(rapid.IntRange(0, 63).Draw(t, fmt.Sprint("grant rights", i))), Optional: true,
			})
		}
		p.Deny = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "a/b", "c/a/b"}), 0, 2).Draw(t, "deny")
		sets, err := engine.Compile(p, world.fsys)
		if err != nil {
			return // two grants of one object, a name through a link out
		}
		e := engine.NewEvaluator(sets, nil, world.fsys)
		op := rapid.SampledFrom([]engine.Op{engine.OpRead, engine.OpWrite, engine.OpCreate, engine.OpDelete, engine.OpExec}).Draw(t, "op")
		target := rapid.SampledFrom([]string{"a", "a/b", "a/b/c", "b", "b/../a", "c/a/b", "/out", "/out/secret", "/srv/repo/b/a", "../../out/secret", "repo"}).Draw(t, "target")
		d := e.Decide(engine.Request{Op: op, Path: target, EnforcementAvailable: true})
		if d.Outcome != engine.Allowed {
			return
		}
		if d.Containment.Outcome != engine.Allowed || d.Grant == nil {
			t.Fatalf("allowed without a walk or a grant: %+v", d)
		}
		need := map[engine.Op]engine.Rights{engine.OpRead: engine.Read, engine.OpWrite: engine.Write, engine.OpCreate: engine.Create, engine.OpDelete: engine.Delete, engine.OpExec: engine.Exec}[op]
		// The deepest grant that contains the resolved path, by a second count.
		best := engine.Object{}
		for _, o := range sets.Objects {
			if (d.Containment.ResolvedPath == o.Path || strings.HasPrefix(d.Containment.ResolvedPath, o.Path+"/")) && len(o.Path) > len(best.Path) {
				best = o
			}
		}
		if !best.Rights.Has(need) || best.Path != d.Grant.Path {
			t.Fatalf("%s %s is allowed by %+v; the deepest grant is %+v", op, target, d.Grant, best)
		}
		for _, name := range sets.Deny {
			if d.Containment.ResolvedPath == name || strings.HasPrefix(d.Containment.ResolvedPath, name+"/") {
				t.Fatalf("%s %s is allowed below the denied name %s", op, target, name)
			}
		}
	})
}
