// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/thenforce/thenforce/internal/rpc"
	"github.com/thenforce/thenforce/pkg/engine"
)

// policyParams are a policy as a policy file has it. A relative workspace starts from the engine's working directory,
// other relative paths from the workspace. There are no resources: no answer of the engine depends on them.
type policyParams struct {
	Version         int          `json:"version"`
	Workspace       string       `json:"workspace"`
	WorkspaceRights *string      `json:"workspaceRights"`
	Mode            engine.Mode  `json:"mode"`
	Follow          followParams `json:"follow"`
	Symlinks        string       `json:"symlinks"`
	// Presets is [system] where it is absent, as on the command line.
	Presets *[]string      `json:"presets"`
	Grants  []policyGrants `json:"grants"`
	Deny    []string       `json:"deny"`
}

type followParams struct {
	Symlinks      bool `json:"symlinks"`
	MountPoints   bool `json:"mountPoints"`
	Junctions     bool `json:"junctions"`
	ReparsePoints bool `json:"reparsePoints"`
}

type policyGrants struct {
	Path     string         `json:"path"`
	Rights   *engine.Rights `json:"rights"`
	Reason   string         `json:"reason"`
	Expires  string         `json:"expires"`
	Optional bool           `json:"optional"`
}

// policy makes the engine's policy of p; durations count from now.
func (p *policyParams) policy(now time.Time) (engine.Policy, *rpc.Error) {
	var out engine.Policy
	switch {
	case p == nil:
		return out, rpc.InvalidParams("the parameter policy is missing")
	case p.Version != 0 && p.Version != 1:
		return out, rpc.InvalidParams("policy.version %d is not known: use 1", p.Version)
	case p.Workspace == "":
		return out, rpc.InvalidParams("policy.workspace is missing: name a directory")
	}
	workspace, err := filepath.Abs(p.Workspace)
	if err != nil {
		return out, &rpc.Error{Code: rpcPolicy, Message: err.Error()}
	}
	out = engine.Policy{
		Workspace: workspace, Mode: p.Mode, Deny: p.Deny, Presets: []engine.Preset{engine.PresetSystem},
		FollowSymlinks: p.Follow.Symlinks, FollowMountPoints: p.Follow.MountPoints,
		FollowJunctions: p.Follow.Junctions, FollowReparsePoints: p.Follow.ReparsePoints,
	}
	if p.WorkspaceRights != nil {
		if out.WorkspaceRights, err = engine.ParseWorkspaceRights(*p.WorkspaceRights); err != nil {
			return out, rpc.InvalidParams("policy.workspaceRights: %v", err)
		}
	}
	switch p.Symlinks {
	case "", "judge":
	case "refuse":
		out.NoSymlinks = true
	default:
		return out, rpc.InvalidParams("policy.symlinks %q: use judge or refuse", p.Symlinks)
	}
	if p.Presets != nil {
		out.Presets = nil
		for i, name := range *p.Presets {
			presets, err := engine.ParsePresets(name)
			if err != nil {
				return out, rpc.InvalidParams("policy.presets[%d]: %v", i, err)
			}
			out.Presets = append(out.Presets, presets...)
		}
	}
	for i, g := range p.Grants {
		if g.Path == "" || g.Rights == nil {
			return out, rpc.InvalidParams("policy.grants[%d] needs a path and rights", i)
		}
		expires, err := parseExpires(g.Expires, now)
		if err != nil {
			return out, rpc.InvalidParams("policy.grants[%d].expires %q: %v", i, g.Expires, err)
		}
		out.Grants = append(out.Grants, engine.Grant{Path: g.Path, Rights: *g.Rights, Reason: g.Reason, Expires: expires, Optional: g.Optional})
	}
	return out, nil
}

// parseExpires reads a duration from now on, or an instant; "" is never.
func parseExpires(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		if d <= 0 {
			return time.Time{}, errors.New("use a duration above 0")
		}
		return now.Add(d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, errors.New("use a duration such as 2h, or an instant such as 2030-01-02T15:04:05Z")
	}
	return t, nil
}
