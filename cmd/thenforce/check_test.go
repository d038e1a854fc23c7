// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thenforce/thenforce/internal/scan"
	"github.com/thenforce/thenforce/pkg/engine"
)

// output runs the command in a directory and decodes its only line of output.
func output(t *testing.T, dir string, args ...string) map[string]any {
	t.Helper()
	cmd := self(t, args...)
	cmd.Dir = dir
	out, _ := cmd.Output() // the exit code is another test's
	var object map[string]any
	if err := json.Unmarshal(out, &object); err != nil {
		t.Fatalf("%v: %v: %q", args, err, out)
	}
	return object
}

func keys(object any) string {
	var names []string
	for name := range object.(map[string]any) {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The members of check's JSON are a contract: none goes, none changes its name or type.
func TestCheckJSON(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := output(t, dir, "check", "--preset", "none", "--json", "f")
	if want := "boundary code containment enforcement grant op outcome path reason"; keys(got) != want {
		t.Errorf("members %q, want %q", keys(got), want)
	}
	if got["path"] != "f" || got["op"] != "read" {
		t.Errorf("path and op: %v", got)
	}
	containment := got["containment"].(map[string]any)
	if want := "code outcome reason resolvedPath"; keys(containment) != want || containment["outcome"] != "allowed" || containment["code"] != "within" {
		t.Errorf("containment: %v, want the members %q", containment, want)
	}
	if path, ok := containment["resolvedPath"].(string); !ok || !filepath.IsAbs(path) || filepath.Base(path) != "f" {
		t.Errorf("resolvedPath: %v", containment["resolvedPath"])
	}
	if grant := got["grant"].(map[string]any); keys(grant) != "path rights source" || grant["rights"] != "rwx+u" || grant["source"] != "workspace" {
		t.Errorf("grant: %v", grant)
	}
	if enforcement := got["enforcement"].(map[string]any); keys(enforcement) != "backend reasons state" {
		t.Errorf("enforcement: %v", enforcement)
	} else if reasons, ok := enforcement["reasons"].([]any); !ok {
		t.Errorf("reasons: %v, want a list", enforcement["reasons"])
	} else if enforcement["state"] == "unverified" && len(reasons) == 0 {
		t.Error("unverified without a reason")
	}

	got = output(t, dir, "check", "--preset", "none", "--json", "../out")
	if got["outcome"] != "denied" || got["code"] != "outside" || got["grant"] != nil {
		t.Errorf("a path outside: %v", got)
	}
	if containment := got["containment"].(map[string]any); keys(containment) != "code outcome reason resolvedPath" || containment["resolvedPath"] != nil {
		t.Errorf("resolvedPath of what is denied: %v, want null", containment)
	}
	if boundary := got["boundary"].(map[string]any); boundary["outcome"] != "deny" || boundary["reason"] != "workspace-escape" {
		t.Errorf("boundary: %v", boundary)
	}
}

func TestExplainJSON(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := output(t, dir, "explain", "--preset", "none", "--json", "f")
	walk, ok := got["walk"].([]any)
	if !ok || len(walk) != 2 {
		t.Fatalf("walk: %v", got["walk"])
	}
	for i, kind := range []string{"dir", "file"} {
		step := walk[i].(map[string]any)
		if step["kind"] != kind || step["code"] != "within" || step["id"].(map[string]any)["ino"] == nil {
			t.Errorf("step %d: %v, want a %s", i, step, kind)
		}
	}
	if kernel := got["kernel"].(map[string]any); keys(kernel) != "reason state" {
		t.Errorf("kernel: %v", kernel)
	}
	if walk := output(t, dir, "explain", "--preset", "none", "--json", "../out")["walk"]; walk == nil {
		t.Error("a walk that did not begin is null, want an empty list")
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		outcomes []engine.Outcome
		want     int
	}{
		{nil, 0},
		{[]engine.Outcome{engine.Allowed, engine.Allowed}, 0},
		{[]engine.Outcome{engine.EnforcementUnverified, engine.Allowed}, 5},
		{[]engine.Outcome{engine.EnforcementUnverified, engine.Conflict, engine.Allowed}, 4},
		{[]engine.Outcome{engine.Conflict, engine.Denied, engine.EnforcementUnverified}, 3},
		{[]engine.Outcome{""}, 5}, // what nobody knows is not allowed
	} {
		var codes exitCodes
		for _, o := range test.outcomes {
			codes.add(o)
		}
		got := 0
		if err := codes.err(); err != nil {
			got = err.(*exitError).code
		}
		if got != test.want {
			t.Errorf("%v exits with %d, want %d", test.outcomes, got, test.want)
		}
	}
}

func TestScanExit(t *testing.T) {
	for _, test := range []struct {
		progress scan.Progress
		want     int
	}{
		{scan.Progress{Entries: 9, Vanished: 1}, 0}, {scan.Progress{Findings: 1}, 3}, {scan.Progress{Trouble: 1}, 1}, {scan.Progress{Findings: 1, Trouble: 1}, 1},
	} {
		got := 0
		if err := scanExit(test.progress); err != nil {
			got = err.(*exitError).code
		}
		if got != test.want {
			t.Errorf("%+v exits with %d, want %d", test.progress, got, test.want)
		}
	}
}

// allowed is said only where the host enforces, by check as by everything that asks the evaluation.
func TestAllowedOnlyWhereVerified(t *testing.T) {
	t.Chdir(t.TempDir())
	q := question{op: "write"}
	q.register(newApp(nil).root)
	e, err := q.open()
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for state, want := range map[engine.EnforcementState]engine.Outcome{
		engine.Verified: engine.Allowed, engine.Unverified: engine.EnforcementUnverified,
	} {
		e.status.State = state
		if d := e.decide("f"); d.Outcome != want || d.Containment.Outcome != engine.Allowed {
			t.Errorf("%v: %s within %s, want %s", state, d.Outcome, d.Containment.Outcome, want)
		}
		if d := e.decide("../f"); d.Outcome != engine.Denied {
			t.Errorf("%v: outside is %s", state, d.Outcome)
		}
	}
}

func TestQuoted(t *testing.T) {
	for text, want := range map[string]string{
		"plain name é 名": "plain name é 名", "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\u009b31m": `"\u009b31m"`, "\xff": `"\xff"`,
		"\u202etxt": `"\u202etxt"`, "\u200b": `"\u200b"`,
	} {
		if got := quoted(text); got != want {
			t.Errorf("quoted(%+q) = %s, want %s", text, got, want)
		}
	}
}
