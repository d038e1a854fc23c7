// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// backends returns probes for every way of going down: with openat2(2) and
// without, with the mount ids of a kernel before Linux 6.8, and through os.Root as
// on macOS and Windows.
func backends(t testing.TB) map[string]*Probes {
	t.Helper()
	with, without, reused, root := newProbes(t), newProbes(t), newProbes(t), newProbes(t)
	if !with.hasOpenat2() {
		t.Fatal("this kernel has no openat2, so half of the tests would prove nothing")
	}
	without.componentwise = true
	reused.mask &^= unix.STATX_MNT_ID_UNIQUE
	root.viaRoot = true
	return map[string]*Probes{"openat2": with, "componentwise": without, "reused ids": reused, "os.Root": root}
}

// ownMounts runs the test it is called from in a process with a mount namespace
// of its own, and reports whether this is that process.
func ownMounts(t *testing.T) bool {
	t.Helper()
	const variable = "THENFORCE_TEST_OWN_MOUNTS"
	if os.Getenv(variable) == t.Name() {
		mount(t, "", "/", "", unix.MS_REC|unix.MS_PRIVATE)
		return true
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	args := []string{"-test.run=^" + name + "$", "-test.v"}
	flag.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "race-") || strings.HasPrefix(f.Name, "rapid.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	// It must not outlive this process, whose end is that of the starting thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("in a mount namespace of its own:\n%s", out)
	if err != nil {
		t.Error(err)
	} else if !strings.Contains(string(out), "--- PASS: "+name) {
		t.Error("the test did not run there")
	}
	return false
}

func mount(t testing.TB, source, target, fsType string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
		t.Fatalf("mount %s on %s: %v", source, target, err)
	}
}

// asNobody runs f with the rights of a user without any.
func asNobody(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Credentials belong to the thread, which ends with this goroutine
		// because it stays locked to it.
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			const nobody = 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
				panic(errno)
			}
		}
		f()
	}()
	<-done
}

// publicDir is realTempDir for tests with [asNobody]: everybody gets there.
func publicDir(t testing.TB) string {
	t.Helper()
	dir := realTempDir(t)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(d, 0o755))
	}
	return dir
}

// shut takes all permissions from a directory for the time of the test.
func shut(t testing.TB, dir string) {
	t.Helper()
	must(t, os.Chmod(dir, 0))
	t.Cleanup(func() { must(t, os.Chmod(dir, 0o700)) })
}
