// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// ownMounts runs the test it is called from in a process with a mount namespace of its own, and reports whether this is
// that process.
func ownMounts(t *testing.T) bool {
	t.Helper()
	const variable = "THENFORCE_TEST_OWN_MOUNTS"
	if os.Getenv(variable) == t.Name() {
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	runtime.LockOSThread() // the end of the starting thread is what Pdeathsig waits for
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a mount namespace of its own: %v\n%s", err, out)
	}
	return false
}

// Mounts of every kind are found and not entered; that the workspace is one itself is no finding.
func TestMounts(t *testing.T) {
	if !ownMounts(t) {
		return
	}
	dir := tempDir(t)
	ws := filepath.Join(dir, "ws")
	write(t, dir, "ws/bind/x", "ws/self/x", "ws/tmp/x", "ws/file", "ws/src/clean", "side/deep/x", "side/file")
	must(t, unix.Mkfifo(filepath.Join(dir, "side/deep/OUTSIDE"), 0o600))
	mount := func(source, target, kind string, flags uintptr) {
		t.Helper()
		target = filepath.Join(ws, target)
		must(t, unix.Mount(source, target, kind, flags, ""))
		t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
	}
	mount(ws, ".", "", unix.MS_BIND)
	mount(filepath.Join(dir, "side"), "bind", "", unix.MS_BIND)
	mount(filepath.Join(ws, "src"), "self", "", unix.MS_BIND) // the same file system, even the same tree
	mount("none", "tmp", "tmpfs", 0)
	mount(filepath.Join(dir, "side/file"), "file", "", unix.MS_BIND)
	must(t, unix.Mkfifo(filepath.Join(ws, "tmp/OUTSIDE"), 0o600))

	want := []string{"mount-point bind", "mount-point file", "mount-point self", "mount-point tmp"}
	got, p := scan(t, ws)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if p.Entries != 7 {
		t.Errorf("progress: %+v, want 7 entries", p)
	}
	if err := newScan(t, ws, nil).Run("bind/deep"); err == nil {
		t.Error("a part on another mount is scanned")
	}

	// A kernel without mount ids is asked through its mount table.
	s := newScan(t, ws, func(Finding) error { return nil })
	s.base = object{}
	table, err := s.probes.Mounts()
	must(t, err)
	s.mounts = table
	for path, want := range map[string]Code{"bind": MountPoint, "self": MountPoint, "file": MountPoint, "src": "", "src/clean": ""} {
		if code, _ := s.boundary(path, &object{}); code != want {
			t.Errorf("%s by the mount table is %q, want %q", path, code, want)
		}
	}
}

// On overlayfs files have devices of their layers, and a directory another device only where something else begins.
func TestDevices(t *testing.T) {
	s := newScan(t, tempDir(t), nil)
	s.base = object{mount: 1, inode: inode{dev: 1, ino: 1}, sharedDevs: true}
	dir := object{mount: 1, inode: inode{dev: 2, ino: 1}, kind: engine.KindDir}
	file := object{mount: 1, inode: inode{dev: 2, ino: 1}, kind: engine.KindFile}
	if code, _ := s.boundary("f", &file); code != "" {
		t.Errorf("a file of an overlay: %q", code)
	}
	if code, _ := s.boundary("d", &dir); code != DeviceChange {
		t.Errorf("a directory of another device: %q", code)
	}
	s.base.sharedDevs = false
	if code, _ := s.boundary("f", &file); code != DeviceChange {
		t.Errorf("a file of another device: %q", code)
	}
}

func TestMagicLinks(t *testing.T) {
	got, _ := scan(t, fmt.Sprintf("/proc/%d/ns", os.Getpid()))
	for _, line := range got {
		if !strings.HasPrefix(line, "magic-link ") {
			t.Errorf("finding %q", line)
		}
	}
	if len(got) == 0 {
		t.Error("no link of /proc/PID/ns is found")
	}
}
