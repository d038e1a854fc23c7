// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// exampleFS stands for the running system, whose probes are in pkg/fallback.
func exampleFS() *memfs.FS {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MustBuild(`
		file /srv/repo/main.go
		dir  /srv/repo/.git/hooks
		link /srv/repo/passwords -> /etc/shadow
		file /etc/shadow
		dir  /var/cache/go
	`)
	return fsys
}

// Whether a path lies in a workspace.
func ExampleCheckContainment() {
	probes := exampleFS()
	workspace := engine.Bind("/srv/repo", probes)
	for _, target := range []string{"main.go", "new.go", "../../etc/shadow", "passwords"} {
		d := engine.CheckContainment(workspace, target, engine.ContainmentOptions{FollowSymlinks: true}, probes)
		fmt.Printf("%s: %s (%s)\n", target, d.Outcome, d.Code)
	}
	// Output:
	// main.go: allowed (within)
	// new.go: allowed (within)
	// ../../etc/shadow: denied (outside)
	// passwords: denied (link-escape)
}

// What a policy allows, and which grant says so.
func ExampleEvaluator_Decide() {
	probes := exampleFS()
	sets, err := engine.Compile(engine.Policy{
		Workspace: "/srv/repo",
		Grants:    []engine.Grant{{Path: "/var/cache/go", Rights: engine.Read, Reason: "build cache"}},
		Deny:      []string{".git/hooks"},
	}, probes)
	if err != nil {
		fmt.Println(err)
		return
	}
	evaluator := engine.NewEvaluator(sets, nil, probes)
	for _, req := range []engine.Request{
		{Op: engine.OpWrite, Path: "main.go"},
		{Op: engine.OpWrite, Path: "/var/cache/go/x"},
		{Op: engine.OpCreate, Path: ".git/hooks/post-commit"},
		{Op: engine.OpRead, Path: "/etc/shadow"},
	} {
		req.EnforcementAvailable = true // verified on this host, now
		d := evaluator.Decide(req)
		fmt.Printf("%s %s: %s (%s)\n", d.Op, d.Path, d.Outcome, d.Code)
	}
	// Output:
	// write main.go: allowed (within)
	// write /var/cache/go/x: denied (rights)
	// create .git/hooks/post-commit: denied (denied-name)
	// read /etc/shadow: denied (outside)
}

// A mistake in a policy is told with the field, the fault and the remedy.
func ExampleCompile() {
	_, err := engine.Compile(engine.Policy{
		Workspace: "/srv/repo",
		Grants:    []engine.Grant{{Path: "/var/cache/go"}, {Path: "/opt/tool", Rights: engine.Exec}},
	}, exampleFS())
	var policyErr *engine.PolicyError
	if errors.As(err, &policyErr) {
		fmt.Println(policyErr.Field, policyErr.Value)
		fmt.Println(errors.Is(err, fs.ErrNotExist))
		fmt.Println(policyErr.Fix)
	}
	// Output:
	// grants[1].path /opt/tool
	// true
	// create it, correct the path, or mark the grant optional
}

// The steps of a walk, as explain shows them.
func ExampleWalkContainment() {
	probes := exampleFS()
	workspace := engine.Bind("/srv/repo", probes)
	walk := engine.WalkContainment(workspace, ".git/hooks/post-commit", engine.ContainmentOptions{}, probes)
	for _, s := range walk.Steps {
		fmt.Println(s.Path, s.Kind, s.Mount, s.Code)
	}
	// Output:
	// /srv/repo dir / within
	// /srv/repo/.git dir / within
	// /srv/repo/.git/hooks dir / within
	// /srv/repo/.git/hooks/post-commit unknown  within
}

// A decision is looked at again just before its effect.
func ExampleRevalidate() {
	probes := exampleFS()
	workspace := engine.Bind("/srv/repo", probes)
	decided, _ := engine.Snapshot(workspace, "main.go", engine.ContainmentOptions{}, true, probes)

	probes.MustBuild("file /srv/repo/main.go") // somebody puts another file there

	now, _ := engine.Snapshot(workspace, "main.go", engine.ContainmentOptions{}, true, probes)
	fmt.Printf("%+v\n", engine.Revalidate(decided, now))
	// Output:
	// {Stale:true Reason:resource-identity-changed}
}

// An expansion adds to a policy for a while.
func ExampleRegistry() {
	registry := engine.NewRegistry(engine.Activation{BootID: "1b4e28ba", Scope: "9f86d081884c"})
	now := time.Now()
	x, err := registry.Grant(engine.ExpansionRequest{
		ResourceIdentity: "/srv/repo/build",
		WorkspaceID:      "203fce37fbfc82f3",
		ActionClasses:    []string{engine.ActionWriteFile},
		Reason:           "the release build",
		ExpiresAt:        now.Add(10 * time.Minute),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	active := func(at time.Time) bool {
		return registry.IsActive(x.ExpansionID, "/srv/repo/build", "203fce37fbfc82f3", engine.ActionWriteFile, at)
	}
	fmt.Println(active(now), active(now.Add(10*time.Minute)))
	revoked, _ := registry.Revoke(x.ExpansionID)
	fmt.Println(revoked, active(now))
	// Output:
	// true false
	// true false
}
