package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoTask says that a path leads to what is the asking task's own in /proc, and that there is no task.
var ErrNoTask = errors.New("no task is in the jail whose entry in /proc it would be")

// Task is some task of a jail, as far as it matters to what it finds at a path.
type Task struct {
	root *os.File // its root directory, in its mount namespace
	proc *os.File // its entry in this process's /proc
	self string   // its number in its own PID namespace
}

// Task finds one; nil where none is in the jail.
func (j *Jail) Task() (task *Task, err error) {
	err = filepath.WalkDir(j.Cgroup, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil // a cgroup that went meanwhile has no task
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for pid := range strings.FieldsSeq(string(text)) {
			task, err = openTask(filepath.Join("/proc", pid))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // it ended
			}
			if err != nil {
				return err
			}
			return filepath.SkipAll
		}
		return nil
	})
	return task, err
}

func openTask(proc string) (_ *Task, err error) {
	t := &Task{}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.proc, err = os.OpenFile(proc, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	if t.root, err = os.OpenFile(filepath.Join(proc, "root"), unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok { // outermost namespace first, see proc_pid_status(5)
			all := strings.Fields(numbers)
			t.self = all[len(all)-1]
			return t, nil
		}
	}
	return nil, fmt.Errorf("read %s/status: no NSpid", proc)
}

// Close lets go of the task. nil is fine.
func (t *Task) Close() {
	if t == nil {
		return
	}
	t.root.Close() // nil-safe, as the others are
	t.proc.Close()
}

// Root is its root directory; nil for no task.
func (t *Task) Root() *os.File {
	if t == nil {
		return nil
	}
	return t.root
}

// finder opens what a task finds at a path. It follows links one by one, for a jail may refuse its own trees' links, and
// /proc/self is the task's and not this process's.
type finder struct {
	task *Task // nil: whoever has the host's root
	// follows says by an error that a link is not followed.
	follows func(link *os.File) error
}

// mostLinks is how many links the kernel follows for one path (MAXSYMLINKS).
const mostLinks = 40

// open opens what is at an absolute path. A link at its end is opened itself unless it is to be followed.
func (f *finder) open(path string, follow bool) (_ *os.File, err error) {
	root := f.task.Root()
	if root == nil {
		if root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return nil, err
		}
		defer root.Close()
	}
	at, err := openAt(root, ".", unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			at.Close()
			err = &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}()
	links := 0
	for rest := path; rest != ""; {
		name, left, _ := strings.Cut(rest, "/")
		rest = left
		if name == "" || name == "." || name == ".." && sameFile(at, root) {
			continue
		}
		next, err := openAt(at, name, unix.O_NOFOLLOW)
		if err != nil {
			return at, err
		}
		target := ""
		if isLinkFile(next) && (rest != "" || follow) {
			if links++; links > mostLinks {
				next.Close()
				return at, unix.ELOOP
			}
			target, err = f.targetOf(at, next, name)
			if err == nil && target == "" { // the kernel's own, to be followed by it
				next.Close()
				next, err = openAt(at, name, 0)
			}
		}
		switch {
		case err != nil:
			next.Close()
			return at, err
		case target == "":
			at.Close()
			at = next
			continue
		}
		next.Close()
		rest = strings.TrimSuffix(target+"/"+rest, "/")
		if strings.HasPrefix(target, "/") {
			at.Close()
			if at, err = openAt(root, ".", unix.O_NOFOLLOW); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}

// targetOf reads a link in a directory: "" for one that only the kernel can follow.
func (f *finder) targetOf(dir, link *os.File, name string) (string, error) {
	if f.follows != nil {
		if err := f.follows(link); err != nil {
			return "", err
		}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(link.Fd()), &st); err != nil {
		return "", err
	}
	if int64(st.Type) == unix.PROC_SUPER_MAGIC {
		switch isRoot := isProcRoot(dir); {
		case !isRoot || name != "self" && name != "thread-self":
			return "", nil
		case f.task == nil:
			return "", ErrNoTask
		case name == "self":
			return f.task.self, nil
		}
		return f.task.self + "/task/" + f.task.self, nil
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", target)
	return string(target[:max(n, 0)]), err
}

// isProcRoot: the root of a procfs has inode number 1 (PROC_ROOT_INO).
func isProcRoot(dir *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &st) == nil && st.Ino == 1
}

func isLinkFile(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

func sameFile(a, b *os.File) bool {
	var one, other unix.Stat_t
	return unix.Fstat(int(a.Fd()), &one) == nil && unix.Fstat(int(b.Fd()), &other) == nil && one.Dev == other.Dev && one.Ino == other.Ino
}

// openAt opens a name in a directory for a question.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}
