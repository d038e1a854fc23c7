// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// vectors reads one file of the conformance folder. A field that the test does
// not know is an error: a condition that is not applied proves nothing.
func vectors[T any](t *testing.T, name string) []T {
	t.Helper()
	dir := os.Getenv("THENFORCE_CONFORMANCE_DIR")
	if dir == "" {
		dir = filepath.Join("testdata", "conformance")
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var list []T
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(list) == 0 {
		t.Fatalf("%s holds no vectors", name)
	}
	return list
}

func TestConformance(t *testing.T) {
	t.Run("workspace_id", conformWorkspaceID)
	t.Run("resolve", conformResolve)
	t.Run("containment", conformContainment)
}

func conformWorkspaceID(t *testing.T) {
	type vector struct {
		CanonicalRoot string            `json:"canonicalRoot"`
		CasePolicy    engine.CasePolicy `json:"casePolicy"`
		WorkspaceID   string            `json:"workspaceId"`
	}
	for _, v := range vectors[vector](t, "workspace_id.json") {
		if got := engine.WorkspaceID(v.CanonicalRoot, v.CasePolicy); got != v.WorkspaceID {
			t.Errorf("WorkspaceID(%q, %s) = %s, want %s", v.CanonicalRoot, v.CasePolicy, got, v.WorkspaceID)
		}
	}
}

func conformResolve(t *testing.T) {
	type vector struct {
		Root      string `json:"root"`
		Candidate string `json:"candidate"`
		Escapes   bool   `json:"escapes"`
		Resolved  string `json:"resolved"`
	}
	for _, v := range vectors[vector](t, "resolve.json") {
		got, err := engine.Resolve(v.Root, v.Candidate)
		switch {
		case v.Escapes && !errors.Is(err, engine.ErrEscape):
			t.Errorf("Resolve(%q, %q) = %q, %v; want ErrEscape", v.Root, v.Candidate, got, err)
		case !v.Escapes && (err != nil || got != v.Resolved):
			t.Errorf("Resolve(%q, %q) = %q, %v; want %q", v.Root, v.Candidate, got, err, v.Resolved)
		}
	}
}

// containmentVector is one walk.
type containmentVector struct {
	Name      string                    `json:"name"`
	Root      string                    `json:"root"`
	Target    string                    `json:"target"`
	Tree      map[string]vectorNode     `json:"tree"`
	Mounts    []vectorMount             `json:"mounts"`
	Options   engine.ContainmentOptions `json:"options"`
	Probe     string                    `json:"probe"`
	Mountinfo string                    `json:"mountinfo"`
	Binding   string                    `json:"binding"`
	Want      struct {
		Outcome      engine.Outcome `json:"outcome"`
		ResolvedPath *string        `json:"resolvedPath"`
	} `json:"want"`
}

type vectorNode struct {
	Type   string `json:"type"`
	Dev    uint64 `json:"dev"`
	Target string `json:"target"`
	Errno  string `json:"errno"`
}

type vectorMount struct {
	MountPoint string `json:"mountPoint"`
	Dev        uint32 `json:"dev"`
}

// fs builds the tree and the mount table. The devices of the vectors are small
// enough to be the same number in both encodings.
func (v *containmentVector) fs() (*memfs.FS, error) {
	fsys := memfs.New(engine.PlatformFor("linux"))
	// Parents first: an object that is no directory takes away what is below.
	for _, path := range slices.Sorted(maps.Keys(v.Tree)) {
		n := v.Tree[path]
		node := memfs.Node{Target: n.Target, Dev: mountmap.StatDev(n.Dev)}
		switch n.Type {
		case "dir":
			node.Kind = engine.KindDir
		case "file":
			node.Kind = engine.KindFile
		case "symlink":
			node.Kind = engine.KindSymlink
		case "error":
			node.Err = memfs.Errno(n.Errno)
		default:
			return nil, fmt.Errorf("unknown type %q", n.Type)
		}
		if err := fsys.Add(path, node); err != nil {
			return nil, err
		}
	}
	fsys.ClearMounts()
	for _, m := range v.Mounts {
		if err := fsys.Mount(memfs.Mount{Point: m.MountPoint, Dev: mountmap.KernelDev(m.Dev)}); err != nil {
			return nil, err
		}
	}
	if v.Mountinfo != "ok" {
		fsys.MountErr = errors.New(v.Mountinfo)
	}
	return fsys, nil
}

// binding returns the root as it was bound: as it is in the tree, or, where the
// tree does not hold it any more, as it was before.
func (v *containmentVector) binding(fsys *memfs.FS) (engine.WorkspaceIdentity, error) {
	w := engine.WorkspaceIdentity{
		Platform:       engine.PlatformFor("linux"),
		CanonicalRoot:  v.Root,
		WorkspaceID:    engine.WorkspaceID(v.Root, engine.CaseSensitive),
		VolumeIdentity: &engine.VolumeIdentity{Dev: 42, Ino: 1 << 40},
		BindingStatus:  engine.Bound,
	}
	switch v.Binding {
	case "bound":
	case "blocked":
		w.BindingStatus, w.VolumeIdentity = engine.Blocked, nil
		w.BlockedReason = "root is missing or inaccessible"
	default:
		return w, fmt.Errorf("unknown binding %q", v.Binding)
	}
	if bound := engine.Bind(v.Root, fsys); v.Binding == "bound" && bound.BindingStatus == engine.Bound {
		return bound, nil
	}
	return w, nil
}

func conformContainment(t *testing.T) {
	for i, v := range vectors[containmentVector](t, "containment.json") {
		t.Run(fmt.Sprintf("%d %s", i, v.Name), func(t *testing.T) {
			fsys, err := v.fs()
			if err != nil {
				t.Fatal(err)
			}
			w, err := v.binding(fsys)
			if err != nil {
				t.Fatal(err)
			}
			var probes engine.Probes
			switch v.Probe {
			case "ok":
				probes = fsys
			case "none":
			default:
				t.Fatalf("unknown probe %q", v.Probe)
			}
			got := engine.CheckContainment(w, v.Target, v.Options, probes)
			want := ""
			if v.Want.ResolvedPath != nil {
				want = *v.Want.ResolvedPath
			}
			if got.Outcome != v.Want.Outcome || got.ResolvedPath != want {
				t.Errorf("CheckContainment(%q) = %+v\nwant %s %q", v.Target, got, v.Want.Outcome, want)
				for _, s := range engine.WalkContainment(w, v.Target, v.Options, probes).Steps {
					t.Logf("%+v", s)
				}
			}
		})
	}
}
