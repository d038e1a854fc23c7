// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"
)

// Mode says whether a verdict is carried out. The engine's answers do not
// depend on it.
type Mode uint8

const (
	// Enforce denies what is not granted. It is the zero value.
	Enforce Mode = iota
	// Monitor denies nothing and records what would have been denied.
	Monitor
)

var modeNames = [...]string{Enforce: "enforce", Monitor: "monitor"}

// String returns "enforce" or "monitor".
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// MarshalText writes "enforce" or "monitor", and errors for any other value.
func (m Mode) MarshalText() ([]byte, error) {
	if int(m) >= len(modeNames) {
		return nil, fmt.Errorf("write mode %d: want enforce or monitor", uint8(m))
	}
	return []byte(modeNames[m]), nil
}

// UnmarshalText reads "enforce" or "monitor".
func (m *Mode) UnmarshalText(text []byte) error {
	for mode, name := range modeNames {
		if string(text) == name {
			*m = Mode(mode)
			return nil
		}
	}
	return fmt.Errorf("parse mode %q: want enforce or monitor", text)
}

// Source says where a grant comes from.
type Source string

const (
	SourceWorkspace Source = "workspace" // the workspace itself
	SourcePolicy    Source = "policy"    // the policy file or a --grant
	SourcePreset    Source = "preset"    // a preset's table
	SourceExpansion Source = "expansion" // an active expansion
	SourceStdio     Source = "stdio"     // a file behind descriptors 0 to 2
)

// A Grant is one tree or one file that a jail may use.
type Grant struct {
	// Path is absolute, or relative to the workspace. Links in it are followed
	// once, when the policy is compiled.
	Path string
	// Rights apply to the object and everything below it, up to a grant
	// further down. The zero value is none: deny.
	Rights Rights
	// Source is where the grant comes from; "" is SourcePolicy.
	Source Source
	// Reason is for the reader, who sees it in listings.
	Reason string
	// Expires is the instant from which on the grant is none; the zero time
	// is never.
	Expires time.Time
	// Optional skips the grant, with a notice, where Path does not exist. A
	// missing path is an error otherwise.
	Optional bool
}

// A Policy is what a jail may do, before any path in it has been looked at. Its
// zero value, apart from the workspace, is the strict choice in every field. A
// Policy is not changed once compiled.
type Policy struct {
	// Workspace is the root the jail works in: absolute, or relative to the
	// working directory. It must be an existing directory.
	Workspace string
	// WorkspaceRights are the rights below Workspace. Zero means
	// DefaultWorkspaceRights, so none cannot be said here; read a user's text
	// with ParseWorkspaceRights, which refuses it.
	WorkspaceRights Rights
	// Mode is not looked at by the engine.
	Mode Mode

	// FollowSymlinks, FollowJunctions and FollowReparsePoints are for the
	// engine's answers only: the kernel judges the object that is reached.
	FollowSymlinks      bool
	FollowJunctions     bool
	FollowReparsePoints bool
	// FollowMountPoints also lets the kernel cross mounts below a grant.
	FollowMountPoints bool

	// NoSymlinks makes the kernel refuse to follow symbolic links at all.
	NoSymlinks bool

	// Presets are tables of grants that come with the engine.
	Presets []Preset
	// Grants are added to the workspace. Of two that contain a path the
	// deeper one counts, alone.
	Grants []Grant
	// Deny are names below the workspace that nothing may be done with,
	// whether they exist or not: absolute, or relative to the workspace.
	Deny []string
}

// Options returns what the policy lets the walk follow.
func (p *Policy) Options() ContainmentOptions {
	return ContainmentOptions{
		FollowSymlinks:      p.FollowSymlinks,
		FollowJunctions:     p.FollowJunctions,
		FollowMountPoints:   p.FollowMountPoints,
		FollowReparsePoints: p.FollowReparsePoints,
	}
}

// An Object is a grant whose path has been looked at.
type Object struct {
	// Path is absolute, without links, as of compiling.
	Path string
	// Rights are what is granted. None takes away what a wider object grants.
	Rights  Rights
	Source  Source
	Reason  string
	Expires time.Time
	// Kind is what was found at Path.
	Kind Kind
}

// AllowedSets is a compiled policy: everything a backend needs to know to
// enforce it, and nothing it still has to interpret.
type AllowedSets struct {
	Workspace WorkspaceIdentity
	Mode      Mode
	// Objects holds the workspace first, then the grants in the order of the
	// policy, then what the presets add. No two of them are the same object.
	// For a path, the deepest one that contains it counts.
	Objects []Object
	// Deny are absolute paths below the workspace, without links in what
	// exists of their parents.
	Deny []string
	// Folding are the directories that hold a denied name and match names
	// whatever their case, so that more names are denied there than Deny says.
	Folding []string
	// Options are what the engine's walk may follow.
	Options ContainmentOptions
	// FollowMounts and NoSymlinks are for the kernel.
	FollowMounts bool
	NoSymlinks   bool
	// Notices are sentences for the user: what was skipped, merged, replaced.
	Notices []string
}
