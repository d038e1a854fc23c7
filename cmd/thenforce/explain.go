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
	// State is "not-asked", where a kernel that enforces could answer, or "unavailable".
	State  string `json:"state"`
	Reason string `json:"reason"`
}

func (a *app) explainCommand() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain [policy flags] [--op OP] PATH",
		Short: "Show step by step how the answer for one path comes about",
		Long: `Show step by step how the answer for one path comes about: every component that
the walk looked at, what it is, on which device and mount it lies, and what was
decided there; then the grant that counts, the hard boundaries, and whether a
kernel enforces the answer here. A relative PATH is one in the workspace.

Exit code: 0 allowed, 3 denied, 4 conflict, 5 enforcement-unverified.`,
		Example: `  thenforce explain --workspace ~/src/project --op write node_modules/.bin/tool`,
		Args:    exactArgs("PATH"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.explain(&q, args[0]) },
	}
	q.register(cmd)
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
	x.Kernel = kernelOpinion{"not-asked", "a policy is not in the kernel before run or jail create puts it there"}
	if e.status.State != engine.Verified {
		x.Kernel = kernelOpinion{"unavailable", "this host does not enforce: " + joinCodes(e.status.Blocking())}
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
	_, err := fmt.Fprintf(f, "walk      %s\ngrant     %s\nboundary  %s\nkernel    %s: %s\n", walk, grant, boundary, x.Kernel.State, x.Kernel.Reason)
	return err
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
