package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Spawn runs f on an OS thread that nothing else runs on, and which ends with f. So f may change the thread without harm to
// the process. It must not leave to other goroutines what is to see the change.
//
// It is never the main thread: that one does not end with its goroutine, and its state is what the kernel shows as the
// process's, in /proc/PID for instance.
func Spawn(f func()) {
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

// Run is Spawn and waits for f.
func Run(f func() error) error {
	done := make(chan error, 1)
	Spawn(func() { done <- f() })
	return <-done
}
