// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/thenforce/thenforce/pkg/engine"
)

var activation = engine.Activation{BootID: "boot-1", Scope: "jail-1"}

func grant(t testing.TB, r *engine.Registry, resource string, classes ...string) engine.BoundaryExpansion {
	t.Helper()
	x, err := r.Grant(engine.ExpansionRequest{ResourceIdentity: resource, WorkspaceID: "w", ActionClasses: classes, Reason: "why"})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestRegistry(t *testing.T) {
	r := engine.NewRegistry(activation)
	now := time.Now()
	x := grant(t, r, "/w/a", engine.ActionReadFile)
	y := grant(t, r, "/w/a", engine.ActionWriteFile)
	active := func(id, class string) bool { return r.IsActive(id, "/w/a", "w", class, now) }

	if !active(x.ExpansionID, engine.ActionReadFile) || !active(y.ExpansionID, engine.ActionWriteFile) {
		t.Error("a new expansion is not active")
	}
	if active(x.ExpansionID, engine.ActionWriteFile) {
		t.Error("an expansion lends its class to another")
	}
	if r.IsActive(x.ExpansionID, "/w/a/b", "w", engine.ActionReadFile, now) || r.IsActive(x.ExpansionID, "/w", "w", engine.ActionReadFile, now) {
		t.Error("an expansion is active for another resource")
	}
	for i, want := range []bool{true, false, false} {
		if got, err := r.Revoke(x.ExpansionID); got != want || err != nil {
			t.Errorf("revoke number %d = %v, %v", i+1, got, err)
		}
	}
	if active(x.ExpansionID, engine.ActionReadFile) || !active(y.ExpansionID, engine.ActionWriteFile) {
		t.Error("the wrong expansion was revoked")
	}
	got, ok := r.Get(x.ExpansionID)
	if !ok || !got.Revoked || got.RevokedAt == nil || got.Reason != "why" {
		t.Errorf("Get of a revoked one = %+v, %v", got, ok)
	}
	if _, ok := r.Get("nope"); ok {
		t.Error("Get knows an unknown id")
	}
	list := r.List()
	if len(list) != 2 {
		t.Fatalf("List = %+v", list)
	}
	// What was handed out is a copy.
	list[0].ActionClasses[0] = engine.ActionDelete
	x.ActionClasses[0] = engine.ActionDelete
	if got, _ := r.Get(x.ExpansionID); got.ActionClasses[0] != engine.ActionReadFile {
		t.Error("the registry was changed through a copy")
	}
	for _, req := range []engine.ExpansionRequest{{WorkspaceID: "w"}, {ResourceIdentity: "/a"}} {
		if x, err := r.Grant(req); err == nil {
			t.Errorf("granted %+v", x)
		}
	}
}

func TestExpansionJSON(t *testing.T) {
	r := engine.NewRegistry(activation)
	x, err := r.Grant(engine.ExpansionRequest{ResourceIdentity: "/a", WorkspaceID: "w", Reason: "why"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "expansionId")
	delete(fields, "createdAt")
	sameJSON(t, fields, `{
		"resourceIdentity": "/a", "workspaceId": "w", "actionClasses": [], "reason": "why",
		"expiresAt": null, "revoked": false, "revokedAt": null, "activation": {"bootId": "boot-1", "scope": "jail-1"}
	}`)
}

func TestActionRights(t *testing.T) {
	for class, want := range map[string]engine.Rights{
		engine.ActionReadFile: engine.Read, engine.ActionListDir: engine.Read, engine.ActionSearch: engine.Read,
		engine.ActionWriteFile: engine.Write | engine.Create, engine.ActionDelete: engine.Delete, engine.ActionRunCommand: engine.Exec,
	} {
		if got, ok := engine.ActionRights(class); got != want || !ok {
			t.Errorf("ActionRights(%s) = %v, %v", class, got, ok)
		}
	}
	if got, ok := engine.ActionRights("sudo"); got != engine.None || ok {
		t.Errorf("an unknown class carries %v", got)
	}
	x := engine.BoundaryExpansion{ActionClasses: []string{"delete", "sudo", "search"}}
	if got := x.Rights(); got != engine.Read|engine.Delete {
		t.Errorf("Rights = %v", got)
	}
}

// TestRegistryModel runs random calls against a registry and a model of the
// rules, with the journal closed and opened again in between.
func TestRegistryModel(t *testing.T) {
	type model struct {
		x       engine.BoundaryExpansion
		revoked bool
	}
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := dir + "/" + rapid.StringMatching(`[a-z]{20}`).Draw(t, "journal")
		open := func(a engine.Activation) *engine.Registry {
			r, recovery, err := engine.OpenRegistry(path, a)
			if err != nil || recovery.Dropped != 0 {
				t.Fatalf("OpenRegistry = %+v, %v", recovery, err)
			}
			return r
		}
		r := open(activation)
		here := activation
		defer func() { r.Close() }()
		var made []*model
		start := time.Date(2026, 7, 17, 9, 0, 0, 0, time.UTC)
		resource := rapid.SampledFrom([]string{"/a", "/a/b", "/\xff"})
		class := rapid.SampledFrom([]string{"read_file", "delete", "other"})
		pick := func(t *rapid.T) *model {
			if len(made) == 0 {
				t.Skip("nothing granted yet")
			}
			return rapid.SampledFrom(made).Draw(t, "expansion")
		}
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(t *rapid.T) {
				req := engine.ExpansionRequest{
					ResourceIdentity: resource.Draw(t, "resource"),
					WorkspaceID:      rapid.SampledFrom([]string{"w1", "w2"}).Draw(t, "workspace"),
					ActionClasses:    rapid.SliceOfN(class, 0, 2).Draw(t, "classes"),
				}
				if rapid.Bool().Draw(t, "expires") {
					req.ExpiresAt = start.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "after")) * time.Second)
				}
				x, err := r.Grant(req)
				if err != nil {
					t.Fatal(err)
				}
				made = append(made, &model{x: x})
			},
			"revoke": func(t *rapid.T) {
				m := pick(t)
				want := !m.revoked && m.x.Activation == here
				if got, err := r.Revoke(m.x.ExpansionID); got != want || err != nil {
					t.Fatalf("Revoke = %v, %v; want %v", got, err, want)
				}
				m.revoked = m.revoked || want
			},
			"reopen": func(t *rapid.T) {
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				here = rapid.SampledFrom([]engine.Activation{activation, {BootID: "boot-2", Scope: "jail-1"}, {BootID: "boot-1", Scope: "jail-2"}}).Draw(t, "activation")
				r = open(here)
			},
			"": func(t *rapid.T) {
				if n := len(r.List()); n != len(made) {
					t.Fatalf("%d expansions, want %d", n, len(made))
				}
				if len(made) == 0 {
					return
				}
				m := rapid.SampledFrom(made).Draw(t, "asked")
				now := start.Add(time.Duration(rapid.IntRange(-6, 6).Draw(t, "now")) * time.Second)
				res, act := resource.Draw(t, "asked resource"), class.Draw(t, "asked class")
				workspace := rapid.SampledFrom([]string{"w1", "w2"}).Draw(t, "asked workspace")
				want := !m.revoked && m.x.Activation == here && (m.x.ExpiresAt == nil || now.Before(*m.x.ExpiresAt)) &&
					m.x.ResourceIdentity == res && m.x.WorkspaceID == workspace && slices.Contains(m.x.ActionClasses, act)
				if got := r.IsActive(m.x.ExpansionID, res, workspace, act, now); got != want {
					t.Fatalf("IsActive(%+v, %q, %s, %s, %v) = %v", m.x, res, workspace, act, now, got)
				}
			},
		})
	})
}
