// Package agents holds policies for programs that work on their own, and a test that runs each. docs/agents.md explains
// them.
package agents

import "embed"

// Files are those of this folder.
//
//go:embed *.yaml
var Files embed.FS
