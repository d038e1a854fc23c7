package thread

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// init keeps the test's main goroutine on the main thread, so that a spawned goroutine may come to be started there.
func init() { runtime.LockOSThread() }

func TestRunHasAThreadOfItsOwn(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	var tid int
	err = Run(func() error {
		tid = unix.Gettid()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Chdir("/proc"); err != nil {
			return err
		}
		return failed
	})
	if err != failed {
		t.Fatalf("got %v", err)
	}
	if tid == unix.Getpid() {
		t.Error("it ran on the main thread")
	}
	if now, err := os.Getwd(); err != nil || now != here {
		t.Errorf("the process is in %s, %v", now, err)
	}
}

// The main thread is free when nothing is locked to it; Spawn must not take it all the same.
func TestSpawnLeavesTheMainThread(t *testing.T) {
	runtime.UnlockOSThread()
	defer runtime.LockOSThread()
	for range 200 {
		done := make(chan int)
		Spawn(func() { done <- unix.Gettid() })
		if tid := <-done; tid == unix.Getpid() {
			t.Fatal("it ran on the main thread")
		}
	}
}
