// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

func (a *app) commands() map[string]func() *cobra.Command {
	commands := map[string]func() *cobra.Command{
		"run": a.runCommand, "check": a.checkCommand, "explain": a.explainCommand, "policy": a.policyCommand,
		"report": a.reportCommand, "engine": a.engineCommand, "status": a.statusCommand,
	}
	for _, name := range []string{"jail", "events", "hook", "unload"} {
		commands[name] = func() *cobra.Command { return needsLinux(name) }
	}
	return commands
}

// needsLinux stands in for a command of the kernel programs, so that a script learns why it is not there.
func needsLinux(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%s needs Linux with BPF LSM; on %s no kernel enforces a policy", name, runtime.GOOS)
		},
	}
}

// currentStatus knows no kernel programs here, so there is nothing to verify.
func currentStatus(bool) (engine.EnforcementStatus, error) {
	return fallback.Status(), nil
}

// explainJail: there are no jails here.
func (a *app) explainJail(string, *question, string) error {
	return fmt.Errorf("--jail needs Linux with BPF LSM; on %s no kernel enforces a policy", runtime.GOOS)
}
