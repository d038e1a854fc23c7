package main

import (
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
)

func (a *app) commands() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"run": a.runCommand, "check": a.checkCommand, "explain": a.explainCommand, "policy": a.policyCommand,
		"report": a.reportCommand, "engine": a.engineCommand, "status": a.statusCommand, "jail": a.jailCommand,
		"events": a.eventsCommand, "hook": a.hookCommand, "unload": a.unloadCommand,
	}
}

// currentStatus asks the BPF backend.
func currentStatus(verify bool) (engine.EnforcementStatus, error) {
	if verify {
		return loader.Verify(loader.Options{})
	}
	return loader.Inspect(loader.Options{}), nil
}
