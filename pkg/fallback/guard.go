// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
)

// attempts is how often a Guard walks to an object that is another one by the
// time it has a handle on it.
const attempts = 8

// A Guard does in a workspace what os does anywhere, and does it only to what
// the engine's walk allows. What it opens is the object that the walk saw: it
// opens the path without links that the walk ended at, relative to a handle of
// the root, through no link whatever, and compares the identity of what it got.
// If that differs it walks again, up to 8 times.
//
// Targets are absolute or relative to the workspace, as in
// engine.CheckContainment. A Guard only opens regular files and directories:
// what a device node, a FIFO or a socket leads to does not lie in the workspace.
//
// Errors are *fs.PathError (*os.LinkError of Rename). Where the walk refuses,
// they hold a [*RefusedError].
//
// A Guard may be copied, and is safe for use by several goroutines.
type Guard struct {
	Workspace engine.WorkspaceIdentity
	Options   engine.ContainmentOptions
	Probes    *Probes

	// walked is called between a walk and its use, in tests.
	walked func()
}

var (
	// ErrConflict is returned where the workspace, or an object in it, is not
	// the one it has to be: replaced since it was bound, or different each time
	// it was looked at. It is also an fs.ErrPermission.
	ErrConflict = fmt.Errorf("conflict: %w", fs.ErrPermission)

	// ErrUnverified is returned where something could not be looked at that
	// would have to be. It is also an fs.ErrPermission.
	ErrUnverified = fmt.Errorf("enforcement-unverified: %w", fs.ErrPermission)

	// ErrSpecial is returned for a device node, a FIFO, a socket, and whatever
	// else is neither a regular file nor a directory. It is also an
	// fs.ErrPermission.
	ErrSpecial = fmt.Errorf("neither a regular file nor a directory: %w", fs.ErrPermission)

	// ErrRoot is returned for an attempt to remove, rename or make the root of
	// the workspace. It is also an fs.ErrPermission.
	ErrRoot = fmt.Errorf("is the workspace itself: %w", fs.ErrPermission)
)

// CodeObjectChanged is the code of a conflict in which the object was another
// one after every walk.
const CodeObjectChanged engine.Code = "object-changed"

// A RefusedError says why a [Guard] did nothing. It answers errors.Is for
//
//   - engine.ErrEscape, for denied where a path leads out of the workspace or
//     could: all codes but the following
//   - engine.ErrUnsafePath, for the codes nul-in-path and unsafe-path
//   - fs.ErrNotExist, for missing-component
//   - engine.ErrNotDirectory and syscall.ENOTDIR, for not-directory
//   - engine.ErrMagicLink, engine.ErrLinkLoop, for theirs
//   - [ErrConflict] and [ErrUnverified], for the outcomes conflict and
//     enforcement-unverified
//   - fs.ErrPermission, for all but missing-component and not-directory
type RefusedError struct {
	Decision engine.ContainmentDecision
	// Err is what the system said, where it said something.
	Err error
}

// Error returns the outcome, the code and the reason.
func (e *RefusedError) Error() string {
	text := fmt.Sprintf("%s (%s): %s", e.Decision.Outcome, e.Decision.Code, e.Decision.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// Is reports whether e answers to target.
func (e *RefusedError) Is(target error) bool {
	switch e.Decision.Code {
	case engine.CodeMissingComponent:
		return target == fs.ErrNotExist || target == ErrUnverified
	case engine.CodeNotDirectory:
		return target == engine.ErrNotDirectory || target == syscall.ENOTDIR
	}
	switch target {
	case fs.ErrPermission:
		return true
	case ErrConflict:
		return e.Decision.Outcome == engine.Conflict
	case ErrUnverified:
		return e.Decision.Outcome == engine.EnforcementUnverified
	case engine.ErrMagicLink:
		return e.Decision.Code == engine.CodeMagicLink
	case engine.ErrLinkLoop:
		return e.Decision.Code == engine.CodeLinkLoop
	}
	unsafePath := e.Decision.Code == engine.CodeNULInPath || e.Decision.Code == engine.CodeUnsafePath
	switch target {
	case engine.ErrUnsafePath, fs.ErrInvalid:
		return unsafePath
	case engine.ErrEscape:
		return e.Decision.Outcome == engine.Denied && !unsafePath && e.Decision.Code != engine.CodeBindingBlocked
	}
	return false
}

// CheckAll is engine.CheckContainment for many targets in one workspace. On
// Linux targets that lie in one directory cost little more than a system call
// each: what they share is looked at once before and once after, and every
// answer is found anew if it changed in between. The answers are in the order of
// the targets.
func (g *Guard) CheckAll(targets []string) []engine.ContainmentDecision {
	decisions := make([]engine.ContainmentDecision, len(targets))
	rest := decisions
	for part := range slices.Chunk(targets, batchSize) {
		g.checkBatch(part, rest[:len(part)])
		rest = rest[len(part):]
	}
	return decisions
}

// Open opens a file or directory for reading.
func (g *Guard) Open(target string) (*os.File, error) {
	return g.OpenFile(target, os.O_RDONLY, 0)
}

// Create creates a file for reading and writing, or empties it if it exists.
func (g *Guard) Create(target string) (*os.File, error) {
	return g.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// flags are what OpenFile understands: the flags that os has on every system.
const flags = os.O_RDONLY | os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREATE | os.O_EXCL | os.O_SYNC | os.O_TRUNC

// OpenFile opens a file or directory as os.OpenFile does, with the flags of
// package os and the nine permission bits; others are fs.ErrInvalid. A file is
// created with O_EXCL, so never through a link that is put there meanwhile, and
// it is emptied only after it turned out to be the right one.
//
// On Linux a file on which another process holds a lease is a conflict if the
// lease is not given up within the attempts.
func (g *Guard) OpenFile(target string, flag int, perm fs.FileMode) (*os.File, error) {
	truncateUnwritable := flag&os.O_TRUNC != 0 && flag&(os.O_WRONLY|os.O_RDWR) == 0
	if flag&^flags != 0 || perm&^fs.ModePerm != 0 || truncateUnwritable {
		return nil, &fs.PathError{Op: "open", Path: target, Err: fs.ErrInvalid}
	}
	var file *os.File
	err := g.attempt("open", target, func(w *engine.Walk, root dir) (err error) {
		if w.Missing {
			file, err = g.create(w, root, target, flag, perm)
		} else {
			file, err = g.open(w, root, flag)
		}
		return err
	})
	return file, err
}

// open opens the object that the walk saw.
func (g *Guard) open(w *engine.Walk, root dir, flag int) (*os.File, error) {
	switch {
	case flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, answer{fs.ErrExist}
	case w.Kind == engine.KindDir && flag&(os.O_CREATE|os.O_WRONLY|os.O_RDWR) != 0:
		return nil, answer{syscall.EISDIR}
	case !ordinary(w.Kind):
		return nil, answer{ErrSpecial}
	}
	rel, err := g.below(w.Decision.ResolvedPath)
	if err != nil {
		return nil, err
	}
	file, e, err := root.open(rel, flag&^(os.O_CREATE|os.O_EXCL|os.O_TRUNC), g.Options.FollowMountPoints)
	if err != nil {
		return nil, err
	}
	if !e.ID().Same(w.Object) || e.Kind != w.Kind {
		file.Close()
		return nil, errChanged
	}
	if flag&os.O_TRUNC != 0 {
		if err := file.Truncate(0); err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// ordinary reports whether an object of this kind is opened. A reparse point
// that the walk followed is the object itself, a placeholder.
func ordinary(k engine.Kind) bool {
	return k == engine.KindFile || k == engine.KindDir || k == engine.KindReparse
}

// create creates the file that the walk did not find.
func (g *Guard) create(w *engine.Walk, root dir, target string, flag int, perm fs.FileMode) (*os.File, error) {
	switch {
	case flag&os.O_CREATE == 0:
		return nil, answer{fs.ErrNotExist}
	case demandsDirectory(target):
		return nil, answer{syscall.EISDIR}
	}
	rel, err := g.below(w.Decision.ResolvedPath)
	if err != nil {
		return nil, err
	}
	parent, err := g.parent(root, rel, w.Parent)
	if err != nil {
		return nil, err
	}
	defer parent.close()
	name := filepath.Base(rel)
	file, e, err := parent.create(name, flag&^(os.O_CREATE|os.O_EXCL|os.O_TRUNC), perm)
	if errors.Is(err, fs.ErrExist) && flag&os.O_EXCL == 0 {
		return nil, errChanged // it was not there before
	}
	if err != nil {
		return nil, err
	}
	if err := g.placed(root, rel, parent, name, &e); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// placed checks that what was just made as name in the directory parent is what
// is now found at rel. Otherwise parent was moved away in between, and what was
// made is removed again.
func (g *Guard) placed(root dir, rel string, parent dir, name string, made *engine.Entry) error {
	found, err := root.lookup(rel, g.Options.FollowMountPoints)
	if err == nil && found.ID().Same(made.ID()) {
		return nil
	}
	// Not removed if it is another one meanwhile. There is no way to remove a
	// name only if it still stands for a certain object.
	if there, err := parent.lookup(name, false); err == nil && there.ID().Same(made.ID()) {
		_ = parent.remove(name, made.Kind == engine.KindDir)
	}
	return errChanged
}

// parent opens the directory that holds rel and compares it with what the walk
// saw.
func (g *Guard) parent(root dir, rel string, want engine.ObjectID) (dir, error) {
	if rel == "." {
		return nil, answer{ErrRoot}
	}
	parent, err := root.sub(filepath.Dir(rel), g.Options.FollowMountPoints)
	if err != nil {
		return nil, err
	}
	if !parent.is(want) {
		parent.close()
		return nil, errChanged
	}
	return parent, nil
}

// ReadFile reads a whole file.
func (g *Guard) ReadFile(target string) ([]byte, error) {
	file, err := g.Open(target)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(file)
}

// WriteFile writes data to a file, creating it with perm if there is none and
// emptying it first if there is. A file with other names outside the workspace
// (hard links) is written there too: no path tells of those.
func (g *Guard) WriteFile(target string, data []byte, perm fs.FileMode) error {
	file, err := g.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Mkdir makes a directory.
func (g *Guard) Mkdir(target string, perm fs.FileMode) error {
	if perm&^fs.ModePerm != 0 {
		return &fs.PathError{Op: "mkdir", Path: target, Err: fs.ErrInvalid}
	}
	above, name, err := g.split("mkdir", target)
	if err != nil {
		return err
	}
	return g.attemptIn("mkdir", target, above, func(w *engine.Walk, root dir) error {
		parent, err := g.directory(w, root)
		if err != nil {
			return err
		}
		defer parent.close()
		made, err := parent.mkdir(name, perm)
		if err != nil {
			return err
		}
		rel, err := g.below(filepath.Join(w.Decision.ResolvedPath, name))
		if err != nil {
			return err
		}
		return g.placed(root, rel, parent, name, &made)
	})
}

// Remove removes a file, a link or an empty directory. A link in the last place
// is removed itself, whatever the options. A target that ends in a separator
// has to be a directory.
//
// The name is removed from the directory that the walk saw. Which object it
// stands for at that moment, and whether that directory still lies in the
// workspace, no system call can bind to it; both need somebody who changes the
// tree between two adjacent calls.
func (g *Guard) Remove(target string) error {
	above, name, err := g.split("remove", target)
	if err != nil {
		return err
	}
	return g.attemptIn("remove", target, above, func(w *engine.Walk, root dir) error {
		parent, err := g.directory(w, root)
		if err != nil {
			return err
		}
		defer parent.close()
		e, err := parent.lookup(name, true)
		if err != nil {
			return answer{err}
		}
		if e.Kind != engine.KindDir && demandsDirectory(target) {
			return answer{syscall.ENOTDIR}
		}
		if err := parent.remove(name, e.Kind == engine.KindDir); err != nil {
			return answer{err}
		}
		return nil
	})
}

// Rename moves oldTarget to newTarget, replacing what is there, as os.Rename
// does. Links in the last place are moved, or replaced, themselves. What
// [Guard.Remove] says about the moment holds for both ends.
func (g *Guard) Rename(oldTarget, newTarget string) error {
	fail := func(err error) error {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return &os.LinkError{Op: "rename", Old: oldTarget, New: newTarget, Err: err}
	}
	oldAbove, oldName, err := g.split("rename", oldTarget)
	if err != nil {
		return fail(err)
	}
	newAbove, newName, err := g.split("rename", newTarget)
	if err != nil {
		return fail(err)
	}
	err = g.attemptIn("rename", oldTarget, oldAbove, func(from *engine.Walk, root dir) error {
		to, err := g.walk("rename", newTarget, newAbove)
		if err != nil {
			return answer{err}
		}
		source, err := g.directory(from, root)
		if err != nil {
			return err
		}
		defer source.close()
		destination, err := g.directory(to, root)
		if err != nil {
			return err
		}
		defer destination.close()
		if demandsDirectory(oldTarget) || demandsDirectory(newTarget) {
			e, err := source.lookup(oldName, true)
			if err != nil {
				return answer{err}
			}
			if e.Kind != engine.KindDir {
				return answer{syscall.ENOTDIR}
			}
		}
		if err := source.rename(oldName, destination, newName); err == errChanged {
			return err
		} else if err != nil {
			return answer{err}
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	return nil
}

// split judges the text of a target and returns the directory that holds it,
// as a target, and the name there.
func (g *Guard) split(op, target string) (above, name string, err error) {
	fail := func(err error) (string, string, error) {
		return "", "", &fs.PathError{Op: op, Path: target, Err: err}
	}
	// What the last component is does not matter yet, only what these say
	// about the text as a whole, and that it can be looked at.
	switch decision := engine.CheckContainment(g.Workspace, target, g.Options, g.probes()); decision.Code {
	case engine.CodeNoProbe, engine.CodeMountTable, engine.CodeBindingBlocked,
		engine.CodeNULInPath, engine.CodeUnsafePath, engine.CodeOutside, engine.CodeInspectFailed:
		return fail(g.refused(decision))
	}
	resolved, err := engine.Resolve(g.Workspace.CanonicalRoot, target)
	if err != nil {
		return fail(err)
	}
	rel, err := g.below(resolved)
	if err != nil {
		return fail(err)
	}
	if rel == "." {
		return fail(ErrRoot)
	}
	return filepath.Dir(rel), filepath.Base(rel), nil
}

// demandsDirectory reports whether a target only makes sense for a directory:
// it ends in a separator, or in one and ".".
func demandsDirectory(target string) bool {
	target = strings.TrimSuffix(target, ".")
	return target != "" && os.IsPathSeparator(target[len(target)-1])
}

// directory opens the directory that the walk ended at.
func (g *Guard) directory(w *engine.Walk, root dir) (dir, error) {
	if w.Missing {
		return nil, answer{fs.ErrNotExist}
	}
	if w.Kind != engine.KindDir {
		return nil, answer{syscall.ENOTDIR}
	}
	rel, err := g.below(w.Decision.ResolvedPath)
	if err != nil {
		return nil, err
	}
	d, err := root.sub(rel, g.Options.FollowMountPoints)
	if err != nil {
		return nil, err
	}
	if !d.is(w.Object) {
		d.close()
		return nil, errChanged
	}
	return d, nil
}

// errChanged is returned where what is found is not what the walk saw.
var errChanged = errors.New("the object is not the one that was seen")

// raced reports whether a lookup ended in an error that it could not end in had
// the tree been what the walk saw.
func raced(err error) bool {
	for _, errno := range [...]syscall.Errno{
		syscall.ENOENT, syscall.ELOOP, syscall.ENOTDIR, syscall.EXDEV, syscall.EAGAIN, syscall.ESTALE,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	pathErr := (*fs.PathError)(nil)
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &pathErr) && escapes(pathErr.Err)
}

// answer wraps an error that is the answer to the caller, whatever it is, where
// the same error of a lookup would mean that the tree is not what the walk saw.
type answer struct{ error }

// attempt is attemptIn for the target itself.
func (g *Guard) attempt(op, target string, act func(*engine.Walk, dir) error) error {
	return g.attemptIn(op, target, target, act)
}

// attemptIn walks to the object at and lets act use it, again if act finds
// something else there than the walk. Errors carry op and target.
func (g *Guard) attemptIn(op, target, at string, act func(*engine.Walk, dir) error) error {
	fail := func(err error) error {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			err = pathErr.Err // act's path is a part of the target
		}
		return &fs.PathError{Op: op, Path: target, Err: err}
	}
	var last error
	var final answer
	for i := range attempts {
		// Whoever changes the tree may need a moment to finish.
		time.Sleep(time.Duration(i*i) * 100 * time.Microsecond)
		w, err := g.walk(op, target, at)
		if err != nil {
			return err
		}
		if g.walked != nil {
			g.walked()
		}
		err = g.inRoot(w, act)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return fail(final.error)
		case err != errChanged && !raced(err):
			return fail(err)
		}
		last = err
	}
	return fail(&RefusedError{
		Decision: engine.ContainmentDecision{
			Outcome: engine.Conflict,
			Code:    CodeObjectChanged,
			Reason:  fmt.Sprintf("it was another object after each of %d walks", attempts),
		},
		Err: last,
	})
}

// walk walks to at and returns what it saw if that is allowed.
func (g *Guard) walk(op, target, at string) (*engine.Walk, error) {
	w := engine.Locate(g.Workspace, at, g.Options, g.probes())
	if w.Decision.Outcome != engine.Allowed {
		return nil, &fs.PathError{Op: op, Path: target, Err: g.refused(w.Decision)}
	}
	return &w, nil
}

// inRoot opens the root of the walk and lets act use it.
func (g *Guard) inRoot(w *engine.Walk, act func(*engine.Walk, dir) error) error {
	root, err := g.Probes.openRoot(g.Workspace.CanonicalRoot)
	if err != nil {
		return err
	}
	defer root.close()
	if !root.is(w.Root) {
		return errChanged
	}
	return act(w, root)
}

func (g *Guard) refused(decision engine.ContainmentDecision) error {
	err := &RefusedError{Decision: decision}
	if decision.Code == engine.CodeBindingBlocked {
		err.Err = g.Workspace.Err()
	}
	return err
}

// probes returns g.Probes as the engine wants to see that there are none.
func (g *Guard) probes() engine.Probes {
	if g.Probes == nil {
		return nil
	}
	return g.Probes
}

// below returns path, which lies at or below the root, relative to it.
func (g *Guard) below(path string) (string, error) {
	rel, err := filepath.Rel(g.Workspace.CanonicalRoot, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", engine.ErrEscape
	}
	return rel, nil
}
