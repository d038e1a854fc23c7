package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Opinion is what the kernel programs answer about one operation by the tasks of a jail.
type Opinion struct {
	// Object is the path of what was asked about. Where the operation makes a name, or takes one away, the directory counts
	// as well, and where nothing is there yet, alone.
	Object string
	// Missing says that nothing is there. Then nobody was asked whether the name is denied.
	Missing bool
	// Jail is the id of the jail that answered: a jail around the one that was asked has to agree.
	Jail    string
	Allowed bool
	// Code is one of those of events, and "ok".
	Code string
	// Rights are those that hold at the object.
	Rights engine.Rights
	// Grant is the one that decided; nil where none did. Then an allowed object is one that the programs know by
	// themselves, such as the task's own entries in /proc.
	Grant *GrantInfo
}

// Explain asks the kernel programs what they would answer if a task of the jail did op to what is at path, which is below
// root where one is given. Nothing is counted, recorded or changed.
func (e *Enforcer) Explain(j *Jail, root *os.File, path string, op engine.Op) (*Opinion, error) {
	questions, err := questionsOf(root, path, op)
	defer func() {
		for _, q := range questions {
			q.object.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	var last *Opinion
	for _, q := range questions {
		o, err := e.opinion(j.slot, q)
		if err != nil {
			return nil, err
		}
		o.Missing = q.missing
		if last = o; !o.Allowed {
			return o, nil
		}
	}
	return last, nil
}

// kernelQuestion is one thing that the programs judge in an operation.
type kernelQuestion struct {
	object  *os.File
	as      judging
	need    engine.Rights
	missing bool // the object is the directory of something that is not there
}

// questionsOf lists what the hooks ask about an operation, as bpf/ has it.
func questionsOf(root *os.File, path string, op engine.Op) (list []kernelQuestion, err error) {
	// Where a name is taken away or made, the object is what has it, link or not.
	ofName := op == engine.OpDelete || op == engine.OpRename || op == engine.OpLink || op == engine.OpCreate
	object, err := openIn(root, path, !ofName)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, err
	}
	if missing && op != engine.OpCreate {
		return nil, err
	}
	add := func(f *os.File, as judging, need engine.Rights) {
		list = append(list, kernelQuestion{f, as, need, missing})
	}
	switch op {
	case engine.OpRead, engine.OpList:
		add(object, judgeFile, engine.Read)
	case engine.OpWrite:
		add(object, judgeFile, engine.Write)
	case engine.OpExec:
		add(object, judgeFile, engine.Exec)
	case engine.OpAttributes:
		add(object, judgeObject, engine.Write)
	case engine.OpConnect:
		add(object, judgeObject, engine.Connect)
	case engine.OpDelete, engine.OpRename:
		add(object, judgeName, engine.None)
	case engine.OpLink:
		add(object, judgeObject, engine.Read)
	case engine.OpCreate:
		if !missing {
			add(object, judgeObject, engine.Create)
		}
	default:
		object.Close()
		return nil, fmt.Errorf("operation %q is not known", op)
	}
	if op == engine.OpCreate || op == engine.OpRename || op == engine.OpLink {
		dir, err := openIn(root, filepath.Dir(path), true)
		if err != nil {
			return list, err
		}
		add(dir, judgeObject, engine.Create)
	}
	return list, nil
}

// openIn opens what is at a path for a question, as a task with that root would find it.
func openIn(root *os.File, path string, follow bool) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	dir := unix.AT_FDCWD
	if root != nil {
		dir, how.Resolve = int(root.Fd()), unix.RESOLVE_IN_ROOT
	}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// opinion asks one jail, and those around it as long as they allow.
func (e *Enforcer) opinion(slot int, q kernelQuestion) (*Opinion, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", q.object.Fd()))
	if err != nil {
		return nil, err
	}
	var first *Opinion
	for range int(enforcerTfLimitTF_MAX_INNER) {
		s := &e.jailSlots[slot]
		answer, err := e.judge(slot, q.object, q.as, q.need)
		if err != nil {
			return nil, err
		}
		o := &Opinion{Object: path, Jail: formatID(s.Id), Code: answer.code, Allowed: answer.code == codeNames[0], Rights: answer.rights}
		if o.Grant, err = e.grantOf(s, answer.grant); err != nil {
			return nil, err
		}
		if first == nil || !o.Allowed {
			first = o
		}
		parent := atomic.LoadUint32(&s.Parent)
		if !o.Allowed || parent == 0 {
			break
		}
		slot = int(parent) - 1
	}
	return first, nil
}

// grantOf finds what is recorded of the grant that decided.
func (e *Enforcer) grantOf(s *enforcerTfJail, key *enforcerTfGrantKey) (*GrantInfo, error) {
	if key == nil {
		return nil, nil
	}
	r, err := e.readPolicy(formatID(s.Id))
	if err != nil {
		return nil, err
	}
	grants := r.grants()
	if i := slices.IndexFunc(grants, func(g GrantInfo) bool { return g.key(key.Policy) == *key }); i >= 0 {
		return &grants[i], nil
	}
	return nil, nil // an expansion's own entry, or one that nobody has recorded
}

// Recorded gives the policy of a jail as it was recorded, for an engine to judge by. The workspace is a path only, to be
// bound. Objects that were granted without a path of their own, such as standard streams, are left out.
func (e *Enforcer) Recorded(j *Jail) engine.AllowedSets {
	flags := atomic.LoadUint32(&e.jailSlots[j.slot].Flags)
	sets := engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: j.Workspace}, Mode: j.Mode, Deny: j.Denied,
		FollowMounts: flags&uint32(enforcerTfJailFlagTF_JAIL_FOLLOW_MOUNTS) != 0, NoSymlinks: flags&noSymlinks != 0,
	}
	sets.Options.FollowMountPoints = sets.FollowMounts
	for _, g := range j.Grants {
		rights, err := engine.ParseRights(g.Rights)
		if err != nil || g.ExpansionID != "" || !strings.HasPrefix(g.Path, "/") || slices.Contains(j.Denied, g.Path) {
			continue
		}
		o := engine.Object{Path: g.Path, Rights: rights, Source: g.Source}
		if g.Expires != nil {
			o.Expires = *g.Expires
		}
		sets.Objects = append(sets.Objects, o)
	}
	return sets
}

// RecordedExpansions gives what the journal at path holds of a jail: for an engine to judge by.
func (e *Enforcer) RecordedExpansions(j *Jail, path string) (*engine.Registry, error) {
	activation, err := e.activation(j)
	if err != nil {
		return nil, err
	}
	recorded, err := engine.ReadExpansions(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return engine.NewRegistry(activation, recorded...), nil
}

// Task finds some task of the jail and opens its root directory, in its mount namespace; nil where there is no task.
func (j *Jail) Task() (root *os.File, pid string, err error) {
	err = filepath.WalkDir(j.Cgroup, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil // a cgroup that went meanwhile has no task
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for number := range strings.FieldsSeq(string(text)) {
			f, err := os.OpenFile(filepath.Join("/proc", number, "root"), unix.O_PATH|unix.O_DIRECTORY, 0)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // it ended
			}
			if err != nil {
				return err
			}
			root, pid = f, number
			return filepath.SkipAll
		}
		return nil
	})
	return root, pid, err
}
