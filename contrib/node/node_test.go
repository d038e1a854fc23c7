// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is the built thenforce.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "thenforce-node-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "thenforce")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/thenforce/thenforce/cmd/thenforce").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build thenforce: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// node returns a command that runs a script of this folder with the built thenforce.
func node(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("%v: this example needs Node.js 20 or later; on Debian: scripts/need nodejs", err)
	}
	noteInputs(t)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "THENFORCE="+program)
	return cmd
}

// noteInputs looks at every file that other processes of this test read. Otherwise the go command, which sees what this
// process looks at, would take an old result for a new one when they change.
func noteInputs(t *testing.T) {
	t.Helper()
	const files = `{{if eq .Module.Path "github.com/thenforce/thenforce"}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}{{end}}`
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{with $}}"+files+"{{end}}{{end}}", "github.com/thenforce/thenforce/cmd/thenforce").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	paths := append(strings.Fields(string(out)), "engine.mjs", "write_file.mjs")
	if len(paths) < 20 {
		t.Fatalf("only these files make thenforce: %v", paths)
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
}

type answer struct {
	OK      bool
	Code    string
	Path    string
	Written int
}

// calls runs the tool on lines of calls and returns its answers.
func calls(t *testing.T, cmd *exec.Cmd, input string) []answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var answers []answer
	for line := range strings.Lines(stdout.String()) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		answers = append(answers, a)
	}
	return answers
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWriteFileTool(t *testing.T) {
	dir := tempDir(t)
	workspace, outside := filepath.Join(dir, "ws"), filepath.Join(dir, "outside")
	must(t, os.MkdirAll(filepath.Join(workspace, "src"), 0o755))
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("kept"), 0o644))
	must(t, os.WriteFile(filepath.Join(workspace, "old"), []byte("a longer text than the new one"), 0o644))
	must(t, os.Symlink(outside, filepath.Join(workspace, "out")))
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(workspace, "src/leak")))

	got := calls(t, node(t, "write_file.mjs", workspace), `
{"path": "new.txt", "content": "h\u00e9llo"}
{"path": "old", "content": "new"}
{"path": "../outside/secret", "content": "x"}
{"path": "out/secret", "content": "x"}
{"path": "src/leak", "content": "x"}
{"path": "nodir/file", "content": "x"}
{"path": "src", "content": "x"}
{"path": "a\u0000b", "content": "x"}
`[1:])
	want := []answer{
		{OK: true, Path: filepath.Join(workspace, "new.txt"), Written: 6},
		{OK: true, Path: filepath.Join(workspace, "old"), Written: 3},
		{Code: "outside"},
		{Code: "symlink"},
		{Code: "symlink"},
		{Code: "missing-component"},
		{Code: "is-directory"},
		{Code: "nul-in-path"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("call %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	for path, content := range map[string]string{
		filepath.Join(workspace, "new.txt"): "héllo", filepath.Join(workspace, "old"): "new", filepath.Join(outside, "secret"): "kept",
	} {
		if text, err := os.ReadFile(path); string(text) != content {
			t.Errorf("%s holds %q, %v; want %q", path, text, err, content)
		}
	}
}

// What was approved is not what is there when the approval comes.
func TestChangeWhileApproving(t *testing.T) {
	dir := tempDir(t)
	must(t, os.Mkdir(filepath.Join(dir, "ws"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "ws/file"), []byte("kept"), 0o644))
	script := filepath.Join(dir, "test.mjs")
	here, err := os.Getwd()
	must(t, err)
	must(t, os.WriteFile(script, []byte(`
import { rmSync, writeFileSync } from 'node:fs';
const [, , here, workspace] = process.argv;
const { Engine } = await import(here + '/engine.mjs');
const { writeFileTool } = await import(here + '/write_file.mjs');
const engine = new Engine();
const writeFile = await writeFileTool(engine, workspace, async (path) => {
  rmSync(path);
  writeFileSync(path, 'another');
  return true;
});
console.log(JSON.stringify(await writeFile({ path: 'file', content: 'x' })));
engine.close();
`), 0o644))
	got := calls(t, node(t, script, here, filepath.Join(dir, "ws")), "")
	if len(got) != 1 || got[0] != (answer{Code: "resource-identity-changed"}) {
		t.Errorf("answer %+v, want resource-identity-changed", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "ws/file")); string(text) != "another" {
		t.Errorf("the file holds %q, %v", text, err)
	}
}

// A tool without an engine writes nothing.
func TestNoEngine(t *testing.T) {
	dir := tempDir(t)
	cmd := node(t, "write_file.mjs", dir)
	cmd.Env = append(cmd.Env, "THENFORCE="+filepath.Join(dir, "missing"))
	cmd.Stdin = strings.NewReader(`{"path": "f", "content": "x"}` + "\n")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "write_file: ") {
		t.Errorf("without an engine: %v\n%s", err, out)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 0 {
		t.Errorf("something was written: %v", names)
	}
}
