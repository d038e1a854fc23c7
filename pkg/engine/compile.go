// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Compile looks at every path that p names and returns what p allows. It touches
// nothing but probes, so that it can be tested without any system; what it
// returns is true of the moment it looked.
//
// Every error is a [*PolicyError] that names the field, what is wrong and what
// to do.
//
// # Which grant counts
//
// For an object, the deepest of the AllowedSets' objects that contains it, alone.
// So a grant inside another one replaces it there, wider or narrower, and the
// same object cannot be granted twice: equal rights are noticed, different ones
// are an error. Two paths are the same object where they lead to the same inode:
// through a link, a bind mount, or as two names of one file.
//
// # How presets mix with the rest
//
// What the user says wins. A preset's entry is left out where the user grants
// the same object, or where the entry lies inside a grant of none. Inside any
// other grant it may only add: it is left out where that grant has its rights,
// and gets the rights of both where the user's grant has not. A preset's own
// none (a secret), a device node, and what lies on another mount than the grant
// around it stay as they are. So with the workspace "/" or a grant "/:ro",
// programs can be executed and the secrets in /etc stay secret; and with a grant
// "/usr:ro", nothing in /usr can.
//
// A workspace may be any directory, "/" too. It may contain others of the
// policy's objects or lie inside them; the deeper one counts.
func Compile(p Policy, probes Probes) (AllowedSets, error) {
	if err := validate(&p); err != nil {
		return AllowedSets{}, err
	}
	workspace := Bind(p.Workspace, probes)
	if workspace.BindingStatus != Bound {
		return AllowedSets{}, workspaceError(&p, &workspace)
	}
	c := compiler{
		policy: &p,
		probes: probes,
		math:   workspace.math(),
		resolver: resolver{
			probes: probes,
			unique: workspace.Platform.CasePolicy == CaseInsensitive,
			seen:   make(map[string]inspection),
		},
		sets: AllowedSets{
			Workspace:    workspace,
			Mode:         p.Mode,
			Options:      p.Options(),
			FollowMounts: p.FollowMountPoints,
			NoSymlinks:   p.NoSymlinks,
			Notices:      slices.Clone(workspace.Notices),
		},
	}
	// Without a table only the probe's own word marks a magic link.
	c.resolver.table, _ = probes.Mounts()

	rights := p.WorkspaceRights
	if rights == 0 {
		rights = DefaultWorkspaceRights
	}
	c.add(Object{
		Path:   workspace.CanonicalRoot,
		Rights: rights,
		Source: SourceWorkspace,
	}, workspace.entry)
	for i := range p.Grants {
		if err := c.grant(i); err != nil {
			return AllowedSets{}, err
		}
	}
	for i := range p.Deny {
		if err := c.deny(i); err != nil {
			return AllowedSets{}, err
		}
	}
	c.explicit = len(c.sets.Objects)
	for _, preset := range p.Presets {
		if err := c.preset(preset); err != nil {
			return AllowedSets{}, err
		}
	}
	return c.sets, nil
}

// validate refuses what is wrong without looking at any file.
func validate(p *Policy) error {
	if p.Workspace == "" {
		return &PolicyError{Field: "workspace", Err: errors.New("is empty"), Fix: "name a directory"}
	}
	if !p.WorkspaceRights.Valid() {
		return &PolicyError{Field: "workspaceRights", Value: p.WorkspaceRights.String(), Err: errors.New("unknown rights")}
	}
	if _, err := p.Mode.MarshalText(); err != nil {
		return &PolicyError{Field: "mode", Value: p.Mode.String(), Err: errors.New("unknown mode"), Fix: "use enforce or monitor"}
	}
	for i, preset := range p.Presets {
		if _, ok := presets[preset]; !ok {
			return &PolicyError{Field: fmt.Sprintf("presets[%d]", i), Value: string(preset), Err: errors.New("unknown preset"), Fix: "use system"}
		}
	}
	for i, g := range p.Grants {
		if g.Path == "" {
			return &PolicyError{Field: fmt.Sprintf("grants[%d].path", i), Err: errors.New("is empty")}
		}
		if !g.Rights.Valid() {
			return &PolicyError{Field: fmt.Sprintf("grants[%d].rights", i), Value: g.Rights.String(), Err: errors.New("unknown rights")}
		}
	}
	return nil
}

// workspaceError says in one line why the workspace cannot be used.
func workspaceError(p *Policy, w *WorkspaceIdentity) error {
	e := &PolicyError{Field: "workspace", Value: p.Workspace, Err: w.Err()}
	switch err := w.Err(); {
	case errors.Is(err, fs.ErrNotExist):
		e.Fix = "create the directory, or name another one"
	case errors.Is(err, ErrNotDirectory), errors.Is(err, syscall.ENOTDIR):
		e.Fix = "name a directory; a single file can be a grant"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "run with the privilege to read it, or name another directory"
	case errors.Is(err, ErrLinkLoop):
		e.Fix = "name the directory itself instead of a link to it"
	case errors.Is(err, ErrAmbiguous):
		e.Fix = "run again when nothing replaces or renames it"
	case errors.Is(err, ErrUnsafePath):
		e.Fix = "name a plain absolute path"
	case errors.Is(err, ErrNotSupported):
		e.Fix = "use a system that thenforce can look at"
	default:
		e.Fix = "check the file system, or name another directory"
	}
	return e
}

// A compiler holds one compilation.
type compiler struct {
	policy   *Policy
	probes   Probes
	math     pathMath
	resolver resolver
	sets     AllowedSets
	// entries holds what was found behind each of sets.Objects.
	entries []Entry
	// explicit is how many of the objects the policy itself names.
	explicit int
	// presets is what the presets alone would grant: an entry that adds nothing
	// there adds nothing anywhere, even where the user narrows the one around.
	presets       []Object
	presetEntries []Entry
}

func (c *compiler) add(o Object, e Entry) {
	o.Kind = e.Kind
	c.sets.Objects = append(c.sets.Objects, o)
	c.entries = append(c.entries, e)
}

func (c *compiler) notice(format string, args ...any) {
	c.sets.Notices = append(c.sets.Notices, fmt.Sprintf(format, args...))
}

// realpath resolves a path that the policy or a preset names.
func (c *compiler) realpath(path string) (string, Entry, error) {
	path, err := absolute(path, c.sets.Workspace.CanonicalRoot, c.probes)
	if err != nil {
		return "", Entry{}, err
	}
	r := c.resolver
	r.math = c.math
	r.math.shape = shapeOf(path)
	return r.realpath(path)
}

// same returns the index of the object that is the one at path, or -1.
func (c *compiler) same(path string, e *Entry) int {
	for i := range c.sets.Objects {
		if c.math.equal(c.sets.Objects[i].Path, path) || e.SameObject(&c.entries[i]) {
			return i
		}
	}
	return -1
}

// grant adds the grant with the given index.
func (c *compiler) grant(i int) error {
	g := &c.policy.Grants[i]
	field := fmt.Sprintf("grants[%d].path", i)
	path, e, err := c.realpath(g.Path)
	if err != nil {
		if g.Optional && errors.Is(err, fs.ErrNotExist) {
			c.notice("grant %s is skipped: it does not exist", g.Path)
			return nil
		}
		return grantError(field, g.Path, err)
	}
	if err := c.stays(g.Path, path); err != nil {
		return &PolicyError{Field: field, Value: g.Path, Err: err, Fix: "name what is to be granted by its own path"}
	}
	o := Object{Path: path, Rights: g.Rights, Source: g.Source, Reason: g.Reason, Expires: g.Expires}
	if o.Source == "" {
		o.Source = SourcePolicy
	}
	j := c.same(path, &e)
	if j < 0 {
		c.add(o, e)
		return nil
	}
	first := &c.sets.Objects[j]
	switch {
	case first.Rights != o.Rights:
		fix := "keep one of the two"
		if first.Source == SourceWorkspace {
			fix = "set the rights of the workspace instead"
		}
		return &PolicyError{
			Field: field, Value: g.Path, Fix: fix,
			Err: fmt.Errorf("is the same object as %s (%s), with other rights: %s and %s", first.Path, first.Source, o.Rights, first.Rights),
		}
	case !first.Expires.Equal(o.Expires):
		return &PolicyError{
			Field: field, Value: g.Path, Fix: "keep one of the two",
			Err: fmt.Errorf("is the same object as %s (%s), with another expiry", first.Path, first.Source),
		}
	}
	c.notice("grant %s is the same object as %s (%s), with the same rights: it counts once", g.Path, first.Path, first.Source)
	return nil
}

// stays refuses a grant that is written as something inside the workspace and is
// something outside: whoever may write there made the link, and would choose
// what is granted.
func (c *compiler) stays(written, path string) error {
	root := c.sets.Workspace.CanonicalRoot
	if _, _, ok := c.math.resolve(root, written); !ok {
		return nil
	}
	if _, ok := c.math.below(root, path); ok {
		return nil
	}
	return fmt.Errorf("leads through a link out of the workspace, to %s", path)
}

func grantError(field, value string, err error) error {
	e := &PolicyError{Field: field, Value: value, Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Fix = "create it, correct the path, or mark the grant optional"
	case errors.Is(err, ErrMagicLink):
		e.Fix = "grant the object behind the link"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "run with the privilege to look at it"
	}
	return e
}

// deny adds the denied name with the given index: as it is written, and where
// its parents lead through links, also as it is then called.
func (c *compiler) deny(i int) error {
	name := c.policy.Deny[i]
	root := c.sets.Workspace.CanonicalRoot
	fail := func(err error, fix string) error {
		return &PolicyError{Field: fmt.Sprintf("deny[%d]", i), Value: name, Err: err, Fix: fix}
	}
	if name == "" {
		return fail(errors.New("is empty"), "name a path below the workspace")
	}
	if err := safe(c.math, name); err != nil {
		return fail(err, "name a plain path")
	}
	_, rel, ok := c.math.resolve(root, name)
	if !ok {
		return fail(fmt.Errorf("lies outside the workspace %s", root), "use a grant with the rights none there")
	}
	if rel == "" {
		return fail(errors.New("is the workspace itself"), "deny names inside it, or choose another workspace")
	}
	lexical := c.math.child(root, rel)
	c.denyPath(lexical)

	physical, err := c.physical(rel)
	if err != nil {
		return fail(err, "name a path that can be looked at")
	}
	if physical != lexical {
		if _, ok := c.math.below(root, physical); !ok || physical == root {
			return fail(fmt.Errorf("leads through a link to %s, which is not inside the workspace", physical), "use a grant with the rights none there")
		}
		c.denyPath(physical)
		c.notice("deny %s also denies %s: a link leads there", name, physical)
	}
	c.folding(name, physical)
	return nil
}

// folding notes the highest directory on the way to a denied name in which case
// does not count. Names that do not exist yet will inherit that.
func (c *compiler) folding(name, path string) {
	folder, ok := c.probes.(CaseFolder)
	if !ok || c.math.fold {
		return
	}
	highest := ""
	for !c.math.equal(path, c.sets.Workspace.CanonicalRoot) && path != c.math.parent(path) {
		path = c.math.parent(path)
		if _, err := c.resolver.inspect(path); err != nil {
			continue
		}
		// A directory that does not tell is taken for one: that denies more.
		if fold, err := folder.FoldsCase(path); err != nil || fold {
			highest = path
		}
	}
	if highest == "" || slices.Contains(c.sets.Folding, highest) {
		return
	}
	c.sets.Folding = append(c.sets.Folding, highest)
	c.notice("deny %s: names in %s match whatever their case (casefold); the kernel denies the one spelling only", name, highest)
}

func (c *compiler) denyPath(path string) {
	if slices.ContainsFunc(c.sets.Deny, func(d string) bool { return c.math.equal(d, path) }) {
		return
	}
	c.sets.Deny = append(c.sets.Deny, path)
}

// physical returns the path of rel below the workspace with the links in its
// existing parents resolved. What does not exist yet keeps its name, and the
// last component is a name, link or not.
func (c *compiler) physical(rel string) (string, error) {
	at := c.sets.Workspace.CanonicalRoot
	for {
		name, rest, more := c.math.next(rel)
		if !more {
			return c.math.child(at, name), nil
		}
		next, _, err := c.realpath(c.math.child(at, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return c.math.child(at, rel), nil
		case err != nil:
			return "", err
		}
		at, rel = next, rest
	}
}

// preset adds the entries of a preset, as described at Compile.
func (c *compiler) preset(preset Preset) error {
	if c.math.shape != shapePOSIX {
		c.notice("preset %s has nothing for this system", preset)
		return nil
	}
	for _, entry := range presets[preset] {
		paths, err := c.expand(entry.path)
		if err != nil {
			c.notice("preset %s: %s is left out: %v", preset, entry.path, err)
			continue
		}
		for _, path := range paths {
			c.presetEntry(preset, path, &entry)
		}
	}
	return nil
}

func (c *compiler) presetEntry(preset Preset, name string, entry *presetEntry) {
	target, e, err := c.realpath(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil && entry.rights != None:
		c.notice("preset %s: %s is left out: %v", preset, name, err)
		return
	case err != nil:
		// A secret that cannot be looked at stays one: whoever applies these
		// sets has to open it, or fail.
		target, e = name, Entry{}
		c.notice("preset %s: %s is kept as none unseen: %v", preset, name, err)
	}
	rights := entry.rights
	device := e.Kind == KindCharDevice || e.Kind == KindBlockDevice
	if i := nearest(c.math, c.presets, target); i >= 0 && rights != None && !device {
		if c.presets[i].Rights.Has(rights) && c.sameMount(&e, &c.presetEntries[i]) {
			return
		}
	}
	c.presets = append(c.presets, Object{Path: target, Rights: rights})
	c.presetEntries = append(c.presetEntries, e)

	if i := c.same(target, &e); i >= 0 {
		if o := &c.sets.Objects[i]; i < c.explicit && o.Rights != rights {
			c.notice("preset %s: %s keeps the rights %s of the %s", preset, o.Path, o.Rights, o.Source)
		}
		return
	}
	if around := c.nearest(target); around >= 0 && rights != None {
		o := &c.sets.Objects[around]
		if o.Rights == None {
			return
		}
		if around < c.explicit && !device && c.sameMount(&e, &c.entries[around]) {
			if rights |= o.Rights; rights == o.Rights {
				return
			}
		}
	}
	c.add(Object{Path: target, Rights: rights, Source: SourcePreset, Reason: entry.why}, e)
}

// nearest returns the index of the deepest object that contains path, or -1.
func (c *compiler) nearest(path string) int {
	return nearest(c.math, c.sets.Objects, path)
}

// nearest returns the index of the deepest of objects at or above path, or -1.
func nearest(m pathMath, objects []Object, path string) int {
	best := -1
	for i := range objects {
		if _, ok := m.below(objects[i].Path, path); !ok {
			continue
		}
		if best < 0 || len(objects[i].Path) > len(objects[best].Path) {
			best = i
		}
	}
	return best
}

// sameMount reports whether a grant on outer reaches inner without crossing a
// mount.
func (c *compiler) sameMount(inner, outer *Entry) bool {
	if c.policy.FollowMountPoints {
		return true
	}
	if inner.MountID != 0 && outer.MountID != 0 {
		return inner.MountID == outer.MountID
	}
	return inner.Dev == outer.Dev
}

// expand returns the paths that a preset's path stands for.
func (c *compiler) expand(pattern string) ([]string, error) {
	if !strings.Contains(pattern, "*") {
		return []string{pattern}, nil
	}
	dir, base := path.Split(pattern)
	real, _, err := c.realpath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := c.probes.ReadDir(real)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var found []string
	for _, name := range names {
		ok, err := path.Match(base, name)
		if err != nil {
			bug("preset pattern %q: %v", pattern, err)
		}
		if ok {
			found = append(found, c.math.child(real, name))
		}
	}
	return found, nil
}
