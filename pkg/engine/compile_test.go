// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// debian is a tree as Debian has it, with merged /usr.
const debian = `
	dir  /usr/bin
	dir  /usr/lib
	dir  /usr/local/lib
	dir  /usr/src/app
	link /bin -> usr/bin
	link /sbin -> usr/bin
	link /lib -> usr/lib
	link /lib64 -> usr/lib64
	dir  /usr/lib64
	file /usr/share/zoneinfo/Etc/UTC
	file /etc/passwd
	link /etc/localtime -> /usr/share/zoneinfo/Etc/UTC
	link /etc/resolv.conf -> ../run/systemd/resolve/stub-resolv.conf
	file /run/systemd/resolve/stub-resolv.conf
	file /etc/shadow
	file /etc/shadow-
	dir  /etc/ssh
	file /etc/ssh/ssh_host_rsa_key
	file /etc/ssh/ssh_host_rsa_key.pub
	file /etc/ssh/ssh_host_ed25519_key
	file /etc/ssh/sshd_config
	dir  /etc/ssl/private
	dir  /etc/sudoers.d
	char /dev/null dev=5
	char /dev/tty dev=5
	dir  /proc dev=6 fs=proc
	file /proc/meminfo dev=6
	file /proc/sys/kernel/osrelease dev=6
	file /var/cache/x
	dir  /home/me
`

func debianFS(t testing.TB, more string) *memfs.FS {
	t.Helper()
	fsys := linux(t, debian+more)
	fsys.MustMount(memfs.Mount{Point: "/proc", Dev: 6, FSType: "proc"})
	fsys.MustMount(memfs.Mount{Point: "/dev", Dev: 5, FSType: "devtmpfs"})
	return fsys
}

// lines writes objects as "PATH:RIGHTS SOURCE".
func lines(objects []engine.Object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, fmt.Sprintf("%s:%s %s", o.Path, o.Rights, o.Source))
	}
	return out
}

func compile(t testing.TB, p engine.Policy, probes engine.Probes) engine.AllowedSets {
	t.Helper()
	sets, err := engine.Compile(p, probes)
	if err != nil {
		t.Fatal(err)
	}
	return sets
}

func TestCompileGrants(t *testing.T) {
	fsys := debianFS(t, `
		link /home/me/cache -> /var/cache
		link /home/me/a -> b
		link /home/me/b -> /var/cache/x
		file /home/me/hard ino=77
		file /home/me/link ino=77
		socket /run/app.sock
	`)
	fsys.Dir = "/home/me"
	expires := time.Date(2026, 7, 17, 9, 0, 0, 0, time.UTC)
	sets := compile(t, engine.Policy{
		Workspace: "/srv/repo",
		Mode:      engine.Monitor,
		Grants: []engine.Grant{
			{Path: "/home/me/cache", Rights: engine.Read | engine.Write, Reason: "cache", Expires: expires},
			{Path: "/home/me/a", Rights: engine.Read, Source: engine.SourceStdio},
			{Path: "src", Rights: engine.Read}, // relative to the workspace
			{Path: "src/deep", Rights: engine.None},
			{Path: "/run/app.sock", Rights: engine.Connect},
			{Path: "/nothere", Rights: engine.Read, Optional: true},
			{Path: "/var/cache/", Rights: engine.Read | engine.Write, Expires: expires},
			{Path: "/home/me/hard", Rights: engine.Read},
			{Path: "/home/me/link", Rights: engine.Read},
			{Path: "/srv/repo", Rights: engine.AllRights},
		},
		FollowMountPoints: true,
		NoSymlinks:        true,
		FollowSymlinks:    true,
	}, fsys)
	want := []engine.Object{
		{Path: "/srv/repo", Rights: engine.AllRights, Source: engine.SourceWorkspace, Kind: engine.KindDir},
		{Path: "/var/cache", Rights: engine.Read | engine.Write, Source: engine.SourcePolicy, Reason: "cache", Expires: expires, Kind: engine.KindDir},
		{Path: "/var/cache/x", Rights: engine.Read, Source: engine.SourceStdio, Kind: engine.KindFile},
		{Path: "/srv/repo/src", Rights: engine.Read, Source: engine.SourcePolicy, Kind: engine.KindDir},
		{Path: "/srv/repo/src/deep", Rights: engine.None, Source: engine.SourcePolicy, Kind: engine.KindDir},
		{Path: "/run/app.sock", Rights: engine.Connect, Source: engine.SourcePolicy, Kind: engine.KindSocket},
		{Path: "/home/me/hard", Rights: engine.Read, Source: engine.SourcePolicy, Kind: engine.KindFile},
	}
	if diff := cmp.Diff(want, sets.Objects); diff != "" {
		t.Errorf("objects differ (-want +got):\n%s", diff)
	}
	notices := strings.Join(sets.Notices, "\n")
	for _, want := range []string{"/nothere is skipped", "/var/cache/ is the same object", "/home/me/link is the same object as /home/me/hard", "/srv/repo is the same object"} {
		if !strings.Contains(notices, want) {
			t.Errorf("no notice says %q:\n%s", want, notices)
		}
	}
	if len(sets.Notices) != 4 {
		t.Errorf("notices:\n%s", notices)
	}
	if sets.Mode != engine.Monitor || !sets.FollowMounts || !sets.NoSymlinks || !sets.Options.FollowSymlinks || sets.Options.FollowJunctions {
		t.Errorf("sets = %+v", sets)
	}
	if sets.Workspace.BindingStatus != engine.Bound || sets.Workspace.CanonicalRoot != "/srv/repo" {
		t.Errorf("workspace = %+v", sets.Workspace)
	}
}

func TestCompileErrors(t *testing.T) {
	fsys := debianFS(t, `
		error /srv/broken err=EIO
		error /srv/locked err=EACCES
		link  /srv/loop -> loop
		link  /dev/stdout -> /proc/self/fd/1
		link  /proc/self -> 7 dev=6
		link  /proc/7/fd/1 -> /home/me dev=6
		file  /home/me/hard ino=77
		file  /home/me/link ino=77
		link  /srv/repo/out -> /home
	`)
	policy := func(change func(*engine.Policy)) engine.Policy {
		p := engine.Policy{Workspace: "/srv/repo"}
		change(&p)
		return p
	}
	workspace := func(path string) engine.Policy {
		return policy(func(p *engine.Policy) { p.Workspace = path })
	}
	grants := func(g ...engine.Grant) engine.Policy {
		return policy(func(p *engine.Policy) { p.Grants = g })
	}
	deny := func(names ...string) engine.Policy {
		return policy(func(p *engine.Policy) { p.Deny = names })
	}
	tests := []struct {
		name   string
		policy engine.Policy
		field  string
		is     error
		says   string
	}{
		{"no workspace", workspace(""), "workspace", nil, "name a directory"},
		{"workspace missing", workspace("/nope"), "workspace", fs.ErrNotExist, "create the directory"},
		{"workspace a file", workspace("/etc/passwd"), "workspace", engine.ErrNotDirectory, "single file can be a grant"},
		{"workspace below a file", workspace("/etc/passwd/x"), "workspace", engine.ErrNotDirectory, "name a directory"},
		{"workspace with an I/O error", workspace("/srv/broken"), "workspace", memfs.Errno("EIO"), "check the file system"},
		{"workspace unreadable", workspace("/srv/locked"), "workspace", fs.ErrPermission, "privilege"},
		{"workspace a loop", workspace("/srv/loop"), "workspace", engine.ErrLinkLoop, "instead of a link"},
		{"workspace with NUL", workspace("/srv\x00"), "workspace", engine.ErrUnsafePath, "plain"},
		{"unknown workspace rights", policy(func(p *engine.Policy) { p.WorkspaceRights = 0x80 }), "workspaceRights", nil, "unknown"},
		{"unknown mode", policy(func(p *engine.Policy) { p.Mode = 9 }), "mode", nil, "enforce or monitor"},
		{"unknown preset", policy(func(p *engine.Policy) { p.Presets = []engine.Preset{"system", "docker"} }), "presets[1]", nil, "system"},
		{"grant without path", grants(engine.Grant{}), "grants[0].path", nil, "empty"},
		{"grant with unknown rights", grants(engine.Grant{Path: "/home", Rights: 0x40}), "grants[0].rights", nil, "unknown"},
		{"grant missing", grants(engine.Grant{Path: "/home"}, engine.Grant{Path: "/nope"}), "grants[1].path", fs.ErrNotExist, "optional"},
		{"grant below a file is not missing", grants(engine.Grant{Path: "/etc/passwd/x", Optional: true}), "grants[0].path", engine.ErrNotDirectory, ""},
		{"grant unreadable", grants(engine.Grant{Path: "/srv/locked", Optional: true}), "grants[0].path", fs.ErrPermission, "privilege"},
		{"grant behind a magic link", grants(engine.Grant{Path: "/dev/stdout"}), "grants[0].path", engine.ErrMagicLink, "behind the link"},
		{"grant twice, other rights", grants(engine.Grant{Path: "/home", Rights: engine.Read}, engine.Grant{Path: "/home/me/..", Rights: engine.Write}), "grants[1].path", nil, "=w and ro; keep one"},
		{"grant twice, by a hard link", grants(engine.Grant{Path: "/home/me/hard", Rights: engine.Read}, engine.Grant{Path: "/home/me/link"}), "grants[1].path", nil, "same object as /home/me/hard"},
		{"grant twice, other expiry", grants(engine.Grant{Path: "/home"}, engine.Grant{Path: "/home", Expires: time.Unix(1, 0)}), "grants[1].path", nil, "expiry"},
		{"grant that the workspace leads out", grants(engine.Grant{Path: "out/me"}), "grants[0].path", nil, "link out of the workspace, to /home/me"},
		{"grant of the workspace", grants(engine.Grant{Path: "/srv/repo", Rights: engine.Read}), "grants[0].path", nil, "rights of the workspace"},
		{"deny nothing", deny("a", ""), "deny[1]", nil, "empty"},
		{"deny the workspace", deny("."), "deny[0]", nil, "workspace itself"},
		{"deny outside", deny("../x"), "deny[0]", nil, "outside"},
		{"deny elsewhere", deny("/etc/passwd"), "deny[0]", nil, "grant with the rights none"},
		{"deny with NUL", deny("a\x00"), "deny[0]", engine.ErrUnsafePath, ""},
		{"deny through a link out", deny("out/me"), "deny[0]", nil, "/home/me"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sets, err := engine.Compile(tt.policy, fsys)
			var policyErr *engine.PolicyError
			if !errors.As(err, &policyErr) {
				t.Fatalf("Compile = %+v, %v; want a *PolicyError", sets, err)
			}
			if policyErr.Field != tt.field || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q for field %q; want field %q, %v, %q", err, policyErr.Field, tt.field, tt.is, tt.says)
			}
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), tt.field) {
				t.Errorf("%q is not one line that begins with its field", err)
			}
			if len(sets.Objects) != 0 {
				t.Errorf("objects beside the error: %+v", sets.Objects)
			}
		})
	}
	if _, err := engine.Compile(engine.Policy{Workspace: "/srv"}, nil); err == nil {
		t.Error("compiled without a probe")
	}
}

// TestCompileBindMount grants one directory under two names.
func TestCompileBindMount(t *testing.T) {
	fsys := debianFS(t, "dir /srv/data ino=500\ndir /mnt/data ino=500")
	fsys.MustMount(memfs.Mount{Point: "/mnt/data", Dev: 42, Root: "/srv/data"})
	_, err := engine.Compile(engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{
		{Path: "/srv/data", Rights: engine.Read}, {Path: "/mnt/data", Rights: engine.Write},
	}}, fsys)
	if err == nil || !strings.Contains(err.Error(), "same object as /srv/data") {
		t.Errorf("Compile = %v", err)
	}
}

func TestCompileDeny(t *testing.T) {
	fsys := debianFS(t, `
		link /srv/repo/alias -> src
		link /srv/repo/.git -> alias/git
		dir  /srv/repo/src/git
	`)
	sets := compile(t, engine.Policy{Workspace: "/srv/repo", Deny: []string{
		".env", "./src/../.env", "/srv/repo/new/sub/x", "alias/secret", "alias", ".git/hooks",
	}}, fsys)
	want := []string{
		"/srv/repo/.env", "/srv/repo/new/sub/x", "/srv/repo/alias/secret", "/srv/repo/src/secret",
		"/srv/repo/alias", // the name of a link, not what it leads to
		"/srv/repo/.git/hooks", "/srv/repo/src/git/hooks",
	}
	if diff := cmp.Diff(want, sets.Deny); diff != "" {
		t.Errorf("denied names differ (-want +got):\n%s", diff)
	}
	if len(sets.Notices) != 2 || len(sets.Folding) != 0 {
		t.Errorf("notices %q, folding %q", sets.Notices, sets.Folding)
	}

	fsys = debianFS(t, "dir /srv/repo/fold casefold")
	sets = compile(t, engine.Policy{Workspace: "/srv/repo", Deny: []string{"fold/new/x", "x"}}, fsys)
	if !slices.Equal(sets.Folding, []string{"/srv/repo/fold"}) || len(sets.Notices) != 1 {
		t.Errorf("folding %q, notices %q", sets.Folding, sets.Notices)
	}
}

func TestCompilePreset(t *testing.T) {
	system := []engine.Preset{engine.PresetSystem}
	fixed := []string{
		"/run/systemd/resolve/stub-resolv.conf:ro preset",
		"/etc/shadow:none preset", "/etc/shadow-:none preset", "/etc/sudoers.d:none preset",
		"/etc/ssh/ssh_host_ed25519_key:none preset", "/etc/ssh/ssh_host_rsa_key:none preset",
		"/etc/ssl/private:none preset",
		"/dev/null:=rw preset", "/dev/tty:=rw preset",
		"/proc/meminfo:ro preset", "/proc/sys/kernel/osrelease:ro preset",
	}
	with := func(first ...string) []string { return append(first, fixed...) }
	tests := []struct {
		name   string
		policy engine.Policy
		want   []string
	}{
		{"plain", engine.Policy{Workspace: "/srv/repo"},
			with("/srv/repo:rwx+u workspace", "/usr:rx preset", "/etc:ro preset")},
		{"workspace inside a preset's tree", engine.Policy{Workspace: "/usr/src/app", WorkspaceRights: engine.Read},
			with("/usr/src/app:ro workspace", "/usr:rx preset", "/etc:ro preset")},
		{"workspace is everything", engine.Policy{Workspace: "/"},
			slices.Concat([]string{"/:rwx+u workspace"}, fixed[1:])}, // resolv.conf lies within
		{"everything readable", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/", Rights: engine.Read}}},
			slices.Concat([]string{"/srv/repo:rwx+u workspace", "/:ro policy", "/usr:rx preset"}, fixed[1:])},
		{"everything writable", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/", Rights: engine.Read | engine.Write}}},
			slices.Concat([]string{"/srv/repo:rwx+u workspace", "/:=rw policy", "/usr:=rwx preset"}, fixed[1:])},
		{"narrowed by the user", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/usr", Rights: engine.Read}}},
			with("/srv/repo:rwx+u workspace", "/usr:ro policy", "/etc:ro preset")},
		{"all of /etc taken away", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/etc"}}},
			with("/srv/repo:rwx+u workspace", "/etc:none policy", "/usr:rx preset")},
		{"devices taken away", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/dev"}}},
			slices.DeleteFunc(with("/srv/repo:rwx+u workspace", "/dev:none policy", "/usr:rx preset", "/etc:ro preset"),
				func(s string) bool { return strings.HasPrefix(s, "/dev/") })},
		{"a secret given by name", engine.Policy{Workspace: "/srv/repo", Grants: []engine.Grant{{Path: "/etc/shadow", Rights: engine.Read}}},
			slices.DeleteFunc(with("/srv/repo:rwx+u workspace", "/etc/shadow:ro policy", "/usr:rx preset", "/etc:ro preset"),
				func(s string) bool { return s == "/etc/shadow:none preset" })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.policy.Presets = system
			got := lines(compile(t, tt.policy, debianFS(t, "")).Objects)
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("objects differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompilePresetContainer has files bind mounted over /etc, as containers do:
// the grant on /etc does not reach them.
func TestCompilePresetContainer(t *testing.T) {
	fsys := debianFS(t, "file /etc/hosts")
	fsys.MustMount(memfs.Mount{Point: "/etc/hosts", Dev: 42})
	p := engine.Policy{Workspace: "/srv/repo", Presets: []engine.Preset{engine.PresetSystem}}
	has := func() bool { return slices.Contains(lines(compile(t, p, fsys).Objects), "/etc/hosts:ro preset") }
	if !has() {
		t.Error("/etc/hosts, on a mount of its own, is not granted")
	}
	p.FollowMountPoints = true
	if has() {
		t.Error("/etc/hosts is granted although mounts are followed")
	}
}

func TestCompilePresetUnreadable(t *testing.T) {
	fsys := debianFS(t, "error /etc/sudoers err=EACCES\nerror /usr err=EIO\nerror /etc/ssh err=EACCES")
	sets := compile(t, engine.Policy{Workspace: "/srv/repo", Presets: []engine.Preset{engine.PresetSystem}}, fsys)
	got := lines(sets.Objects)
	if !slices.Contains(got, "/etc/sudoers:none preset") {
		t.Errorf("a secret that cannot be looked at is not kept: %q", got)
	}
	if slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "/usr") }) {
		t.Errorf("what cannot be looked at is granted: %q", got)
	}
	notices := strings.Join(sets.Notices, "\n")
	for _, want := range []string{"/usr is left out", "/etc/sudoers is kept", "ssh_host_*_key"} {
		if !strings.Contains(notices, want) {
			t.Errorf("no notice says %q:\n%s", want, notices)
		}
	}
}

func TestCompileWindows(t *testing.T) {
	fsys := windows(t, `dir D:\cache`)
	sets := compile(t, engine.Policy{
		Workspace: `c:\work\repo`,
		Presets:   []engine.Preset{engine.PresetSystem},
		Grants:    []engine.Grant{{Path: `D:\CACHE`, Rights: engine.Read}, {Path: `src`, Rights: engine.Read}, {Path: `\Windows`, Rights: engine.Read}},
		Deny:      []string{".GIT/hooks", `.git\HOOKS`},
	}, fsys)
	want := []string{`C:\Work\Repo:rwx+u workspace`, `D:\cache:ro policy`, `C:\Work\Repo\Src:ro policy`, `C:\Windows:ro policy`}
	if diff := cmp.Diff(want, lines(sets.Objects)); diff != "" {
		t.Errorf("objects differ (-want +got):\n%s", diff)
	}
	if !slices.Equal(sets.Deny, []string{`C:\Work\Repo\.GIT\hooks`}) || len(sets.Notices) != 1 {
		t.Errorf("deny %q, notices %q", sets.Deny, sets.Notices)
	}
	for _, path := range []string{`D:cache`, `D:\CON`, `\\.\D:\cache`} {
		if _, err := engine.Compile(engine.Policy{Workspace: `C:\Work\Repo`, Grants: []engine.Grant{{Path: path}}}, fsys); !errors.Is(err, engine.ErrUnsafePath) {
			t.Errorf("grant of %q: %v", path, err)
		}
	}
}

// TestCompilePure compiles twice and wants the same, from policies that do not
// change.
func TestCompilePure(t *testing.T) {
	fsys := debianFS(t, "")
	p := engine.Policy{
		Workspace: "/srv/repo",
		Presets:   []engine.Preset{engine.PresetSystem},
		Grants:    []engine.Grant{{Path: "/home", Rights: engine.Read}},
		Deny:      []string{"x"},
	}
	before := fmt.Sprintf("%+v", p)
	a, b := compile(t, p, fsys), compile(t, p, fsys)
	if fmt.Sprintf("%+v", a.Objects) != fmt.Sprintf("%+v", b.Objects) {
		t.Error("two compilations differ")
	}
	if fmt.Sprintf("%+v", p) != before {
		t.Error("the policy was changed")
	}
}

func TestParsePresets(t *testing.T) {
	if p, err := engine.ParsePresets("none"); err != nil || len(p) != 0 {
		t.Errorf("none = %v, %v", p, err)
	}
	if p, err := engine.ParsePresets("system"); err != nil || !slices.Equal(p, []engine.Preset{engine.PresetSystem}) {
		t.Errorf("system = %v, %v", p, err)
	}
	if p, err := engine.ParsePresets("docker"); err == nil {
		t.Errorf("docker = %v", p)
	}
}

func TestPolicyErrorPlace(t *testing.T) {
	e := &engine.PolicyError{Source: "p.yaml", Line: 3, Column: 7, Field: "mode", Value: "x", Err: errors.New("unknown"), Fix: "use enforce"}
	if got, want := e.Error(), `p.yaml:3:7: mode "x": unknown; use enforce`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
