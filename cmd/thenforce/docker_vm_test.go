//go:build vm

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// daemonJSON is the configuration that docs/containers.md shows, for a guest: it has no network, and another disk.
const daemonJSON = `{
  "runtimes": {
    "thenforce": {"path": "/usr/bin/thenforce", "runtimeArgs": ["hook", "--runtime", "/usr/bin/runc", "--"]}
  },
  "exec-opts": ["native.cgroupdriver=cgroupfs"], "data-root": %q, "exec-root": %[2]q, "pidfile": "%[2]s/pid",
  "bridge": "none", "iptables": false, "ip6tables": false
}
`

// startDocker starts Docker's daemon, with the image ground, and ends it after the test.
func startDocker(t *testing.T, g ground) {
	t.Helper()
	dir, err := os.MkdirTemp("/mnt/ext4", "docker-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, daemonJSON, dir+"/data", dir+"/exec"), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	daemon := exec.Command("dockerd", "--config-file", config)
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		daemon.Process.Signal(unix.SIGTERM)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			daemon.Process.Kill()
			t.Error("dockerd does not end")
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("dockerd: %s", text)
		}
	})
	for start := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		r := docker(t, "version")
		if r.code == 0 {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("dockerd ended: %v", err)
		default:
		}
		if time.Since(start) > 2*time.Minute {
			t.Fatalf("dockerd does not answer: %v", r)
		}
	}
	if r := docker(t, "import", g.archive(t), "ground"); r.code != 0 {
		t.Fatal(r)
	}
}

func docker(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, exec.Command("docker", args...))
}

// dockerBox is the one container that a test has at a time.
type dockerBox struct {
	t       *testing.T
	targets *targets
}

// start starts it with a jail, or with none.
func (d dockerBox) start(jailed bool, more ...string) {
	d.t.Helper()
	runtime := "thenforce"
	if !jailed {
		runtime = "runc"
	}
	run := []string{"run", "-d", "--name", "box", "--runtime", runtime, "--privileged",
		"-v", d.targets.g.work + ":/work", "-v", d.targets.g.other + ":/other"}
	if r := docker(d.t, slices.Concat(run, more, []string{"ground", "/bin/sleep", "6000"})...); r.code != 0 {
		d.t.Fatal(r)
	}
}

// do has a canary in it.
func (d dockerBox) do(what func(*operator)) {
	d.t.Helper()
	x := operate(d.t, exec.Command("docker", "exec", "-i", "box", "thenforce-canary"))
	what(x)
	x.end()
}

func (d dockerBox) remove() {
	d.t.Helper()
	if r := docker(d.t, "rm", "-f", "box"); r.code != 0 {
		d.t.Fatal(r)
	}
	assertNothingLeft(d.t)
}

// Docker itself, with the runtime that docs/containers.md tells its users to name.
func TestProfileFullDocker(t *testing.T) {
	long := os.Getenv("THENFORCE_VM_SOAK") != "" // each call of docker takes seconds under emulation
	verified(t)
	setUpDefaultHost(t)
	g := newGround(t)
	startDocker(t, g)
	d := dockerBox{t, newTargets(t, g)}

	d.start(true, "--network", "none")
	jail := onlyJail(t)
	if jail.State != "armed" || jail.Workspace != "/work" {
		t.Errorf("the jail is %+v", jail)
	}
	held := func(x *operator) {
		x.check(work)
		x.check(ownProcesses)
		d.targets.hold(x, escapes)
	}
	d.do(held)
	if long {
		if r := docker(t, "restart", "-t", "0", "box"); r.code != 0 {
			t.Fatal(r)
		}
		if again := onlyJail(t); again.ID == jail.ID {
			t.Error("a restarted container has its old jail")
		}
		d.do(held)
	}
	d.remove()

	if long {
		host := []string{"--network", "host", "--pid", "host", "--cgroupns", "host", "-v", "/:/host:rslave"}
		d.start(false, host...)
		d.do(func(x *operator) { d.targets.succeed(x, hostEscapes) })
		d.remove()
		d.start(true, host...)
		d.do(func(x *operator) {
			x.check(work)
			d.targets.hold(x, hostEscapes)
		})
		d.remove()
	}

	// Without the host's decision, nothing starts.
	if err := os.Remove(hookConfig); err != nil {
		t.Fatal(err)
	}
	if r := docker(t, "run", "--rm", "--runtime", "thenforce", "--network", "none", "ground", "/bin/echo", "started"); r.code == 0 ||
		strings.Contains(r.stdout, "started") || !strings.Contains(r.stderr, hookConfig) {
		t.Errorf("without a configuration: %v", r)
	}
	assertNothingLeft(t)
}

// Where BPF LSM is not active, Docker starts nothing with our runtime, and says why.
func TestProfileContainersNoLSMDocker(t *testing.T) {
	setUpDefaultHost(t)
	startDocker(t, newGround(t))
	r := docker(t, "run", "--rm", "--runtime", "thenforce", "--network", "none", "ground", "/bin/echo", "started")
	if r.code == 0 || strings.Contains(r.stdout, "started") || !strings.Contains(r.stderr, "lsm-inactive") {
		t.Error(r)
	}
}
