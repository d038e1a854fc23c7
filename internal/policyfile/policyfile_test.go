// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/thenforce/thenforce/pkg/engine"
	"go.yaml.in/yaml/v4"
)

// whole has every field there is.
const whole = `version: 1
workspace: ../repo
workspaceRights: rwx+u
mode: monitor
follow: {symlinks: true, mountPoints: false, junctions: true, reparsePoints: false}
symlinks: refuse
presets: [system]
grants:
  - {path: /home/me/.cache/go-build, rights: rw, reason: build cache, expires: 2h, optional: true}
  - path: "build out"
    rights: =rwu
    expires: 2031-01-31T18:00:00+01:00
deny: [.git/hooks, .env]
resources: {memory: 2GiB, pids: 512, cpus: 1.5}
`

func TestParse(t *testing.T) {
	got, err := Parse("/etc/policies/p.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	yes, no, rights, mode, workspace := true, false, engine.AllRights, engine.Monitor, "../repo"
	presets := []engine.Preset{engine.PresetSystem}
	want := &File{
		Source: "/etc/policies/p.yaml", Workspace: &workspace, WorkspaceRights: &rights, Mode: &mode,
		Follow:     Follow{Symlinks: &yes, MountPoints: &no, Junctions: &yes, ReparsePoints: &no},
		NoSymlinks: &yes, Presets: &presets,
		Grants: []Grant{
			{
				Path: "/home/me/.cache/go-build", Rights: engine.Read | engine.Write | engine.Create | engine.Delete,
				Reason: "build cache", Expires: Expiry{After: 2 * time.Hour}, Optional: true,
			},
			{
				Path: "build out", Rights: engine.Read | engine.Write | engine.Connect,
				Expires: Expiry{At: time.Date(2031, 1, 31, 17, 0, 0, 0, time.UTC)},
			},
		},
		Deny:      []string{".git/hooks", ".env"},
		Resources: Resources{Memory: 2 << 30, Pids: 512, CPUs: 1.5},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
	if path, err := got.WorkspacePath(); path != "/etc/repo" || err != nil {
		t.Errorf("workspace path %q, %v", path, err)
	}
}

// What a file leaves out is told from what it says.
func TestParseLeavesOut(t *testing.T) {
	got, err := Parse("p.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&File{Source: "p.yaml"}, got, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
	none, err := Parse("p.yaml", []byte("version: 1\npresets: []\n"))
	if err != nil || none.Presets == nil || len(*none.Presets) != 0 {
		t.Errorf("no presets: %v, %v", none, err)
	}
}

// faults are files that are refused, each with the beginning of every message.
var faults = []struct {
	name, text string
	want       []string
}{
	{"empty", "", []string{"p:1:1: policy: "}},
	{"only a comment", "# nothing\n", []string{"p:1:1: policy: "}},
	{"null", "~\n", []string{`p:1:1: policy "~": is nothing, want fields with values`}},
	{"text", "version 1\n", []string{`p:1:1: policy "version 1": is text, want fields with values`}},
	{"a list", "- version: 1\n", []string{"p:1:1: policy: is a list, want fields with values"}},
	{"no YAML", "version: [1\n", []string{"p:2:1: policy: "}},
	{"tabs", "version: 1\nfollow:\n\tsymlinks: true\n", []string{"p:3:1: policy: "}},
	{"not UTF-8", "version: 1\nworkspace: \xff\n", []string{"p:"}},
	{"two documents", "version: 1\n---\nversion: 1\n", []string{"p:"}},
	{"no version", "mode: enforce\n", []string{"p:1:1: version: is missing; begin with version: 1"}},
	{"another version", "version: 2\n", []string{`p:1:10: version "2": is a version that this build does not know`}},
	{"version as text", `version: "1"`, []string{`p:1:10: version "1": is text, want a whole number`}},
	{"unknown field", "version: 1\nworkspce: /srv\n", []string{"p:2:1: workspce: unknown field; use deny, follow, grants, mode,"}},
	{"case counts", "version: 1\nMode: enforce\n", []string{"p:2:1: Mode: unknown field"}},
	{"unknown field of a grant", "version: 1\ngrants:\n- {path: /a, rights: ro, right: rw}\n", []string{"p:3:26: grants[0].right: unknown field; use expires, optional, path, reason, rights"}},
	{"twice", "version: 1\nmode: enforce\nmode: monitor\n", []string{"p:3:1: mode: comes a second time (first at 2:7); keep one of the two"}},
	{"twice in a grant", "version: 1\ngrants:\n- {path: /a, rights: ro, rights: rwx}\n", []string{"p:3:26: grants[0].rights: comes a second time"}},
	{"a key that is no text", "version: 1\n1: x\n", []string{`p:2:1: policy "1": is no name of a field`}},
	{"a key that is a list", "version: 1\n? [a]\n: x\n", []string{"p:2:3: policy: is no name of a field"}},
	{"merge key", "version: 1\n<<: {mode: monitor}\n", []string{`p:2:1: policy "<<": is no name of a field`}},
	{"alias", "version: 1\ngrants: [&g {path: /a, rights: ro}, *g]\n", []string{`p:2:10: grants[0] "&g": is an anchor`, `p:2:37: grants[1] "*g": is an alias`}},
	{"anchor at the top", "&a\nversion: 1\n", []string{`p:1:1: policy "&a": is an anchor`}},
	{"tag", "version: !!int 1\n", []string{`p:1:10: version "!!int": is a tag; leave it out`}},
	{"workspace as number", "version: 1\nworkspace: 12\n", []string{`p:2:12: workspace "12": is a number, want text; put it in quotes`}},
	{"workspace empty", "version: 1\nworkspace: \"\"\n", []string{"p:2:12: workspace: is empty"}},
	{"workspace null", "version: 1\nworkspace:\n", []string{"p:2:11: workspace: is nothing, want text"}},
	{"no rights in the workspace", "version: 1\nworkspaceRights: none\n", []string{`p:2:18: workspaceRights: parse rights "none": a workspace needs rights`}},
	{"rights misspelt", "version: 1\ngrants:\n- path: /a\n  rights: wr\n", []string{`p:4:11: grants[0].rights: parse rights "wr": want ro, rx, rw or rwx`}},
	{"rights twice a letter", "version: 1\ngrants: [{path: /a, rights: =rr}]\n", []string{`p:2:29: grants[0].rights: parse rights "=rr"`}},
	{"rights missing", "version: 1\ngrants: [{path: /a}]\n", []string{"p:2:10: grants[0].rights: is missing"}},
	{"path missing", "version: 1\ngrants: [{rights: ro}]\n", []string{"p:2:10: grants[0].path: is missing"}},
	{"grant as text", "version: 1\ngrants: [\"/a:ro\"]\n", []string{`p:2:10: grants[0] "/a:ro": is text, want fields with values`}},
	{"grants as object", "version: 1\ngrants: {path: /a, rights: ro}\n", []string{"p:2:9: grants: is fields with values, want a list"}},
	{"mode", "version: 1\nmode: watch\n", []string{`p:2:7: mode "watch": want enforce or monitor`}},
	{"mode with another case", "version: 1\nmode: Enforce\n", []string{`p:2:7: mode "Enforce": want enforce or monitor`}},
	{"symlinks", "version: 1\nsymlinks: true\n", []string{`p:2:11: symlinks "true": is true or false, want text`}},
	{"follow", "version: 1\nfollow: {symlinks: yes, mounts: true}\n", []string{`p:2:20: follow.symlinks "yes": is text, want true or false`, "p:2:25: follow.mounts: unknown field; use junctions, mountPoints, reparsePoints, symlinks"}},
	{"follow as bool", "version: 1\nfollow: true\n", []string{`p:2:9: follow "true": is true or false, want fields with values`}},
	{"presets", "version: 1\npresets: [none]\n", []string{`p:2:11: presets[0] "none": want system`}},
	{"presets as text", "version: 1\npresets: system\n", []string{`p:2:10: presets "system": is text, want a list`}},
	{"expires without unit", "version: 1\ngrants: [{path: /a, rights: ro, expires: 10}]\n", []string{`p:2:42: grants[0].expires "10": is a number, want a time`}},
	{"expires zero", "version: 1\ngrants: [{path: /a, rights: ro, expires: 0s}]\n", []string{`p:2:42: grants[0].expires "0s": want a time from now on above 0`}},
	{"expires negative", "version: 1\ngrants: [{path: /a, rights: ro, expires: -2h}]\n", []string{`p:2:42: grants[0].expires "-2h"`}},
	{"expires as date", "version: 1\ngrants: [{path: /a, rights: ro, expires: 2031-01-31}]\n", []string{`p:2:42: grants[0].expires "2031-01-31": want a time from now on`}},
	{"optional", "version: 1\ngrants: [{path: /a, rights: ro, optional: 1}]\n", []string{`p:2:43: grants[0].optional "1": is a number, want true or false`}},
	{"deny", "version: 1\ndeny: [\"\", 3]\n", []string{"p:2:8: deny[0]: is empty", `p:2:12: deny[1] "3": is a number, want text`}},
	{"memory", "version: 1\nresources: {memory: 2GB}\n", []string{`p:2:21: resources.memory "2GB": want a number of bytes`}},
	{"memory zero", "version: 1\nresources: {memory: 0}\n", []string{`p:2:21: resources.memory "0"`}},
	{"memory too large", "version: 1\nresources: {memory: 9999999t}\n", []string{`p:2:21: resources.memory "9999999t"`}},
	{"memory negative", "version: 1\nresources: {memory: -1g}\n", []string{`p:2:21: resources.memory "-1g"`}},
	{"memory with fraction", "version: 1\nresources: {memory: 1.5g}\n", []string{`p:2:21: resources.memory "1.5g"`}},
	{"pids", "version: 1\nresources: {pids: 1.5}\n", []string{`p:2:19: resources.pids "1.5": is a number, want a whole number`}},
	{"pids zero", "version: 1\nresources: {pids: 0}\n", []string{`p:2:19: resources.pids "0": is not above 0`}},
	{"pids in octal", "version: 1\nresources: {pids: 0o17}\n", []string{`p:2:19: resources.pids "0o17": want a whole number in decimal digits`}},
	{"cpus", "version: 1\nresources: {cpus: .nan}\n", []string{`p:2:19: resources.cpus ".nan"`}},
	{"cpus below zero", "version: 1\nresources: {cpus: -1}\n", []string{`p:2:19: resources.cpus "-1": want a number above 0`}},
	{"never a policy field", "version: 1\nallowUnverified: true\n", []string{"p:2:1: allowUnverified: unknown field"}},
	{"several", "version: 1\nmode: x\nsymlinks: y\n", []string{"p:2:7: mode", "p:3:11: symlinks"}},
}

func TestFaults(t *testing.T) {
	schema := compiled(t)
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("p", []byte(tt.text))
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("error %v of type %T", err, err)
			}
			if len(all) != len(tt.want) {
				t.Fatalf("%d errors: %v", len(all), []error(all))
			}
			for i, one := range all {
				if !strings.HasPrefix(one.Error(), tt.want[i]) {
					t.Errorf("got  %v\nwant %s", one, tt.want[i])
				}
				if strings.Contains(one.Error(), "\n") {
					t.Errorf("%q is more than a line", one)
				}
			}
			// Editors find it too, unless it is of what YAML hides from a schema.
			var value any
			if yaml.Load([]byte(tt.text), &value) == nil && schema.Validate(value) == nil && !hidden[tt.name] {
				t.Error("the schema takes it")
			}
		})
	}
}

// hidden are faults that cannot be seen in the values that a schema judges.
var hidden = map[string]bool{
	"alias": true, "anchor at the top": true, "tag": true, "merge key": true, "pids in octal": true,
	"rights twice a letter": true, "memory zero": true, "memory too large": true, "expires zero": true,
}

func TestTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, []byte("version: 1\n#"+strings.Repeat("x", MaxSize)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "is larger than 1048576 bytes") {
		t.Error(err)
	}
}

func TestLocate(t *testing.T) {
	f, err := Parse("p", []byte("version: 1\ngrants:\n  - path: /missing\n    rights: ro\n"))
	if err != nil {
		t.Fatal(err)
	}
	located := f.Locate(&engine.PolicyError{Field: "grants[0].path", Value: "/missing", Err: os.ErrNotExist})
	if got, want := located.Error(), `p:3:11: grants[0].path "/missing": file does not exist`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	flag := &engine.PolicyError{Field: "grants[1].path", Err: os.ErrNotExist}
	if got := f.Locate(flag); got != error(flag) {
		t.Errorf("a grant that is not the file's: %v", got)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512m": 512 << 20, "512M": 512 << 20, "2GiB": 2 << 30, "3kiB": 3 << 10, "1t": 1 << 40, "8388607t": 8388607 << 40,
	} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1b", "1B", "1kb", "1kB", "1ki", "1iB", "m", "1mm", "1 m", "8388608t", "0x10", "+1", "1_0"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("policy.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// What is read is what editors are told: the schema knows the same fields, and takes what Parse takes.
func TestSchema(t *testing.T) {
	schema := compiled(t)
	var value any
	if err := yaml.Load([]byte(strings.Replace(whole, "2031-01-31T18:00:00+01:00", `"2031-01-31T18:00:00+01:00"`, 1)), &value); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Error(err)
	}
	d := decoder{file: &File{places: map[string]place{}}}
	for name := range d.fields() {
		if schema.Properties[name] == nil {
			t.Errorf("the schema lacks %s", name)
		}
	}
	if len(schema.Properties) != len(d.fields()) {
		t.Errorf("the schema knows %v", reflect.ValueOf(schema.Properties).MapKeys())
	}
}

// Whatever a file holds, reading it ends with a policy that the schema takes as well, or with errors that have a place.
func FuzzPolicy(f *testing.F) {
	f.Add(whole)
	for _, expires := range []string{"+1h", ".5h", "1.h", "1\u03bcs", "1\u00b5s", "1h30m"} {
		f.Add("version: 1\ngrants: [{path: A, rights: rx, expires: " + expires + "}]")
	}
	for _, tt := range faults {
		f.Add(tt.text)
	}
	schema := compiled(f)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("p", []byte(text))
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			for _, one := range all {
				var at *engine.PolicyError
				if !errors.As(one, &at) || at.Line < 1 || at.Column < 1 || at.Field == "" || at.Err == nil {
					t.Errorf("an error without a place: %#v", one)
				}
			}
			return
		}
		for _, g := range file.Grants {
			if g.Path == "" || !g.Rights.Valid() || g.Expires.After < 0 {
				t.Errorf("%+v", g)
			}
		}
		var value any
		if err := yaml.Load([]byte(text), &value); err != nil {
			t.Fatalf("read as a policy but not as YAML: %v", err)
		}
		if err := schema.Validate(plainValues(value)); err != nil {
			t.Errorf("the schema refuses it: %v", err)
		}
	})
}

// plainValues turns instants, which JSON has not, back into text.
func plainValues(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = plainValues(v[key])
		}
	case map[any]any:
		out := map[string]any{}
		for key, each := range v {
			if name, ok := key.(string); ok {
				out[name] = plainValues(each)
			}
		}
		return out
	case []any:
		for i := range v {
			v[i] = plainValues(v[i])
		}
	case time.Time:
		return v.Format(time.RFC3339Nano)
	}
	return value
}
