package supervise

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// spawnThread runs f on an OS thread that nothing else runs on, and which ends with f. So f may change what the kernel
// keeps per thread (working directory, mount namespace, file system ids, capabilities) without harm to the process.
//
// It is never the main thread: that one does not end with its goroutine, and its state is what the kernel shows as the
// process's, in /proc/PID for instance.
func spawnThread(f func()) {
	go func() {
		runtime.LockOSThread() // Without Unlock: the runtime then ends the thread together with the goroutine.
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// As long as this goroutine keeps the main thread, another one cannot be on it.
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			f()
		}()
		<-taken
		runtime.UnlockOSThread()
	}()
}

// onThread is spawnThread and waits for f.
func onThread(f func() error) error {
	done := make(chan error, 1)
	spawnThread(func() { done <- f() })
	return <-done
}
