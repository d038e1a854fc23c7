// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Action classes are what an expansion grants. The registry keeps any text; of
// classes it does not know [ActionRights] says that they carry no rights.
const (
	ActionReadFile   = "read_file"
	ActionListDir    = "list_dir"
	ActionSearch     = "search"
	ActionWriteFile  = "write_file"
	ActionDelete     = "delete"
	ActionRunCommand = "run_command"
)

// ActionRights returns the rights that an action class stands for. It reports
// false for a class that stands for none.
func ActionRights(class string) (Rights, bool) {
	switch class {
	case ActionReadFile, ActionListDir, ActionSearch:
		return Read, true
	case ActionWriteFile:
		return Write | Create, true
	case ActionDelete:
		return Delete, true
	case ActionRunCommand:
		return Exec, true
	}
	return None, false
}

// An Activation is the lifetime of a set of expansions: one boot of the machine
// and one jail, or binding, in it. What was granted in another one is history.
type Activation struct {
	BootID string `json:"bootId"`
	// Scope is the id of the jail or binding. It must not be used again in the
	// same boot.
	Scope string `json:"scope"`
}

// BoundaryExpansion is permission for some action classes on one resource in one
// workspace, beyond what the policy grants. It is immutable; revoking makes
// another one.
type BoundaryExpansion struct {
	ExpansionID      string     `json:"expansionId"`
	ResourceIdentity string     `json:"resourceIdentity"`
	WorkspaceID      string     `json:"workspaceId"`
	ActionClasses    []string   `json:"actionClasses"`
	Reason           string     `json:"reason"`
	CreatedAt        time.Time  `json:"createdAt"`
	ExpiresAt        *time.Time `json:"expiresAt"`
	Revoked          bool       `json:"revoked"`
	RevokedAt        *time.Time `json:"revokedAt"`

	// ResourceIdentityBytes holds the resource where it is not UTF-8.
	ResourceIdentityBytes []byte     `json:"resourceIdentityBytes,omitempty"`
	Activation            Activation `json:"activation"`
}

// Rights returns the rights of all its action classes.
func (x *BoundaryExpansion) Rights() Rights {
	var r Rights
	for _, class := range x.ActionClasses {
		rights, _ := ActionRights(class)
		r |= rights
	}
	return r
}

// expired reports whether x has expired at now: the instant itself counts.
func (x *BoundaryExpansion) expired(now time.Time) bool {
	return x.ExpiresAt != nil && !now.Before(*x.ExpiresAt)
}

// clone returns x with nothing shared.
func (x *BoundaryExpansion) clone() BoundaryExpansion {
	c := *x
	c.ActionClasses = slices.Clone(x.ActionClasses)
	c.ResourceIdentityBytes = slices.Clone(x.ResourceIdentityBytes)
	if x.ExpiresAt != nil {
		c.ExpiresAt = new(*x.ExpiresAt)
	}
	if x.RevokedAt != nil {
		c.RevokedAt = new(*x.RevokedAt)
	}
	return c
}

// ExpansionRequest is what [Registry.Grant] is asked for.
type ExpansionRequest struct {
	ResourceIdentity string
	WorkspaceID      string
	ActionClasses    []string
	Reason           string
	ExpiresAt        time.Time // zero is never
}

// Registry holds the boundary expansions of one activation, and the history of
// others. Its methods are safe for use by several goroutines.
//
// An expansion only ever adds: it grants nothing where the policy has no grant
// around, and lifts neither none nor a denied name.
type Registry struct {
	mu         sync.RWMutex
	activation Activation
	journal    *journal // nil for one that is kept in memory only
	now        func() time.Time
	byID       map[string]*BoundaryExpansion
	order      []string // the ids as they were granted: a clock may not tell them apart
}

// NewRegistry returns a registry that is kept in memory only, with the given
// expansions in it: none, or what [ReadExpansions] gave.
func NewRegistry(activation Activation, history ...BoundaryExpansion) *Registry {
	r := &Registry{activation: activation, now: time.Now, byID: make(map[string]*BoundaryExpansion)}
	for i := range history {
		x := history[i].clone()
		r.add(&x)
	}
	return r
}

// Grant records an expansion and returns it. With a journal it has reached the
// disk when Grant returns; where it has not, Grant errors and nothing is
// granted. An expiry in the past is no error: the expansion is never active.
func (r *Registry) Grant(req ExpansionRequest) (BoundaryExpansion, error) {
	if req.ResourceIdentity == "" || req.WorkspaceID == "" {
		return BoundaryExpansion{}, errors.New("grant expansion: it needs a resource and a workspace")
	}
	var id [8]byte
	rand.Read(id[:]) // never errors: see crypto/rand
	r.mu.Lock()
	defer r.mu.Unlock()
	x := BoundaryExpansion{
		ExpansionID:           hex.EncodeToString(id[:]),
		ResourceIdentity:      req.ResourceIdentity,
		ResourceIdentityBytes: pathBytes(req.ResourceIdentity),
		WorkspaceID:           req.WorkspaceID,
		ActionClasses:         append([]string{}, req.ActionClasses...),
		Reason:                req.Reason,
		CreatedAt:             r.now().UTC(),
		Activation:            r.activation,
	}
	if !req.ExpiresAt.IsZero() {
		x.ExpiresAt = new(req.ExpiresAt.UTC())
	}
	if r.journal != nil {
		if err := r.journal.append(record{Grant: &x}); err != nil {
			return BoundaryExpansion{}, fmt.Errorf("grant expansion: %w", err)
		}
	}
	r.add(&x)
	return x.clone(), nil
}

// add keeps an expansion that was granted.
func (r *Registry) add(x *BoundaryExpansion) {
	r.byID[x.ExpansionID] = x
	r.order = append(r.order, x.ExpansionID)
}

// Revoke ends an expansion for good. It reports whether it did: an unknown
// expansion, one of another activation, and one that was revoked before are not
// revoked again. It does not undo what was done under the expansion.
//
// Where the journal cannot be written Revoke errors; the expansion is revoked in
// this registry all the same, but would be back in the next.
func (r *Registry) Revoke(id string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.byID[id]
	if !ok || x.Revoked || x.Activation != r.activation {
		return false, nil
	}
	revoked := x.clone()
	revoked.Revoked, revoked.RevokedAt = true, new(r.now().UTC())
	r.byID[id] = &revoked
	if r.journal != nil {
		if err := r.journal.append(record{Revoke: &revocation{ExpansionID: id, RevokedAt: *revoked.RevokedAt}}); err != nil {
			return true, fmt.Errorf("revoke expansion %s: %w", id, err)
		}
	}
	return true, nil
}

// Get returns the expansion with the given id, of whatever activation.
func (r *Registry) Get(id string) (BoundaryExpansion, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	x, ok := r.byID[id]
	if !ok {
		return BoundaryExpansion{}, false
	}
	return x.clone(), true
}

// List returns every expansion, history included, as they were granted.
func (r *Registry) List() []BoundaryExpansion {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]BoundaryExpansion, 0, len(r.order))
	for _, id := range r.order {
		list = append(list, r.byID[id].clone())
	}
	return list
}

// IsActive reports whether the expansion is known, of this activation, neither
// revoked nor expired at now, and for exactly this resource, workspace and
// action class. Everything else is false.
func (r *Registry) IsActive(id, resourceIdentity, workspaceID, actionClass string, now time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	x, ok := r.byID[id]
	return ok && r.live(x, workspaceID, now) &&
		x.ResourceIdentity == resourceIdentity && slices.Contains(x.ActionClasses, actionClass)
}

// live reports whether x counts in a workspace at now.
func (r *Registry) live(x *BoundaryExpansion, workspaceID string, now time.Time) bool {
	return x.Activation == r.activation && x.WorkspaceID == workspaceID && !x.Revoked && !x.expired(now)
}

// around returns the active expansions on path and what contains it, down from
// the grant they add to.
func (r *Registry) around(m pathMath, grant, path, workspaceID string, now time.Time) []BoundaryExpansion {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var found []BoundaryExpansion
	for _, x := range r.byID {
		if !r.live(x, workspaceID, now) {
			continue
		}
		if _, ok := m.below(grant, x.ResourceIdentity); !ok {
			continue
		}
		if _, ok := m.below(x.ResourceIdentity, path); ok {
			found = append(found, x.clone())
		}
	}
	slices.SortFunc(found, func(a, b BoundaryExpansion) int { return cmp.Compare(a.ExpansionID, b.ExpansionID) })
	return found
}
