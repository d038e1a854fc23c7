//go:build vmbroken

// Package broken has tests that go wrong in every way that the harness must
// notice. Nothing but "go run ./test/vm prove" builds it.
package broken

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPasses(t *testing.T) {}

func TestFails(t *testing.T) { t.Error("on purpose") }

func TestSkips(t *testing.T) { t.Skip("on purpose") }

// TestExits ends the binary with success in the middle of a test.
func TestExits(t *testing.T) { os.Exit(0) }

func TestPanics(t *testing.T) { panic("on purpose") }

func TestHangs(t *testing.T) { time.Sleep(time.Hour) }

// TestStopsEverything stops the process that would stop it: the runner.
func TestStopsEverything(t *testing.T) {
	if err := unix.Kill(os.Getppid(), unix.SIGSTOP); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Hour)
}

// TestWarns passes, but leaves behind in the kernel's log what a bug of the
// kernel would.
func TestWarns(t *testing.T) {
	write(t, "/dev/kmsg", "<4>WARNING: CPU: 0 PID: 1 at kernel/none.c:1 on_purpose+0x0/0x0\n")
}

// TestCrashesKernel makes the kernel panic.
func TestCrashesKernel(t *testing.T) { write(t, "/proc/sysrq-trigger", "c") }

// TestPowersOff ends the guest as if all were well, but without a record.
func TestPowersOff(t *testing.T) {
	t.Error(unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func write(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}
