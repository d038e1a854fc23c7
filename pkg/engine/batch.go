// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/thenforce/thenforce/pkg/mountmap"

// CheckAll is [CheckContainment] for many targets in one workspace. It looks at
// each directory once, however many targets lie below it, and at each again in
// the end: should one of them, or the mount table, have changed meanwhile, all
// targets are checked anew one by one. So every answer is one that
// CheckContainment could have given between the call and the return.
func CheckAll(workspace WorkspaceIdentity, targets []string, options ContainmentOptions, probes Probes) []ContainmentDecision {
	decisions := make([]ContainmentDecision, len(targets))
	check := func(probes Probes) {
		for i, target := range targets {
			decisions[i] = CheckContainment(workspace, target, options, probes)
		}
	}
	if probes == nil {
		check(nil)
		return decisions
	}
	b := &batch{Probes: probes, dirs: make(map[string]Entry)}
	check(b)
	if !b.unchanged() {
		check(probes)
	}
	return decisions
}

// A batch remembers directories for the time of one CheckAll. It is no Sweeper:
// with the directories at hand one look per target is all that is left.
type batch struct {
	Probes
	dirs  map[string]Entry
	table *mountmap.Table
	err   error
}

func (b *batch) Inspect(path string) (Entry, error) {
	if e, ok := b.dirs[path]; ok {
		return e, nil
	}
	e, err := b.Probes.Inspect(path)
	if err == nil && e.Kind == KindDir {
		b.dirs[path] = e
	}
	return e, err
}

// Mounts returns the table of the batch. A walk that asks because its table does
// not confirm a mount gets the same one again; CheckAll notices in the end.
func (b *batch) Mounts() (*mountmap.Table, error) {
	if b.table == nil && b.err == nil {
		b.table, b.err = b.Probes.Mounts()
	}
	return b.table, b.err
}

// LongPath implements [LongNamer].
func (b *batch) LongPath(path string) (string, error) {
	if namer, ok := b.Probes.(LongNamer); ok {
		return namer.LongPath(path)
	}
	return path, nil
}

// Generation implements [Generationer]. It remembers what it was asked for, which
// is the root.
func (b *batch) Generation(path string) (uint64, bool, error) {
	if e, ok := b.dirs[path]; ok && e.HasGeneration {
		return e.Generation, true, nil
	}
	var e Entry
	if err := identify(b.Probes, path, &e); err != nil {
		return 0, false, err
	}
	if seen, ok := b.dirs[path]; ok {
		seen.Generation, seen.HasGeneration = e.Generation, e.HasGeneration
		b.dirs[path] = seen
	}
	return e.Generation, e.HasGeneration, nil
}

// unchanged reports whether everything that was remembered is still so. A new
// change time of a directory does not matter: names in it were not remembered,
// and the directories among them are looked at themselves.
func (b *batch) unchanged() bool {
	table, err := b.Probes.Mounts()
	if table != b.table || (err == nil) != (b.err == nil) {
		return false
	}
	for path, e := range b.dirs {
		now, err := b.Probes.Inspect(path)
		if err == nil && e.HasGeneration {
			err = identify(b.Probes, path, &now)
		}
		if err != nil || now.Kind != e.Kind || now.ID() != e.ID() || now.MountRoot != e.MountRoot {
			return false
		}
	}
	return true
}
