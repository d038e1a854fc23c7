// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/policyfile"
	"github.com/thenforce/thenforce/pkg/engine"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and show policy files",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.policyValidateCommand(), a.policyShowCommand(), a.policySchemaCommand(), a.policySuggestCommand())
	return cmd
}

func (a *app) policyValidateCommand() *cobra.Command {
	var textOnly bool
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Say what is wrong with a policy file, with line and column",
		Long: `Say what is wrong with a policy file, with line and column: first with its text,
then with the paths it names, as they are on this machine now. Nothing is
changed.

Exit code: 0 the policy could be applied, 1 it could not.`,
		Args: exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if textOnly {
				_, err := policyfile.Read(args[0])
				return a.explainFaults(err)
			}
			_, sets, err := compileFile(args[0])
			if err != nil {
				return a.explainFaults(err)
			}
			for _, notice := range sets.Notices {
				logrus.Info(notice)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&textOnly, "text-only", false, "do not look at paths: the policy is for another machine")
	return cmd
}

// explainFaults prints each fault of a policy file on a line of its own, and leaves the last to be printed as the error.
func (a *app) explainFaults(err error) error {
	var all policyfile.Errors
	if !errors.As(err, &all) {
		return err
	}
	for _, one := range all[:len(all)-1] {
		a.complain(one)
	}
	return all[len(all)-1]
}

// compileFile reads a policy file, as --policy FILE does without further flags, and looks at its paths.
func compileFile(path string) (*policy, engine.AllowedSets, error) {
	var flags policyFlags
	flags.register(&cobra.Command{})
	flags.file = path
	policy, err := flags.policy()
	if err != nil {
		return nil, engine.AllowedSets{}, err
	}
	sets, err := policy.compileHere()
	return policy, sets, err
}

// policyJSON is a policy whose paths were looked at.
type policyJSON struct {
	Workspace string         `json:"workspace"`
	Mode      engine.Mode    `json:"mode"`
	Symlinks  string         `json:"symlinks"`
	Follow    followJSON     `json:"follow"`
	Grants    []grantJSON    `json:"grants"`
	Deny      []string       `json:"deny"`
	Resources *resourcesJSON `json:"resources,omitempty"`
	Notices   []string       `json:"notices"`
}

type followJSON struct {
	Symlinks      bool `json:"symlinks"`
	MountPoints   bool `json:"mountPoints"`
	Junctions     bool `json:"junctions"`
	ReparsePoints bool `json:"reparsePoints"`
}

type grantJSON struct {
	Path    string        `json:"path"`
	Rights  engine.Rights `json:"rights"`
	Source  engine.Source `json:"source"`
	Reason  string        `json:"reason,omitempty"`
	Expires *time.Time    `json:"expires,omitempty"`
}

type resourcesJSON struct {
	Memory int64   `json:"memory,omitempty"`
	Pids   int64   `json:"pids,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
}

func describePolicy(p *policy, sets *engine.AllowedSets) policyJSON {
	o := sets.Options
	out := policyJSON{
		Workspace: sets.Workspace.CanonicalRoot, Mode: sets.Mode, Symlinks: "judge",
		Follow: followJSON{o.FollowSymlinks, sets.FollowMounts, o.FollowJunctions, o.FollowReparsePoints},
		Grants: []grantJSON{}, Deny: sets.Deny, Notices: sets.Notices,
	}
	if sets.NoSymlinks {
		out.Symlinks = "refuse"
	}
	for _, object := range sets.Objects {
		g := grantJSON{Path: object.Path, Rights: object.Rights, Source: object.Source, Reason: object.Reason}
		if !object.Expires.IsZero() {
			at := object.Expires.UTC()
			g.Expires = &at
		}
		out.Grants = append(out.Grants, g)
	}
	if out.Deny == nil {
		out.Deny = []string{}
	}
	if out.Notices == nil {
		out.Notices = []string{}
	}
	if r := p.resources; r != (policyfile.Resources{}) {
		out.Resources = &resourcesJSON{r.Memory, r.Pids, r.CPUs}
	}
	return out
}

func (a *app) policyShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE",
		Short: "Show what a policy file comes to on this machine: every grant, presets included",
		Args:  exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			policy, sets, err := compileFile(args[0])
			if err != nil {
				return err
			}
			out := describePolicy(policy, &sets)
			if a.json {
				return printJSON(os.Stdout, out)
			}
			for _, notice := range out.Notices {
				logrus.Info(notice)
			}
			return printPolicy(os.Stdout, &out)
		},
	}
}

func printPolicy(f *os.File, p *policyJSON) error {
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "workspace\t%s\nmode\t%s\nsymlinks\t%s\n", quoted(p.Workspace), p.Mode, p.Symlinks)
	if p.Follow.MountPoints {
		fmt.Fprintln(w, "mounts\tfollowed")
	}
	if r := p.Resources; r != nil {
		fmt.Fprint(w, "resources\t")
		if r.Memory > 0 {
			fmt.Fprintf(w, "memory %d bytes  ", r.Memory)
		}
		if r.Pids > 0 {
			fmt.Fprintf(w, "pids %d  ", r.Pids)
		}
		if r.CPUs > 0 {
			fmt.Fprintf(w, "cpus %g", r.CPUs)
		}
		fmt.Fprintln(w)
	}
	for _, name := range p.Deny {
		fmt.Fprintf(w, "denied\t%s\n", quoted(name))
	}
	fmt.Fprintln(w, "\nRIGHTS\tSOURCE\tEXPIRES\tPATH\tREASON")
	for _, g := range p.Grants {
		expires := "never"
		if g.Expires != nil {
			expires = g.Expires.Local().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", g.Rights, g.Source, expires, quoted(g.Path), quoted(g.Reason))
	}
	return w.Flush()
}

func (a *app) policySchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of policy files, for editors",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Print(policyfile.Schema)
			return err
		},
	}
}
