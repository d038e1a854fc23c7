// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// decideFS is a workspace with grants around it.
func decideFS(t testing.TB) *memfs.FS {
	fsys := linux(t, `
		link /srv/repo/link -> src
		link /srv/repo/ro -> docs/page
		link /srv/repo/hooks -> .git/hooks
		link /srv/repo/cache -> /cache
		dir  /srv/repo/.git/hooks
		file /srv/repo/.git/config
		file /srv/repo/docs/page
		file /srv/repo/docs/secret
		file /srv/repo/docs/sub/x
		dir  /srv/repo/sub dev=43
		error /srv/repo/io err=EIO
		dir  /srv/repo/mnt
		link /srv/repo/magic -> f magic
		link /srv/repo/loop -> loop
		dir  /cache/old
		file /cache/old/x
		file /tool
		socket /run/app.sock
		dir  /srv/repo/blocked
	`)
	fsys.MustMount(memfs.Mount{Point: "/srv/repo/mnt", Dev: 42})
	return fsys
}

var decidePolicy = engine.Policy{
	Workspace:       "/srv/repo",
	WorkspaceRights: engine.Read | engine.Write | engine.Create | engine.Delete,
	Grants: []engine.Grant{
		{Path: "docs", Rights: engine.Read},
		{Path: "docs/secret"},
		{Path: "/cache", Rights: engine.Read | engine.Create},
		{Path: "/cache/old", Rights: engine.Read, Expires: time.Unix(1, 0)},
		{Path: "/tool", Rights: engine.Read | engine.Exec},
		{Path: "/run/app.sock", Rights: engine.Connect},
	},
	Deny: []string{".git/hooks", "later/denied"},
}

// TestDecide has a row for every code that an answer can carry.
func TestDecide(t *testing.T) {
	fsys := decideFS(t)
	links := decidePolicy
	links.FollowSymlinks = true
	mounts := decidePolicy
	mounts.FollowMountPoints = true
	bare := engine.Policy{Workspace: "/srv/repo"}

	tests := []struct {
		name    string
		policy  engine.Policy
		op      engine.Op
		path    string
		to      string
		outcome engine.Outcome
		code    engine.Code
		grant   string
	}{
		{"read", bare, engine.OpRead, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"list", bare, engine.OpList, ".", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"write", decidePolicy, engine.OpWrite, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"create", decidePolicy, engine.OpCreate, "src/new", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"delete", decidePolicy, engine.OpDelete, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"attributes", decidePolicy, engine.OpAttributes, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"exec", bare, engine.OpExec, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"connect", decidePolicy, engine.OpConnect, "/run/app.sock", "", engine.Allowed, engine.CodeWithin, "/run/app.sock"},
		{"exec of a single file", decidePolicy, engine.OpExec, "/tool", "", engine.Allowed, engine.CodeWithin, "/tool"},
		{"below a single file", decidePolicy, engine.OpRead, "/tool/x", "", engine.Denied, engine.CodeNotDirectory, ""},
		{"a single file with a slash", decidePolicy, engine.OpRead, "/tool/", "", engine.Denied, engine.CodeNotDirectory, ""},
		{"create in a grant", decidePolicy, engine.OpCreate, "/cache/new", "", engine.Allowed, engine.CodeWithin, "/cache"},
		{"read in a grant inside the workspace", decidePolicy, engine.OpRead, "docs/page", "", engine.Allowed, engine.CodeWithin, "/srv/repo/docs"},

		{"outside", decidePolicy, engine.OpRead, "/etc/passwd", "", engine.Denied, engine.CodeOutside, ""},
		{"outside by dots", decidePolicy, engine.OpRead, "../x", "", engine.Denied, engine.CodeOutside, ""},
		{"a grant by dots", decidePolicy, engine.OpRead, "../../cache", "", engine.Allowed, engine.CodeWithin, "/cache"},
		{"NUL", decidePolicy, engine.OpRead, "f\x00", "", engine.Denied, engine.CodeNULInPath, ""},
		{"too long", decidePolicy, engine.OpRead, strings.Repeat("x", engine.MaxPath+1), "", engine.Denied, engine.CodeUnsafePath, ""},
		{"link", decidePolicy, engine.OpRead, "link/deep", "", engine.Denied, engine.CodeSymlink, ""},
		{"link followed", links, engine.OpRead, "link/deep", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"link out, into a grant", links, engine.OpRead, "cache", "", engine.Denied, engine.CodeLinkEscape, ""},
		{"link to itself", links, engine.OpRead, "loop", "", engine.Denied, engine.CodeLinkLoop, ""},
		{"magic link", links, engine.OpRead, "magic", "", engine.Denied, engine.CodeMagicLink, ""},
		{"mount point", decidePolicy, engine.OpRead, "mnt", "", engine.Denied, engine.CodeMountPoint, ""},
		{"mount point followed", mounts, engine.OpRead, "mnt", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"not a directory", decidePolicy, engine.OpRead, "f/x", "", engine.Denied, engine.CodeNotDirectory, ""},
		{"missing in the middle", decidePolicy, engine.OpCreate, "a/b", "", engine.EnforcementUnverified, engine.CodeMissingComponent, ""},
		{"I/O error", decidePolicy, engine.OpRead, "io", "", engine.EnforcementUnverified, engine.CodeInspectFailed, ""},
		{"subvolume", decidePolicy, engine.OpRead, "sub", "", engine.Conflict, engine.CodeDeviceChanged, "/srv/repo"},
		{"subvolume without the right", decidePolicy, engine.OpExec, "sub", "", engine.Denied, engine.CodeRights, "/srv/repo"},

		{"denied name", decidePolicy, engine.OpRead, ".git/hooks", "", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"below a denied name", decidePolicy, engine.OpCreate, ".git/hooks/post-commit", "", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"denied name that is not there", decidePolicy, engine.OpCreate, "later/denied", "", engine.Denied, engine.CodeDeniedName, ""},
		{"denied name by dots", decidePolicy, engine.OpRead, "src/../.git/hooks", "", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"denied name through a link", links, engine.OpRead, "hooks", "", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"beside a denied name", decidePolicy, engine.OpRead, ".git/config", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"longer than a denied name", decidePolicy, engine.OpCreate, ".git/hooks2", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"above a denied name, read", decidePolicy, engine.OpRead, ".git", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"above a denied name, taken away", decidePolicy, engine.OpDelete, ".git", "", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"above a denied name, renamed", decidePolicy, engine.OpRename, ".git", "g", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"above a denied name, overwritten", decidePolicy, engine.OpRename, "src", ".git", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"renamed to a denied name", decidePolicy, engine.OpRename, "f", ".git/hooks", engine.Denied, engine.CodeDeniedName, "/srv/repo"},
		{"linked to a denied name", decidePolicy, engine.OpLink, "f", "later/denied", engine.Denied, engine.CodeDeniedName, "/srv/repo"},

		{"no right to write", decidePolicy, engine.OpWrite, "docs/page", "", engine.Denied, engine.CodeRights, "/srv/repo/docs"},
		{"no right to execute", decidePolicy, engine.OpExec, "f", "", engine.Denied, engine.CodeRights, "/srv/repo"},
		{"none inside a grant", decidePolicy, engine.OpRead, "docs/secret", "", engine.Denied, engine.CodeRights, "/srv/repo/docs/secret"},
		{"expired", decidePolicy, engine.OpRead, "/cache/old/x", "", engine.Denied, engine.CodeRights, "/cache/old"},
		{"nearest grant after a link", links, engine.OpWrite, "ro", "", engine.Denied, engine.CodeRights, "/srv/repo/docs"},
		{"nearest grant after a link, held", links, engine.OpRead, "ro", "", engine.Allowed, engine.CodeWithin, "/srv/repo/docs"},
		{"unknown operation", bare, engine.Op("format"), "f", "", engine.Denied, engine.CodeRights, ""},

		{"rename", decidePolicy, engine.OpRename, "f", "src/g", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"rename over", decidePolicy, engine.OpRename, "f", "src/deep/x", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"rename without the right at the source", decidePolicy, engine.OpRename, "docs/page", "g", engine.Denied, engine.CodeRights, "/srv/repo/docs"},
		{"rename without the right at the target", decidePolicy, engine.OpRename, "f", "docs/new", engine.Denied, engine.CodeRights, "/srv/repo"},
		{"rename over what may not be deleted", decidePolicy, engine.OpRename, "f", "/cache/old", engine.Denied, engine.CodeRights, "/srv/repo"},
		{"rename to outside", decidePolicy, engine.OpRename, "f", "/etc/x", engine.Denied, engine.CodeOutside, "/srv/repo"},
		{"rename to below what is missing", decidePolicy, engine.OpRename, "f", "a/b", engine.EnforcementUnverified, engine.CodeMissingComponent, "/srv/repo"},
		{"rename into a subvolume", decidePolicy, engine.OpRename, "f", "sub/f", engine.Conflict, engine.CodeDeviceChanged, "/srv/repo"},
		{"rename at one path", decidePolicy, engine.OpRename, "f", "", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"rename at one path without a right", decidePolicy, engine.OpRename, "/cache/new", "", engine.Denied, engine.CodeRights, "/cache"},
		{"link", decidePolicy, engine.OpLink, "f", "g", engine.Allowed, engine.CodeWithin, "/srv/repo"},
		{"link with more rights at the new name", decidePolicy, engine.OpLink, "docs/page", "page", engine.Denied, engine.CodeRightsGain, "/srv/repo/docs"},
		{"link with fewer", decidePolicy, engine.OpLink, "f", "/cache/f", engine.Allowed, engine.CodeWithin, "/srv/repo"},
	}
	seen := make(map[engine.Code]bool)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := engine.Request{Op: tt.op, Path: tt.path, To: tt.to, EnforcementAvailable: true}
			d, err := engine.Decide(tt.policy, req, nil, fsys)
			if err != nil {
				t.Fatal(err)
			}
			seen[d.Code] = true
			if d.Outcome != tt.outcome || d.Code != tt.code {
				t.Errorf("%s %s %s = %s, %s (%s); want %s, %s", tt.op, tt.path, tt.to, d.Outcome, d.Code, d.Reason, tt.outcome, tt.code)
			}
			got := ""
			if d.Grant != nil {
				got = d.Grant.Path
			}
			if got != tt.grant {
				t.Errorf("the grant is %q, want %q", got, tt.grant)
			}
			if d.Reason == "" || d.Boundary.Outcome == "" || d.Containment.Outcome == "" {
				t.Errorf("incomplete: %+v", d)
			}
			if d.Outcome == engine.Allowed && (d.Boundary.Outcome != engine.BoundaryAllow || d.Containment.Outcome != engine.Allowed) {
				t.Errorf("allowed against its parts: %+v", d)
			}

			// Without verified enforcement nothing is allowed, and what was
			// refused is refused for the same reason.
			req.EnforcementAvailable = false
			d2, err := engine.Decide(tt.policy, req, nil, fsys)
			if err != nil {
				t.Fatal(err)
			}
			if d.Outcome == engine.Allowed {
				if d2.Outcome != engine.EnforcementUnverified || d2.Code != engine.CodeHardBoundary || d2.Boundary.Reason != engine.BoundaryUnverified {
					t.Errorf("without enforcement: %s, %s, %+v", d2.Outcome, d2.Code, d2.Boundary)
				}
			} else if d2.Outcome != d.Outcome || d2.Code != d.Code {
				t.Errorf("without enforcement: %s, %s; with: %s, %s", d2.Outcome, d2.Code, d.Outcome, d.Code)
			}
		})
	}

	// The rest of the codes, which need another world.
	sets := compile(t, decidePolicy, fsys)
	answer := func(sets engine.AllowedSets, path string, probes engine.Probes) engine.Code {
		d := engine.NewEvaluator(sets, nil, probes).Decide(engine.Request{Op: engine.OpRead, Path: path, EnforcementAvailable: true})
		if d.Outcome == engine.Allowed {
			t.Errorf("%q is allowed", path)
		}
		seen[d.Code] = true
		return d.Code
	}
	if got := answer(sets, "f", nil); got != engine.CodeNoProbe {
		t.Errorf("without a probe: %s", got)
	}
	blind := decideFS(t)
	blind.MountErr = fmt.Errorf("gone")
	if got := answer(sets, "f", blind); got != engine.CodeMountTable {
		t.Errorf("without a mount table: %s", got)
	}
	replaced := decideFS(t)
	replaced.MustBuild("dir /srv/repo ino=9999")
	if got := answer(sets, "f", replaced); got != engine.CodeRootChanged {
		t.Errorf("with another root: %s", got)
	}
	gone := decideFS(t)
	must(gone.Remove("/cache"))
	if got := answer(sets, "/cache/x", gone); got != engine.CodeBindingBlocked {
		t.Errorf("with a grant that is gone: %s", got)
	}
	moved := decideFS(t)
	must(moved.Remove("/cache"))
	moved.MustBuild("link /cache -> /srv")
	if got := answer(sets, "/cache/repo/f", moved); got != engine.CodeBindingBlocked {
		t.Errorf("with a grant that became a link: %s", got)
	}
	win := windows(t, `junction C:\Work\Repo\j -> C:\Work\Repo\Src`+"\n"+`reparse C:\Work\Repo\r tag=9000001a`+"\n"+`dir C:\Work\Repo\m dev=77 mountroot`)
	winSets := compile(t, engine.Policy{Workspace: `C:\Work\Repo`, FollowMountPoints: true}, win)
	for path, want := range map[string]engine.Code{"j": engine.CodeJunction, "r": engine.CodeReparsePoint, "m": engine.CodeMountDeviceMismatch} {
		if got := answer(winSets, path, win); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	seen[engine.CodeHardBoundary] = true // above, for every row
	for _, code := range engine.Codes() {
		if !seen[code] {
			t.Errorf("no row has the code %s", code)
		}
	}
}

// TestDecideLater changes the world after the evaluator was made.
func TestDecideLater(t *testing.T) {
	fsys := decideFS(t)
	links := decidePolicy
	links.FollowSymlinks = true
	e := engine.NewEvaluator(compile(t, links, fsys), nil, fsys)
	read := func(path string) engine.Decision {
		return e.Decide(engine.Request{Op: engine.OpRead, Path: path, EnforcementAvailable: true})
	}
	if d := read("ro"); d.Outcome != engine.Allowed {
		t.Fatalf("before: %+v", d)
	}
	// Through a link into a grant whose directory is another one by now.
	fsys.MustBuild("dir /srv/repo/docs ino=9999")
	if d := read("ro"); d.Outcome != engine.Conflict || d.Code != engine.CodeRootChanged {
		t.Errorf("into a replaced grant: %s %s", d.Outcome, d.Code)
	}
	if d := read("docs/page"); d.Outcome != engine.Conflict || d.Code != engine.CodeRootChanged {
		t.Errorf("in a replaced grant: %s %s", d.Outcome, d.Code)
	}
}

func TestDecideExpansions(t *testing.T) {
	fsys := decideFS(t)
	sets := compile(t, decidePolicy, fsys)
	r := engine.NewRegistry(activation)
	expand := func(resource, workspace string, expires time.Time, classes ...string) string {
		x, err := r.Grant(engine.ExpansionRequest{ResourceIdentity: resource, WorkspaceID: workspace, ActionClasses: classes, ExpiresAt: expires})
		if err != nil {
			t.Fatal(err)
		}
		return x.ExpansionID
	}
	e := engine.NewEvaluator(sets, r, fsys)
	decide := func(op engine.Op, path string) engine.Decision {
		return e.Decide(engine.Request{Op: op, Path: path, EnforcementAvailable: true})
	}
	allowed := func(op engine.Op, path string, want bool) {
		t.Helper()
		if d := decide(op, path); (d.Outcome == engine.Allowed) != want {
			t.Errorf("%s %s = %s, %s (%s)", op, path, d.Outcome, d.Code, d.Reason)
		}
	}
	w := sets.Workspace.WorkspaceID
	allowed(engine.OpWrite, "docs/page", false)
	allowed(engine.OpWrite, "docs/sub/x", false)

	id := expand("/srv/repo/docs/sub", w, time.Time{}, engine.ActionWriteFile)
	allowed(engine.OpWrite, "docs/sub/x", true)
	allowed(engine.OpCreate, "docs/sub/new", true)
	allowed(engine.OpWrite, "docs/page", false)
	allowed(engine.OpDelete, "docs/sub/x", false)
	if d := decide(engine.OpWrite, "docs/sub/x"); d.Grant.Source != engine.SourceExpansion || d.Grant.ExpansionID != id || d.Grant.Path != "/srv/repo/docs" {
		t.Errorf("the grant is %+v", d.Grant)
	}
	if d := decide(engine.OpRead, "docs/sub/x"); d.Grant.Source != engine.SourcePolicy || d.Grant.ExpansionID != "" {
		t.Errorf("reading needs no expansion, yet the grant is %+v", d.Grant)
	}
	// Two that add up.
	more := expand("/srv/repo/docs/sub/x", w, time.Time{}, engine.ActionDelete)
	if d := e.Decide(engine.Request{Op: engine.OpRename, Path: "docs/sub/x", To: "docs/sub/y", EnforcementAvailable: true}); d.Outcome != engine.Allowed {
		t.Errorf("rename with two expansions: %+v", d)
	}
	if _, err := r.Revoke(more); err != nil {
		t.Fatal(err)
	}
	allowed(engine.OpDelete, "docs/sub/x", false)
	if _, err := r.Revoke(id); err != nil {
		t.Fatal(err)
	}
	allowed(engine.OpWrite, "docs/sub/x", false)

	// None, a denied name, and what no grant contains stay as they are.
	expand("/srv/repo/docs/secret", w, time.Time{}, engine.ActionReadFile)
	expand("/srv/repo/.git/hooks", w, time.Time{}, engine.ActionReadFile, engine.ActionWriteFile)
	expand("/etc", w, time.Time{}, engine.ActionReadFile)
	expand("/", w, time.Time{}, engine.ActionReadFile, engine.ActionRunCommand)
	expand("/cache/old", w, time.Time{}, engine.ActionReadFile)
	allowed(engine.OpRead, "docs/secret", false)
	allowed(engine.OpRead, ".git/hooks", false)
	allowed(engine.OpRead, "/etc/passwd", false)
	allowed(engine.OpExec, "f", false)            // the expansion is above the grant
	allowed(engine.OpRead, "/cache/old/x", false) // an expired grant is none
	// Of another workspace, expired, of an unknown class.
	expand("/srv/repo/f", "another", time.Time{}, engine.ActionRunCommand)
	expand("/srv/repo/f", w, time.Unix(1, 0), engine.ActionRunCommand)
	expand("/srv/repo/f", w, time.Time{}, "run")
	allowed(engine.OpExec, "f", false)
	expand("/srv/repo/f", w, time.Time{}, engine.ActionRunCommand)
	allowed(engine.OpExec, "f", true)
}

func TestDecideCasefold(t *testing.T) {
	fsys := linux(t, `
		dir  /srv/repo/fold casefold
		dir  /srv/repo/fold/Secret casefold
		file /srv/repo/fold/other
	`)
	e := engine.NewEvaluator(compile(t, engine.Policy{Workspace: "/srv/repo", Deny: []string{"fold/Secret/Groß"}}, fsys), nil, fsys)
	decide := func(op engine.Op, path string) engine.Code {
		return e.Decide(engine.Request{Op: op, Path: path, EnforcementAvailable: true}).Code
	}
	for _, path := range []string{"fold/Secret/Groß", "fold/SECRET/groß", "fold/secret/GROSS/x", "fold/se\u00adcret/groß"} {
		if got := decide(engine.OpCreate, path); got != engine.CodeDeniedName {
			t.Errorf("%q: %s", path, got)
		}
	}
	if got := decide(engine.OpDelete, "fold/SECRET"); got != engine.CodeDeniedName {
		t.Errorf("taking away what holds a denied name: %s", got)
	}
	for _, path := range []string{"fold/other", "fold/SECRET", "fold/secret2"} {
		if got := decide(engine.OpRead, path); got != engine.CodeWithin {
			t.Errorf("%q: %s", path, got)
		}
	}
}

func TestDecideJSON(t *testing.T) {
	fsys := decideFS(t)
	d, err := engine.Decide(decidePolicy, engine.Request{Op: engine.OpWrite, Path: "docs/page", EnforcementAvailable: true}, nil, fsys)
	if err != nil {
		t.Fatal(err)
	}
	sameJSON(t, d, `{
		"path": "docs/page", "op": "write", "outcome": "denied", "code": "rights",
		"reason": "write needs the rights =w, and the policy grant on /srv/repo/docs has ro",
		"containment": {"outcome": "allowed", "code": "within", "reason": "the path lies within the workspace", "resolvedPath": "/srv/repo/docs/page"},
		"grant": {"path": "/srv/repo/docs", "rights": "ro", "source": "policy"},
		"boundary": {"outcome": "allow", "resourceIdentity": "/srv/repo/docs/page"}
	}`)
	d, err = engine.Decide(decidePolicy, engine.Request{Op: engine.OpRead, Path: "\xff", EnforcementAvailable: true}, nil, fsys)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(data), `"pathBytes":"/w=="`) {
		t.Errorf("a path that is no UTF-8: %s, %v", data, err)
	}
	steps, err := json.Marshal(d.Steps)
	if err != nil || !strings.Contains(string(steps), `"kind":"dir"`) {
		t.Errorf("steps: %s, %v", steps, err)
	}
}

func TestParseOp(t *testing.T) {
	ops := engine.Ops()
	if len(ops) != 10 || !slices.IsSorted(ops) {
		t.Errorf("Ops = %v", ops)
	}
	for _, op := range ops {
		if got, err := engine.ParseOp(string(op)); got != op || err != nil {
			t.Errorf("ParseOp(%s) = %s, %v", op, got, err)
		}
	}
	if op, err := engine.ParseOp("Read"); err == nil || !strings.Contains(err.Error(), "attributes") {
		t.Errorf("ParseOp(Read) = %s, %v", op, err)
	}
}
