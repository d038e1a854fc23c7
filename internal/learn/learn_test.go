package learn

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/thenforce/thenforce/internal/policyfile"
	"github.com/thenforce/thenforce/pkg/engine"
)

// tree gives a Stat on paths; those that end in a slash are directories, and so are all above a path.
func tree(paths ...string) Stat {
	m := fstest.MapFS{}
	for _, p := range paths {
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(p, "/") {
			mode |= fs.ModeDir
		}
		m[strings.Trim(p, "/")] = &fstest.MapFile{Mode: mode}
	}
	return func(name string) (fs.FileInfo, error) {
		if name == "/" {
			name = "/."
		}
		return m.Stat(strings.TrimPrefix(name, "/"))
	}
}

func event(op, path string) Event {
	return Event{Op: op, Path: path, Code: "no-grant", Comm: "prog", Count: 1}
}

func report(events ...Event) *Report {
	r := &Report{Jail: "0123456789ab", Denials: events}
	r.Policy.Workspace = "/srv/w"
	r.Policy.Mode = "monitor"
	r.Policy.Grants = []Grant{{"/srv/w", "rwx+u", "workspace"}, {"/usr", "rx", "preset"}}
	return r
}

func grants(s Suggestion) map[string]string {
	m := map[string]string{}
	for _, g := range s.Grants {
		m[g.Path] = g.Rights.String()
	}
	return m
}

func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		name   string
		exists []string
		events []Event
		want   map[string]string
	}{
		{"a file read", []string{"/root/.gitconfig"}, []Event{event("read", "/root/.gitconfig")}, map[string]string{"/root/.gitconfig": "ro"}},
		{"a file read and written", []string{"/root/x"}, []Event{event("read", "/root/x"), event("write", "/root/x")}, map[string]string{"/root/x": "=rw"}},
		{"a file linked into the workspace", []string{"/data/o/1"}, []Event{event("link", "/data/o/1")}, map[string]string{"/data/o/1": "ro"}},
		{"a program", []string{"/opt/t/bin/tool"}, []Event{event("exec", "/opt/t/bin/tool")}, map[string]string{"/opt/t/bin/tool": "rx"}},
		{"a socket", []string{"/run/app.sock"}, []Event{event("connect", "/run/app.sock")}, map[string]string{"/run/app.sock": "=u"}},
		{"a device", []string{"/dev/fuse"}, []Event{{Op: "write", Path: "/dev/fuse", Code: "device-node"}}, map[string]string{"/dev/fuse": "=rw"}},
		{"what is mounted in the workspace", []string{"/srv/w/mnt/f"}, []Event{{Op: "read", Path: "/srv/w/mnt/f", Code: "mount-boundary"}}, map[string]string{"/srv/w/mnt/f": "ro"}},
		{"a file made and gone", []string{"/data/spool/"}, []Event{event("create", "/data/spool/x"), event("write", "/data/spool/x"), event("delete", "/data/spool/x")},
			map[string]string{"/data/spool": "rw"}},
		{"a directory made and gone, with what was in it", []string{"/data/spool/"}, []Event{event("create", "/data/spool/d"), event("create", "/data/spool/d/x"), event("delete", "/data/spool/d/x"), event("delete", "/data/spool/d")},
			map[string]string{"/data/spool": "rw"}},
		{"a file made and kept in a home", []string{"/root/.history"}, []Event{event("create", "/root/.history"), event("write", "/root/.history")}, map[string]string{"/root/.history": "=rw"}},
		{"a file made and kept elsewhere", []string{"/root/.npm/_logs/a"}, []Event{event("create", "/root/.npm/_logs/a")}, map[string]string{"/root/.npm/_logs": "rw"}},
		{"a cache that was made", []string{"/root/.cache/tool/index"}, []Event{event("create", "/root/.cache"), event("create", "/root/.cache/tool"), event("create", "/root/.cache/tool/index"), event("write", "/root/.cache/tool/index")},
			map[string]string{"/root/.cache/tool": "rw"}},
		{"three siblings", []string{"/opt/a/1", "/opt/a/2", "/opt/a/3"}, []Event{event("read", "/opt/a/1"), event("read", "/opt/a/2"), event("read", "/opt/a/3")},
			map[string]string{"/opt/a/1": "ro", "/opt/a/2": "ro", "/opt/a/3": "ro"}},
		{"four siblings", []string{"/opt/a/1", "/opt/a/2", "/opt/a/3", "/opt/a/4"},
			[]Event{event("read", "/opt/a/1"), event("read", "/opt/a/2"), event("exec", "/opt/a/3"), event("read", "/opt/a/4")}, map[string]string{"/opt/a": "rx"}},
		{"a fan of directories", []string{"/root/.cache/go-build/00/a", "/root/.cache/go-build/01/a", "/root/.cache/go-build/02/a", "/root/.cache/go-build/03/a"},
			[]Event{event("create", "/root/.cache/go-build/00/a"), event("create", "/root/.cache/go-build/01/a"), event("create", "/root/.cache/go-build/02/a"), event("create", "/root/.cache/go-build/03/a")},
			map[string]string{"/root/.cache/go-build": "rw"}},
		{"four in a home", []string{"/root/1", "/root/2", "/root/3", "/root/4"},
			[]Event{event("read", "/root/1"), event("read", "/root/2"), event("read", "/root/3"), event("read", "/root/4")},
			map[string]string{"/root/1": "ro", "/root/2": "ro", "/root/3": "ro", "/root/4": "ro"}},
		{"beside the workspace", []string{"/srv/1", "/srv/2", "/srv/3", "/srv/4"},
			[]Event{event("read", "/srv/1"), event("read", "/srv/2"), event("read", "/srv/3"), event("read", "/srv/4")},
			map[string]string{"/srv/1": "ro", "/srv/2": "ro", "/srv/3": "ro", "/srv/4": "ro"}},
		{"one in another", []string{"/data/d/", "/data/d/run"}, []Event{event("create", "/data/d/gone"), event("exec", "/data/d/run")},
			map[string]string{"/data/d": "rw", "/data/d/run": "rwx"}},
		{"one in another that adds nothing", []string{"/data/d/", "/data/d/f"}, []Event{event("create", "/data/d/gone"), event("read", "/data/d/f")},
			map[string]string{"/data/d": "rw"}},
	} {
		s := report(c.events...).Suggest(tree(append(c.exists, "/srv/w/")...))
		if diff := cmp.Diff(c.want, grants(s)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if len(s.Impossible) != 0 || s.WorkspaceRights != engine.AllRights {
			t.Errorf("%s: impossible %v, workspace %v", c.name, s.Impossible, s.WorkspaceRights)
		}
		parse(t, s)
	}
}

// parse reads the suggestion as thenforce does.
func parse(t *testing.T, s Suggestion) *policyfile.File {
	t.Helper()
	f, err := policyfile.Parse("suggested.yaml", s.YAML())
	if err != nil {
		t.Fatalf("%v in\n%s", err, s.YAML())
	}
	have := map[string]string{}
	for _, g := range f.Grants {
		have[g.Path] = g.Rights.String()
	}
	if diff := cmp.Diff(grants(s), have); diff != "" {
		t.Fatalf("%s in\n%s", diff, s.YAML())
	}
	if *f.Workspace != s.Workspace || f.Mode != nil || len(*f.Presets) != len(s.Presets) {
		t.Fatalf("read as %+v from\n%s", f, s.YAML())
	}
	return f
}

func TestSuggestKeepsThePolicysOwn(t *testing.T) {
	r := report(event("write", "/data/own/f"), Event{Op: "exec", Path: "/srv/w/tool", Code: "rights", Comm: "sh"}, event("read", "/data/none/f"))
	r.Policy.Grants = []Grant{{"/srv/w", "rw", "workspace"}, {"/data/own/f", "ro", "policy"}, {"/data/other", "rx", "policy"}, {"/dev/pts/0", "=rw", "stdio"}}
	s := r.Suggest(tree("/data/own/f", "/srv/w/tool", "/data/none/f"))
	want := map[string]string{"/data/own/f": "=rw", "/data/other": "rx", "/data/none/f": "ro"}
	if diff := cmp.Diff(want, grants(s)); diff != "" {
		t.Error(diff)
	}
	if got := s.WorkspaceRights.String(); got != "rwx" {
		t.Errorf("the workspace has %s", got)
	}
	if len(s.Presets) != 0 {
		t.Errorf("presets %v", s.Presets)
	}
	parse(t, s)
}

func TestSuggestListsWhatIsImpossible(t *testing.T) {
	r := report(
		Event{Op: "signal", Path: "/proc/1", Code: "other-jail", Comm: "kill"},
		Event{Op: "mount", Code: "forbidden-operation", Comm: "mount", Count: 7},
		Event{Op: "read", Path: "/srv/w/.env", Code: "denied-name", Comm: "cat"},
		Event{Op: "read", Path: "/proc/1/environ", Code: "no-grant", Comm: "ps"},
		Event{Op: "read", Path: "(unreachable)/x", Code: "no-grant", Comm: "cat"},
		Event{Op: "read", Path: "/a/../b", Code: "no-grant", Comm: "cat"},
		Event{Op: "read", Path: "/odd", PathBytes: []byte("/odd\xff"), Code: "no-grant", Comm: "cat"},
	)
	r.EventsLost = 3
	s := r.Suggest(tree())
	if len(s.Grants) != 0 || len(s.Impossible) != 7 || s.Impossible[0].Op != "mount" || s.Impossible[0].Count != 7 {
		t.Errorf("%+v", s)
	}
	parse(t, s)
	text := string(s.YAML())
	for _, want := range []string{"#   mount  by mount, 7 times: forbidden-operation\n", "# 3 events of the run were lost"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

func TestSuggestSaysWhatHasToBeThere(t *testing.T) {
	s := report(event("create", "/root/.npm"), event("create", "/root/.npm/_logs"), event("create", "/root/.npm/_logs/a"), event("create", "/root/.npm/gone"),
		event("create", "/root/.empty")).Suggest(tree("/root/.npm/_logs/a", "/root/.empty/"))
	if diff := cmp.Diff([]string{"/root/.empty", "/root/.npm"}, s.Made); diff != "" {
		t.Error(diff)
	}
	if text := string(s.YAML()); !strings.Contains(text, "#   /root/.empty\n#   /root/.npm\n") {
		t.Error(text)
	}
	parse(t, s)
}

func TestSuggestSaysWhatIsBroad(t *testing.T) {
	s := report(event("read", "/root"), event("read", "/root"), Event{Op: "read", Path: "/root", Code: "no-grant", Comm: "ls"}).Suggest(tree("/root/"))
	const want = `# The smallest policy that the run in jail 0123456789ab needed, by thenforce policy suggest.
# What a run did is not what it should be allowed to do: look through it before you use it.
version: 1
workspace: /srv/w
workspaceRights: "rwx+u"
presets: [system]
grants:
  # read 3; by prog, ls
  # The directory was listed. To grant that is to grant all that lies below: can the program do without?
  - {path: /root, rights: ro, optional: true}
`
	if diff := cmp.Diff(want, string(s.YAML())); diff != "" {
		t.Error(diff)
	}
}

func TestRead(t *testing.T) {
	for text, want := range map[string]string{
		"":   "unexpected end",
		"[]": "cannot unmarshal",
		"{}": "no report",
		`{"state":"starting","policy":{"workspace":"/w"}}`: "has not ended",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	if _, err := Read(strings.NewReader(`{"policy":{"workspace":"/w"},"denials":[{"op":"read","newer":1}]}`)); err != nil {
		t.Error(err)
	}
}

// Whatever a program called itself and its files, the suggestion is a policy with the grants it means, and every event that
// a grant can answer is answered by the nearest one.
func FuzzSuggest(f *testing.F) {
	f.Add("/a/b", "comm", "/a/b/c", "read", "create")
	f.Add("/a: b\n- c", "x\n# y", "/\"", "exec", "delete")
	f.Add("/x\u2028y", "a, b}", "/null", "connect", "rename")
	f.Fuzz(func(t *testing.T, one, comm, two, op1, op2 string) {
		events := []Event{
			{Op: op1, Path: one, Comm: comm, Code: "no-grant"}, {Op: op2, Path: two, Comm: comm, Code: "no-grant"},
			{Op: op2, Path: one, Comm: two, Code: one}, {Op: op1, Path: two + "/" + comm, Code: "no-grant"},
		}
		text, err := json.Marshal(report(events...)) // as it comes from a report: without invalid UTF-8
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		stat := func(name string) (fs.FileInfo, error) {
			if len(name)%2 == 0 {
				return nil, errors.New("gone")
			}
			return os.Lstat("/")
		}
		s := r.Suggest(stat)
		file := parse(t, s)
		for _, e := range r.Denials {
			at, rights, ok := e.object(stat)
			if !ok || contains(s.Workspace, at) {
				continue
			}
			if have := nearest(file, at); !have.Has(rights) {
				t.Errorf("%s of %s needs %s at %s and gets %s from\n%s", e.Op, e.Path, rights, at, have, s.YAML())
			}
		}
	})
}

func nearest(f *policyfile.File, name string) engine.Rights {
	for at := name; ; at = path.Dir(at) {
		for _, g := range f.Grants {
			if g.Path == at {
				return g.Rights
			}
		}
		if at == "/" {
			return engine.None
		}
	}
}
