package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// CommandError says that the command could not be executed.
type CommandError struct {
	// Name is the command as it was given.
	Name string
	// Path is the file that was found but could not be executed, "" when none was found.
	Path string
	// Err is the kernel's answer: ENOENT when nothing was found (or, with Path set, when the interpreter of what was
	// found is missing), EACCES when there is no permission, and so on.
	Err error
}

func (e *CommandError) Error() string {
	switch {
	case e.Path == "" && !strings.Contains(e.Name, "/"):
		return fmt.Sprintf("run %s: command not found", e.Name)
	case e.Path == "":
		return fmt.Sprintf("run %s: %v", e.Name, e.Err)
	case errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("run %s: the interpreter that %s asks for does not exist", e.Name, e.Path)
	}
	return fmt.Sprintf("run %s: execute %s: %v", e.Name, e.Path, e.Err)
}

func (e *CommandError) Unwrap() error { return e.Err }

// ExitCode returns 127 when there is no such command and 126 when it cannot be executed, as env(1) does.
func (e *CommandError) ExitCode() int {
	if errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// ExitCode returns the exit code of thenforce run for an error from this package: 127 and 126 for a [*CommandError],
// 128+n for an [*InterruptedError] by signal n, 125 for all others.
func ExitCode(err error) int {
	if e := (*CommandError)(nil); errors.As(err, &e) {
		return e.ExitCode()
	}
	if e := (*InterruptedError)(nil); errors.As(err, &e) {
		return 128 + int(e.Signal)
	}
	return 125
}

// launcher starts the command from the calling thread.
type launcher struct {
	tty  *terminal
	attr syscall.ProcAttr
}

// run looks the command up by trying to execute it, and returns its process id. It does what execvp(3) of the GNU C
// library does: with a slash the name is the file; else the elements of PATH in turn, where a candidate that is missing
// is passed over and one that may not be executed is remembered for the case that no other can be. A file that the
// kernel cannot execute is given to /bin/sh.
func (l *launcher) run(args []string) (int, error) {
	name := args[0]
	if strings.Contains(name, "/") {
		pid, err := l.execute(name, args)
		if err != nil {
			return 0, commandError(name, name, err)
		}
		return pid, nil
	}
	if name == "" {
		return 0, &CommandError{Name: `""`, Err: unix.ENOENT}
	}
	var denied, broken error
	for _, dir := range strings.Split(searchPath(l.attr.Env), ":") {
		file := name // An empty element is the working directory.
		if dir != "" {
			file = strings.TrimSuffix(dir, "/") + "/" + name
		}
		// What is missing even for this process need not be tried; it saves a process for each.
		if missing(unix.Faccessat(unix.AT_FDCWD, file, unix.F_OK, 0)) {
			continue
		}
		pid, err := l.execute(file, args)
		switch {
		case err == nil:
			return pid, nil
		case err == unix.EACCES:
			if denied == nil {
				denied = commandError(name, file, err)
			}
		case missing(err):
			if broken == nil {
				broken = commandError(name, file, err)
			}
		default:
			return 0, commandError(name, file, err)
		}
	}
	switch {
	case denied != nil:
		return 0, denied
	case broken != nil:
		return 0, broken
	}
	return 0, &CommandError{Name: name, Err: unix.ENOENT}
}

// missing tells the errors after which execvp(3) goes on to the next element of PATH.
func missing(err error) bool {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ESTALE, unix.ENODEV, unix.ETIMEDOUT:
		return true
	}
	return false
}

// searchPath returns PATH of env, or what the C library takes without it.
func searchPath(env []string) string {
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			return path
		}
	}
	return "/bin:/usr/bin"
}

// commandError makes a CommandError of the answer of execve(2); errors of another kind stay as they are.
func commandError(name, file string, err error) error {
	if _, ok := err.(syscall.Errno); !ok {
		return err
	}
	if missing(err) && missing(unix.Faccessat(unix.AT_FDCWD, file, unix.F_OK, 0)) {
		file = ""
	}
	return &CommandError{Name: name, Path: file, Err: err}
}

// execute starts one file. A syscall.Errno is execve(2)'s own answer for that file.
func (l *launcher) execute(file string, args []string) (int, error) {
	pid, err := l.fork(file, args)
	if err != unix.ENOEXEC {
		return pid, err
	}
	const shell = "/bin/sh"
	pid, err = l.fork(shell, append([]string{shell, file}, args[1:]...))
	if err != nil {
		return 0, commandError(args[0], shell, err)
	}
	return pid, nil
}

func (l *launcher) fork(file string, args []string) (int, error) {
	// ForkExec sets the pidfd as soon as there is a child, and to -1 if the child then failed. So it tells the
	// errors of clone3(2) (the cgroup is gone, full, or has inner controllers) from those of execve(2).
	const noChild = -2
	pidfd := noChild
	sys := *l.attr.Sys
	sys.PidFD = &pidfd
	if l.tty != nil && l.tty.wanted && l.tty.ours() {
		l.tty.save()
		sys.Foreground, sys.Ctty = true, l.tty.fd()
	}
	attr := l.attr
	attr.Sys = &sys
	pid, err := syscall.ForkExec(file, args, &attr)
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	if err == nil {
		if l.tty != nil {
			l.tty.given = sys.Foreground
		}
		return pid, nil
	}
	if pidfd == noChild {
		return 0, fmt.Errorf("start a process for %s: %w", file, err)
	}
	if sys.Foreground {
		l.tty.setForeground(l.tty.group)
	}
	return 0, err
}
