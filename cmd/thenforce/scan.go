// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/scan"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
	"golang.org/x/term"
)

// scanJSON is the last line of a scan, so that a reader knows that it is whole.
type scanJSON struct {
	Workspace string `json:"workspace"`
	scan.Progress
}

// scanTarget is a workspace, and the parts of it to scan.
type scanTarget struct {
	workspace string
	parts     []string
}

// scanTargets says what to scan: with --workspace the paths are parts of that, without each is a workspace.
func scanTargets(cmd *cobra.Command, policy *engine.Policy, paths []string) ([]scanTarget, error) {
	if len(paths) == 0 {
		return []scanTarget{{policy.Workspace, []string{"."}}}, nil
	}
	if !cmd.Flags().Changed("workspace") {
		var targets []scanTarget
		for _, path := range paths {
			targets = append(targets, scanTarget{path, []string{"."}})
		}
		return targets, nil
	}
	target := scanTarget{workspace: policy.Workspace}
	for _, path := range paths {
		inside, err := engine.Resolve(policy.Workspace, path)
		if err != nil {
			return nil, &os.PathError{Op: "scan", Path: path, Err: err}
		}
		rel, err := filepath.Rel(policy.Workspace, inside)
		if err != nil {
			return nil, err
		}
		target.parts = append(target.parts, rel)
	}
	return []scanTarget{target}, nil
}

// scan audits workspaces. It exits with 3 where something was found and 1 where something could not be looked at.
func (a *app) scan(cmd *cobra.Command, q *question, paths []string) error {
	for _, flag := range []string{"op", "outcome"} {
		if cmd.Flags().Changed(flag) {
			return usage(fmt.Errorf("--%s has no meaning with --scan: leave it out", flag))
		}
	}
	policy, err := q.policy.policy()
	if err != nil {
		return err
	}
	targets, err := scanTargets(cmd, &policy.Policy, paths)
	if err != nil {
		return err
	}
	probes, err := fallback.NewProbes()
	if err != nil {
		return err
	}
	defer probes.Close()
	var all scan.Progress
	for _, target := range targets {
		p, err := a.scanOne(target, probes)
		if err != nil {
			return err
		}
		all.Trouble += p.Trouble
		all.Findings += p.Findings
	}
	return scanExit(all)
}

// scanExit ends a scan: that not all was looked at counts more than what was found.
func scanExit(p scan.Progress) error {
	switch {
	case p.Trouble > 0:
		return exit(exitFailure, nil)
	case p.Findings > 0:
		return exit(exitDenied, nil)
	}
	return nil
}

func (a *app) scanOne(target scanTarget, probes engine.Probes) (scan.Progress, error) {
	workspace := engine.Bind(target.workspace, probes)
	if err := workspace.Err(); err != nil {
		return scan.Progress{}, err
	}
	var bar progressBar
	s := scan.New(workspace, probes, func(f scan.Finding) error {
		return bar.aside(func() error {
			if a.json {
				return printJSON(os.Stdout, f)
			}
			_, err := fmt.Println(findingLine(os.Stdout, f))
			return err
		})
	})
	stop := func() {}
	if !a.quiet && !a.json && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		bar.out, bar.width = os.Stderr, func() int {
			columns, _, err := term.GetSize(int(os.Stderr.Fd()))
			if err != nil {
				return 0
			}
			return columns
		}
		stop = bar.follow(s)
	}
	err := s.Run(target.parts...)
	stop()
	if err != nil {
		return scan.Progress{}, err
	}
	p := s.Progress()
	if a.json {
		return p, printJSON(os.Stdout, scanJSON{workspace.CanonicalRoot, p})
	}
	if !a.quiet {
		_, err = fmt.Fprintln(os.Stderr, scanSummary(workspace.CanonicalRoot, p))
	}
	return p, err
}

func findingLine(f *os.File, x scan.Finding) string {
	color := yellow
	switch x.Code {
	case scan.LinkEscape, scan.MagicLink, scan.HardLinkOut, scan.MountPoint, scan.DeviceNode, scan.SetID, scan.Unreadable, scan.Changed:
		color = red
	}
	line := paint(f, color, string(x.Code)) + "  " + quoted(x.Path)
	if x.Target != "" {
		line += " -> " + quoted(x.Target)
	}
	for _, name := range x.Others {
		line += ", " + strconv.QuoteToASCII(name) // it may look the same
	}
	return line + "  " + quoted(x.Reason)
}

func scanSummary(workspace string, p scan.Progress) string {
	text := fmt.Sprintf("%s: %s entries in %s directories, %s findings", quoted(workspace), thousands(p.Entries), thousands(p.Directories), thousands(p.Findings))
	if p.Vanished > 0 {
		text += fmt.Sprintf(", %s vanished meanwhile", thousands(p.Vanished))
	}
	if p.Trouble > 0 {
		text += fmt.Sprintf(", %s could not be looked at", thousands(p.Trouble))
	}
	return text
}

func thousands(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
