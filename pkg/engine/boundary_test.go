// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/thenforce/thenforce/pkg/engine"
)

// reasons is the order in which boundaries are tried.
var reasons = []engine.HardBoundaryReason{
	engine.BoundaryUnsafePath, engine.BoundaryWorkspaceEscape, engine.BoundaryHostThreatening, engine.BoundaryNetworkDestination,
	engine.BoundaryUnverified, engine.BoundaryQuotaExceeded, engine.BoundaryWrongCredential,
}

// TestHardBoundaryOrder makes any set of boundaries stand in the way and wants
// the first.
func TestHardBoundaryOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hit := make([]bool, len(reasons))
		for i := range hit {
			hit[i] = rapid.Bool().Draw(t, string(reasons[i]))
		}
		in := engine.BoundaryInput{WorkspaceRoot: "/srv/repo", EnforcementAvailable: !hit[4], QuotaExceeded: hit[5]}
		path := rapid.SampledFrom([]*string{nil, new(""), new("a/b")}).Draw(t, "path")
		if hit[1] {
			path = new("../x")
		}
		if hit[0] {
			path = new("a\x00b")
		}
		in.CandidatePath = path
		in.CommandClass = rapid.SampledFrom([]*string{nil, new("safe"), new("")}).Draw(t, "class")
		if hit[2] {
			in.CommandClass = new(engine.HostThreatening)
		}
		if rapid.Bool().Draw(t, "network") {
			in.NetworkDestination, in.AllowlistedNetworkDestinations = new("https://a"), []string{"https://b", "https://a"}
		}
		if hit[3] {
			in.NetworkDestination, in.AllowlistedNetworkDestinations = new(""), []string{"https://b"}
		}
		if rapid.Bool().Draw(t, "credential") {
			in.CredentialGroup, in.ExpectedCredentialGroup = new(""), new("")
		}
		if hit[6] {
			in.CredentialGroup, in.ExpectedCredentialGroup = rapid.SampledFrom([]*string{nil, new("b"), new("")}).Draw(t, "group"), new("a")
		}

		got := engine.CheckHardBoundary(in)
		first := slices.Index(hit, true)
		switch {
		case first < 0 && (got.Outcome != engine.BoundaryAllow || got.Reason != ""):
			t.Fatalf("CheckHardBoundary = %+v, want allow", got)
		case first >= 0 && (got.Outcome != engine.BoundaryDeny || got.Reason != reasons[first]):
			t.Fatalf("CheckHardBoundary = %+v, want %s", got, reasons[first])
		}
		// A path that was given and passed is named whatever else denied.
		want := ""
		if path != nil && !hit[0] && !hit[1] {
			want = strings.TrimSuffix("/srv/repo/"+*path, "/")
		}
		if got.ResourceIdentity != want {
			t.Fatalf("the resource is %q, want %q", got.ResourceIdentity, want)
		}
	})
}

func TestHardBoundaryPaths(t *testing.T) {
	const allow engine.HardBoundaryReason = ""
	for _, tt := range []struct {
		root, path string
		want       engine.HardBoundaryReason
	}{
		{"/srv/repo", "", allow},
		{"/srv/repo", "NUL", allow},
		{"/srv/repo", "a:b ", allow},
		{"/srv/repo", strings.Repeat("a", engine.MaxPath), allow},
		{"/srv/repo", strings.Repeat("a", engine.MaxPath+1), engine.BoundaryUnsafePath},
		{"/srv/repo", "../\x00", engine.BoundaryUnsafePath},
		{"", "x", engine.BoundaryUnsafePath},
		{"repo", "x", engine.BoundaryUnsafePath},
		{"/srv\x00", "x", engine.BoundaryUnsafePath},
		{`C:\work\repo`, `src\x`, allow},
		{`C:\work\repo`, `c:/WORK/repo/x`, allow},
		{`C:\work\repo`, `\\?\C:\work\repo\x`, engine.BoundaryUnsafePath},
		{`C:\work\repo`, `..\NUL`, engine.BoundaryUnsafePath}, // before the escape
		{`C:\work\repo`, `C:x`, engine.BoundaryUnsafePath},
		{`C:\work\repo`, `x:stream`, engine.BoundaryUnsafePath},
		{`C:\work\repo`, `x.`, engine.BoundaryUnsafePath},
		{`C:\work\repo`, `..\x`, engine.BoundaryWorkspaceEscape},
		{`C:\work\repo`, `D:\x`, engine.BoundaryWorkspaceEscape},
	} {
		got := engine.CheckHardBoundary(engine.BoundaryInput{WorkspaceRoot: tt.root, CandidatePath: &tt.path, EnforcementAvailable: true})
		if got.Reason != tt.want {
			t.Errorf("%q below %q: %+v, want %q", tt.path[:min(len(tt.path), 40)], tt.root, got, tt.want)
		}
	}
}

func TestHardBoundaryZeroValue(t *testing.T) {
	// Nothing stated is not available: the Go zero value is the strict one.
	if got := engine.CheckHardBoundary(engine.BoundaryInput{WorkspaceRoot: "/srv"}); got.Reason != engine.BoundaryUnverified {
		t.Errorf("CheckHardBoundary = %+v", got)
	}
	if engine.BoundaryUnverified != "ENFORCEMENT UNVERIFIED" {
		t.Errorf("the token is %q", engine.BoundaryUnverified)
	}
	sameJSON(t, engine.CheckHardBoundary(engine.BoundaryInput{WorkspaceRoot: "/srv", CandidatePath: new("x")}),
		`{"outcome": "deny", "reason": "ENFORCEMENT UNVERIFIED", "resourceIdentity": "/srv/x"}`)
	sameJSON(t, engine.CheckHardBoundary(engine.BoundaryInput{WorkspaceRoot: "/srv", EnforcementAvailable: true}), `{"outcome": "allow"}`)

	var in engine.BoundaryInput
	if err := json.Unmarshal([]byte(`{"workspaceRoot": "/srv", "candidatePath": "", "credentialGroup": null}`), &in); err != nil {
		t.Fatal(err)
	}
	if in.CandidatePath == nil || in.CredentialGroup != nil {
		t.Errorf("empty and absent were mixed up: %+v", in)
	}
}
