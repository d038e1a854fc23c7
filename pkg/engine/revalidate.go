// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// RevalidationReason says what changed. The values are the seed's tokens.
type RevalidationReason string

const (
	ResourceIdentityChanged  RevalidationReason = "resource-identity-changed"
	WorkspaceIdentityChanged RevalidationReason = "workspace-identity-changed"
	EnforcementStateChanged  RevalidationReason = "enforcement-state-changed"
)

// BoundarySnapshot is what a decision was based on. Two of them, one from when
// it was made and one from just before its effect, tell whether it still holds.
type BoundarySnapshot struct {
	// ResourceIdentity is the resolved path, nil where the decision was about
	// no path or the path had none.
	ResourceIdentity *string `json:"resourceIdentity,omitempty"`
	// ResourceIdentityBytes holds it where it is not UTF-8.
	ResourceIdentityBytes []byte `json:"resourceIdentityBytes,omitempty"`
	WorkspaceID           string `json:"workspaceId"`
	EnforcementAvailable  bool   `json:"enforcementAvailable"`
	// Live is which object was there, nil where nobody looked.
	Live *LiveIdentity `json:"live,omitempty"`
}

// LiveIdentity is the state of the object behind a resolved path.
type LiveIdentity struct {
	// Object is the object itself, zero where it does not exist; Parent the
	// directory that holds it, or would.
	Object  ObjectID `json:"object"`
	Parent  ObjectID `json:"parent"`
	Missing bool     `json:"missing,omitempty"`
	// ChangeTime is when the object's inode last changed: its content, its
	// attributes, its names.
	ChangeTime time.Time `json:"changeTime,omitzero"`
}

// RevalidationResult is the answer of [Revalidate].
type RevalidationResult struct {
	Stale  bool               `json:"stale"`
	Reason RevalidationReason `json:"reason,omitempty"`
}

// Snapshot walks to target as [WalkContainment] does and records what it found:
// the resolved path, if there is one, and the object's device, inode, generation
// where known, mount id and change time. The decision of the walk is returned
// with it.
func Snapshot(workspace WorkspaceIdentity, target string, options ContainmentOptions, enforcementAvailable bool, probes Probes) (BoundarySnapshot, ContainmentDecision) {
	// Not swept: the parent's identity belongs to the snapshot.
	w := walker{workspace: workspace, options: options, probes: probes}
	w.run(target)
	s := BoundarySnapshot{WorkspaceID: workspace.WorkspaceID, EnforcementAvailable: enforcementAvailable}
	if w.decision.ResolvedPath != "" {
		s.ResourceIdentity = &w.decision.ResolvedPath
		s.ResourceIdentityBytes = pathBytes(w.decision.ResolvedPath)
		object, parent := w.seen()
		s.Live = &LiveIdentity{
			Object:  w.withGeneration(object.id, w.decision.ResolvedPath),
			Parent:  w.withGeneration(parent.id, w.math.parent(w.decision.ResolvedPath)),
			Missing: w.missing,
		}
		if object.changed != 0 {
			s.Live.ChangeTime = time.Unix(0, object.changed).UTC()
		}
	}
	return s, w.decision
}

// withGeneration adds the generation to what was seen at path. Where it cannot be
// had it stays unknown, which is another identity than a known one.
func (w *walker) withGeneration(id ObjectID, path string) ObjectID {
	e := Entry{HasGeneration: id.HasGeneration || !id.Known(), Generation: id.Generation}
	if err := identify(w.probes, path, &e); err == nil && id.Known() {
		id.Generation, id.HasGeneration = e.Generation, e.HasGeneration
	}
	return id
}

// Revalidate says whether a decision based on original has gone stale. Any
// difference does that, the improvement of something too: what was decided was
// decided about another state. Where several things changed the reason is the
// first of resource, workspace, enforcement.
//
// A live identity that only one of the two has is a difference: what cannot be
// compared is not the same.
func Revalidate(original, current BoundarySnapshot) RevalidationResult {
	switch {
	case !original.sameResource(&current):
		return RevalidationResult{true, ResourceIdentityChanged}
	case original.WorkspaceID != current.WorkspaceID:
		return RevalidationResult{true, WorkspaceIdentityChanged}
	case original.EnforcementAvailable != current.EnforcementAvailable:
		return RevalidationResult{true, EnforcementStateChanged}
	}
	return RevalidationResult{}
}

func (s *BoundarySnapshot) sameResource(o *BoundarySnapshot) bool {
	if (s.ResourceIdentity == nil) != (o.ResourceIdentity == nil) {
		return false
	}
	if s.ResourceIdentity != nil && pathFrom(*s.ResourceIdentity, s.ResourceIdentityBytes) != pathFrom(*o.ResourceIdentity, o.ResourceIdentityBytes) {
		return false
	}
	return s.Live.same(o.Live)
}

func (l *LiveIdentity) same(o *LiveIdentity) bool {
	if l == nil || o == nil {
		return l == o
	}
	return l.Object == o.Object && l.Parent == o.Parent && l.Missing == o.Missing && l.ChangeTime.Equal(o.ChangeTime)
}
