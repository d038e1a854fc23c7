// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// A Mount is one line of the mount table.
type Mount struct {
	// ID is the id of the mount while it exists; the kernel gives it away
	// again afterwards. statx(2) returns it for STATX_MNT_ID.
	ID uint64
	// UniqueID is the id that is never given away again (STATX_MNT_ID_UNIQUE,
	// Linux 6.8), or 0 where the kernel did not tell.
	UniqueID uint64
	// ParentID is the ID of the mount this one is mounted on. That of a root
	// is its own, or one that the table does not hold.
	ParentID uint64
	// Dev is the s_dev of the file system.
	Dev KernelDev
	// Root is the directory, file or object of the file system that appears
	// at Point, as the file system names it: "/", "/sub" for a bind mount,
	// "net:[4026531840]" on nsfs.
	Root string
	// Point is the absolute path the mount is mounted on, as seen from the
	// root directory of the process that read the table.
	Point string
	// Options are the options of this mount, such as "rw,nosuid".
	Options string
	// Propagation says which mounts and unmounts this mount shares.
	Propagation Propagation
	// FSType is the type of the file system, such as "ext4" or "fuse.sshfs".
	FSType string
	// Source is what was mounted, as the file system words it. It may be empty.
	Source string
	// SuperOptions are the options of the file system, verbatim: each file
	// system has its own way to escape them.
	SuperOptions string
}

// Propagation is what mount_namespaces(7) calls the propagation type. The zero
// value is a private mount.
type Propagation struct {
	// Shared is the id of the peer group the mount is a member of, or 0.
	Shared uint64
	// Master is the id of the peer group the mount receives from, or 0.
	Master uint64
	// From is the id of the nearest dominant peer group below the reader's
	// root, where that is another than Master, or 0.
	From uint64
	// Unbindable is set where the mount cannot be bind mounted.
	Unbindable bool
}

// String returns the type in the words of mount_namespaces(7).
func (p Propagation) String() string {
	switch {
	case p.Unbindable:
		return "unbindable"
	case p.Shared != 0 && p.Master != 0:
		return "slave and shared"
	case p.Shared != 0:
		return "shared"
	case p.Master != 0:
		return "slave"
	}
	return "private"
}

// A Table is a snapshot of the mounts of one namespace. It is immutable and
// safe for use by several goroutines. The nil Table has no mounts.
type Table struct {
	mounts   []Mount
	byID     map[uint64]int
	byUnique map[uint64]int
	// points holds, for every mount point, the mounts that claim it. Most
	// questions are about paths where nothing is mounted, and end here.
	points map[string][]int
	// children holds the mount that lies directly on a parent at a path. The
	// kernel keeps at most one there (mnt_hash in fs/namespace.c); the later
	// line counts should a torn read show two.
	children map[place]int
	// roots are the mounts whose parent is not in the table, by mount point.
	roots map[string]int
}

type place struct {
	parent uint64
	point  string
}

// New returns a table of the given mounts, in the order of the kernel's own
// list. It errors where there are none, where two have the same ID or UniqueID,
// or where a mount point is not an absolute path.
func New(mounts []Mount) (*Table, error) {
	if len(mounts) == 0 {
		return nil, errEmpty
	}
	t := &Table{
		mounts:   slices.Clone(mounts),
		byID:     make(map[uint64]int, len(mounts)),
		byUnique: make(map[uint64]int),
		points:   make(map[string][]int, len(mounts)),
		children: make(map[place]int, len(mounts)),
		roots:    make(map[string]int),
	}
	for i := range t.mounts {
		m := &t.mounts[i]
		if !strings.HasPrefix(m.Point, "/") {
			return nil, fmt.Errorf("mount %d: mount point %q is not absolute", m.ID, m.Point)
		}
		if j, ok := t.byID[m.ID]; ok {
			return nil, fmt.Errorf("mount id %d twice: at %q and at %q", m.ID, t.mounts[j].Point, m.Point)
		}
		t.byID[m.ID] = i
		if m.UniqueID != 0 {
			if j, ok := t.byUnique[m.UniqueID]; ok {
				return nil, fmt.Errorf("unique mount id %d twice: at %q and at %q", m.UniqueID, t.mounts[j].Point, m.Point)
			}
			t.byUnique[m.UniqueID] = i
		}
		t.points[m.Point] = append(t.points[m.Point], i)
	}
	for i := range t.mounts {
		m := &t.mounts[i]
		if _, ok := t.byID[m.ParentID]; !ok || m.ParentID == m.ID {
			t.roots[m.Point] = i
			continue
		}
		t.children[place{m.ParentID, m.Point}] = i
	}
	return t, nil
}

// Len returns the number of mounts, hidden ones included.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.mounts)
}

// All returns every mount, hidden ones included, in the order of the table.
func (t *Table) All() iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		if t == nil {
			return
		}
		for _, m := range t.mounts {
			if !yield(m) {
				return
			}
		}
	}
}

// ByID returns the mount with the given id.
func (t *Table) ByID(id uint64) (Mount, bool) {
	if t == nil {
		return Mount{}, false
	}
	i, ok := t.byID[id]
	if !ok {
		return Mount{}, false
	}
	return t.mounts[i], true
}

// ByUniqueID returns the mount with the given unique id. Only a table that was
// read live on a kernel that has unique ids knows any.
func (t *Table) ByUniqueID(id uint64) (Mount, bool) {
	if t == nil || id == 0 {
		return Mount{}, false
	}
	i, ok := t.byUnique[id]
	if !ok {
		return Mount{}, false
	}
	return t.mounts[i], true
}

// At returns the mount that is on top at exactly path, an absolute path without
// links, "." or "..". It reports false where path is not a mount point, or is
// one only of mounts that a mount further up hides.
func (t *Table) At(path string) (Mount, bool) {
	if t == nil || len(t.points[path]) == 0 {
		return Mount{}, false
	}
	i, _ := t.descend(path)
	if i < 0 || t.mounts[i].Point != path {
		return Mount{}, false
	}
	return t.mounts[i], true
}

// Lookup returns the mount that path lies on, an absolute path without links,
// "." or "..". It reports false only where the table holds no mount at or above
// path: the root directory of a process need not be a mount point, and the
// kernel does not list what lies above it.
func (t *Table) Lookup(path string) (Mount, bool) {
	if t == nil {
		return Mount{}, false
	}
	i, _ := t.descend(path)
	if i < 0 {
		return Mount{}, false
	}
	return t.mounts[i], true
}

// Stack returns the mounts at exactly path from the lowest to the one on top.
// It is empty where path is not a mount point.
func (t *Table) Stack(path string) []Mount {
	if t == nil || len(t.points[path]) == 0 {
		return nil
	}
	i, below := t.descend(path)
	if i < 0 || t.mounts[i].Point != path {
		return nil
	}
	var stack []Mount
	for ; i >= 0 && i != below; i = t.parent(i) {
		stack = append(stack, t.mounts[i])
	}
	slices.Reverse(stack)
	return stack
}

// Below returns the visible mounts whose mount point lies strictly below path,
// those on top only, ordered by mount point.
func (t *Table) Below(path string) []Mount {
	if t == nil {
		return nil
	}
	prefix := strings.TrimSuffix(path, "/") + "/"
	var found []Mount
	for point := range t.points {
		if point == "/" || !strings.HasPrefix(point, prefix) {
			continue
		}
		if m, ok := t.At(point); ok {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b Mount) int { return strings.Compare(a.Point, b.Point) })
	return found
}

// parent returns the index of the mount that i is mounted on, or -1.
func (t *Table) parent(i int) int {
	m := &t.mounts[i]
	p, ok := t.byID[m.ParentID]
	if !ok || p == i {
		return -1
	}
	return p
}

// descend walks path as the kernel's path lookup does: at every component it
// steps onto what is mounted there on the mount it stands on. It returns the
// mount path lies on and the one it stood on before the last component, each -1
// where there is none.
func (t *Table) descend(path string) (at, above int) {
	at, above = t.step(-1, "/"), -1
	if path == "/" {
		return at, above
	}
	for end := 0; end < len(path); {
		if next := strings.IndexByte(path[end+1:], '/'); next >= 0 {
			end += 1 + next
		} else {
			end = len(path)
		}
		above = at
		at = t.step(at, path[:end])
	}
	return at, above
}

// step returns the topmost mount that is reached at point from the mount at.
func (t *Table) step(at int, point string) int {
	if len(t.points[point]) == 0 {
		return at
	}
	// A mount whose parent is missing from the table is stepped onto wherever
	// it is met: the kernel lists no mounts above the reader's root directory,
	// and of two claims the one for a boundary is the safe one.
	if i, ok := t.roots[point]; ok {
		at = i
	}
	// This ends: a mount has one parent, so mounts whose parent ids go in a
	// circle are no child of anything outside the circle and never met.
	for at >= 0 {
		i, ok := t.children[place{t.mounts[at].ID, point}]
		if !ok {
			break
		}
		at = i
	}
	return at
}
