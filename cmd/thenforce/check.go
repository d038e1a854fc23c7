package main

import "github.com/spf13/cobra"

func (a *app) checkCommand() *cobra.Command { return &cobra.Command{Use: "check"} }
