// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// question is what check and explain ask the engine: a policy and an operation.
type question struct {
	policy policyFlags
	op     string
}

func (q *question) register(cmd *cobra.Command) {
	q.policy.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&q.op, "op", "read", "what is to be done with PATH: "+opNames(", "))
	flags.Bool("allow-unverified", false, "taken because run takes it; no answer depends on it")
	err := cmd.RegisterFlagCompletionFunc("op", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return strings.Fields(opNames(" ")), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag's name mistyped
	}
}

func opNames(sep string) string {
	var names []string
	for _, op := range engine.Ops() {
		names = append(names, string(op))
	}
	return strings.Join(names, sep)
}

// evaluation answers a question for one path after the other.
type evaluation struct {
	op        engine.Op
	sets      engine.AllowedSets
	status    engine.EnforcementStatus
	evaluator *engine.Evaluator
	probes    *fallback.Probes
}

// open compiles the policy and asks for the state of enforcement, both once for all paths. Close the result.
func (q *question) open() (*evaluation, error) {
	op, err := engine.ParseOp(q.op)
	if err != nil {
		return nil, usage(fmt.Errorf("--op %q: use one of %s", q.op, opNames(", ")))
	}
	policy, err := q.policy.policy()
	if err != nil {
		return nil, err
	}
	probes, err := fallback.NewProbes()
	if err != nil {
		return nil, err
	}
	sets, err := policy.compile(probes)
	if err != nil {
		probes.Close()
		return nil, err
	}
	for _, notice := range sets.Notices {
		logrus.Info(notice)
	}
	status, err := currentStatus(false)
	if err != nil {
		probes.Close()
		return nil, err
	}
	return &evaluation{op, sets, status, engine.NewEvaluator(sets, nil, probes), probes}, nil
}

func (e *evaluation) close() { e.probes.Close() }

func (e *evaluation) decide(path string) engine.Decision {
	return e.evaluator.Decide(engine.Request{
		Op: e.op, Path: path, EnforcementAvailable: e.status.State == engine.Verified,
	})
}

// decisionJSON is a decision as check prints it.
type decisionJSON struct {
	engine.Decision
	Enforcement enforcementJSON `json:"enforcement"`
}

type enforcementJSON struct {
	State   engine.EnforcementState    `json:"state"`
	Backend string                     `json:"backend"`
	Reasons []engine.EnforcementReason `json:"reasons"`
}

func describeEnforcement(s *engine.EnforcementStatus) enforcementJSON {
	reasons := s.Reasons
	if reasons == nil {
		reasons = []engine.EnforcementReason{}
	}
	return enforcementJSON{s.State, s.Backend, reasons}
}

func (a *app) checkCommand() *cobra.Command {
	var (
		q       question
		outcome string
		audit   bool
	)
	cmd := &cobra.Command{
		Use:   "check [policy flags] [--op OP] PATH... | --scan [PATH...]",
		Short: "Say what a policy allows with a path, and whether that is enforced here",
		Long: `Say what a policy allows with a path, and whether that is enforced here. A
relative PATH is one in the workspace. Nothing is loaded or changed.

"allowed" is only said where the kernel enforces it now (see thenforce status);
elsewhere the same answer is "enforcement-unverified". --outcome containment
asks for the walk through the file system alone, which needs no enforcement.

--scan looks through a whole workspace for what deserves a look before it is
trusted: links that lead out, files with further hard links, mounts, device
nodes, pipes and sockets, set-user-ID files, names that deceive. Each PATH is a
workspace then (default: the working directory); with --workspace a part of it.

Exit code: 0 all allowed, 3 denied, 4 conflict, 5 enforcement-unverified; with
several paths the lowest of these that any got. 1 if any could not be evaluated.
With --scan: 0 nothing found, 3 something, 1 not all could be looked at.`,
		Example: `  thenforce check --workspace ~/src/project --op write Makefile ../elsewhere
  thenforce check --outcome containment --json "$path"
  thenforce check --scan ~/src/project`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !audit {
				return usage(fmt.Errorf("no path to check: %s", cmd.UseLine()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if audit {
				return a.scan(cmd, &q, args)
			}
			of, ok := checkOutcomes[outcome]
			if !ok {
				return usage(fmt.Errorf("--outcome %q: use overall or containment", outcome))
			}
			return a.check(&q, of, args)
		},
	}
	q.register(cmd)
	cmd.Flags().BoolVar(&audit, "scan", false, "look through a whole workspace instead")
	cmd.Flags().StringVar(&outcome, "outcome", "overall", "the outcome that counts: overall, or containment for the walk alone")
	err := cmd.RegisterFlagCompletionFunc("outcome", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"overall", "containment"}, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag's name mistyped
	}
	return cmd
}

// verdict is the part of a decision that a caller asked to go by.
type verdict struct {
	outcome engine.Outcome
	code    engine.Code
	reason  string
	walk    bool // of the walk alone
}

var checkOutcomes = map[string]func(*engine.Decision) verdict{
	"overall":     func(d *engine.Decision) verdict { return verdict{d.Outcome, d.Code, d.Reason, false} },
	"containment": func(d *engine.Decision) verdict { return containmentOf(d) },
}

func containmentOf(d *engine.Decision) verdict {
	c := &d.Containment
	return verdict{c.Outcome, c.Code, c.Reason, true}
}

func (a *app) check(q *question, of func(*engine.Decision) verdict, paths []string) error {
	e, err := q.open()
	if err != nil {
		return err
	}
	defer e.close()
	var codes exitCodes
	for _, path := range paths {
		d := e.decide(path)
		v := of(&d)
		codes.add(v.outcome)
		if a.json {
			err = printJSON(os.Stdout, decisionJSON{d, describeEnforcement(&e.status)})
		} else {
			_, err = fmt.Println(checkLine(os.Stdout, &d, v, &e.status))
		}
		if err != nil {
			return err
		}
	}
	return codes.err()
}

// checkLine is a decision for people: the outcome, the question, why.
func checkLine(f *os.File, d *engine.Decision, v verdict, status *engine.EnforcementStatus) string {
	path := d.Path
	if path == "" {
		path = "."
	}
	line := fmt.Sprintf("%s  %s %s  ", paintOutcome(f, v.outcome), d.Op, quoted(path))
	switch {
	case v.code == engine.CodeHardBoundary && d.Boundary.Reason == engine.BoundaryUnverified:
		return line + "would be allowed, but this host does not enforce it: " + joinCodes(status.Blocking())
	case v.outcome != engine.Allowed:
		return line + fmt.Sprintf("%s: %s", v.code, quoted(v.reason))
	case v.walk:
		return line + "within: " + quoted(d.Containment.ResolvedPath)
	}
	return line + fmt.Sprintf("%s by %s %s", d.Grant.Rights, d.Grant.Source, quoted(d.Grant.Path))
}

func joinCodes(codes []engine.EnforcementCode) string {
	names := make([]string, len(codes))
	for i, c := range codes {
		names[i] = string(c)
	}
	return strings.Join(names, ", ")
}

func paintOutcome(f *os.File, o engine.Outcome) string {
	color := yellow
	switch o {
	case engine.Allowed:
		color = green
	case engine.Denied:
		color = red
	}
	return paint(f, color, string(o))
}

// exitCodes makes one exit code of the outcomes for several paths.
type exitCodes []int

func (c *exitCodes) add(o engine.Outcome) {
	switch o {
	case engine.Allowed:
	case engine.Denied:
		*c = append(*c, exitDenied)
	case engine.Conflict:
		*c = append(*c, exitConflict)
	default:
		*c = append(*c, exitUnverified)
	}
}

func (c exitCodes) err() error {
	if len(c) == 0 {
		return nil
	}
	return exit(slices.Min(c), nil)
}
