// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Op is what is to be done with a path.
type Op string

const (
	OpRead       Op = "read"
	OpList       Op = "list"
	OpWrite      Op = "write"
	OpCreate     Op = "create"
	OpDelete     Op = "delete"
	OpRename     Op = "rename"
	OpLink       Op = "link"
	OpExec       Op = "exec"
	OpConnect    Op = "connect"
	OpAttributes Op = "attributes"
)

// opRights are the rights an operation needs at the path it is about, and at the
// second path of those that have one.
var opRights = map[Op]struct{ at, to Rights }{
	OpRead:       {at: Read},
	OpList:       {at: Read},
	OpWrite:      {at: Write},
	OpCreate:     {at: Create},
	OpDelete:     {at: Delete},
	OpRename:     {at: Delete, to: Create},
	OpLink:       {at: Read, to: Create},
	OpExec:       {at: Exec},
	OpConnect:    {at: Connect},
	OpAttributes: {at: Write},
}

// Ops returns every operation, sorted.
func Ops() []Op {
	ops := make([]Op, 0, len(opRights))
	for op := range opRights {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	return ops
}

// ParseOp reads the name of an operation.
func ParseOp(s string) (Op, error) {
	if _, ok := opRights[Op(s)]; !ok {
		return "", fmt.Errorf("parse operation %q: want one of %v", s, Ops())
	}
	return Op(s), nil
}

// A Request is one question to an [Evaluator].
type Request struct {
	Op Op
	// Path is absolute, or relative to the workspace.
	Path string
	// To is the new name of a rename or link. Where it is "" both ends of
	// these are judged at Path.
	To string
	// EnforcementAvailable says that enforcement is verified on this host now;
	// see [CheckHardBoundary]. Without it no answer is allowed.
	EnforcementAvailable bool
}

// GrantRef names the grant that decided.
type GrantRef struct {
	Path   string `json:"path"`
	Rights Rights `json:"rights"`
	Source Source `json:"source"`
	// ExpansionID is the expansion whose rights were needed, if any.
	ExpansionID string `json:"expansionId,omitempty"`
	// PathBytes holds Path where it is not UTF-8.
	PathBytes []byte `json:"pathBytes,omitempty"`
}

// A Decision is the engine's whole answer to a request.
type Decision struct {
	Path    string  `json:"path"`
	Op      Op      `json:"op"`
	Outcome Outcome `json:"outcome"`
	// Code and Reason are what made the outcome: of the walk, or denied-name,
	// rights, rights-gain, hard-boundary.
	Code   Code   `json:"code"`
	Reason string `json:"reason"`
	// Containment is the answer of the walk alone.
	Containment ContainmentDecision `json:"containment"`
	// Grant is the one that counts at the end of the walk, nil where the walk
	// did not get there.
	Grant    *GrantRef        `json:"grant,omitempty"`
	Boundary BoundaryDecision `json:"boundary"`
	// To is the answer for the second path of a rename or link.
	To *Decision `json:"to,omitempty"`
	// PathBytes holds Path where it is not UTF-8.
	PathBytes []byte `json:"pathBytes,omitempty"`
	// Steps are what the walk looked at, for explain.
	Steps []Step `json:"-"`

	rights Rights // what holds at the end of the walk
	walk   Walk
}

// An Evaluator answers requests under one compiled policy. Its methods are safe
// for use by several goroutines.
type Evaluator struct {
	sets     AllowedSets
	bindings []WorkspaceIdentity
	probes   Probes
	registry *Registry
	math     pathMath
	now      func() time.Time
}

// NewEvaluator returns an evaluator. It binds every object of sets now and
// notices later when one is not what it was. registry may be nil: then there are
// no expansions.
func NewEvaluator(sets AllowedSets, registry *Registry, probes Probes) *Evaluator {
	e := &Evaluator{
		sets:     sets,
		bindings: make([]WorkspaceIdentity, len(sets.Objects)),
		probes:   probes,
		registry: registry,
		math:     sets.Workspace.math(),
		now:      time.Now,
	}
	for i, o := range sets.Objects {
		if o.Source == SourceWorkspace {
			e.bindings[i] = sets.Workspace
			continue
		}
		e.bindings[i] = bindObject(o.Path, probes)
		if b := &e.bindings[i]; b.BindingStatus == Bound && b.CanonicalRoot != o.Path {
			b.CanonicalRoot = o.Path
			*b = block(*b, &fs.PathError{Op: "bind", Path: o.Path, Err: ErrAmbiguous}, "the granted object is not where it was")
		}
	}
	return e
}

// Decide compiles a policy and answers one request under it.
func Decide(p Policy, req Request, registry *Registry, probes Probes) (Decision, error) {
	sets, err := Compile(p, probes)
	if err != nil {
		return Decision{}, err
	}
	return NewEvaluator(sets, registry, probes).Decide(req), nil
}

// Decide answers a request. In order:
//
//  1. A denied name is denied: the path itself, one that it lies below, and for
//     what takes a name away also one that lies below it. The path counts as it
//     is written and as it is after the walk.
//  2. The deepest object of the policy that contains the path is its root, and
//     [CheckContainment] runs against that; with none it lies outside.
//  3. The deepest object that contains the path after the walk must hold the
//     rights of the operation, or active expansions on the way down to the path
//     must add them. None stays none. A rename or link must not gain rights.
//  4. [CheckHardBoundary] with that root.
//
// An allowed walk is only ever made worse; a conflict is one until something
// denies. The kernel judges the object that is reached and does not ask about
// links, so with links it may allow what this denies.
func (e *Evaluator) Decide(req Request) Decision {
	need, known := opRights[req.Op]
	if !known {
		d := Decision{Path: req.Path, PathBytes: pathBytes(req.Path), Op: req.Op}
		d.Outcome, d.Code = Denied, CodeRights
		d.Reason = fmt.Sprintf("the operation %q is not known", req.Op)
		d.Containment = ContainmentDecision{Outcome: Denied, Code: CodeRights, Reason: d.Reason}
		d.Boundary = BoundaryDecision{Outcome: BoundaryDeny, Reason: BoundaryUnverified}
		return d
	}
	if req.To == "" || need.to == None {
		d := e.end(req, req.Path, need.at|need.to)
		d.settle()
		return d
	}
	from := e.end(req, req.Path, need.at)
	to := e.target(req, need.to)
	switch {
	case to.Outcome.rank() > from.Outcome.rank():
		from.Outcome, from.Code, from.Reason = to.Outcome, to.Code, "at the target: "+to.Reason
	case from.Outcome != Denied && to.rights&^from.rights != 0:
		from.Outcome, from.Code = Denied, CodeRightsGain
		from.Reason = fmt.Sprintf("the object would gain rights: %s at its old name, %s at the new one", from.rights, to.rights)
	}
	from.settle()
	to.settle()
	from.To = &to
	return from
}

// settle lets the hard boundary worsen what is allowed so far.
func (d *Decision) settle() {
	if d.Boundary.Outcome == BoundaryAllow || d.Outcome != Allowed {
		return
	}
	d.Outcome, d.Code = Denied, CodeHardBoundary
	d.Reason = fmt.Sprintf("a hard boundary stands in the way: %s", d.Boundary.Reason)
	if d.Boundary.Reason == BoundaryUnverified {
		d.Outcome, d.Reason = EnforcementUnverified, "enforcement is not verified on this host"
	}
}

// target judges the second path of a rename or link. A name that is there is
// overwritten, and that takes d.
func (e *Evaluator) target(req Request, need Rights) Decision {
	d := e.end(req, req.To, need)
	if req.Op == OpRename && d.Outcome != Denied && !d.walk.Missing {
		return e.end(req, req.To, need|Delete)
	}
	return d
}

// end judges one path. It asks the hard boundary and leaves its answer aside.
func (e *Evaluator) end(req Request, path string, need Rights) Decision {
	d := Decision{Path: path, PathBytes: pathBytes(path), Op: req.Op}
	removes := need&Delete != 0

	lexical, err := absolute(path, e.sets.Workspace.CanonicalRoot, e.probes)
	root := -1
	if err == nil {
		root = nearest(e.math, e.sets.Objects, lexical)
	}
	switch {
	case e.probes == nil:
		d.Containment = CheckContainment(e.sets.Workspace, path, e.sets.Options, nil)
	case root < 0:
		d.Containment = e.nowhere(path, err)
	default:
		d.walk = e.contain(root, path, lexical)
		d.Containment, d.Steps = d.walk.Decision, d.walk.Steps
	}
	d.Outcome, d.Code, d.Reason = d.Containment.Outcome, d.Containment.Code, d.Containment.Reason

	resolved := d.Containment.ResolvedPath
	name, denied := "", false
	if err == nil {
		name, denied = e.denied(lexical, removes)
	}
	if !denied && resolved != "" {
		name, denied = e.denied(resolved, removes)
	}
	if resolved != "" {
		e.judge(&d, resolved, need)
	}
	if denied {
		d.Outcome, d.Code = Denied, CodeDeniedName
		d.Reason = fmt.Sprintf("the policy denies the name %s", name)
	}
	d.Boundary = e.boundary(req, root, path)
	return d
}

// nowhere is the containment of a path that no object contains, or that is not
// to be interpreted.
func (e *Evaluator) nowhere(path string, err error) ContainmentDecision {
	// The workspace's own walk words it, NUL and unsafe paths included.
	d := CheckContainment(e.sets.Workspace, path, e.sets.Options, e.probes)
	if d.Outcome == Allowed || d.Outcome == Conflict {
		// Lexically within and in no object: the sets lack their workspace.
		d = ContainmentDecision{Outcome: Denied, Code: CodeOutside, Reason: "no grant contains the path"}
	}
	if err != nil && !errors.Is(err, ErrUnsafePath) && d.Code == CodeOutside {
		d = ContainmentDecision{Outcome: EnforcementUnverified, Code: CodeInspectFailed, Reason: err.Error()}
	}
	return d
}

// contain walks from the object root to path. Where links lead into another
// object, that one's own root has to be what it was, too.
func (e *Evaluator) contain(root int, path, lexical string) Walk {
	target := lexical
	if e.math.demandsDirectory(path) {
		target += string(e.math.sep())
	}
	walk := WalkContainment(e.bindings[root], target, e.sets.Options, e.probes)
	if walk.Decision.ResolvedPath == "" {
		return walk
	}
	if inner := nearest(e.math, e.sets.Objects, walk.Decision.ResolvedPath); inner >= 0 && inner != root {
		again := WalkContainment(e.bindings[inner], walk.Decision.ResolvedPath, e.sets.Options, e.probes)
		if again.Decision.Outcome.rank() > walk.Decision.Outcome.rank() {
			again.Steps = append(walk.Steps, again.Steps...)
			return again
		}
	}
	return walk
}

// denied reports whether path is, or lies below, a denied name, or lies above
// one and is to be taken away; and which.
func (e *Evaluator) denied(path string, removes bool) (string, bool) {
	for _, name := range e.sets.Deny {
		if _, ok := e.math.below(name, path); ok {
			return name, true
		}
		if _, ok := e.math.below(path, name); ok && removes {
			return name, true
		}
	}
	for _, dir := range e.sets.Folding {
		rel, ok := e.math.below(dir, path)
		if !ok {
			continue
		}
		for _, name := range e.sets.Deny {
			deniedRel, ok := e.math.below(dir, name)
			if !ok {
				continue
			}
			if folds(deniedRel, rel) || removes && folds(rel, deniedRel) {
				return name, true
			}
		}
	}
	return "", false
}

// folds reports whether path is name or lies below it, in a directory in which
// case does not count.
func folds(name, path string) bool {
	name, path = foldKey(name), foldKey(path)
	return path == name || strings.HasPrefix(path, name+"/")
}

// foldKey returns the text by which a casefold directory of ext4 or f2fs compares
// names: decomposed, case-folded, without code points that are to be ignored
// (utf8nfdicf in fs/unicode).
func foldKey(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, unicode.Cf) {
			return -1
		}
		return r
	}, s)
	return norm.NFD.String(cases.Fold().String(norm.NFD.String(s)))
}

// judge compares the rights at the end of the walk with what is needed.
func (e *Evaluator) judge(d *Decision, resolved string, need Rights) {
	i := nearest(e.math, e.sets.Objects, resolved)
	if i < 0 {
		bug("%q resolved to %q, which no object contains", d.Path, resolved)
	}
	o := &e.sets.Objects[i]
	now := e.now()
	d.Grant = &GrantRef{Path: o.Path, PathBytes: pathBytes(o.Path), Rights: o.Rights, Source: o.Source}
	d.rights = o.Rights
	if !o.Expires.IsZero() && !now.Before(o.Expires) {
		d.rights = None
	}
	if d.rights != None && e.registry != nil {
		for _, x := range e.registry.around(e.math, o.Path, resolved, e.sets.Workspace.WorkspaceID, now) {
			more := x.Rights()
			if need&more&^d.rights != 0 && d.Grant.ExpansionID == "" {
				d.Grant.ExpansionID, d.Grant.Source = x.ExpansionID, SourceExpansion
			}
			d.rights |= more
		}
	}
	if d.rights.Has(need) {
		return
	}
	d.Outcome, d.Code = Denied, CodeRights
	d.Reason = fmt.Sprintf("%s needs the rights %s, and the %s grant on %s has %s", d.Op, need, o.Source, o.Path, d.rights)
}

// boundary asks the hard boundary, with the object root or the workspace.
func (e *Evaluator) boundary(req Request, root int, path string) BoundaryDecision {
	in := BoundaryInput{
		WorkspaceRoot:        e.sets.Workspace.CanonicalRoot,
		CandidatePath:        &path,
		EnforcementAvailable: req.EnforcementAvailable,
	}
	if root >= 0 {
		in.WorkspaceRoot = e.sets.Objects[root].Path
		// Relative paths start from the workspace, whatever object they lie in.
		if resolved, err := absolute(path, e.sets.Workspace.CanonicalRoot, e.probes); err == nil {
			in.CandidatePath = &resolved
		}
	}
	return CheckHardBoundary(in)
}
