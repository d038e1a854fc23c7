//go:build vm

package selftest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestProfileSystemd(t *testing.T) {
	if comm, err := os.ReadFile("/proc/1/comm"); err != nil || string(comm) != "systemd\n" {
		t.Errorf("process 1 is %q, %v", comm, err)
	}
	out, err := exec.Command("systemctl", "list-units", "--failed", "--no-legend", "--plain").CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("failed units: %s, %v", out, err)
	}
	// A scope of one's own, with a controller of its own.
	out, err = exec.Command("systemd-run", "--quiet", "--scope", "--property=Delegate=yes", "cat", "/proc/self/cgroup").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "0::/") || !strings.HasSuffix(strings.TrimSpace(string(out)), ".scope") {
		t.Errorf("systemd-run says %q, %v", out, err)
	}
}
