// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// explanation is what explain shows: the engine's decision with the walk it rests on, and what the kernel says.
type explanation struct {
	decisionJSON
	Walk   []stepJSON    `json:"walk"`
	Kernel kernelOpinion `json:"kernel"`
}

// stepJSON is one component of the walk, with the mount it lies on.
type stepJSON struct {
	engine.Step
	// Device is the file system's, as the kernel and the mount table have it.
	Device string `json:"device,omitempty"`
	FSType string `json:"fsType,omitempty"`
}

// kernelOpinion is the kernel's half of an explanation.
type kernelOpinion struct {
	// State is "asked", for a jail; "not-asked", where a kernel that enforces could answer for one; or "unavailable".
	State  string `json:"state"`
	Reason string `json:"reason"`

	*kernelAnswer
}

// kernelAnswer is what the kernel programs answer for a jail.
type kernelAnswer struct {
	Outcome engine.Outcome `json:"outcome"`
	Code    string         `json:"code"`
	Rights  string         `json:"rights"`
	// Object is the path of what was judged: that of the directory where the path itself is not there yet.
	Object string `json:"object"`
	// Jail is the id of the jail that answered: the one asked for, or one around it that says no.
	Jail string `json:"jail"`
	// Grant is the one that decided.
	Grant any `json:"grant,omitempty"`
	// Compared is what the engine says of the same object; where it says otherwise than the kernel, there is a bug report.
	Compared engine.Outcome `json:"engine,omitempty"`
	// Apart says why the two cannot be compared here.
	Apart  string     `json:"apart,omitempty"`
	Report *bugReport `json:"bugReport,omitempty"`
}

// bugReport is everything that it takes to find out why engine and kernel disagree.
type bugReport struct {
	Version   string           `json:"version"`
	Kernel    string           `json:"kernel"`
	Status    any              `json:"status"`
	Jail      any              `json:"jail"`
	Engine    *engine.Decision `json:"engine"`
	Object    any              `json:"object"`
	Mountinfo string           `json:"mountinfo"`
}

func (a *app) explainCommand() *cobra.Command {
	var (
		q    question
		jail string
	)
	cmd := &cobra.Command{
		Use:   "explain (--jail ID | [policy flags]) [--op OP] PATH",
		Short: "Show step by step how the answer for one path comes about",
		Long: `Show step by step how the answer for one path comes about: every component that
the walk looked at, what it is, on which device and mount it lies, and what was
decided there; then the grant that counts, the hard boundaries, and whether a
kernel enforces the answer here. A relative PATH is one in the workspace.

With --jail the policy is that of a live jail, and the programs in the kernel are
asked as well: which of its grants decides, by the very code that judges its
tasks. PATH is what its tasks find there. Where engine and kernel disagree about
the same object, that is a bug, and what is printed is the report of it.

Exit code: 0 allowed, 3 denied, 4 conflict, 5 enforcement-unverified; with --jail
the kernel's answer counts, and a difference is 1.`,
		Example: `  thenforce explain --workspace ~/src/project --op write node_modules/.bin/tool
  thenforce explain --jail agent --op delete .git/config`,
		Args: exactArgs("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if jail != "" {
				if flag := q.policy.anyGiven(); flag != "" {
					return usage(fmt.Errorf("--%s: a jail has its policy already: leave out --jail or --%s", flag, flag))
				}
				return a.explainJail(jail, &q, args[0])
			}
			return a.explain(&q, args[0])
		},
	}
	q.register(cmd)
	cmd.Flags().StringVar(&jail, "jail", "", "explain under the policy of the jail with this `ID` or name, and ask the kernel")
	return cmd
}

func (a *app) explain(q *question, path string) error {
	e, err := q.open()
	if err != nil {
		return err
	}
	defer e.close()
	x := e.explain(path)
	if a.json {
		err = printJSON(os.Stdout, x)
	} else {
		err = printExplanation(os.Stdout, &x, e.sets.Workspace.CanonicalRoot)
	}
	if err != nil {
		return err
	}
	var codes exitCodes
	codes.add(x.Outcome)
	return codes.err()
}

func (e *evaluation) explain(path string) explanation {
	d := e.decide(path)
	x := explanation{decisionJSON: decisionJSON{d, describeEnforcement(&e.status)}, Walk: []stepJSON{}}
	table, err := e.probes.Mounts()
	if err != nil {
		table = nil // the decision says so where it matters
	}
	for _, step := range d.Steps {
		s := stepJSON{Step: step}
		if m, ok := mountByID(table, step.ID); ok {
			s.Device, s.FSType = m.Dev.String(), m.FSType
		}
		x.Walk = append(x.Walk, s)
	}
	x.Kernel = kernelOpinion{State: "not-asked", Reason: "a policy is not in the kernel before run or jail create puts it there; --jail asks for one that is"}
	if e.status.State != engine.Verified {
		x.Kernel = kernelOpinion{State: "unavailable", Reason: "this host does not enforce: " + joinCodes(e.status.Blocking())}
	}
	return x
}

// mountByID finds the mount that an object was reached on.
func mountByID(table *mountmap.Table, id engine.ObjectID) (mountmap.Mount, bool) {
	switch {
	case table == nil || id.MountID == 0:
		return mountmap.Mount{}, false
	case id.UniqueMountID:
		return table.ByUniqueID(id.MountID)
	}
	return table.ByID(id.MountID)
}

// printExplanation writes an explanation for people: the question and its answer, the walk as a tree, then what else
// counted.
func printExplanation(f *os.File, x *explanation, workspace string) error {
	path := x.Path
	if path == "" {
		path = "."
	}
	fmt.Fprintf(f, "%s %s  in the workspace %s\n", x.Op, quoted(path), quoted(workspace))
	fmt.Fprintf(f, "%s  %s: %s\n\n", paintOutcome(f, x.Outcome), x.Code, quoted(x.Reason))
	if err := printWalk(f, x.Walk); err != nil {
		return err
	}
	c := x.Containment
	walk := fmt.Sprintf("%s  %s: %s", paintOutcome(f, c.Outcome), c.Code, quoted(c.Reason))
	if c.ResolvedPath != "" {
		walk += ": " + quoted(c.ResolvedPath)
	}
	grant := "none: the walk did not get to one"
	if x.Grant != nil {
		grant = fmt.Sprintf("%s by %s %s", x.Grant.Rights, x.Grant.Source, quoted(x.Grant.Path))
		if x.Grant.ExpansionID != "" {
			grant += ", expansion " + x.Grant.ExpansionID
		}
	}
	boundary := paint(f, green, string(x.Boundary.Outcome))
	if x.Boundary.Outcome != engine.BoundaryAllow {
		boundary = paint(f, red, string(x.Boundary.Outcome)) + ": " + string(x.Boundary.Reason)
	}
	fmt.Fprintf(f, "walk      %s\ngrant     %s\nboundary  %s\n", walk, grant, boundary)
	k := x.Kernel
	if k.kernelAnswer == nil {
		_, err := fmt.Fprintf(f, "kernel    %s: %s\n", k.State, k.Reason)
		return err
	}
	fmt.Fprintf(f, "kernel    %s  %s: %s: %s\n", paintOutcome(f, k.Outcome), k.Code, k.Reason, quoted(k.Object))
	if k.Report == nil {
		return nil
	}
	fmt.Fprintf(f, "\n%s: the engine says %s and the kernel %s. Please report this:\n", paint(f, red, "DIFFERENCE"), k.Compared, k.Outcome)
	return printJSON(f, k.Report)
}

// printWalk writes one line for each component, indented by how deep it lies.
func printWalk(f *os.File, walk []stepJSON) error {
	if len(walk) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(f, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tKIND\tDEVICE\tMOUNT\tDECISION")
	root := walk[0].Path
	for _, s := range walk {
		name := quoted(s.Path)
		if rel, ok := strings.CutPrefix(s.Path, root); ok && rel != "" {
			names := strings.FieldsFunc(rel, func(r rune) bool { return r == '/' || r == '\\' && !strings.HasPrefix(root, "/") })
			name = strings.Repeat("   ", len(names)-1) + "└─ " + quoted(names[len(names)-1])
		}
		if s.Target != "" {
			name += " -> " + quoted(s.Target)
		}
		kind := s.Kind.String()
		if s.Missing {
			kind = "missing"
		}
		device := s.Device
		if device == "" && s.ID.Known() {
			device = s.ID.Dev.String() // no mount to ask: as stat(2) has it
		}
		if s.FSType != "" {
			device += " " + s.FSType
		}
		color, decision := green, string(s.Code)
		if s.Code != engine.CodeWithin {
			color, decision = red, string(s.Code)+": "+quoted(s.Reason)
		}
		// The colour comes last, where its invisible characters align nothing.
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", name, kind, device, quoted(s.Mount), paint(f, color, decision))
	}
	fmt.Fprintln(w)
	return w.Flush()
}
