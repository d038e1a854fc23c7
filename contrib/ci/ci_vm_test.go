//go:build vm

package ci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v4"
)

func file(t *testing.T, name string) []byte {
	t.Helper()
	text, err := Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// runner is a machine with a runner's user, who may start jails by sudo and nothing else.
type runner struct {
	t         *testing.T
	workspace string
	temp      string
	attr      *syscall.SysProcAttr
}

func newRunner(t *testing.T) *runner {
	t.Helper()
	if out, err := exec.Command("useradd", "--create-home", "runner").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", "--remove", "runner").CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	const sudoers = "/etc/sudoers.d/thenforce"
	if err := os.WriteFile(sudoers, file(t, "sudoers"), 0o440); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(sudoers) })
	if out, err := exec.Command("visudo", "--check", "--file", sudoers).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	u, err := user.Lookup("runner")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	r := &runner{t: t, workspace: "/home/runner/work", temp: "/home/runner/temp",
		attr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}}
	for name, text := range map[string]string{
		r.workspace + "/Makefile": "test:\n\techo tested >result\n", r.temp + "/x": "", "/home/runner/.credentials": "token\n",
		"/home/runner/action/thenforce-ci": string(file(t, "thenforce-ci")),
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("chown", "-R", "runner:", "/home/runner").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return r
}

// sh runs a step's script as the runner does.
func (r *runner) sh(script string, env ...string) (string, int) {
	r.t.Helper()
	cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	cmd.Dir = r.workspace
	cmd.Env = append([]string{"PATH=/home/runner/bin:/usr/bin:/bin", "HOME=/home/runner", "CI=true"}, env...)
	cmd.SysProcAttr = r.attr
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// action is what is read of an action.yml.
type action struct {
	Inputs map[string]struct {
		Required bool   `yaml:"required"`
		Default  string `yaml:"default"`
	} `yaml:"inputs"`
	Runs struct {
		Using string `yaml:"using"`
		Steps []struct {
			Shell string            `yaml:"shell"`
			Env   map[string]string `yaml:"env"`
			Run   string            `yaml:"run"`
		} `yaml:"steps"`
	} `yaml:"runs"`
}

var expression = regexp.MustCompile(`\$\{\{ *([a-z._-]+) *\}\}`)

// use runs the action with inputs, as a composite action's steps are run, and gives the job's summary.
func (r *runner) use(with map[string]string) (out, summary string, code int) {
	r.t.Helper()
	var a action
	if err := yaml.Load(file(r.t, "action.yml"), &a); err != nil {
		r.t.Fatal(err)
	}
	if a.Runs.Using != "composite" || len(a.Runs.Steps) == 0 {
		r.t.Fatalf("the action is %+v", a)
	}
	values := map[string]string{"runner.temp": r.temp, "github.action_path": "/home/runner/action"}
	expand := func(text string) string {
		return expression.ReplaceAllStringFunc(text, func(e string) string {
			value, ok := values[expression.FindStringSubmatch(e)[1]]
			if !ok {
				r.t.Fatalf("%s has no value", e)
			}
			return value
		})
	}
	for name, input := range a.Inputs {
		value, ok := with[name]
		if !ok && input.Required {
			r.t.Fatalf("input %s is missing", name)
		}
		if !ok {
			value = expand(input.Default)
		}
		values["inputs."+name] = value
	}
	summaryFile := filepath.Join(r.temp, "summary.md")
	os.Remove(summaryFile)
	env := []string{"GITHUB_WORKSPACE=" + r.workspace, "GITHUB_STEP_SUMMARY=" + summaryFile}
	for _, step := range a.Runs.Steps {
		if step.Shell != "bash" {
			r.t.Fatalf("shell %q", step.Shell)
		}
		stepEnv := env
		for name, value := range step.Env {
			stepEnv = append(stepEnv, name+"="+expand(value))
		}
		if strings.Contains(step.Run, "${{") {
			r.t.Fatal("an input in the text of a script: its value would be executed")
		}
		var text string
		text, code = r.sh(step.Run, stepEnv...)
		out += text
		if code != 0 {
			break
		}
	}
	text, err := os.ReadFile(summaryFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return out, string(text), code
}

func TestProfileFullGitHubAction(t *testing.T) {
	r := newRunner(t)
	out, summary, code := r.use(map[string]string{"run": "make test\ntest \"$(id -un)\" = runner\necho \"$PATH\""})
	if code != 0 || !strings.Contains(out, "/home/runner/bin:") {
		t.Errorf("a job that stays inside: exit code %d\n%s", code, out)
	}
	if strings.Contains(summary, "denied |") {
		t.Errorf("its summary: %s", summary)
	}
	if text, err := os.ReadFile(r.workspace + "/result"); err != nil || string(text) != "tested\n" {
		t.Errorf("its result: %q %v", text, err)
	}

	steals := map[string]string{"run": "for i in 1 2 3; do cat ~/.credentials || true; done\necho \"quotes ' and \\$(id)\" >/dev/null"}
	out, summary, code = r.use(steals)
	if code != 3 || strings.Contains(out, "token") {
		t.Errorf("a job that reaches for credentials: exit code %d\n%s", code, out)
	}
	for _, want := range []string{"/home/runner/.credentials", "| 3 |", "/home/runner/.credentials:ro"} {
		if !strings.Contains(summary, want) {
			t.Errorf("want %q in its summary:\n%s", want, summary)
		}
	}
	steals["fail-on-denial"] = "false"
	if out, summary, code = r.use(steals); code != 0 || !strings.Contains(summary, ".credentials") {
		t.Errorf("only reported: exit code %d\n%s\n%s", code, out, summary)
	}
	steals["mode"] = "monitor"
	if out, summary, code = r.use(steals); code != 0 || strings.Count(out, "token") != 3 || !strings.Contains(summary, ".credentials") {
		t.Errorf("monitored: exit code %d\n%s\n%s", code, out, summary)
	}
	granted := map[string]string{"run": "cat ~/.credentials; echo x >~/cache/x", "flags": "--grant /home/runner/.credentials:ro --grant /home/runner/cache:rw"}
	os.Mkdir("/home/runner/cache", 0o777)
	os.Chmod("/home/runner/cache", 0o777)
	if out, _, code = r.use(granted); code != 0 || !strings.Contains(out, "token") {
		t.Errorf("granted: exit code %d\n%s", code, out)
	}
	policy := filepath.Join(r.temp, "policy.yaml")
	if err := os.WriteFile(policy, []byte("version: 1\nworkspaceRights: ro\npresets: [system]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _, code = r.use(map[string]string{"run": "cat Makefile; echo x >x", "policy": policy}); code == 0 || !strings.Contains(out, "Permission denied") {
		t.Errorf("a policy: exit code %d\n%s", code, out)
	}
	// sudo is not there for what is in the jail.
	if out, _, code = r.use(map[string]string{"run": "sudo -n thenforce run -- id"}); code == 0 || strings.Contains(out, "uid=0") {
		t.Errorf("sudo in the jail: exit code %d\n%s", code, out)
	}
}

func TestProfileFullGitLabTemplate(t *testing.T) {
	r := newRunner(t)
	var template map[string]struct {
		Variables   map[string]string `yaml:"variables"`
		Script      []string          `yaml:"script"`
		AfterScript []string          `yaml:"after_script"`
		Artifacts   struct {
			Paths []string `yaml:"paths"`
		} `yaml:"artifacts"`
	}
	if err := yaml.Load(file(t, "gitlab-ci.yml"), &template); err != nil {
		t.Fatal(err)
	}
	job := template[".thenforce"]
	run := func(variables map[string]string) (string, int) {
		t.Helper()
		env := []string{"CI_PROJECT_DIR=" + r.workspace, "PATH=/home/runner/action:/usr/bin:/bin"}
		for name, value := range job.Variables {
			if over, ok := variables[name]; ok {
				value = over
			}
			env = append(env, name+"="+value)
		}
		out, code := r.sh(strings.Join(job.Script, "\n"), env...)
		after, _ := r.sh(strings.Join(job.AfterScript, "\n"), env...)
		for _, name := range job.Artifacts.Paths {
			if _, err := os.Stat(filepath.Join(r.workspace, name)); err != nil {
				t.Errorf("artifact: %v", err)
			}
		}
		return fmt.Sprintf("%s\n%s", out, after), code
	}
	if out, code := run(map[string]string{"THENFORCE_RUN": "make test"}); code != 0 {
		t.Errorf("a job that stays inside: exit code %d\n%s", code, out)
	}
	out, code := run(map[string]string{"THENFORCE_RUN": "cat ~/.credentials || true"})
	if code != 3 || strings.Contains(out, "token") || !strings.Contains(out, "/home/runner/.credentials:ro") {
		t.Errorf("a job that reaches for credentials: exit code %d\n%s", code, out)
	}
	if out, code := run(map[string]string{"THENFORCE_RUN": "cat ~/.credentials", "THENFORCE_FLAGS": "--grant /home/runner/.credentials:ro"}); code != 0 || !strings.Contains(out, "token") {
		t.Errorf("granted: exit code %d\n%s", code, out)
	}
}
