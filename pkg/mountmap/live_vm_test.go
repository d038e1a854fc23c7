// SPDX-License-Identifier: Apache-2.0

//go:build linux && vm

package mountmap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownNamespace gives the test a thread in a mount namespace of its own, which
// ends with the test. It needs root.
func ownNamespace(t *testing.T) {
	t.Helper()
	// Never unlocked: the thread dies with the test's goroutine.
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err != nil {
		t.Errorf("make a mount namespace: %v", err)
		runtime.Goexit()
	}
}

func mount(t *testing.T, source, target, fsType string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
		t.Errorf("mount %s on %s: %v", source, target, err)
		runtime.Goexit()
	}
}

func TestLiveChanges(t *testing.T) {
	dir := t.TempDir()
	weird := filepath.Join(dir, "a b\tc\nd\\e#f")
	if err := os.Mkdir(weird, 0o755); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ownNamespace(t)
		live, err := OpenLive()
		if err != nil {
			t.Error(err)
			return
		}
		defer live.Close()
		before, err := live.Table()
		if err != nil {
			t.Error(err)
			return
		}
		mount(t, "tmpfs", weird, "tmpfs", 0)
		mount(t, "second", weird, "tmpfs", 0)
		after, err := live.Table()
		if err != nil || after == before {
			t.Errorf("after a mount the same table, %v", err)
			return
		}
		if m, ok := after.At(weird); !ok || m.Source != "second" || len(after.Stack(weird)) != 2 {
			t.Errorf("At(%q) = %+v, %v, stack %v", weird, m, ok, after.Stack(weird))
		}
		if err := unix.Unmount(weird, 0); err != nil {
			t.Error(err)
		}
		if m, ok := must(t, live).At(weird); !ok || m.Source != "tmpfs" {
			t.Errorf("after an unmount: %+v, %v", m, ok)
		}
	}()
	<-done
}

func must(t *testing.T, live *Live) *Table {
	t.Helper()
	table, err := live.Table()
	if err != nil {
		t.Error(err)
	}
	return table
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ownNamespace(t)
		w, err := NewWatcher()
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		quiet, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := w.Wait(quiet); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait without a change = %v", err)
		}
		mount(t, "tmpfs", dir, "tmpfs", 0)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.Wait(ctx); err != nil {
			t.Errorf("Wait after a mount = %v", err)
		}
	}()
	<-done
}

// TestUntrustedProcfs lays other things over the procfs.
func TestUntrustedProcfs(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(fake, []byte(rootLine), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, lay := range map[string]func(t *testing.T){
		"a file over the mount table":    func(t *testing.T) { mount(t, fake, "/proc/thread-self/mountinfo", "", unix.MS_BIND) },
		"another process's mount table":  func(t *testing.T) { mount(t, "/proc/1/mountinfo", "/proc/thread-self/mountinfo", "", unix.MS_BIND) },
		"a tmpfs over the procfs":        func(t *testing.T) { mount(t, "tmpfs", "/proc", "tmpfs", 0) },
		"a directory of the same procfs": func(t *testing.T) { mount(t, "/proc/1", "/proc", "", unix.MS_BIND) },
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				ownNamespace(t)
				lay(t)
				if table, err := Read(); !errors.Is(err, ErrUntrusted) {
					t.Errorf("Read = %v, %v; want ErrUntrusted", table, err)
				}
			}()
			<-done
		})
	}
}
