package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/learn"
)

func (a *app) reportCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "report FILE",
		Short: "Show what a run was denied, from the file that run --report wrote",
		Long: `Show what a run was denied, from the file that run --report wrote: each kind of
denial with how often, by whom, and the grant that would allow it.`,
		Example: `  thenforce report r.json --format markdown >>"$GITHUB_STEP_SUMMARY"`,
		Args:    exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := readReport(args[0])
			if err != nil {
				return err
			}
			if a.json {
				format = "json"
			}
			switch format {
			case "text":
				return printReport(report)
			case "json":
				for _, g := range report.Groups() {
					if err := printJSON(os.Stdout, g); err != nil {
						return err
					}
				}
				return nil
			case "markdown":
				_, err := os.Stdout.Write(report.Markdown())
				return err
			}
			return usage(fmt.Errorf("--format %q: use text, json or markdown", format))
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, json (one object a line) or markdown")
	return cmd
}

func readReport(name string) (*learn.Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	report, err := learn.Read(f)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return report, nil
}

func printReport(r *learn.Report) error {
	fmt.Println(r.Headline())
	groups := r.Groups()
	if len(groups) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nTIMES\tOPERATION\tCODE\tBY\tOBJECT\tGRANT")
	for _, g := range groups {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", g.Count, g.Op, g.Code, quoted(strings.Join(g.Comms, ",")), quoted(g.Path), quoted(g.Grant))
	}
	return w.Flush()
}
