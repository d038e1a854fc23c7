package oci

import (
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte("version: 1\npolicy: a.b\ncontainers: annotated\nallowAnnotations: [mode, policy]\nallowUnverified: true\ntimeout: 90s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Policy != "a.b" || c.Containers != "annotated" || len(c.AllowAnnotations) != 2 || !c.AllowUnverified || c.Timeout != 90*time.Second {
		t.Errorf("read as %+v", c)
	}
	if c, err := ParseConfig([]byte("version: 1\npolicy: a\n")); err != nil || c.Timeout != DefaultTimeout || c.AllowUnverified || len(c.AllowAnnotations) != 0 {
		t.Errorf("the least: %+v, %v", c, err)
	}
	for text, want := range map[string]string{
		"":                                                  "no documents",
		"version: 1\n---\nversion: 1\n":                     "single document",
		"policy: a\n":                                       "version: 0 is not known",
		"version: 2\npolicy: a\n":                           "version: 2 is not known",
		"version: 1\n":                                      "policy: is missing",
		"version: 1\npolicy: ../x\n":                        "no name of a policy",
		"version: 1\npolicy: a\npolicy: b\n":                "line 3",
		"version: 1\nPolicy: a\n":                           "line 2",
		"version: 1\npolicy: a\ntimeout: 5\n":               "line 3",
		"version: 1\npolicy: a\ntimeout: -5s\n":             "below 0",
		"version: 1\npolicy: a\ncontainers: some\n":         "neither all nor annotated",
		"version: 1\npolicy: a\nallowAnnotations: [a]\n":    `"a" is none of`,
		"version: 1\npolicy: a\nallowUnverified: perhaps\n": "line 3",
		"version: 1\npolicy: a\nallowAnnotations: policy\n": "line 3",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add("version: 1\npolicy: a\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig([]byte(text))
		if err == nil && (c.Version != 1 || c.Timeout <= 0 || strings.ContainsAny(c.Policy, "/\x00")) {
			t.Errorf("%q passes as %+v", text, c)
		}
	})
}

func annotated(pairs ...string) map[string]string {
	m := map[string]string{"org.example": "x"}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[annotationPrefix+pairs[i]] = pairs[i+1]
	}
	return m
}

func TestSettings(t *testing.T) {
	strict := Config{Policy: "host"}
	for _, c := range []struct {
		config      Config
		annotations map[string]string
		want        Settings
		err         string
	}{
		{strict, nil, Settings{Policy: "host"}, ""},
		{strict, annotated(Policy, "host"), Settings{Policy: "host"}, ""},
		{strict, annotated(Policy, "other"), Settings{}, "the host decides which policy"},
		{strict, annotated(AllowUnverified, "true"), Settings{}, "not verified"},
		{strict, annotated(AllowUnverified, "false"), Settings{Policy: "host"}, ""},
		{strict, annotated(AllowUnverified, "si"), Settings{}, "use true or false"},
		{strict, annotated("Mode", "monitor"), Settings{}, "is unknown"},
		{Config{Policy: "host", AllowUnverified: true}, annotated(), Settings{Policy: "host", AllowUnverified: true}, ""},
		{Config{Policy: "host", AllowUnverified: true}, annotated(AllowUnverified, "false"), Settings{Policy: "host"}, ""},
		{Config{Policy: "host", AllowAnnotations: []string{AllowUnverified}}, annotated(AllowUnverified, "true"), Settings{Policy: "host", AllowUnverified: true}, ""},
		{Config{Policy: "host", AllowAnnotations: []string{Policy}}, annotated(Policy, "other"), Settings{Policy: "other"}, ""},
		{Config{Policy: "host", AllowAnnotations: []string{Policy}}, annotated(Policy, "/etc/x"), Settings{}, "no name"},
		{Config{AllowAnnotations: []string{Policy}}, annotated(), Settings{}, "io.thenforce.policy is missing"},
		{Config{Policy: "host", Containers: "annotated"}, annotated(), Settings{Skip: true}, ""},
		{Config{Policy: "host", Containers: "annotated"}, annotated(Mode, "enforce"), Settings{Policy: "host"}, ""},
	} {
		got, err := c.config.For(c.annotations)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%+v with %v: error %v, want one with %q", c.config, c.annotations, err, c.err)
		case c.err == "" && (err != nil || got.Skip != c.want.Skip || got.Policy != c.want.Policy || got.AllowUnverified != c.want.AllowUnverified):
			t.Errorf("%+v with %v: %+v, %v, want %+v", c.config, c.annotations, got, err, c.want)
		}
	}
}

// image is a container with a volume /vol that the policies below say nothing of, and one that is mounted twice.
func image() *memfs.FS {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MustBuild(`
		dir  /work/sub/deep
		dir  /work/ro/sub
		dir  /work/twin/sub
		dir  /data
		dir  /usr/bin
		file /etc/hosts
		file /etc/shadow
		dir  /vol/lib
		link /to-vol -> /vol
		link /work/link -> sub
		link /lib -> vol/lib
		link /bin -> usr/bin
	`)
	return fsys
}

func TestCompile(t *testing.T) {
	rw := engine.Read | engine.Write | engine.Create | engine.Delete
	host := engine.Policy{Workspace: "/work", Grants: []engine.Grant{{Path: "ro", Rights: engine.Read}, {Path: "/data", Rights: rw}}, Deny: []string{"secret", "sub/key"}}
	with := func(change func(*engine.Policy)) engine.Policy {
		p := host
		change(&p)
		return p
	}
	for _, c := range []struct {
		name     string
		settings Settings
		policy   engine.Policy
		root     string // of the workspace in the sets
		deny     []string
		err      string
	}{
		{name: "as the host says", policy: host, root: "/work", deny: []string{"/work/secret", "/work/sub/key"}},
		{name: "the same workspace", settings: Settings{workspace: "/work/."}, policy: host, root: "/work", deny: []string{"/work/secret", "/work/sub/key"}},
		{name: "narrower", settings: Settings{workspace: "/work/sub"}, policy: host, root: "/work/sub", deny: []string{"/work/sub/key"}},
		{name: "narrower still", settings: Settings{workspace: "/work/sub/deep"}, policy: host, root: "/work/sub/deep"},
		{name: "outside", settings: Settings{workspace: "/data"}, policy: host, err: "outside the host's /work"},
		{name: "by ..", settings: Settings{workspace: "/work/../data"}, policy: host, err: "outside the host's /work"},
		{name: "above", settings: Settings{workspace: "/"}, policy: host, err: "outside the host's /work"},
		{name: "relative", settings: Settings{workspace: "work"}, policy: host, err: "no absolute path"},
		{name: "in a narrower grant", settings: Settings{workspace: "/work/ro/sub"}, policy: host, err: "lies in /work/ro"},
		{name: "as a narrower grant", settings: Settings{workspace: "/work/ro"}, policy: host, err: "lies in /work/ro"},
		{name: "as a denied name", settings: Settings{workspace: "/work/sub/deep"}, policy: with(func(p *engine.Policy) { p.Deny = []string{"sub"} }), err: "which the host denies"},
		{name: "around a denied name in a grant", settings: Settings{workspace: "/work/sub"},
			policy: with(func(p *engine.Policy) { p.Deny = []string{"ro/key"} }), err: "the host denies /work/ro/key"},
		{name: "by a link", settings: Settings{workspace: "/work/link"}, policy: host, err: "/work/link is a symbolic link"},
		{name: "missing", settings: Settings{workspace: "/work/none"}, policy: host, err: "/work/none"},
		{name: "wider, and allowed", settings: Settings{workspace: "/vol", allowed: []string{Workspace}}, policy: host, err: "grants[0].path"},
		{name: "elsewhere, and allowed", settings: Settings{workspace: "/vol", allowed: []string{Workspace}}, policy: engine.Policy{Workspace: "/work"}, root: "/vol"},
		{name: "none, and allowed", settings: Settings{workspace: "/vol", allowed: []string{Workspace}}, policy: engine.Policy{}, root: "/vol"},
		{name: "none", settings: Settings{workspace: "/vol"}, policy: engine.Policy{}, err: "the host decides which directory"},
		{name: "none at all", settings: Settings{Policy: "host"}, policy: engine.Policy{}, err: "io.thenforce.workspace is missing"},
		{name: "the host's own link", policy: engine.Policy{Workspace: "/to-vol"}, err: "/to-vol is a symbolic link in the container, to /vol"},
		{name: "a grant by a link", policy: engine.Policy{Workspace: "/work", Grants: []engine.Grant{{Path: "/to-vol/lib", Rights: engine.Read}}}, err: "/to-vol is a symbolic link"},
		{name: "a mode", settings: Settings{mode: "off"}, policy: host, err: "use enforce or monitor"},
		{name: "monitor", settings: Settings{mode: "monitor"}, policy: host, err: "the host's policy enforces"},
		{name: "monitor, and allowed", settings: Settings{mode: "monitor", allowed: []string{Mode}}, policy: host, root: "/work", deny: []string{"/work/secret", "/work/sub/key"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sets, err := c.settings.Compile(c.policy, image())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if sets.Workspace.CanonicalRoot != c.root || strings.Join(sets.Deny, " ") != strings.Join(c.deny, " ") {
				t.Errorf("workspace %s, deny %q", sets.Workspace.CanonicalRoot, sets.Deny)
			}
			if c.settings.mode == "monitor" && sets.Mode != engine.Monitor {
				t.Error("it enforces")
			}
		})
	}
}

// A directory that the container also has at another place keeps the rights that the host gave it there.
func TestCompileNarrowsByIdentity(t *testing.T) {
	fsys := image()
	twin, err := fsys.Inspect("/work/twin")
	if err != nil {
		t.Fatal(err)
	}
	if err := fsys.AddTwin("/mirror", memfs.Node{Kind: engine.KindDir, Ino: twin.Ino, Dev: twin.Dev}); err != nil {
		t.Fatal(err)
	}
	p := engine.Policy{Workspace: "/work", Grants: []engine.Grant{{Path: "/mirror", Rights: engine.Read}}}
	if _, err := (Settings{workspace: "/work/twin/sub"}).Compile(p, fsys); err == nil || !strings.Contains(err.Error(), "lies in /mirror") {
		t.Errorf("error %v", err)
	}
}

// What a preset grants through a link of the image counts only on the image's own file system.
func TestCompileKeepsPresetsOffVolumes(t *testing.T) {
	fsys := memfs.New(engine.PlatformFor("linux"))
	fsys.MustBuild(`
		dir  /work
		dir  /usr/bin
		dir  /vol dev=77
		dir  /vol/lib dev=77
		file /etc/hosts dev=78
		link /lib -> vol/lib
	`)
	fsys.MustMount(memfs.Mount{Point: "/vol", Dev: 77})
	fsys.MustMount(memfs.Mount{Point: "/etc/hosts", Dev: 78})
	sets, err := Settings{}.Compile(engine.Policy{Workspace: "/work", Presets: []engine.Preset{engine.PresetSystem}}, fsys)
	if err != nil {
		t.Fatal(err)
	}
	rights := map[string]engine.Rights{}
	for _, o := range sets.Objects {
		rights[o.Path] = o.Rights
	}
	if _, ok := rights["/vol/lib"]; ok {
		t.Error("/lib, a link to a volume, is granted")
	}
	if rights["/usr"] != engine.Read|engine.Exec || rights["/etc/hosts"] != engine.Read {
		t.Errorf("the image's own: %v", rights)
	}
	if len(sets.Notices) == 0 || !strings.Contains(sets.Notices[len(sets.Notices)-1], "/vol/lib is left out") {
		t.Errorf("notices: %q", sets.Notices)
	}
}
