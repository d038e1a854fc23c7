// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strings"
)

// HardBoundaryReason says which hard boundary denied. The values are the
// seed's tokens.
type HardBoundaryReason string

const (
	BoundaryUnsafePath         HardBoundaryReason = "unsafe-path"
	BoundaryWorkspaceEscape    HardBoundaryReason = "workspace-escape"
	BoundaryHostThreatening    HardBoundaryReason = "host-threatening-command"
	BoundaryNetworkDestination HardBoundaryReason = "unallowlisted-network-destination"
	BoundaryUnverified         HardBoundaryReason = "ENFORCEMENT UNVERIFIED"
	BoundaryQuotaExceeded      HardBoundaryReason = "quota-exceeded"
	BoundaryWrongCredential    HardBoundaryReason = "wrong-credential-group"
)

// BoundaryOutcome is the answer of [CheckHardBoundary].
type BoundaryOutcome string

const (
	BoundaryAllow BoundaryOutcome = "allow"
	BoundaryDeny  BoundaryOutcome = "deny"
)

// HostThreatening is the command class that is always denied.
const HostThreatening = "host-threatening"

// BoundaryInput is what a caller is about to do, as the caller states it. In the
// fields that are pointers nil is "not stated", which is something else than an
// empty string: an empty path is the root, an empty destination is on no list.
type BoundaryInput struct {
	// WorkspaceRoot is the canonical root.
	WorkspaceRoot string `json:"workspaceRoot"`
	// CandidatePath is absolute or relative to the root.
	CandidatePath *string `json:"candidatePath,omitempty"`
	// CommandClass is how the caller classified a command.
	CommandClass *string `json:"commandClass,omitempty"`
	// NetworkDestination has to be in AllowlistedNetworkDestinations, letter
	// by letter.
	NetworkDestination             *string  `json:"networkDestination,omitempty"`
	AllowlistedNetworkDestinations []string `json:"allowlistedNetworkDestinations,omitempty"`
	// EnforcementAvailable says that enforcement is verified on this host now.
	// The zero value is that it is not.
	EnforcementAvailable bool `json:"enforcementAvailable"`
	QuotaExceeded        bool `json:"quotaExceeded,omitempty"`
	// CredentialGroup has to be ExpectedCredentialGroup, where that is stated.
	CredentialGroup         *string `json:"credentialGroup,omitempty"`
	ExpectedCredentialGroup *string `json:"expectedCredentialGroup,omitempty"`
}

// BoundaryDecision says whether a hard boundary stands in the way.
type BoundaryDecision struct {
	Outcome BoundaryOutcome `json:"outcome"`
	// Reason is set where the outcome is deny.
	Reason HardBoundaryReason `json:"reason,omitempty"`
	// ResourceIdentity is the resolved path, where a path was stated and lies
	// inside; it is set on a later reason's deny too.
	ResourceIdentity string `json:"resourceIdentity,omitempty"`
	// ResourceIdentityBytes holds it where it is not UTF-8.
	ResourceIdentityBytes []byte `json:"resourceIdentityBytes,omitempty"`
}

// CheckHardBoundary says whether a boundary that nothing can lift stands in the
// way. It takes no mode and no profile, so that none can change the answer. The
// reasons are tried in the order of their constants and the first that applies
// is given.
//
// It judges what the caller states and looks at no file: the path as text, as
// [Resolve] does, after refusing what is not safe to interpret. Network, quota,
// credential and command class are decisions on stated facts; nothing in this
// module enforces them.
func CheckHardBoundary(in BoundaryInput) BoundaryDecision {
	var d BoundaryDecision
	if in.CandidatePath != nil {
		var reason HardBoundaryReason
		if d.ResourceIdentity, reason = boundaryPath(in.WorkspaceRoot, *in.CandidatePath); reason != "" {
			return BoundaryDecision{Outcome: BoundaryDeny, Reason: reason}
		}
		d.ResourceIdentityBytes = pathBytes(d.ResourceIdentity)
	}
	switch {
	case in.CommandClass != nil && *in.CommandClass == HostThreatening:
		d.Reason = BoundaryHostThreatening
	case in.NetworkDestination != nil && !slices.Contains(in.AllowlistedNetworkDestinations, *in.NetworkDestination):
		d.Reason = BoundaryNetworkDestination
	case !in.EnforcementAvailable:
		d.Reason = BoundaryUnverified
	case in.QuotaExceeded:
		d.Reason = BoundaryQuotaExceeded
	case in.ExpectedCredentialGroup != nil && (in.CredentialGroup == nil || *in.CredentialGroup != *in.ExpectedCredentialGroup):
		d.Reason = BoundaryWrongCredential
	}
	d.Outcome = BoundaryAllow
	if d.Reason != "" {
		d.Outcome = BoundaryDeny
	}
	return d
}

// boundaryPath returns the resolved path, or the reason why there is none.
func boundaryPath(root, candidate string) (string, HardBoundaryReason) {
	m := mathFor(root)
	clean, ok := m.clean(root)
	if !ok || strings.IndexByte(root, 0) >= 0 || safe(m, candidate) != nil {
		return "", BoundaryUnsafePath
	}
	resolved, _, ok := m.resolve(clean, candidate)
	if !ok {
		return "", BoundaryWorkspaceEscape
	}
	return resolved, ""
}
