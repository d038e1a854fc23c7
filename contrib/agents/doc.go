// Package agents holds policies for programs that work on their own, and a test that runs each. docs/agents.md explains
// them.
package agents
