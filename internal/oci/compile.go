package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/thenforce/thenforce/pkg/engine"
)

// Compile looks at the container through probes, whose root is the container's, and gives what the host's policy and the
// container's annotations allow in it.
//
// The files of a container are its author's. So no path of the policy may lead through a symbolic link, by which the author
// would choose what is granted, and of a preset what a link leads to counts only where it lies on the container's own root
// file system and not on a volume.
func (s Settings) Compile(p engine.Policy, probes engine.Probes) (engine.AllowedSets, error) {
	var none engine.AllowedSets
	p, err := s.withMode(p)
	if err != nil {
		return none, err
	}
	if p, err = s.withWorkspace(p, probes); err != nil {
		return none, err
	}
	for _, name := range append([]string{p.Workspace}, grantPaths(p)...) {
		if err := refuseLinks(name, probes); err != nil {
			return none, err
		}
	}
	sets, err := engine.Compile(p, probes)
	if err != nil {
		return none, err
	}
	return withoutForeignPresets(sets, p.Presets, probes)
}

func (s Settings) withMode(p engine.Policy) (engine.Policy, error) {
	if s.mode == "" {
		return p, nil
	}
	var mode engine.Mode
	if err := mode.UnmarshalText([]byte(s.mode)); err != nil {
		return p, &AnnotationError{Mode, s.mode, errors.New("use enforce or monitor")}
	}
	if mode == engine.Monitor && p.Mode != engine.Monitor && !s.allows(Mode) {
		return p, &AnnotationError{Mode, s.mode, widens("the host's policy enforces")}
	}
	p.Mode = mode
	return p, nil
}

func (s Settings) withWorkspace(p engine.Policy, probes engine.Probes) (engine.Policy, error) {
	switch {
	case s.workspace == "" && p.Workspace != "":
		return p, nil
	case s.workspace == "":
		return p, fmt.Errorf("annotation %s%s is missing: it has to name a directory of the container, as the host's policy %q names none",
			annotationPrefix, Workspace, s.Policy)
	case !path.IsAbs(s.workspace):
		return p, &AnnotationError{Workspace, s.workspace, errors.New("is no absolute path of the container")}
	}
	asked := path.Clean(s.workspace)
	if s.allows(Workspace) || asked == path.Clean(p.Workspace) {
		p.Workspace = asked
		return p, nil
	}
	if p.Workspace == "" {
		return p, &AnnotationError{Workspace, s.workspace, widens("the host decides which directory is the workspace")}
	}
	narrow, err := narrow(p, asked, probes)
	if err != nil {
		return p, &AnnotationError{Workspace, s.workspace, err}
	}
	return narrow, nil
}

// narrow makes a directory inside the policy's workspace the workspace. Nothing is allowed afterwards that was not before.
func narrow(p engine.Policy, workspace string, probes engine.Probes) (engine.Policy, error) {
	wide, err := engine.Compile(p, probes)
	if err != nil {
		return p, err
	}
	root := wide.Workspace.CanonicalRoot
	if !contains(root, workspace) {
		return p, widens("it lies outside the host's " + root)
	}
	// Inside another grant it would have the workspace's rights, and inside a denied name any at all.
	if o, err := innermost(wide.Objects[1:], root, workspace, probes); err != nil {
		return p, err
	} else if o != nil {
		return p, widens(fmt.Sprintf("it lies in %s, for which the host has rights of its own", o.Path))
	}
	var deny []string
	for _, name := range wide.Deny {
		switch {
		case contains(name, workspace):
			return p, widens(fmt.Sprintf("it lies in %s, which the host denies", name))
		case contains(workspace, name):
			deny = append(deny, name)
		case slices.ContainsFunc(wide.Objects[1:], func(o engine.Object) bool { return o.Rights != 0 && contains(o.Path, name) }):
			// Only names in the workspace can be denied, and a grant would now lead to this one.
			return p, widens(fmt.Sprintf("the host denies %s, which would not be in it", name))
		}
	}
	p.Deny = deny
	p.Grants = slices.Clone(p.Grants)
	for i := range p.Grants {
		if !path.IsAbs(p.Grants[i].Path) {
			p.Grants[i].Path = path.Join(root, p.Grants[i].Path)
		}
	}
	p.Workspace = workspace
	return p, nil
}

// innermost returns the object that is name or a directory between root and it, by whatever path the policy knows it; nil
// where there is none.
func innermost(objects []engine.Object, root, name string, probes engine.Probes) (*engine.Object, error) {
	for at := name; at != root; at = path.Dir(at) {
		e, err := probes.Inspect(at)
		if err != nil {
			return nil, err
		}
		for i := range objects {
			o, err := probes.Inspect(objects[i].Path)
			if err != nil {
				return nil, err
			}
			if e.SameObject(&o) {
				return &objects[i], nil
			}
		}
	}
	return nil, nil
}

func contains(dir, name string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// grantPaths are the paths that the policy grants, as absolute ones.
func grantPaths(p engine.Policy) []string {
	var names []string
	for _, g := range p.Grants {
		name := g.Path
		if !path.IsAbs(name) {
			name = path.Join(p.Workspace, name)
		}
		names = append(names, name)
	}
	return names
}

// refuseLinks says which component of a path is a symbolic link. What is missing is none.
func refuseLinks(name string, probes engine.Probes) error {
	at := ""
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		if part == "" {
			continue
		}
		at += "/" + part
		e, err := probes.Inspect(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Kind == engine.KindSymlink {
			target, err := probes.ReadLink(at)
			if err != nil {
				target = "?"
			}
			return fmt.Errorf("%s: %s is a symbolic link in the container, to %s: the policy has to name what is meant itself", name, at, target)
		}
	}
	return nil
}

// sameMount reports whether two objects lie on one mount. Without mount ids the devices have to do.
func sameMount(a, b *engine.Entry) bool {
	if a.MountID != 0 && b.MountID != 0 {
		return a.MountID == b.MountID
	}
	return a.Dev == b.Dev
}

// withoutForeignPresets drops what a preset grants on another mount than the container's root, unless it is that very
// path that the preset names: /etc/hosts is mounted by every runtime, but a link /lib to a volume is the author's idea.
func withoutForeignPresets(sets engine.AllowedSets, presets []engine.Preset, probes engine.Probes) (engine.AllowedSets, error) {
	root, err := probes.Inspect("/")
	if err != nil {
		return sets, err
	}
	var named []string
	for _, preset := range presets {
		named = append(named, preset.Paths()...)
	}
	kept := sets.Objects[:0:0]
	for _, o := range sets.Objects {
		if o.Source == engine.SourcePreset && o.Rights != engine.None && !slices.Contains(named, o.Path) {
			e, err := probes.Inspect(o.Path)
			if err != nil {
				return sets, err
			}
			if !sameMount(&e, &root) {
				sets.Notices = append(sets.Notices, fmt.Sprintf("preset: %s is left out: a link leads to it, and it is not on the container's root file system", o.Path))
				continue
			}
		}
		kept = append(kept, o)
	}
	sets.Objects = kept
	return sets, nil
}
