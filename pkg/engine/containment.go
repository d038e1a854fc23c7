// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Outcome is the engine's answer to whether a path may be used.
type Outcome string

const (
	// Allowed: the target is safely within the workspace.
	Allowed Outcome = "allowed"
	// Denied: the target lies outside, or a link or boundary on the way is not
	// to be followed.
	Denied Outcome = "denied"
	// Conflict: the target is within, but what it is cannot be confirmed
	// without contradiction.
	Conflict Outcome = "conflict"
	// EnforcementUnverified: what would have to be looked at cannot be.
	EnforcementUnverified Outcome = "enforcement-unverified"
)

// rank orders outcomes by which one stands when a walk meets several.
func (o Outcome) rank() int {
	switch o {
	case Allowed:
		return 0
	case Conflict:
		return 1
	case EnforcementUnverified:
		return 2
	}
	return 3
}

// Code says why, as a stable token. The set only grows.
type Code string

const (
	CodeWithin              Code = "within"
	CodeNoProbe             Code = "no-probe"
	CodeMountTable          Code = "mount-table-unavailable"
	CodeBindingBlocked      Code = "binding-blocked"
	CodeNULInPath           Code = "nul-in-path"
	CodeUnsafePath          Code = "unsafe-path"
	CodeOutside             Code = "outside"
	CodeRootChanged         Code = "root-changed"
	CodeSymlink             Code = "symlink"
	CodeJunction            Code = "junction"
	CodeReparsePoint        Code = "reparse-point"
	CodeMountPoint          Code = "mount-point"
	CodeMagicLink           Code = "magic-link"
	CodeLinkLoop            Code = "link-loop"
	CodeLinkEscape          Code = "link-escape"
	CodeDeviceChanged       Code = "device-changed"
	CodeMountDeviceMismatch Code = "mount-device-mismatch"
	CodeMissingComponent    Code = "missing-component"
	CodeNotDirectory        Code = "not-directory"
	CodeInspectFailed       Code = "inspect-failed"
	CodeDeniedName          Code = "denied-name"
	CodeRights              Code = "rights"
	CodeRightsGain          Code = "rights-gain"
	CodeHardBoundary        Code = "hard-boundary"
)

// codes holds every code in the order in which they came to be.
var codes = [...]Code{
	CodeWithin,
	CodeNoProbe,
	CodeMountTable,
	CodeBindingBlocked,
	CodeNULInPath,
	CodeUnsafePath,
	CodeOutside,
	CodeRootChanged,
	CodeSymlink,
	CodeJunction,
	CodeReparsePoint,
	CodeMountPoint,
	CodeMagicLink,
	CodeLinkLoop,
	CodeLinkEscape,
	CodeDeviceChanged,
	CodeMountDeviceMismatch,
	CodeMissingComponent,
	CodeNotDirectory,
	CodeInspectFailed,
	CodeDeniedName,
	CodeRights,
	CodeRightsGain,
	CodeHardBoundary,
}

// Codes returns every code.
func Codes() []Code { return slices.Clone(codes[:]) }

// ContainmentOptions are what a walk may follow. The zero value follows nothing.
type ContainmentOptions struct {
	FollowSymlinks      bool `json:"followSymlinks,omitempty"`
	FollowJunctions     bool `json:"followJunctions,omitempty"`
	FollowMountPoints   bool `json:"followMountPoints,omitempty"`
	FollowReparsePoints bool `json:"followReparsePoints,omitempty"`
}

// ContainmentDecision is the answer of [CheckContainment].
type ContainmentDecision struct {
	Outcome Outcome
	Code    Code
	// Reason is a sentence for the reader.
	Reason string
	// ResolvedPath is the canonical absolute path after links, for the
	// outcomes allowed and conflict; "" (null in JSON) for the others.
	ResolvedPath string
}

// CheckContainment says whether target, absolute or relative to the workspace,
// lies safely within it. It walks every component from the root to the target,
// inspecting each once, and follows only what options allow.
//
//   - allowed: within. The target itself need not exist, its parents must.
//   - denied: outside, or a link, boundary or non-directory stands in the way.
//   - conflict: within, but the root is not the directory that was bound any
//     more, or a device changes where no mount explains it.
//   - enforcement-unverified: something could not be looked at.
//
// A walk that meets several reasons answers with the worst: denied before
// enforcement-unverified before conflict. The code says which.
//
// Names are taken away by ".." in target before the walk, as text; in the
// target of a link they are taken as the kernel takes them. A check says what
// was true while it looked: whoever acts on it opens ResolvedPath without
// following links and compares what it got ([Walk] has the identities), as
// pkg/fallback does.
//
// On Linux probes must have a mount table. A nil probes is answered with
// enforcement-unverified.
func CheckContainment(workspace WorkspaceIdentity, target string, options ContainmentOptions, probes Probes) ContainmentDecision {
	w := walker{workspace: workspace, options: options, probes: probes, sweep: true}
	w.run(target)
	return w.decision
}

// A Walk is what one containment check saw.
type Walk struct {
	Decision ContainmentDecision
	// Root is the workspace's root, Parent the directory that holds the
	// target, Object the target, where the outcome is allowed or conflict. The
	// object is zero where it does not exist, the parent where the target is
	// the root or [Locate] found the object without looking at its parents.
	Root, Parent, Object ObjectID
	// Kind is what the target is, if it exists.
	Kind Kind
	// Missing is set where the target does not exist and everything before it
	// does.
	Missing bool
	// Steps are what was looked at, in order, the root first.
	Steps []Step
}

// An ObjectID says which object was seen. The zero value is none.
type ObjectID struct {
	Dev           mountmap.StatDev
	Ino, InoHigh  uint64
	Generation    uint64
	HasGeneration bool
	MountID       uint64
	UniqueMountID bool
}

// ID returns the identity of the object.
func (e *Entry) ID() ObjectID {
	return ObjectID{
		Dev: e.Dev, Ino: e.Ino, InoHigh: e.InoHigh,
		Generation: e.Generation, HasGeneration: e.HasGeneration,
		MountID: e.MountID, UniqueMountID: e.UniqueMountID,
	}
}

// Known reports whether id says which object it is.
func (id ObjectID) Known() bool { return id.Ino != 0 || id.InoHigh != 0 }

// Same reports whether both are one object, reached on one mount as far as both
// know. Unknown objects are never the same.
func (id ObjectID) Same(o ObjectID) bool {
	if !id.Known() || id.Dev != o.Dev || id.Ino != o.Ino || id.InoHigh != o.InoHigh {
		return false
	}
	if id.HasGeneration && o.HasGeneration && id.Generation != o.Generation {
		return false
	}
	return id.MountID == 0 || o.MountID == 0 || id.UniqueMountID != o.UniqueMountID || id.MountID == o.MountID
}

// A Step is one component of a walk, for explain.
type Step struct {
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Missing is set where nothing is at Path, or it could not be inspected.
	Missing bool `json:"missing,omitempty"`
	// Target is where a link leads, if it was followed.
	Target string   `json:"target,omitempty"`
	ID     ObjectID `json:"id"`
	// Mount is the mount point of the mount that Path lies on, where known.
	Mount string `json:"mount,omitempty"`
	// Code is CodeWithin where the walk went on without objection; else it
	// says what was found here, with Reason as a sentence.
	Code   Code   `json:"code"`
	Reason string `json:"reason,omitempty"`
	// PathBytes holds Path where it is not UTF-8.
	PathBytes []byte `json:"pathBytes,omitempty"`
}

// WalkContainment is [CheckContainment] with everything that was seen.
func WalkContainment(workspace WorkspaceIdentity, target string, options ContainmentOptions, probes Probes) Walk {
	var steps []Step
	w := walker{workspace: workspace, options: options, probes: probes, steps: &steps}
	w.run(target)
	walk := w.result()
	walk.Steps = steps
	return walk
}

// Locate is [CheckContainment] with the identity of what was found, for somebody
// who is to open it. It asks a [Sweeper] first too, so there are no steps, and
// there is a parent only where the target is missing or was walked to.
func Locate(workspace WorkspaceIdentity, target string, options ContainmentOptions, probes Probes) Walk {
	w := walker{workspace: workspace, options: options, probes: probes, sweep: true}
	w.run(target)
	return w.result()
}

// result returns what a walk without steps saw.
func (w *walker) result() Walk {
	walk := Walk{Decision: w.decision, Missing: w.missing}
	switch w.decision.Outcome {
	case Allowed, Conflict:
		object, parent := w.seen()
		walk.Root, walk.Parent, walk.Object, walk.Kind = w.level(0).id, parent.id, object.id, object.kind
	}
	return walk
}
