package supervise

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/thenforce/thenforce/internal/cgroup"
	"github.com/thenforce/thenforce/internal/thread"
	"golang.org/x/sys/unix"
)

// Command says what to run and how. Only Args is required.
type Command struct {
	// Args are the command's name, looked up as execvp(3) does if it has no slash, and its arguments.
	Args []string
	// Env is the environment; nil means this process's own. PATH is taken from here.
	Env []string
	// Dir is the working directory, a path in the command's own mount namespace. "" means this process's own.
	Dir string
	// User is whom to run as; nil means as this process. A switch of user gives up every group that is not the
	// user's and every capability, and implies NoNewPrivs. HOME, USER and LOGNAME are set.
	User *User
	// Stdin, Stdout and Stderr become the descriptors 0 to 2; nil is /dev/null.
	Stdin, Stdout, Stderr *os.File
	// Extra become the descriptors from 3 on. No others are open in the command.
	Extra []*os.File
	// Cgroup is where the command is born, and where everything is ended when it ends. Without one, the command
	// stays in this process's cgroup, and what it leaves behind is left.
	Cgroup *cgroup.Group
	// SharedCgroup says that Cgroup is not there for this command alone: nothing else in it is ended.
	SharedCgroup bool
	// PrivateTmp gives the command a mount namespace of its own with an empty tmpfs on /tmp, and one on /dev/shm for
	// POSIX shared memory (shm_open(3)), which vanish with
	// its last process. A system without /tmp gets none.
	PrivateTmp bool
	// Expose lists directories and files below /tmp, as absolute paths without symbolic links, that PrivateTmp shall
	// not hide: they are bind-mounted at their place. Paths that are not below /tmp are left alone; /tmp itself
	// means that there is no private one.
	Expose []string
	// NoNewPrivs forbids the command to gain privileges by executing (set-user-ID programs).
	NoNewPrivs bool
	// DieWithParent kills the command, not what it has started, when this process ends before it in whatever way.
	DieWithParent bool
	// Timeout, if not 0, is after what time the command's process group gets SIGTERM, and [Grace] later everything
	// is killed.
	Timeout time.Duration
	// Prepare is called when all is ready but the command is not started yet. It runs on the OS thread that the
	// command is started from, so it sees the command's mount namespace and working directory, with the privileges
	// of this process. It must not leave that to other goroutines. An error from it is returned by Start, and
	// nothing is started.
	Prepare func(View) error
	// Signals are the signals held for the command, see [CatchSignals]; nil makes Start hold them itself. They are
	// held until Wait returns, or longer if the caller has begun it.
	Signals *Signals
}

// View is the command's file system as Prepare sees it.
type View struct {
	// Tmp is where the private /tmp is mounted, "" without one.
	Tmp string
	// Shm is where the private /dev/shm is mounted, "" without one.
	Shm string
}

// Open opens a path of the command's mount namespace with O_PATH, following symbolic links.
func (View) Open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Process is a started command.
type Process struct {
	pid     int
	cgroup  *cgroup.Group // What to end with the command, nil for nothing.
	signals *Signals
	own     bool // Start made signals itself.
	tty     *terminal
	timeout time.Duration
	ended   chan struct{} // Closed when the command has ended.
}

// Pid returns the command's process id, which is also its process group.
func (p *Process) Pid() int { return p.pid }

// Start starts the command. On an error nothing of it is left running, and the cgroup is as it was.
//
// A [*CommandError] says that the command cannot be executed, an [*InterruptedError] that a signal came first, an
// [*AccessError] that Dir cannot be entered. [ExitCode] knows the exit code for each.
func Start(c Command) (*Process, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("start a command: no command is given")
	}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.User != nil {
		c.Env = c.User.environ(c.Env)
	}
	p := &Process{
		signals: c.Signals,
		timeout: c.Timeout,
		ended:   make(chan struct{}),
	}
	if !c.SharedCgroup {
		p.cgroup = c.Cgroup
	}
	if p.signals == nil {
		p.signals, p.own = CatchSignals(), true
	}
	if p.tty = openTerminal(); p.tty != nil {
		p.signals.catchStop()
	}
	started := make(chan error, 1)
	thread.Spawn(func() {
		err := p.launch(&c)
		started <- err
		if err == nil {
			// The kernel sends the parent-death signal when the thread that started the command ends.
			<-p.ended
		}
	})
	if err := <-started; err != nil {
		err = errors.Join(err, p.sweep(0))
		p.release()
		return nil, err
	}
	return p, nil
}

// launch does on a thread of its own what Start describes.
func (p *Process) launch(c *Command) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	// System V IPC and POSIX message queues have names that no file system judges: a command in a cgroup of its own has
	// its own of them.
	if c.Cgroup != nil && !c.SharedCgroup {
		if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
			return fmt.Errorf("unshare IPC: %w", err)
		}
	}
	var view View
	if c.PrivateTmp {
		var err error
		if view.Tmp, err = mountPrivateTmp(c.Expose); err != nil {
			return fmt.Errorf("make a private /tmp: %w", err)
		}
		if view.Tmp != "" {
			if view.Shm, err = mountPrivateShm(); err != nil {
				return fmt.Errorf("make a private /dev/shm: %w", err)
			}
		}
	}
	if c.Dir != "" {
		if err := unix.Chdir(c.Dir); err != nil {
			return &AccessError{Path: c.Dir, At: c.Dir, Err: err}
		}
	}
	if c.Prepare != nil {
		if err := c.Prepare(view); err != nil {
			return err
		}
	}
	files, closeFiles, err := c.files()
	if err != nil {
		return err
	}
	defer closeFiles()
	if err := closeOnExec(); err != nil {
		return err
	}
	sys := &syscall.SysProcAttr{Setpgid: true}
	if c.Cgroup != nil {
		sys.UseCgroupFD = true
		sys.CgroupFD = int(c.Cgroup.File().Fd())
	}
	if c.DieWithParent {
		sys.Pdeathsig = unix.SIGKILL
	}
	if c.User.switches() {
		if err := limitCapabilities(); err != nil {
			return err
		}
		sys.Credential = c.User.credential()
	}
	if c.NoNewPrivs || c.User.switches() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	if sig := p.signals.interrupted(); sig != 0 {
		return &InterruptedError{sig}
	}
	if p.tty != nil && isTerminal(files[0]) && isTerminal(files[1]) {
		p.tty.wanted = true
	}
	l := launcher{tty: p.tty, attr: syscall.ProcAttr{Env: c.Env, Files: files, Sys: sys}}
	p.pid, err = l.run(c.Args)
	runtime.KeepAlive(c) // The files: only their numbers were left.
	return err
}

// files returns the descriptors for the command.
func (c *Command) files() (fds []uintptr, closeFiles func(), err error) {
	closeFiles = func() {}
	var null *os.File
	for _, f := range append([]*os.File{c.Stdin, c.Stdout, c.Stderr}, c.Extra...) {
		if f == nil && null == nil {
			if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
				return nil, nil, err
			}
			closeFiles = func() { null.Close() }
		}
		if f == nil {
			f = null
		}
		fds = append(fds, f.Fd())
	}
	return fds, closeFiles, nil
}

func isTerminal(fd uintptr) bool {
	_, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	return err == nil
}

// limitCapabilities prepares the calling thread for a child that is to have no capabilities. The change of user takes
// the permitted and effective ones; what is inheritable would stay (and was the mistake of CVE-2022-24769), so it goes
// here, and with it what is ambient. The bounding set is emptied so that none can come back.
func limitCapabilities() error {
	for c := uintptr(0); c < 64; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL {
			break // The kernel knows no higher ones.
		}
		// Needs CAP_SETPCAP. Without it the set is of no use to the command either: no_new_privs is set.
		if err != nil && err != unix.EPERM {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("clear inheritable capabilities: %w", err)
	}
	return nil
}
