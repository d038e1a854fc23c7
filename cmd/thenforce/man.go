//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// With the build tag man there is one more command, which writes the manual pages; what makes pages of Markdown is not in
// the program that users have.
func init() { extra = append(extra, (*app).manCommand) }

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages to DIR",
		Hidden: true,
		Args:   exactArgs("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			// The date is that of SOURCE_DATE_EPOCH, so that the same sources make the same pages.
			header := &doc.GenManHeader{Section: "1", Source: "thenforce " + version(), Manual: "thenforce"}
			a.root.DisableAutoGenTag = true
			return doc.GenManTree(a.root, header, args[0])
		},
	}
}
