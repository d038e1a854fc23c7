//go:build vm

package loader

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var _ = addOperations(map[string]func([]string) error{"deny": denyBy})

// denyBy tries to open a file so many times and wants EACCES each time.
func denyBy(a []string) error {
	path, err := unix.BytePtrFromString(a[1])
	if err != nil {
		return err
	}
	for range number(a[0]) {
		if _, errno := openPlain(path); errno != unix.EACCES {
			return errors.Join(errno, unix.EBADMSG)
		}
	}
	return nil
}

// A process that does nothing but be denied, on one CPU, and a reader of the events on the other: every denial is
// delivered or counted as lost, exactly, and the reader does not take half of the other's speed.
func TestProfileTwoFlood(t *testing.T) {
	c := newCell(t, openVerified(t))
	pin(t, c.child.cmd.Process.Pid, 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pin(t, 0, 0)
	length, rounds := 2*time.Second, 1
	if inSoak() {
		length, rounds = 10*time.Second, 3
	}
	flood := func(n int) time.Duration {
		start := time.Now()
		want(t, c.child, fmt.Sprintf("deny %d %s/out/file", n, c.base), noErrno)
		return time.Since(start)
	}
	const few = 2000
	flood(few) // it is warm then
	n := int(float64(few) * length.Seconds() / flood(few).Seconds())

	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	// delivered takes events until done, and what is there then.
	delivered := func(done <-chan struct{}) (count uint64) {
		for ended := false; ; {
			until := time.Now()
			select {
			case <-done:
				ended = true
			default:
				until = until.Add(50 * time.Millisecond)
			}
			e, err := events.Read(until)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				if ended {
					return count
				}
			case err != nil:
				t.Error(err)
				return count
			case e.Jail == c.jail.ID:
				count += e.Count
			}
		}
	}
	counts := func() (denials, lost uint64) {
		j, err := c.e.FindJail(c.jail.ID)
		if err != nil {
			t.Fatal(err)
		}
		return j.Denials, j.Lost
	}
	none := make(chan struct{})
	close(none)

	best := 0.0
	for range rounds {
		delivered(none)
		before, lostBefore := counts()
		var over atomic.Bool
		go func() { // nobody reads, but the other CPU is as busy: an emulated one takes from the first what the host has
			runtime.LockOSThread()
			pin(t, 0, 1)
			for !over.Load() {
			}
		}()
		alone := flood(n)
		over.Store(true)
		after, lostAfter := counts()
		got, lost := delivered(none), lostAfter-lostBefore
		if after-before != uint64(n) || got+lost != uint64(n) || lost == 0 {
			t.Errorf("nobody reads: %d tries, %d counted, %d delivered afterwards, %d lost", n, after-before, got, lost)
		}

		done, result := make(chan struct{}), make(chan uint64)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with its place
			pin(t, 0, 1)
			result <- delivered(done)
		}()
		read := flood(n)
		close(done)
		got = <-result
		denials, lostNow := counts()
		lost = lostNow - lostAfter
		if denials-after != uint64(n) || got+lost != uint64(n) {
			t.Errorf("somebody reads: %d tries, %d counted, %d delivered, %d lost", n, denials-after, got, lost)
		}
		if got < uint64(n)/100 {
			t.Errorf("of %d events the reader got %d", n, got)
		}
		best = max(best, alone.Seconds()/read.Seconds())
		t.Logf("%d denials: %.0f a second alone, %.0f with a reader (%.2f), who got %d; %d lost",
			n, float64(n)/alone.Seconds(), float64(n)/read.Seconds(), alone.Seconds()/read.Seconds(), got, lost)
	}
	if inSoak() && best < 0.5 {
		t.Errorf("with a reader the flood has %.2f of its speed", best)
	}
}

// pin keeps a thread on a CPU; 0 is the caller's.
func pin(t *testing.T, thread, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		t.Error(err)
	}
}
