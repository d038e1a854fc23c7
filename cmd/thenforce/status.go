package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
)

func (a *app) statusCommand() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether the kernel enforces, and why or why not",
		Long: `Say whether the kernel enforces, and why or why not.

Without --verify the live state is read and nothing is loaded or changed. With
it the programs are loaded where they are not, and every hook is tried again: an
operation that must be denied and one that must work.

Exit code: 0 verified, 5 unverified, 1 the state could not be found out.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			status, err := currentStatus(verify)
			if err != nil {
				return err
			}
			if a.json {
				err = printJSON(os.Stdout, status)
			} else {
				err = printStatus(os.Stdout, status)
			}
			if err != nil {
				return err
			}
			if status.State != engine.Verified {
				return exit(exitUnverified, nil)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "load the programs where they are not, and try every hook again")
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("%s takes no argument, got %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usage(fmt.Errorf("%s takes %d arguments (%s), got %d", cmd.CommandPath(), len(names), strings.Join(names, " "), len(args)))
		}
		return nil
	}
}
