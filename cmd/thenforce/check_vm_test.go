// SPDX-License-Identifier: Apache-2.0

//go:build vm

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Where the kernel enforces, and it is known, allowed is allowed.
func TestCheckWhereVerified(t *testing.T) {
	p := newPlace(t)
	if r := thenforce(t, "status", "--verify"); r.code != 0 {
		t.Fatal(r)
	}
	if r := thenforce(t, "check", "--workspace", p.work, "--op", "write", "new"); r.code != 0 || !strings.HasPrefix(r.stdout, "allowed  write new  rwx+u by workspace ") {
		t.Errorf("within: %v", r)
	}
	if r := thenforce(t, "check", "--workspace", p.work, "new", p.outside+"/secret"); r.code != 3 || !strings.Contains(r.stdout, "outside: ") {
		t.Errorf("outside: %v", r)
	}
	r := thenforce(t, "check", "--json", "--workspace", p.work, "new")
	var got struct {
		Outcome     string
		Boundary    struct{ Outcome string }
		Enforcement struct{ State, Backend string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.Outcome != "allowed" || got.Boundary.Outcome != "allow" ||
		got.Enforcement.State != "verified" || got.Enforcement.Backend != "bpf-lsm" {
		t.Errorf("%v: %v", err, r)
	}
	if r := thenforce(t, "explain", "--workspace", p.work, "new"); r.code != 0 || !strings.Contains(r.stdout, "\nkernel    not-asked: ") {
		t.Errorf("explain: %v", r)
	}
	cmd := exec.Command("thenforce", "engine")
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"checkHardBoundary","params":{"workspaceRoot":"/w","candidatePath":"a"}}`)
	if r := finish(t, cmd); r.code != 0 || r.stdout != `{"jsonrpc":"2.0","id":1,"result":{"outcome":"allow","resourceIdentity":"/w/a"}}`+"\n" {
		t.Errorf("engine: %v", r)
	}

	// Who may not look does not know.
	if err := os.Chmod(p.base, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command("thenforce", "check", "--workspace", p.work, "new")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if r := finish(t, cmd); r.code != 5 || !strings.Contains(r.stdout, "permission-denied") {
		t.Errorf("without privilege: %v", r)
	}
}

func TestProfileNoLSMCheck(t *testing.T) {
	p := newPlace(t)
	if r := thenforce(t, "check", "--workspace", p.work, "new"); r.code != 5 || !strings.Contains(r.stdout, "lsm-inactive") {
		t.Errorf("overall: %v", r)
	}
	if r := thenforce(t, "check", "--workspace", p.work, "--outcome", "containment", "new"); r.code != 0 {
		t.Errorf("the walk alone: %v", r)
	}
	if r := thenforce(t, "explain", "--workspace", p.work, "new"); r.code != 5 || !strings.Contains(r.stdout, "kernel    unavailable: ") {
		t.Errorf("explain: %v", r)
	}
}
