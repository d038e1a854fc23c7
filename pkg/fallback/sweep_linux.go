// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

var _ engine.Sweeper = (*Probes)(nil)

// Sweep implements [engine.Sweeper]: the kernel refuses links on the whole way
// down to path, and the object lies on the mount that the root lies on as well.
// Nobody who only goes down comes back to a mount he left, since each is
// attached in one place; so no mount was crossed on the way. The caller compares
// the mounts. Where mounts have no ids Sweep does not know.
func (p *Probes) Sweep(root, path string) (engine.Entry, bool) {
	if !p.hasOpenat2() {
		return engine.Entry{}, false
	}
	// A link in the last place is opened itself; the caller sees the kind.
	fd, err := openat2(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return engine.Entry{}, false
	}
	e, err := p.statx(fd, "", unix.AT_EMPTY_PATH)
	unix.Close(fd)
	if err != nil || e.Kind == engine.KindSymlink || e.MountID == 0 || e.MountRoot {
		return engine.Entry{}, false
	}
	return e, true
}

// batchSize is how many targets are checked before what they share is looked at
// again, and so the most handles a batch holds.
const batchSize = 64

// checkBatch answers for up to batchSize targets.
//
// The root, the mount table and the directories that several targets lie in are
// looked at once. Afterwards they are looked at again: if no mount was made or
// removed, and the root and every directory is where it was, then each answer is
// that of a check whose steps took this long. A directory's handle keeps its
// inode number from being given to another one meanwhile. If anything differs,
// nothing of it counts.
func (g *Guard) checkBatch(targets []string, decisions []engine.ContainmentDecision) {
	if b := g.newBatch(); b != nil {
		defer b.close()
		for i, target := range targets {
			decisions[i] = engine.CheckContainment(g.Workspace, target, g.Options, b)
		}
		if g.walked != nil {
			g.walked()
		}
		if b.holds() {
			return
		}
	}
	for i, target := range targets {
		decisions[i] = engine.CheckContainment(g.Workspace, target, g.Options, g.probes())
	}
}

// A batch is probes that remember what the targets of a batch share. It is not
// safe for use by several goroutines.
type batch struct {
	*Probes
	path  string // of the root
	root  engine.Entry
	table *mountmap.Table
	dirs  map[string]*handleDir // nil for one that was asked for once
}

// newBatch looks at the root and the mount table. It returns nil where that
// fails: each check then says why.
func (g *Guard) newBatch() *batch {
	if g.Probes == nil {
		return nil
	}
	table, err := g.Probes.Mounts()
	if err != nil {
		return nil
	}
	root := g.Workspace.CanonicalRoot
	e, err := g.Probes.identify(root)
	if err != nil {
		return nil
	}
	return &batch{Probes: g.Probes, path: root, root: e, table: table, dirs: make(map[string]*handleDir)}
}

// identify inspects a root with its generation.
func (p *Probes) identify(path string) (engine.Entry, error) {
	e, err := p.Inspect(path)
	if err == nil {
		e.Generation, e.HasGeneration, err = p.Generation(path)
	}
	return e, err
}

func (b *batch) close() {
	for _, d := range b.dirs {
		if d != nil {
			d.close()
		}
	}
}

// Mounts implements [engine.Probes].
func (b *batch) Mounts() (*mountmap.Table, error) { return b.table, nil }

// Inspect implements [engine.Probes].
func (b *batch) Inspect(path string) (engine.Entry, error) {
	if path == b.path {
		return b.root, nil
	}
	return b.Probes.Inspect(path)
}

// Sweep implements [engine.Sweeper]. It takes a handle on a directory when it is
// asked for the second time.
func (b *batch) Sweep(root, path string) (engine.Entry, bool) {
	if !b.hasOpenat2() {
		return engine.Entry{}, false
	}
	parent := filepath.Dir(path)
	d, seen := b.dirs[parent]
	if d == nil {
		if !seen {
			b.dirs[parent] = nil
			return b.Probes.Sweep(root, path)
		}
		var ok bool
		if d, ok = b.open(parent); !ok {
			return engine.Entry{}, false
		}
		b.dirs[parent] = d
	}
	e, err := b.statx(d.fd, filepath.Base(path), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || e.Kind == engine.KindSymlink || e.MountID == 0 || e.MountRoot {
		return engine.Entry{}, false
	}
	return e, true
}

// open opens a directory that is reached from the root through no link and over
// no mount.
func (b *batch) open(path string) (*handleDir, bool) {
	d, err := b.openHandle(path)
	if err != nil {
		return nil, false
	}
	if d.id.MountID == 0 || d.id.MountID != b.root.MountID || d.id.Dev != b.root.Dev {
		d.close()
		return nil, false
	}
	return d, true
}

// holds reports whether everything that was remembered is still so.
func (b *batch) holds() bool {
	// The same table: nothing was mounted or unmounted since.
	if table, err := b.Probes.Mounts(); err != nil || table != b.table {
		return false
	}
	if e, err := b.Probes.identify(b.path); err != nil || !e.ID().Same(b.root.ID()) {
		return false
	}
	for path, d := range b.dirs {
		if d == nil {
			continue
		}
		again, ok := b.open(path)
		if !ok {
			return false
		}
		same := again.id.Same(d.id)
		again.close()
		if !same {
			return false
		}
	}
	return true
}
