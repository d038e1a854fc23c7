// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// A walker is one containment check.
type walker struct {
	workspace WorkspaceIdentity
	options   ContainmentOptions
	probes    Probes
	sweep     bool    // a Sweeper may be asked
	steps     *[]Step // nil if nobody wants them

	decision ContainmentDecision
	missing  bool // the last level is a name that nothing has

	math      pathMath
	table     *mountmap.Table
	refreshed bool // the table was asked for again

	// The walk stands at full[:top().end], the root being level 0. An end leaves
	// out the separator that "/" and `C:\` end in. While the walk is above the
	// root, after an absolute link or "..", outside is set and matched counts the
	// names of the root that lead to where it stands.
	full      string
	depth     int // how many levels there are
	shallow   [roomyDepth]level
	deep      []level // those beyond shallow
	leapt     bool    // a Sweeper led from the root to the target: nothing is between
	outside   bool
	matched   int
	rootNames []string

	// rest is what is still to be walked; trailing says that it ends in a
	// separator, so that its last component has to be a directory.
	rest     string
	trailing bool
	links    int
}

// roomyDepth is how many levels a check has room for without an allocation: a
// slice of an array in the same walker would make the whole walker escape.
const roomyDepth = 24

type level struct {
	end     int
	kind    Kind
	id      ObjectID
	changed int64 // nanoseconds since 1970, 0 where not known
}

// on returns the level of the object e whose path ends at end.
func on(end int, e *Entry) level {
	l := level{end: end, kind: e.Kind, id: e.ID()}
	if !e.ChangeTime.IsZero() {
		l.changed = e.ChangeTime.UnixNano()
	}
	return l
}

// level returns the level i, the root being 0.
func (w *walker) level(i int) *level {
	if i < roomyDepth {
		return &w.shallow[i]
	}
	return &w.deep[i-roomyDepth]
}

// top returns the level the walk stands on.
func (w *walker) top() *level { return w.level(w.depth - 1) }

// push goes down to l.
func (w *walker) push(l level) {
	if w.depth < roomyDepth {
		w.shallow[w.depth] = l
	} else {
		w.deep = append(w.deep[:w.depth-roomyDepth], l)
	}
	w.depth++
}

// seen returns the object at the end of the walk and the directory that holds
// it, zero where there is none.
func (w *walker) seen() (object, parent level) {
	if w.depth > 0 {
		object = *w.top()
	}
	if w.depth > 1 && !w.leapt {
		parent = *w.level(w.depth - 2)
	}
	return object, parent
}

// settle keeps the decision unless a worse one stands.
func (w *walker) settle(outcome Outcome, code Code, reason string) {
	if w.decision.Outcome == "" || outcome.rank() > w.decision.Outcome.rank() {
		w.decision = ContainmentDecision{Outcome: outcome, Code: code, Reason: reason}
	}
}

// run fills in w.decision.
func (w *walker) run(target string) {
	if w.prepare(target) && w.enter() && !w.swept() {
		w.walk()
	}
	w.settle(Allowed, CodeWithin, "the path lies within the workspace")
	switch w.decision.Outcome {
	case Allowed, Conflict:
		w.decision.ResolvedPath = w.at()
	}
}

// prepare does what needs no look at the target: it reports whether to go on.
func (w *walker) prepare(target string) bool {
	if w.probes == nil {
		w.settle(EnforcementUnverified, CodeNoProbe, "there is no file-system probe")
		return false
	}
	table, err := w.probes.Mounts()
	switch {
	case err == nil && table.Len() > 0:
		w.table = table
	case w.workspace.Platform.Platform == "linux":
		reason := "the mount table is empty"
		if err != nil {
			reason = "the mount table is unavailable: " + err.Error()
		}
		w.settle(EnforcementUnverified, CodeMountTable, reason)
		return false
	}
	if w.workspace.BindingStatus != Bound {
		w.settle(Denied, CodeBindingBlocked, "the workspace is blocked: "+w.workspace.BlockedReason)
		return false
	}
	if strings.IndexByte(target, 0) >= 0 {
		w.settle(Denied, CodeNULInPath, "the path holds a NUL byte")
		return false
	}
	w.math = w.workspace.math()
	root, ok := w.math.clean(w.workspace.CanonicalRoot)
	if !ok {
		w.settle(Denied, CodeUnsafePath, "the root is not an absolute path")
		return false
	}
	if err := safe(w.math, target); err != nil {
		w.settle(Denied, CodeUnsafePath, "the path is too long or means something else than it shows")
		return false
	}
	if target, err = w.longName(target); err != nil {
		w.settle(EnforcementUnverified, CodeInspectFailed, "short names cannot be expanded: "+err.Error())
		return false
	}
	resolved, rel, ok := w.math.resolve(root, target)
	if !ok {
		w.settle(Denied, CodeOutside, "the path lies outside the workspace")
		return false
	}
	base := len(root)
	if w.math.isSep(root[base-1]) {
		base--
	}
	w.full = resolved
	if !strings.HasPrefix(resolved, root) {
		// The root as it is called, whatever its spelling in the target.
		w.full = root
		if rel != "" {
			w.full = w.math.child(root, rel)
		}
	}
	w.push(level{end: base})
	w.rest = rel
	w.trailing = w.math.demandsDirectory(target)
	return true
}

// longName replaces 8.3 aliases in an absolute path by long names, since the
// root is known by those.
func (w *walker) longName(path string) (string, error) {
	if w.math.shape != shapeWindows || strings.IndexByte(path, '~') < 0 {
		return path, nil
	}
	if _, rooted, _ := w.math.volume(path); !rooted {
		return path, nil
	}
	namer, ok := w.probes.(LongNamer)
	if !ok {
		return path, nil
	}
	return namer.LongPath(path)
}

// rootPath returns the canonical root, as the walk spells it.
func (w *walker) rootPath() string {
	return w.slice(w.level(0).end)
}

// slice returns full up to an end, with the separator that a root has.
func (w *walker) slice(end int) string {
	if end == w.level(0).end && end < len(w.full) {
		if device, _, _ := w.math.volume(w.full); len(device) == end {
			end++
		}
	}
	return w.full[:end]
}

// at returns the path where the walk ended.
func (w *walker) at() string { return w.slice(w.top().end) }

// enter inspects the root: it reports whether there is a directory to walk.
func (w *walker) enter() bool {
	path := w.rootPath()
	e, err := w.inspect(path)
	if err == nil && w.workspace.entry.HasGeneration {
		err = identify(w.probes, path, &e)
	}
	if err == nil {
		*w.level(0) = on(w.level(0).end, &e)
	}
	bound := w.workspace.VolumeIdentity
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		w.stop(path, nil, Conflict, CodeRootChanged, "the root does not exist any more")
		w.stay()
		return false
	case err != nil:
		w.stop(path, nil, EnforcementUnverified, CodeInspectFailed, "the root cannot be inspected: "+err.Error())
		return false
	case bound == nil:
		w.stop(path, &e, EnforcementUnverified, CodeInspectFailed, "the binding has no identity to compare the root with")
	case !w.workspace.is(&e):
		w.stop(path, &e, Conflict, CodeRootChanged, "the root is not the object that was bound")
	default:
		w.step(path, &e, CodeWithin, "")
	}
	if e.directory() {
		return true
	}
	switch {
	case bound != nil && w.workspace.entry.Kind == e.Kind:
		// A grant of a single object: there is nothing to walk below it.
		if w.rest != "" || w.trailing {
			w.refuse(Denied, CodeNotDirectory, "the granted object is not a directory")
		}
	case bound != nil:
		w.refuse(Conflict, CodeRootChanged, "the root is not a directory any more")
	}
	w.stay()
	return false
}

// inspect asks the probe, and takes an object of no kind for an error.
func (w *walker) inspect(path string) (Entry, error) {
	e, err := w.probes.Inspect(path)
	if err == nil && e.Kind == KindUnknown {
		err = &fs.PathError{Op: "inspect", Path: path, Err: errNoKind}
	}
	return e, err
}

var errNoKind = errors.New("the probe does not say what it is")

// stay makes the lexical path the one where the walk ended.
func (w *walker) stay() {
	if w.rest != "" {
		w.push(level{end: len(w.full)})
	}
}

// swept asks a Sweeper whether there is anything to see on the way at all.
func (w *walker) swept() bool {
	if !w.sweep || w.rest == "" {
		return false
	}
	sweeper, ok := w.probes.(Sweeper)
	if !ok {
		return false
	}
	e, ok := sweeper.Sweep(w.rootPath(), w.full)
	root := &w.level(0).id
	if !ok || e.Kind == KindUnknown || e.Kind == KindReparse || e.link() || e.MountRoot ||
		e.Dev != root.Dev || e.MountID != root.MountID || e.UniqueMountID != root.UniqueMountID {
		return false
	}
	if w.trailing && !e.directory() {
		return false // the walk words the refusal
	}
	w.push(on(len(w.full), &e))
	w.leapt = true
	return true
}

// walk takes rest component by component.
func (w *walker) walk() {
	for w.rest != "" {
		name, rest, sep := w.math.next(w.rest)
		w.rest = rest
		if name == "" || name == "." {
			continue
		}
		if !sep {
			sep = w.trailing
		}
		var on bool
		switch {
		case w.outside:
			on = w.approach(name)
		case name == "..":
			w.up()
			on = true
		default:
			on = w.down(name, sep)
		}
		if !on {
			return
		}
	}
	if w.outside {
		w.refuse(Denied, CodeLinkEscape, "a link leads above the workspace")
	}
}

// up goes to the directory above, which may be above the root.
func (w *walker) up() {
	if w.depth > 1 {
		w.depth--
		return
	}
	if names := w.names(); len(names) > 0 {
		w.outside, w.matched = true, len(names)-1
	}
}

// approach takes one component above the root. Only the root's own names lead
// back in.
func (w *walker) approach(name string) bool {
	names := w.names()
	if name == ".." {
		w.matched = max(w.matched-1, 0)
		return true
	}
	if !w.math.equal(name, names[w.matched]) {
		w.refuse(Denied, CodeLinkEscape, "a link leads out of the workspace")
		return false
	}
	if w.matched++; w.matched == len(names) {
		w.home()
	}
	return true
}

// home goes to the root.
func (w *walker) home() {
	w.outside = false
	w.depth = 1
}

// names returns the names that lead from the top to the root.
func (w *walker) names() []string {
	if w.rootNames == nil {
		_, _, rest := w.math.volume(w.rootPath())
		w.rootNames = strings.FieldsFunc(rest, func(r rune) bool { return r == rune(w.math.sep()) })
	}
	return w.rootNames
}

// extend returns the path of name below where the walk stands, and its end.
// While the walk goes where the text says, it is a part of full.
func (w *walker) extend(name string) (path string, end int) {
	base := w.top().end
	end = base + 1 + len(name)
	if len(w.full) < end || !w.math.isSep(w.full[base]) || w.full[base+1:end] != name || len(w.full) > end && !w.math.isSep(w.full[end]) {
		w.rename(base, name)
	}
	return w.full[:end], end
}

// rename makes full go on with name at base, and with what is left to walk.
func (w *walker) rename(base int, name string) {
	full := w.full[:base] + string(w.math.sep()) + name
	if w.rest != "" {
		full += string(w.math.sep()) + w.rest
	}
	w.full = full
}

// down takes one component below the root. sep says that it has to be a
// directory.
func (w *walker) down(name string, sep bool) bool {
	above := *w.top()
	path, end := w.extend(name)
	e, err := w.inspect(path)
	if err != nil {
		return w.uninspected(path, end, err)
	}
	if e.Name != "" && e.Name != name && !w.math.equal(e.Name, name) {
		// An 8.3 alias. Other differences are the candidate's own spelling.
		w.rename(above.end, e.Name)
		end = above.end + 1 + len(e.Name)
		path = w.full[:end]
	}
	if code, reason := w.refuseLink(path, &e); code != "" {
		w.stop(path, &e, Denied, code, reason)
		return false
	}
	if !w.boundary(path, &e, above.id) {
		return false
	}
	if e.link() {
		return w.follow(path, &e, sep)
	}
	w.push(on(end, &e))
	if sep && !e.directory() {
		w.refuse(Denied, CodeNotDirectory, "a directory is needed here")
		return false
	}
	return true
}

// uninspected handles a component that the probe could not describe.
func (w *walker) uninspected(path string, end int, err error) bool {
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		// The directory it was inspected in is none any more. This comes first:
		// on Windows the same error counts as fs.ErrNotExist.
		w.stop(path, nil, Denied, CodeNotDirectory, "a directory is needed on the way")
	case errors.Is(err, fs.ErrNotExist) && w.last():
		w.missing = true
		w.push(level{end: end})
		w.step(path, nil, CodeWithin, "")
	case errors.Is(err, fs.ErrNotExist):
		w.stop(path, nil, EnforcementUnverified, CodeMissingComponent, "a directory on the way does not exist")
	default:
		w.stop(path, nil, EnforcementUnverified, CodeInspectFailed, "a component cannot be inspected: "+err.Error())
	}
	return false
}

// last reports whether nothing but separators is left to walk.
func (w *walker) last() bool {
	for i := range len(w.rest) {
		if !w.math.isSep(w.rest[i]) {
			return false
		}
	}
	return true
}

// refuseLink returns the code and reason where e is something that leads
// elsewhere and is not to be followed, and "" otherwise.
func (w *walker) refuseLink(path string, e *Entry) (Code, string) {
	switch e.Kind {
	case KindSymlink:
		if magicLink(e, path, w.math, w.table) {
			return CodeMagicLink, "a link of procfs leads to an object and not to a path"
		}
		if !w.options.FollowSymlinks {
			return CodeSymlink, "a symbolic link is not followed"
		}
	case KindJunction:
		if !w.options.FollowJunctions {
			return CodeJunction, "a junction is not followed"
		}
	case KindReparse:
		if !w.options.FollowReparsePoints {
			return CodeReparsePoint, "a reparse point is not followed"
		}
	}
	return "", ""
}

// boundary checks whether the step from a directory to e leaves its mount or its
// device. It reports whether to go on.
func (w *walker) boundary(path string, e *Entry, from ObjectID) bool {
	ids := e.MountID != 0 && from.MountID != 0 && e.UniqueMountID == from.UniqueMountID
	crossed := e.MountRoot
	if ids {
		crossed = crossed || e.MountID != from.MountID
	} else if !crossed {
		_, crossed = w.table.At(path)
	}
	switch {
	case crossed && !w.options.FollowMountPoints:
		w.stop(path, e, Denied, CodeMountPoint, "a mount point is not crossed")
		return false
	case crossed && !w.confirmed(path, e, ids):
		w.stop(path, e, Conflict, CodeMountDeviceMismatch, "the mount table does not confirm what is mounted here")
	case crossed || e.Dev == from.Dev || w.layered(path, e):
		w.step(path, e, CodeWithin, "")
	default:
		w.stop(path, e, Conflict, CodeDeviceChanged, "the device changes where nothing is mounted")
	}
	return true
}

// layered reports whether e is a file of an overlay: those keep the device of
// the layer they lie on (Documentation/filesystems/overlayfs.rst), so another
// device says nothing.
func (w *walker) layered(path string, e *Entry) bool {
	if e.Kind == KindDir {
		return false
	}
	mount, ok := mountOf(w.table, e, path)
	return ok && mount.FSType == "overlay"
}

// confirmed reports whether the mount table agrees that e is what is mounted at
// path: by the id of the mount if there is one, else by the device.
func (w *walker) confirmed(path string, e *Entry, ids bool) bool {
	agrees := func() bool {
		if ids {
			mount, ok := mountOf(w.table, e, path)
			return ok && mount.Point == path
		}
		mount, ok := w.table.At(path)
		dev, known := e.Dev.Kernel()
		return ok && known && mount.Dev == dev
	}
	if agrees() {
		return true
	}
	if w.refreshed {
		return false
	}
	// The mount may be younger than the table.
	w.refreshed = true
	table, err := w.probes.Mounts()
	if err != nil {
		return false
	}
	w.table = table
	return agrees()
}

// follow puts the target of a link in the place of the component.
func (w *walker) follow(path string, e *Entry, sep bool) bool {
	if w.links++; w.links > maxLinks {
		w.refuse(Denied, CodeLinkLoop, "the path leads through more than 40 links")
		return false
	}
	raw, err := w.probes.ReadLink(path)
	if err != nil {
		w.refuse(EnforcementUnverified, CodeInspectFailed, "a link cannot be read: "+err.Error())
		return false
	}
	if w.steps != nil {
		(*w.steps)[len(*w.steps)-1].Target = raw
	}
	if raw == "" {
		w.refuse(EnforcementUnverified, CodeInspectFailed, "a link has no target")
		return false
	}
	target, err := w.math.linkTarget(raw)
	if err != nil {
		w.refuse(Denied, CodeUnsafePath, "the target of a link means something else than it shows")
		return false
	}
	device, rooted, rest := w.math.volume(target)
	if rootDevice, _, _ := w.math.volume(w.full); device != "" && !w.math.equal(device, rootDevice) {
		w.refuse(Denied, CodeLinkEscape, "a link leads to another volume")
		return false
	}
	if rooted {
		w.home()
		if len(w.names()) > 0 {
			w.outside, w.matched = true, 0
		}
	}
	switch {
	case w.rest != "":
		rest += string(w.math.sep()) + w.rest
	case sep:
		w.trailing = true
	}
	w.rest = rest
	return true
}

// step records a component that the walk goes on from.
func (w *walker) step(path string, e *Entry, code Code, reason string) {
	if w.steps == nil {
		return
	}
	s := Step{Path: path, PathBytes: pathBytes(path), Missing: e == nil, Code: code, Reason: reason}
	if e != nil {
		s.Kind, s.ID = e.Kind, e.ID()
		if mount, ok := mountOf(w.table, e, path); ok {
			s.Mount = mount.Point
		}
	}
	*w.steps = append(*w.steps, s)
}

// stop records a component that was found to be in the way, and what that means
// for the outcome.
func (w *walker) stop(path string, e *Entry, outcome Outcome, code Code, reason string) {
	w.settle(outcome, code, reason)
	w.step(path, e, code, reason)
}

// refuse is stop for the component that was recorded last.
func (w *walker) refuse(outcome Outcome, code Code, reason string) {
	w.settle(outcome, code, reason)
	if w.steps != nil && len(*w.steps) > 0 {
		last := &(*w.steps)[len(*w.steps)-1]
		last.Code, last.Reason = code, reason
	}
}
