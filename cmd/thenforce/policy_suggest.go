package main

import (
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

func (a *app) policySuggestCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "suggest REPORT",
		Short: "Make the smallest policy that a monitored run needed",
		Long: `Make the smallest policy that a monitored run needed, from the report of
thenforce run --mode monitor --report REPORT: for each object or directory the
rights that it was used with, and in comments by whom and how often. Paths are
looked at as they are now.`,
		Example: `  thenforce run --mode monitor --report r.json -- make test
  thenforce policy suggest r.json >policy.yaml
  thenforce run --policy policy.yaml -- make test`,
		Args: exactArgs("REPORT"),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := readReport(args[0])
			if err != nil {
				return err
			}
			suggestion := report.Suggest(os.Lstat)
			if suggestion.EventsLost > 0 {
				logrus.Warnf("%d events of the run were lost: the policy may lack something", suggestion.EventsLost)
			}
			_, err = os.Stdout.Write(suggestion.YAML())
			return err
		},
	}
}
