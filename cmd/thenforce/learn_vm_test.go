//go:build vm

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Learning: a run that is only monitored, the policy it needed, and the same run under that policy. Then it tries more.
// Those of go and npm take minutes under emulation: they run in make soak.
func TestProfileFullLearn(t *testing.T) {
	t.Run("git", learnGit)
	if os.Getenv("THENFORCE_VM_SOAK") != "" {
		t.Run("go", learnGo)
		t.Run("npm", learnNpm)
	}
}

func learnGit(t *testing.T) {
	l := newLesson(t)
	l.prepare(`git init -q -b main origin && cd origin && git config user.name A && git config user.email a@example.org &&
		for i in 1 2 3; do echo $i >file$i && git add . && git commit -q -m $i; done`)
	l.learn("git clone -q " + l.base + "/origin src && cd src && git config user.name B && git config user.email b@example.org && echo more >>file1 && git commit -q -a -m more && git gc -q")
}

func learnGo(t *testing.T) {
	l := newLesson(t)
	l.prepare(`mkdir -p pristine/lib && cd pristine && printf 'module example.org/m\n\ngo 1.26\n' >go.mod &&
		printf 'package main\n\nimport "example.org/m/lib"\n\nfunc main() { println(lib.Name()) }\n' >main.go &&
		printf 'package lib\n\nfunc Name() string { return "built" }\n' >lib/lib.go`)
	l.learn("cp -r " + l.base + "/pristine src && cd src && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false go build -o app . && ./app 2>&1 | grep -q built")
}

func learnNpm(t *testing.T) {
	l := newLesson(t)
	l.prepare(`mkdir -p package && cd package && echo '{"name":"dep","version":"1.0.0","main":"index.js"}' >package.json &&
		echo 'module.exports = "dep"' >index.js && cd .. && tar czf dep-1.0.0.tgz package`)
	l.learn("cp " + l.base + "/dep-1.0.0.tgz . && echo '{\"name\":\"app\",\"version\":\"1.0.0\"}' >package.json && npm install --offline --no-audit --no-fund --no-update-notifier ./dep-1.0.0.tgz && node -e 'if (require(\"dep\") !== \"dep\") process.exit(1)'")
}

// lesson is a workspace, and a base directory beside it that is not granted.
type lesson struct {
	t          *testing.T
	base, work string
	home       string
}

func newLesson(t *testing.T) lesson {
	t.Helper()
	base, err := os.MkdirTemp("/mnt/ext4", "lesson-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	home := filepath.Join("/home", filepath.Base(base))
	for _, dir := range []string{base + "/work", home} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	return lesson{t, base, base + "/work", home}
}

func (l lesson) prepare(script string) {
	l.t.Helper()
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = l.base
	cmd.Env = append(os.Environ(), "HOME="+l.home)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("%v %s", err, out)
	}
}

// run runs a script jailed, in the workspace.
func (l lesson) run(script string, flags ...string) result {
	l.t.Helper()
	cmd := exec.Command("thenforce", append(append([]string{"run"}, flags...), "--", "sh", "-euc", script)...)
	cmd.Dir = l.work
	cmd.Env = append(os.Environ(), "HOME="+l.home, "PATH=/usr/local/go/bin:/usr/bin:/bin")
	return finish(l.t, cmd)
}

func (l lesson) learn(script string) {
	t := l.t
	t.Helper()
	report, policy := l.base+"/report.json", l.base+"/policy.yaml"
	if r := l.run(script, "--mode", "monitor", "--report", report); r.code != 0 {
		t.Fatalf("monitored: %v", r)
	}
	suggested := thenforce(t, "policy", "suggest", report)
	if suggested.code != 0 || suggested.stderr != "" {
		t.Fatal(suggested)
	}
	t.Logf("the policy:\n%s", suggested.stdout)
	if err := os.WriteFile(policy, []byte(suggested.stdout), 0o644); err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		if err := os.RemoveAll(l.work); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(l.work, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	again()
	start := time.Now()
	if r := l.run(script, "--policy", policy); r.code != 0 {
		t.Errorf("under the policy it needed: %v", r)
	}
	for _, e := range eventsSince(t, start) {
		// A link to a file of fewer rights is refused so that tools copy it, as git does when it clones.
		if e.Code != "rights-gain" {
			t.Errorf("under the policy it needed: %s %s by %s: %s", e.Op, e.Path, e.Comm, e.Code)
		}
	}
	for _, escape := range []string{
		"echo x >" + l.home + "/.profile", "cat /etc/shadow", "ls /root", "echo x >" + l.base + "/planted", "mkdir " + l.base + "/planted", "cat " + report,
	} {
		again()
		r := l.run(script+"\n"+escape, "--policy", policy)
		if r.code == 0 || !strings.Contains(r.stderr, "ermission denied") {
			t.Errorf("%s, added: %v", escape, r)
		}
		script = "true" // what it tries on top does not depend on it
	}
	for _, planted := range []string{l.home + "/.profile", l.base + "/planted"} {
		if _, err := os.Lstat(planted); err == nil {
			t.Errorf("%s is there", planted)
		}
	}
	assertNothingLeft(t)
}
