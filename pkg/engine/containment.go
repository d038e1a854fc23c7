// SPDX-License-Identifier: Apache-2.0

package engine

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
)

// ContainmentOptions are what a walk may follow. The zero value follows nothing.
type ContainmentOptions struct {
	FollowSymlinks      bool `json:"followSymlinks,omitempty"`
	FollowJunctions     bool `json:"followJunctions,omitempty"`
	FollowMountPoints   bool `json:"followMountPoints,omitempty"`
	FollowReparsePoints bool `json:"followReparsePoints,omitempty"`
}
