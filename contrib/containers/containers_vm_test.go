//go:build vm

package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// install copies the files to where their first lines say.
func install(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { os.RemoveAll("/etc/thenforce") })
	err := fs.WalkDir(Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := Files.ReadFile(name)
		if err != nil {
			return err
		}
		at, mode := filepath.Join("/etc/thenforce", name), fs.FileMode(0o644)
		if name == "thenforce-runc" {
			at, mode = runtime, 0o755
		} else if first, _, _ := strings.Cut(string(text), "\n"); !strings.HasPrefix(first, "# "+at+":") {
			return fmt.Errorf("%s does not say that it is to be %s: %q", name, at, first)
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		return os.WriteFile(at, text, mode)
	})
	if err != nil {
		t.Fatal(err)
	}
}

const runtime = "/usr/local/bin/thenforce-runc"

// call calls the script as containerd's shim does.
func call(t *testing.T, args ...string) (string, error) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log.json")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(runtime, append([]string{"--root", "/run/test-runc", "--log", log, "--log-format", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out // a file: a pipe would stay open as long as the container
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name())
	why, _ := os.ReadFile(log)
	return string(text) + string(why), err
}

func TestProfileFullRuntimeScript(t *testing.T) {
	if out, err := exec.Command("thenforce", "status", "--verify").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	install(t)
	base, err := os.MkdirTemp("/mnt/ext4", "containers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	for _, dir := range []string{"bundle/rootfs/bin", "bundle/rootfs/work", "bundle/rootfs/host", "bundle/rootfs/tmp", "work"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := os.ReadFile("/usr/bin/busybox")
	if err == nil {
		err = os.WriteFile(base+"/bundle/rootfs/bin/sh", busybox, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	newSpec := exec.Command("runc", "spec")
	newSpec.Dir = base + "/bundle"
	if out, err := newSpec.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	var spec specs.Spec
	text, err := os.ReadFile(base + "/bundle/config.json")
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.Terminal, spec.Process.Args = false, []string{"/bin/sh", "-c", "sleep 600"}
	spec.Root.Readonly = false
	spec.Mounts = append(spec.Mounts,
		specs.Mount{Destination: "/work", Type: "bind", Source: base + "/work", Options: []string{"bind"}},
		specs.Mount{Destination: "/host", Type: "bind", Source: "/", Options: []string{"rbind"}})
	if text, err = json.Marshal(spec); err == nil {
		err = os.WriteFile(base+"/bundle/config.json", text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { call(t, "delete", "--force", "box") })
	if out, err := call(t, "create", "--bundle", base+"/bundle", "--pid-file", base+"/pid", "box"); err != nil {
		t.Fatalf("create: %v %s", err, out)
	}
	if out, err := call(t, "start", "box"); err != nil {
		t.Fatalf("start: %v %s", err, out)
	}
	for script, want := range map[string]bool{
		"echo x >/work/made && cat /work/made && echo y >/tmp/made && cat /bin/sh >/dev/null": true,
		"cat /host/etc/hostname": false, "cat /host/etc/shadow": false, "echo x >/host/etc/made": false, "echo x >/made": false,
	} {
		out, err := call(t, "exec", "box", "/bin/sh", "-c", script)
		if (err == nil) != want || !want && !strings.Contains(strings.ToLower(out), "permission denied") {
			t.Errorf("%s: %v %s", script, err, out)
		}
	}
	if out, err := call(t, "delete", "--force", "box"); err != nil {
		t.Errorf("delete: %v %s", err, out)
	}
	if out, err := exec.Command("thenforce", "jail", "list", "--json").Output(); err != nil || len(out) != 0 {
		t.Errorf("jails left: %s %v", out, err)
	}
	if _, err := os.Stat("/etc/made"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the host has a file of the container's: %v", err)
	}
}
