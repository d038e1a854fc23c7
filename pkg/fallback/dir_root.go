// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/thenforce/thenforce/pkg/engine"
)

// A dir is a handle on a directory, with the identity it was opened with. It is
// an os.Root, which follows a link that stays below it, so what it opens can be
// another object than the walk saw, and never one outside; the comparison of the
// identities finds that.
//
// os.Root crosses mounts. On macOS the identities tell, since a mounted object
// has another device.
type dir struct {
	top  *os.Root // the root of the workspace
	root *os.Root // this directory
	rel  string   // where it is below top
	id   engine.ObjectID
}

// openRoot opens the root of a workspace.
func (p *Probes) openRoot(path string) (*dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	d := &dir{top: root, root: root, rel: "."}
	if d.id, err = identify(root); err != nil {
		root.Close()
		return nil, err
	}
	return d, nil
}

// identify returns the identity of the directory behind root.
func identify(root *os.Root) (engine.ObjectID, error) {
	e, err := entryIn(root, ".")
	return e.ID(), err
}

// entryIn opens an object for reading and describes it.
func entryIn(root *os.Root, rel string) (engine.Entry, error) {
	file, err := root.OpenFile(rel, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return engine.Entry{}, err
	}
	defer file.Close()
	return entryOf(file)
}

func (d *dir) close() { d.root.Close() }

// sub opens the directory rel.
func (d *dir) sub(rel string, _ bool) (*dir, error) {
	root, err := d.root.OpenRoot(rel)
	if err != nil {
		return nil, err
	}
	s := &dir{top: d.top, root: root, rel: filepath.Join(d.rel, rel)}
	if s.id, err = identify(root); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

// lookup describes the object rel. Of a link in the last place, or of something
// else that is neither a file nor a directory, it knows only the kind.
func (d *dir) lookup(rel string, _ bool) (engine.Entry, error) {
	info, err := d.root.Lstat(rel)
	switch {
	case err != nil:
		return engine.Entry{}, err
	case info.Mode()&fs.ModeSymlink != 0:
		return engine.Entry{Kind: engine.KindSymlink}, nil
	case !info.IsDir() && !info.Mode().IsRegular():
		return engine.Entry{Kind: engine.KindOther}, nil
	}
	return entryIn(d.root, rel)
}

// open opens the existing object rel and describes it.
func (d *dir) open(rel string, flag int, _ bool) (*os.File, engine.Entry, error) {
	file, err := d.root.OpenFile(rel, flag|nonblock, 0)
	return described(file, err)
}

// create creates a file in d itself and describes it.
func (d *dir) create(name string, flag int, perm fs.FileMode) (*os.File, engine.Entry, error) {
	file, err := d.root.OpenFile(name, flag|os.O_CREATE|os.O_EXCL, perm)
	return described(file, err)
}

func described(file *os.File, err error) (*os.File, engine.Entry, error) {
	if err != nil {
		return nil, engine.Entry{}, err
	}
	e, err := entryOf(file)
	if err != nil {
		file.Close()
		return nil, engine.Entry{}, err
	}
	return file, e, nil
}

// mkdir makes a directory in d itself and describes it.
func (d *dir) mkdir(name string, perm fs.FileMode) (engine.Entry, error) {
	if err := d.root.Mkdir(name, perm); err != nil {
		return engine.Entry{}, err
	}
	return d.lookup(name, false)
}

// remove removes a name from d itself.
func (d *dir) remove(name string, _ bool) error { return d.root.Remove(name) }

// rename moves a name from d to another directory below the same root.
func (d *dir) rename(name string, to *dir, newName string) error {
	err := d.top.Rename(filepath.Join(d.rel, name), filepath.Join(to.rel, newName))
	if linkErr := (*os.LinkError)(nil); errors.As(err, &linkErr) {
		return linkErr.Err
	}
	return err
}

// raced reports whether a lookup ended in an error that it could not end in had
// the tree been what the walk saw.
func raced(err error) bool {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) {
		return true
	}
	// os has no name for the error that a link led out of an os.Root.
	pathErr := (*fs.PathError)(nil)
	return errors.As(err, &pathErr) && pathErr.Err.Error() == "path escapes from parent"
}

const batchSize = 64

// checkBatch answers for each target by itself: here is nothing that proves that
// what they share did not change.
func (g *Guard) checkBatch(targets []string, decisions []engine.ContainmentDecision) {
	for i, target := range targets {
		decisions[i] = engine.CheckContainment(g.Workspace, target, g.Options, g.probes())
	}
}
