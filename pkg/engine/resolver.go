// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// maxLinks is how many links a path may lead through, as in the Linux kernel
// (MAXSYMLINKS): the 41st is one too many.
const maxLinks = 40

// A resolver finds the object behind a path and its name without links. It
// follows whatever there is to follow and so serves for the roots that a policy
// names, never for a path that a jail chose.
type resolver struct {
	probes Probes
	math   pathMath
	// unique makes a name that two entries of a directory match an error.
	unique bool
	// table, where known, helps to recognize the links of procfs.
	table *mountmap.Table
	// seen remembers inspections, for one compilation. Nil remembers nothing.
	seen map[string]inspection
}

type inspection struct {
	entry Entry
	err   error
}

func (r *resolver) inspect(path string) (Entry, error) {
	if i, ok := r.seen[path]; ok {
		return i.entry, i.err
	}
	e, err := r.probes.Inspect(path)
	if r.seen != nil {
		r.seen[path] = inspection{e, err}
	}
	return e, err
}

// realpath returns the path of the object behind path, which is absolute, and
// the object. Errors are those of the probe, or a *fs.PathError with
// ErrLinkLoop, ErrMagicLink, ErrNotDirectory, ErrAmbiguous or ErrUnsafePath.
func (r *resolver) realpath(path string) (string, Entry, error) {
	device, _, rest := r.math.volume(path)
	at := r.math.top(device)
	e, err := r.inspect(at)
	if err != nil {
		return "", Entry{}, err
	}
	links := 0
	for rest != "" {
		var name string
		var sep bool
		name, rest, sep = r.math.next(rest)
		if name == "" || name == "." {
			continue
		}
		if !e.directory() {
			return "", Entry{}, &fs.PathError{Op: "resolve", Path: at, Err: ErrNotDirectory}
		}
		if name == ".." {
			at = r.math.parent(at)
			if e, err = r.inspect(at); err != nil {
				return "", Entry{}, err
			}
			continue
		}
		next := r.math.child(at, name)
		found, err := r.inspect(next)
		if err != nil {
			return "", Entry{}, err
		}
		if next, err = r.trueName(at, name, next, &found); err != nil {
			return "", Entry{}, err
		}
		if !found.link() {
			at, e = next, found
			if sep && !e.directory() {
				return "", Entry{}, &fs.PathError{Op: "resolve", Path: at, Err: ErrNotDirectory}
			}
			continue
		}

		if links++; links > maxLinks {
			return "", Entry{}, &fs.PathError{Op: "resolve", Path: path, Err: ErrLinkLoop}
		}
		if magicLink(&found, next, r.math, r.table) {
			return "", Entry{}, &fs.PathError{Op: "resolve", Path: next, Err: ErrMagicLink}
		}
		target, err := r.probes.ReadLink(next)
		if err != nil {
			return "", Entry{}, err
		}
		target, err = r.math.linkTarget(target)
		if err != nil {
			return "", Entry{}, &fs.PathError{Op: "resolve", Path: next, Err: err}
		}
		device, rooted, targetRest := r.math.volume(target)
		if rooted {
			if device == "" {
				device, _, _ = r.math.volume(at)
			}
			at = r.math.top(device)
			if e, err = r.inspect(at); err != nil {
				return "", Entry{}, err
			}
		}
		if sep {
			targetRest += string(r.math.sep())
		}
		rest = targetRest + rest
	}
	return at, e, nil
}

// trueName returns the path of an object under the name that its directory
// holds, where a platform finds it under others too.
func (r *resolver) trueName(dir, name, path string, e *Entry) (string, error) {
	if r.unique {
		names, err := r.probes.ReadDir(dir)
		if err != nil {
			return "", err
		}
		matches, match := 0, name
		for _, n := range names {
			if r.math.equal(n, name) {
				matches++
				match = n
			}
		}
		if matches > 1 {
			return "", &fs.PathError{Op: "resolve", Path: path, Err: fmt.Errorf("%w: %d names match", ErrAmbiguous, matches)}
		}
		name = match
	}
	if e.Name != "" {
		name = e.Name
	}
	return r.math.child(dir, name), nil
}

// top returns the root directory of a device. A drive letter is written as
// Windows itself does, in upper case.
func (m pathMath) top(device string) string {
	if len(device) == 2 {
		device = strings.ToUpper(device)
	}
	return device + string(m.sep())
}

// child returns the path of name in the directory dir.
func (m pathMath) child(dir, name string) string {
	if m.isSep(dir[len(dir)-1]) {
		return dir + name
	}
	return dir + string(m.sep()) + name
}

// parent returns the directory of a clean absolute path; that of a root is the
// root.
func (m pathMath) parent(path string) string {
	device, _, rest := m.volume(path)
	i := strings.LastIndexByte(rest, m.sep())
	if i < 0 {
		return device + string(m.sep())
	}
	return path[:len(path)-len(rest)+i]
}

// linkTarget returns the target of a link in a form that volume understands, or
// ErrUnsafePath. On Windows the stored form of a junction is a name of the
// object manager, `\??\C:\x`; only those that stand for a drive or a share are
// understood.
func (m pathMath) linkTarget(target string) (string, error) {
	if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) > MaxPath {
		return "", ErrUnsafePath
	}
	if m.shape != shapeWindows {
		return target, nil
	}
	for _, prefix := range [...]string{`\??\`, `\\?\`} {
		if rest, ok := strings.CutPrefix(target, prefix); ok {
			if share, ok := cutPrefixFold(rest, `UNC\`); ok {
				rest = `\\` + share
			}
			if shapeOf(rest) != shapeWindows {
				return "", ErrUnsafePath
			}
			target = rest
			break
		}
	}
	if unsafeWindows(target) {
		return "", ErrUnsafePath
	}
	return target, nil
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// magicLink reports whether the link e at path leads to an object and not to a
// path. The probe says so where it knows. Beyond that every link of procfs
// counts, except those in its root directory (self, thread-self, mounts, net):
// all the others are of this kind, and what a later kernel adds is better
// refused than followed.
func magicLink(e *Entry, path string, m pathMath, table *mountmap.Table) bool {
	if e.Magic {
		return true
	}
	mount, ok := mountOf(table, e, path)
	if fsType := e.FSType; fsType != "proc" && (!ok || mount.FSType != "proc") {
		return false
	}
	return !ok || mount.Root != "/" || m.parent(path) != mount.Point
}

// mountOf returns the mount that e, found at path, lies on.
func mountOf(table *mountmap.Table, e *Entry, path string) (mountmap.Mount, bool) {
	switch {
	case e.MountID == 0:
		return table.Lookup(path)
	case e.UniqueMountID:
		return table.ByUniqueID(e.MountID)
	}
	return table.ByID(e.MountID)
}
