// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// A tool of an agent reads and writes files in a workspace. Paths come from
// outside, and links in the workspace may lead anywhere.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "repo"), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("a secret"), 0o600); err != nil {
		panic(err)
	}

	probes, err := fallback.NewProbes()
	if err != nil {
		panic(err) // a system without probes: nothing can be promised
	}
	defer probes.Close()
	workspace := engine.Bind(filepath.Join(dir, "repo"), probes)
	if err := workspace.Err(); err != nil {
		panic(err)
	}
	guard := fallback.Guard{Workspace: workspace, Probes: probes}

	if err := guard.WriteFile("notes.txt", []byte("inside"), 0o644); err != nil {
		panic(err)
	}
	content, err := guard.ReadFile("notes.txt")
	fmt.Printf("notes.txt: %s, %v\n", content, err)

	_, err = guard.ReadFile("../secret")
	fmt.Println("../secret:", errors.Is(err, engine.ErrEscape))

	_, err = guard.ReadFile("missing.txt")
	fmt.Println("missing.txt:", errors.Is(err, os.ErrNotExist))

	var refused *fallback.RefusedError
	if err := guard.Remove("../secret"); errors.As(err, &refused) {
		fmt.Println("removing:", refused.Decision.Outcome, refused.Decision.Code)
	}
	// Output:
	// notes.txt: inside, <nil>
	// ../secret: true
	// missing.txt: true
	// removing: denied outside
}

func ExampleGuard_CheckAll() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	probes, err := fallback.NewProbes()
	if err != nil {
		panic(err)
	}
	defer probes.Close()
	guard := fallback.Guard{Workspace: engine.Bind(dir, probes), Probes: probes}
	targets := []string{"new.txt", "missing/new.txt", "/etc/passwd"}
	for i, decision := range guard.CheckAll(targets) {
		fmt.Println(targets[i], decision.Outcome, decision.Code)
	}
	// Output:
	// new.txt allowed within
	// missing/new.txt enforcement-unverified missing-component
	// /etc/passwd denied outside
}
