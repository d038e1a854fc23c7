package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/thenforce/thenforce/internal/policyfile"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

// policyFlags are the flags that make a policy; they are the same for every command that takes one.
type policyFlags struct {
	file            string
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

	given func(flag string) bool // whether the command line has it
}

// policy is what the flags, and the policy file they name, come to.
type policy struct {
	engine.Policy
	resources policyfile.Resources
	file      *policyfile.File // nil where none is named
}

// compile looks at the policy's paths.
func (p *policy) compile(probes engine.Probes) (engine.AllowedSets, error) {
	sets, err := engine.Compile(p.Policy, probes)
	if err != nil {
		err = p.locate(err)
	}
	return sets, err
}

// locate says where what is wrong with a policy was written: a line of the file, or a flag.
func (p *policy) locate(err error) error {
	inFile := 0
	if p.file != nil {
		err = p.file.Locate(err)
		inFile = len(p.file.Grants)
	}
	var policy *engine.PolicyError
	if !errors.As(err, &policy) || policy.Source != "" {
		return err
	}
	for i := inFile; i < len(p.Grants); i++ {
		if policy.Field == fmt.Sprintf("grants[%d].path", i) {
			located := *policy
			located.Field = "--grant"
			return &located
		}
	}
	return err
}

// compileHere is compile with probes of this machine.
func (p *policy) compileHere() (engine.AllowedSets, error) {
	probes, err := fallback.NewProbes()
	if err != nil {
		return engine.AllowedSets{}, err
	}
	defer probes.Close()
	return p.compile(probes)
}

// anyGiven names a flag of the policy that the command line has, or none.
func (p *policyFlags) anyGiven() string {
	for _, flag := range []string{
		"policy", "workspace", "workspace-rights", "grant", "deny", "preset", "mode", "follow-symlinks", "follow-junctions",
		"follow-reparse-points", "follow-mounts", "no-symlinks",
	} {
		if p.given(flag) {
			return flag
		}
	}
	return ""
}

func (p *policyFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	p.given = f.Changed
	f.StringVar(&p.file, "policy", "", "read the policy from `FILE` (YAML); other flags replace its values and add to its lists")
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

// policy reads the policy file, if one is named, and turns it and the flags into a policy. What the command line says
// replaces the file's scalars and is appended to its lists; --preset replaces the list of presets. Paths that the
// command line gives against the working directory are made absolute here; --deny is against the workspace.
func (p *policyFlags) policy() (*policy, error) {
	out := &policy{}
	if p.file != "" {
		var err error
		if out.file, err = policyfile.Read(p.file); err != nil {
			return nil, err
		}
		if err := out.take(out.file, time.Now()); err != nil {
			return nil, err
		}
	}
	counts := func(flag string, inFile bool) bool { return !inFile || p.given(flag) }
	file := out.file
	if file == nil {
		file = &policyfile.File{}
	}
	bad := func(flag, value string, err error) (*policy, error) {
		return nil, usage(fmt.Errorf("--%s %q: %w", flag, value, err))
	}
	if counts("workspace", file.Workspace != nil) {
		if p.workspace == "" {
			return bad("workspace", p.workspace, errors.New("it is empty: name a directory"))
		}
		workspace, err := filepath.Abs(p.workspace)
		if err != nil {
			return bad("workspace", p.workspace, err)
		}
		out.Workspace = workspace
	}
	if counts("workspace-rights", file.WorkspaceRights != nil) {
		var err error
		if out.WorkspaceRights, err = engine.ParseWorkspaceRights(p.workspaceRights); err != nil {
			return bad("workspace-rights", p.workspaceRights, err)
		}
	}
	if counts("mode", file.Mode != nil) {
		if err := out.Mode.UnmarshalText([]byte(p.mode)); err != nil {
			return bad("mode", p.mode, errors.New("use enforce or monitor"))
		}
	}
	if counts("preset", file.Presets != nil) {
		var err error
		if out.Presets, err = engine.ParsePresets(p.preset); err != nil {
			return bad("preset", p.preset, err)
		}
	}
	for _, text := range p.grants {
		grant, err := parseGrant(text)
		if err != nil {
			return bad("grant", text, err)
		}
		out.Grants = append(out.Grants, grant)
	}
	out.Deny = append(out.Deny, p.deny...)
	for _, flag := range []struct {
		name       string
		value      bool
		to, inFile *bool
	}{
		{"follow-symlinks", p.symlinks, &out.FollowSymlinks, file.Follow.Symlinks},
		{"follow-junctions", p.junctions, &out.FollowJunctions, file.Follow.Junctions},
		{"follow-reparse-points", p.reparsePoints, &out.FollowReparsePoints, file.Follow.ReparsePoints},
		{"follow-mounts", p.mounts, &out.FollowMountPoints, file.Follow.MountPoints},
		{"no-symlinks", p.noSymlinks, &out.NoSymlinks, file.NoSymlinks},
	} {
		*flag.to = flag.value
		if !counts(flag.name, flag.inFile != nil) {
			*flag.to = *flag.inFile
		}
	}
	return out, nil
}

// take makes what a file says the policy. Times from now on count from now.
func (p *policy) take(f *policyfile.File, now time.Time) error {
	workspace, err := f.WorkspacePath()
	if err != nil {
		return err
	}
	p.Workspace = workspace
	p.resources = f.Resources
	if f.WorkspaceRights != nil {
		p.WorkspaceRights = *f.WorkspaceRights
	}
	if f.Mode != nil {
		p.Mode = *f.Mode
	}
	if f.Presets != nil {
		p.Presets = *f.Presets
	}
	for _, g := range f.Grants {
		p.Grants = append(p.Grants, engine.Grant{
			Path: g.Path, Rights: g.Rights, Source: engine.SourcePolicy, Reason: g.Reason, Expires: g.Expires.From(now), Optional: g.Optional,
		})
	}
	p.Deny = f.Deny
	return nil
}

// refuseResources is for the commands that limit nothing: a limit in a policy is an error there, not a silent no-op.
func (p *policy) refuseResources() error {
	if p.resources == (policyfile.Resources{}) {
		return nil
	}
	return p.locate(&engine.PolicyError{
		Field: "resources", Err: errors.New("cannot be limited by this command, only by run"),
		Fix: "set them on the cgroup itself, and leave them out here",
	})
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
