package supervise

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are passed on to the command.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
}

// deadly are those of them that ask for an end: before the command is started they stop the start, and after it has
// ended they cut the grace time of what it left.
var deadly = []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}

// toGroup are those that concern the command's whole process group, as when a terminal sends them. The others go to the
// command alone, as if it had been signalled in thenforce's place.
var toGroup = []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGWINCH, unix.SIGCONT}

// Signals holds the signals that this process gets from [CatchSignals] on.
type Signals struct {
	ch chan os.Signal
}

// CatchSignals begins to hold the signals that are for the command. Called before the cgroup is made, it sees to it that
// an interrupt at any moment ends in an orderly way: [Start] answers it with an [InterruptedError].
//
// A signal that was ignored when this process started stays so, for the command too (nohup(1), or a shell's background
// job). Go's runtime lets this be seen for SIGHUP and SIGINT. SIGQUIT is taken as ignored when SIGINT is, since shells
// ignore both together (POSIX, "Asynchronous Lists"); for other signals an inherited SIG_IGN is lost.
func CatchSignals() *Signals {
	s := &Signals{ch: make(chan os.Signal, 64)}
	if signal.Ignored(unix.SIGINT) {
		signal.Ignore(unix.SIGQUIT)
	}
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

// catchStop begins to hold SIGTSTP too. The runtime leaves this signal alone until then, so that its disposition can be
// seen.
func (s *Signals) catchStop() {
	if !ignored(unix.SIGTSTP) {
		signal.Notify(s.ch, unix.SIGTSTP)
	}
}

// Stop gives the signals back their usual effect.
func (s *Signals) Stop() {
	signal.Stop(s.ch)
}

// interrupted returns the first deadly signal that is held, or 0. Others that came before it are dropped: there is no
// command yet that they could be for.
func (s *Signals) interrupted() syscall.Signal {
	for {
		select {
		case sig := <-s.ch:
			if slices.Contains(deadly, sig) {
				return sig.(syscall.Signal)
			}
		default:
			return 0
		}
	}
}

// hurry returns a channel that is closed at the next deadly signal, and a function that ends the watch.
func (s *Signals) hurry() (<-chan struct{}, func()) {
	hurry, done := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-s.ch:
				if slices.Contains(deadly, sig) {
					close(hurry)
					return
				}
			case <-done:
				return
			}
		}
	}()
	return hurry, func() { close(done) }
}

// InterruptedError says that a signal asked for the end before the command was started.
type InterruptedError struct {
	Signal syscall.Signal
}

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted before the command was started (%s)", unix.SignalName(e.Signal))
}

// ignored reads the disposition of a signal from the kernel.
func ignored(sig syscall.Signal) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && set&(1<<(sig-1)) != 0
		}
	}
	return false
}

// A kernelAction is the kernel's struct sigaction with room to spare. The first word is the handler (but on MIPS), the rest
// differs between architectures and is only kept.
type kernelAction [16]uintptr

// SIG_DFL and SIG_IGN.
var (
	actionDefault = kernelAction{0}
	actionIgnore  = kernelAction{1}
)

// setAction changes what sig does in this process, behind the back of the runtime. os/signal cannot do it: once a stop
// signal was caught, signal.Reset leaves the runtime's handler in place, which drops it.
func setAction(sig syscall.Signal, action kernelAction) (old kernelAction, err error) {
	const sigsetSize = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)),
		uintptr(unsafe.Pointer(&old)), sigsetSize, 0, 0)
	if errno != 0 {
		return old, os.NewSyscallError("rt_sigaction", errno)
	}
	return old, nil
}
