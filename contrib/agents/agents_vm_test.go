//go:build vm

package agents

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// setUp makes the user, the directories and files that a test names, all the user's, and gives the policy's path.
func setUp(t *testing.T, policy, user, home string, files map[string]string) string {
	t.Helper()
	if out, err := exec.Command("useradd", "--create-home", "--home-dir", home, user).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", "--remove", user).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := Files.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), policy)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func script(t *testing.T, dir, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-euc", text)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// jail runs scripts as an agent would.
type jail struct {
	t                       *testing.T
	policy, workspace, user string
}

func (j jail) run(script string) (string, error) {
	j.t.Helper()
	cmd := exec.Command("thenforce", "run", "--policy", j.policy, "--workspace", j.workspace, "--user", j.user, "--", "sh", "-euc", script)
	cmd.Dir = j.workspace
	cmd.Env = []string{"PATH=/usr/local/go/bin:/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// works: the script must succeed.
func (j jail) works(script string) {
	j.t.Helper()
	if out, err := j.run(script); err != nil {
		j.t.Errorf("%s: %v\n%s", script, err, out)
	}
}

// denied: each script must fail with a plain permission error, and leave an event that tells the operator.
func (j jail) denied(scripts ...string) {
	j.t.Helper()
	for _, script := range scripts {
		start := time.Now()
		out, err := j.run(script)
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() == 125 || !strings.Contains(strings.ToLower(out), "permi") && !strings.Contains(out, "not permitted") {
			j.t.Errorf("%s: %v\n%s", script, err, out)
			continue
		}
		events, err := exec.Command("thenforce", "events", "--since", fmt.Sprint(time.Since(start)+time.Second)).Output()
		if err != nil || !strings.Contains(string(events), " denied ") {
			j.t.Errorf("%s: the operator sees %q, %v", script, events, err)
		}
	}
}

// listen makes a socket that everybody may connect to, as an engine's may be.
func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
}

func TestProfileFullCodingAgent(t *testing.T) {
	const repo = "/srv/repo"
	policy := setUp(t, "coding.yaml", "agent", "/home/agent", map[string]string{
		repo + "/main.c": "#include <stdio.h>\nint main(void) { return puts(\"built\") < 0; }\n", repo + "/.env": "TOKEN=1\n", repo + "/.gitignore": ".env\n",
		repo + "/.github/workflows/ci.yml": "on: push\n", "/home/agent/.ssh/id_ed25519": "key\n", "/home/agent/.profile": "\n",
		"/home/agent/.cache/": "", "/home/agent/.npm/": "", "/home/agent/.gitconfig": "[user]\n\tname = Agent\n\temail = agent@example.org\n",
	})
	t.Cleanup(func() { os.RemoveAll(repo) })
	script(t, repo, "git init -q -b main . && git add main.c .github .gitignore && git -c user.name=H -c user.email=h@example.org commit -q -m first && chown -R agent: . /home/agent")
	listen(t, "/run/docker.sock")
	j := jail{t, policy, repo, "agent"}

	j.works("echo 'int more;' >more.c && sed -i s/built/rebuilt/ main.c && git add -A . && git commit -q -m more && git log --oneline | wc -l")
	j.works("git checkout -q -b topic && git mv main.c prog.c && git commit -q -m renamed && git gc -q && git status --short")
	j.works("gcc -o app prog.c && ./app && rm app")
	j.works("mkdir -p ~/.cache/tool && echo x >~/.cache/tool/x && mv ~/.cache/tool/x ~/.cache/tool/y && echo tmp >/tmp/x && python3 -c 'import json, multiprocessing; multiprocessing.Lock()'")
	j.denied(
		"cat .env", "echo x >>.env", "mv .env env", "ln .env env && cat env",
		"echo '#!/bin/sh' >.git/hooks/post-commit", "mkdir .git/hooks/x", "mv .git/hooks .git/h", "mv .git g",
		"git config core.fsmonitor /tmp/x", "echo x >>.git/config", "echo x >>.github/workflows/ci.yml",
		"cat ~/.ssh/id_ed25519", "echo x >>~/.profile", "echo x >~/.bash_profile", "ls ~",
		`python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("/run/docker.sock")'`,
	)
	// These the kernel refuses to this user anyway, before it asks anybody else.
	for _, script := range []string{"cat /etc/shadow", "ls /root", "echo x >/usr/local/bin/x", "cat /proc/1/environ", "kill -0 1"} {
		if out, err := j.run(script); err == nil {
			j.t.Errorf("%s: %s", script, out)
		}
	}
	if text, err := os.ReadFile("/home/agent/.profile"); err != nil || string(text) != "\n" {
		t.Errorf("the agent's profile is %q, %v", text, err)
	}
}

// A real browser, Debian's, that draws pages and says what is in them.
func TestProfileFullBrowserAgent(t *testing.T) {
	const repo = "/srv/pages"
	page := func(text string) string {
		return "<!doctype html><title>t</title><p id=p>-</p><script>p.textContent = '" + text + " ' + 6 * 7</script>\n"
	}
	policy := setUp(t, "browser.yaml", "agent", "/home/agent", map[string]string{
		repo + "/page.html": page("shown"), repo + "/.env": "TOKEN=of-yours\n", "/srv/outside.html": page("outside"),
		repo + "/frame.html":                   "<!doctype html><img src=file:///srv/outside.png><iframe src=file:///srv/outside.html></iframe>\n",
		"/home/agent/.mozilla/cookies":         "cookie\n",
		"/home/agent/.config/chromium/Default": "", "/home/agent/.cache/": "",
	})
	t.Cleanup(func() { os.RemoveAll(repo); os.Remove("/srv/outside.html") })
	script(t, repo, "chown -R agent: . /home/agent")
	j := jail{t, policy, repo, "agent"}
	browse := "chromium-headless-shell --no-sandbox --disable-gpu --timeout=120000 --virtual-time-budget=2000 "

	// The control: with nothing around it, it shows both.
	free, err := exec.Command("su", "agent", "-s", "/bin/sh", "-c", "cd "+repo+" && "+browse+"--dump-dom file:///srv/outside.html").CombinedOutput()
	if err != nil || !strings.Contains(string(free), "outside 42") {
		t.Fatalf("with no jail: %v %s", err, free)
	}
	out, err := j.run(browse + "--dump-dom file://" + repo + "/page.html")
	if err != nil || !strings.Contains(out, "shown 42") {
		t.Errorf("a page of the workspace: %v %s", err, out)
	}
	urls := []string{"file:///srv/outside.html"}
	if os.Getenv("THENFORCE_VM_SOAK") != "" { // each start of a browser takes its time under emulation
		urls = append(urls, "file://"+repo+"/.env", "file:///home/agent/.mozilla/cookies", "file:///etc/shadow")
		j.works(browse + "--screenshot=shot.png --window-size=320,240 page.html && file shot.png | grep -q 'PNG image data, 320 x 240'")
		if out, _ := j.run(browse + "--dump-dom frame.html"); strings.Contains(out, "outside 42") {
			t.Errorf("in a frame: %s", out)
		}
	}
	for _, url := range urls {
		start := time.Now()
		out, _ := j.run(browse + "--dump-dom " + url)
		if strings.Contains(out, "outside 42") || strings.Contains(out, "of-yours") || strings.Contains(out, "cookie\n") || !strings.Contains(out, "ERR_ACCESS_DENIED") {
			t.Errorf("%s: %s", url, out)
		}
		events, err := exec.Command("thenforce", "events", "--since", fmt.Sprint(time.Since(start)+time.Second)).Output()
		if err != nil || url != "file:///etc/shadow" && !strings.Contains(string(events), strings.TrimPrefix(url, "file://")) {
			t.Errorf("%s: the operator sees %q, %v", url, events, err)
		}
	}
	j.denied("cat .env", "cat ~/.mozilla/cookies", "mkdir -p .git/hooks")
}

func TestProfileFullBuildService(t *testing.T) {
	const home = "/var/lib/builds"
	policy := setUp(t, "build.yaml", "builds", home, map[string]string{
		home + "/one/Makefile": "app: main.c\n\tgcc -o $@ $<\n\t./app\n", home + "/one/main.c": "int main(void) { return 0; }\n",
		home + "/two/source": "another's\n", "/var/cache/builds/": "", "/opt/toolchain/version": "1\n",
	})
	t.Cleanup(func() { os.RemoveAll("/var/cache/builds"); os.RemoveAll("/opt/toolchain") })
	script(t, "/", "chown -R builds: "+home+" /var/cache/builds /opt/toolchain")
	j := jail{t, policy, home + "/one", "builds"}

	j.works("make && cp app /var/cache/builds/app && cat /opt/toolchain/version")
	j.denied("cat ../two/source", "ls ..", "echo x >../three", "echo x >>/opt/toolchain/version", "cat ~/two/source", "rm -r ../two", "/var/cache/builds/app")
	// What it may use up is bounded.
	if out, err := j.run("for i in $(seq 600); do sleep 60 & done; wait"); err == nil || !strings.Contains(out, "fork") {
		t.Errorf("600 processes: %v %.300s", err, out)
	}
	if out, err := j.run("cat /proc/self/cgroup; exec 3</sys/fs/cgroup/memory.max"); err == nil {
		t.Errorf("the cgroup can be read: %s", out)
	}
}
