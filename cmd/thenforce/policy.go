package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/pkg/engine"
)

// policyFlags are the flags that make a policy; they are the same for every command that takes one.
type policyFlags struct {
	workspace       string
	workspaceRights string
	grants          []string
	deny            []string
	preset          string
	mode            string
	symlinks        bool
	junctions       bool
	reparsePoints   bool
	mounts          bool
	noSymlinks      bool
}

func (p *policyFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.workspace, "workspace", ".", "directory that the jail works in")
	f.StringVar(&p.workspaceRights, "workspace-rights", "rwx+u", "rights below it: ro, rx, rw, rwx, each with +u; or = and letters of rwcdxu")
	f.StringArrayVar(&p.grants, "grant", nil, "`PATH:RIGHTS` that the jail may use as well (repeatable)")
	f.StringArrayVar(&p.deny, "deny", nil, "`PATH` in the workspace that nothing may be done with (repeatable)")
	f.StringVar(&p.preset, "preset", "system", "grants that come with thenforce: system or none")
	f.StringVar(&p.mode, "mode", "enforce", "enforce, or monitor: deny nothing, record what would be")
	f.BoolVar(&p.symlinks, "follow-symlinks", false, "let check follow symbolic links that stay inside")
	f.BoolVar(&p.junctions, "follow-junctions", false, "let check follow junctions that stay inside (Windows)")
	f.BoolVar(&p.reparsePoints, "follow-reparse-points", false, "let check follow reparse points that stay inside (Windows)")
	f.BoolVar(&p.mounts, "follow-mounts", false, "let what is mounted in the workspace belong to it")
	f.BoolVar(&p.noSymlinks, "no-symlinks", false, "let the kernel refuse to follow symbolic links at all")
	complete := func(words ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return words, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, words := range map[string][]string{
		"mode": {"enforce", "monitor"}, "preset": {"system", "none"},
		"workspace-rights": {"ro", "rx", "rw", "rwx", "ro+u", "rx+u", "rw+u", "rwx+u"},
	} {
		if err := cmd.RegisterFlagCompletionFunc(flag, complete(words...)); err != nil {
			panic(err) // a flag name mistyped above
		}
	}
	if err := cmd.MarkFlagDirname("workspace"); err != nil {
		panic(err)
	}
}

// policy turns the flags into a policy. Paths that the command line gives against the working directory are made
// absolute here; --deny is against the workspace.
func (p *policyFlags) policy() (engine.Policy, error) {
	bad := func(flag, value string, err error) (engine.Policy, error) {
		return engine.Policy{}, usage(fmt.Errorf("--%s %q: %w", flag, value, err))
	}
	var out engine.Policy
	if p.workspace == "" {
		return bad("workspace", p.workspace, errors.New("it is empty: name a directory"))
	}
	workspace, err := filepath.Abs(p.workspace)
	if err != nil {
		return bad("workspace", p.workspace, err)
	}
	out.Workspace = workspace
	if out.WorkspaceRights, err = engine.ParseWorkspaceRights(p.workspaceRights); err != nil {
		return bad("workspace-rights", p.workspaceRights, err)
	}
	if err := out.Mode.UnmarshalText([]byte(p.mode)); err != nil {
		return bad("mode", p.mode, errors.New("use enforce or monitor"))
	}
	if out.Presets, err = engine.ParsePresets(p.preset); err != nil {
		return bad("preset", p.preset, err)
	}
	for _, text := range p.grants {
		grant, err := parseGrant(text)
		if err != nil {
			return bad("grant", text, err)
		}
		out.Grants = append(out.Grants, grant)
	}
	out.Deny = p.deny
	out.FollowSymlinks, out.FollowJunctions, out.FollowReparsePoints = p.symlinks, p.junctions, p.reparsePoints
	out.FollowMountPoints, out.NoSymlinks = p.mounts, p.noSymlinks
	return out, nil
}

// parseGrant splits PATH:RIGHTS at the last colon.
func parseGrant(text string) (engine.Grant, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return engine.Grant{}, errors.New("it has no rights: write PATH:RIGHTS, for example /var/cache:ro")
	}
	path, rights := text[:at], text[at+1:]
	if path == "" {
		return engine.Grant{}, errors.New("it has no path: write PATH:RIGHTS, for example /var/cache:ro")
	}
	r, err := engine.ParseRights(rights)
	if err != nil {
		return engine.Grant{}, err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return engine.Grant{}, err
	}
	return engine.Grant{Path: path, Rights: r, Source: engine.SourcePolicy}, nil
}
