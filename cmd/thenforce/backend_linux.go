package main

import (
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/loader"
)

func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.runCommand(), a.checkCommand(), a.explainCommand(), a.policyCommand(), a.reportCommand(), a.engineCommand(), a.statusCommand(), a.jailCommand(), a.eventsCommand(), a.hookCommand(), a.unloadCommand(),
	}
}

// currentStatus asks the BPF backend.
func currentStatus(verify bool) (engine.EnforcementStatus, error) {
	if verify {
		return loader.Verify(loader.Options{})
	}
	return loader.Inspect(loader.Options{}), nil
}
