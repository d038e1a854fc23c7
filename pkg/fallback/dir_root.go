// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/thenforce/thenforce/pkg/engine"
)

// A rootDir is an os.Root, which follows a link that stays below it, so what it opens can be
// another object than the walk saw, and never one outside; the comparison of the
// identities finds that.
//
// os.Root crosses mounts. On macOS the identities tell, since a mounted object
// has another device.
type rootDir struct {
	probes *Probes
	top    *os.Root // the root of the workspace
	root   *os.Root // this directory
	rel    string   // where it is below top
	id     engine.ObjectID
}

// openOSRoot opens the root of a workspace.
func (p *Probes) openOSRoot(path string) (dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return identified(&rootDir{probes: p, top: root, root: root, rel: "."})
}

// identified returns d with the identity of the directory that it is.
func identified(d *rootDir) (dir, error) {
	e, err := d.entry(".")
	if err != nil {
		d.close()
		return nil, err
	}
	d.id = e.ID()
	return d, nil
}

// entry opens an object for reading and describes it.
func (d *rootDir) entry(rel string) (engine.Entry, error) {
	file, err := d.root.OpenFile(rel, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return engine.Entry{}, err
	}
	defer file.Close()
	return d.probes.entryOf(file)
}

func (d *rootDir) close() { d.root.Close() }

func (d *rootDir) is(seen engine.ObjectID) bool { return d.id.Same(seen) }

func (d *rootDir) sub(rel string, _ bool) (dir, error) {
	root, err := d.root.OpenRoot(rel)
	if err != nil {
		return nil, err
	}
	return identified(&rootDir{probes: d.probes, top: d.top, root: root, rel: filepath.Join(d.rel, rel)})
}

// lookup knows only the kind of a link in the last place, and of something else
// that is neither a file nor a directory.
func (d *rootDir) lookup(rel string, _ bool) (engine.Entry, error) {
	info, err := d.root.Lstat(rel)
	switch {
	case err != nil:
		return engine.Entry{}, err
	case info.Mode()&fs.ModeSymlink != 0:
		return engine.Entry{Kind: engine.KindSymlink}, nil
	case !info.IsDir() && !info.Mode().IsRegular():
		return engine.Entry{Kind: engine.KindOther}, nil
	}
	return d.entry(rel)
}

func (d *rootDir) open(rel string, flag int, _ bool) (*os.File, engine.Entry, error) {
	file, err := d.root.OpenFile(rel, flag|nonblock, 0)
	if err == nil {
		if err = unblock(file); err != nil {
			file.Close()
		}
	}
	return d.described(file, err)
}

func (d *rootDir) create(name string, flag int, perm fs.FileMode) (*os.File, engine.Entry, error) {
	file, err := d.root.OpenFile(name, flag|os.O_CREATE|os.O_EXCL, perm)
	return d.described(file, err)
}

func (d *rootDir) described(file *os.File, err error) (*os.File, engine.Entry, error) {
	if err != nil {
		return nil, engine.Entry{}, err
	}
	e, err := d.probes.entryOf(file)
	if err != nil {
		file.Close()
		return nil, engine.Entry{}, err
	}
	return file, e, nil
}

func (d *rootDir) mkdir(name string, perm fs.FileMode) (engine.Entry, error) {
	if err := d.root.Mkdir(name, perm); err != nil {
		return engine.Entry{}, err
	}
	return d.lookup(name, false)
}

func (d *rootDir) remove(name string, _ bool) error { return d.root.Remove(name) }

// rename goes down to both directories once more, so it may meet a link that is
// put there meanwhile.
func (d *rootDir) rename(name string, to dir, newName string) error {
	err := d.top.Rename(filepath.Join(d.rel, name), filepath.Join(to.(*rootDir).rel, newName))
	linkErr := (*os.LinkError)(nil)
	switch {
	case !errors.As(err, &linkErr):
		return err
	case escapes(linkErr.Err):
		return errChanged
	}
	return linkErr.Err
}

// escapes reports whether an os.Root refused a link that led out of it. os has no
// name for that error.
func escapes(err error) bool { return err.Error() == "path escapes from parent" }
