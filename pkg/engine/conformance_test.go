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
	"time"

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
	t.Run("hard_boundary", conformHardBoundary)
	t.Run("revalidate", conformRevalidate)
	t.Run("expansions", conformExpansions)
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
		case "fifo", "socket", "char", "block":
			node.Kind = engine.KindOther
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

func conformHardBoundary(t *testing.T) {
	type vector struct {
		// The vectors leave enforcementAvailable out where it does not matter,
		// and mean that it is available.
		Input json.RawMessage `json:"input"`
		Want  struct {
			Outcome          engine.BoundaryOutcome    `json:"outcome"`
			Reason           engine.HardBoundaryReason `json:"reason"`
			ResourceIdentity string                    `json:"resourceIdentity"`
		} `json:"want"`
	}
	for i, v := range vectors[vector](t, "hard_boundary.json") {
		in := engine.BoundaryInput{EnforcementAvailable: true}
		dec := json.NewDecoder(bytes.NewReader(v.Input))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			t.Fatalf("vector %d: %v", i, err)
		}
		got := engine.CheckHardBoundary(in)
		if got.Outcome != v.Want.Outcome || got.Reason != v.Want.Reason || got.ResourceIdentity != v.Want.ResourceIdentity {
			t.Errorf("vector %d: CheckHardBoundary(%s) = %+v, want %+v", i, v.Input, got, v.Want)
		}
	}
}

func conformRevalidate(t *testing.T) {
	type vector struct {
		Original engine.BoundarySnapshot   `json:"original"`
		Current  engine.BoundarySnapshot   `json:"current"`
		Want     engine.RevalidationResult `json:"want"`
	}
	for i, v := range vectors[vector](t, "revalidate.json") {
		if got := engine.Revalidate(v.Original, v.Current); got != v.Want {
			t.Errorf("vector %d: Revalidate = %+v, want %+v", i, got, v.Want)
		}
	}
}

func conformExpansions(t *testing.T) {
	type step struct {
		Call             string     `json:"call"`
		ID               int        `json:"id"` // of the grant, in order; one that was never made is unknown
		ResourceIdentity string     `json:"resourceIdentity"`
		WorkspaceID      string     `json:"workspaceId"`
		ActionClasses    []string   `json:"actionClasses"`
		ActionClass      string     `json:"actionClass"`
		Reason           string     `json:"reason"`
		ExpiresAt        *time.Time `json:"expiresAt"`
		Now              time.Time  `json:"now"`
		Want             *bool      `json:"want"`
	}
	type vector struct {
		Name  string `json:"name"`
		Steps []step `json:"steps"`
	}
	for _, v := range vectors[vector](t, "expansions.json") {
		t.Run(v.Name, func(t *testing.T) {
			r := engine.NewRegistry(engine.Activation{BootID: "boot", Scope: "jail"})
			var ids []string
			id := func(n int) string {
				if n < len(ids) {
					return ids[n]
				}
				return fmt.Sprintf("unknown-%d", n)
			}
			for i, s := range v.Steps {
				var got bool
				switch s.Call {
				case "grant":
					req := engine.ExpansionRequest{
						ResourceIdentity: s.ResourceIdentity,
						WorkspaceID:      s.WorkspaceID,
						ActionClasses:    s.ActionClasses,
						Reason:           s.Reason,
					}
					if s.ExpiresAt != nil {
						req.ExpiresAt = *s.ExpiresAt
					}
					x, err := r.Grant(req)
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					ids = append(ids, x.ExpansionID)
					continue
				case "revoke":
					var err error
					if got, err = r.Revoke(id(s.ID)); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
				case "isActive":
					got = r.IsActive(id(s.ID), s.ResourceIdentity, s.WorkspaceID, s.ActionClass, s.Now)
				default:
					t.Fatalf("step %d: unknown call %q", i, s.Call)
				}
				if s.Want == nil {
					t.Fatalf("step %d: %s without want", i, s.Call)
				}
				if got != *s.Want {
					t.Errorf("step %d: %+v = %v", i, s, got)
				}
			}
		})
	}
}
