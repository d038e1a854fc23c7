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
)

// Opinion is what the kernel programs answer about one operation by the tasks of a jail.
type Opinion struct {
	// Object is the path of what was asked about. Where the operation makes a name, or takes one away, the directory counts
	// as well, and where nothing is there yet, alone.
	Object string
	// Missing says that nothing is there. Then nobody was asked whether the name is denied.
	Missing bool
	// Link says that the object is a symbolic link on the path, which the jail does not follow.
	Link bool
	// Monitored says that the jail that denies is in monitor mode: what it denies is let go.
	Monitored bool
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

// Explain asks the kernel programs what they would answer if a task of the jail did op to what it finds at path. task is
// [Jail.Task]'s; nil for one with the host's root and no terminal. Nothing is counted, recorded or changed.
func (e *Enforcer) Explain(j *Jail, task *Task, path string, op engine.Op) (*Opinion, error) {
	f := finder{task: task}
	if e.chainRefusesLinks(j.slot) {
		f.follows = func(link *os.File) error {
			o, err := e.opinion(j.slot, task, kernelQuestion{object: link, as: judgeLink})
			if err == nil && !o.Allowed && !o.Monitored {
				o.Link = true
				err = &refusedLink{o}
			}
			return err
		}
	}
	questions, err := questionsOf(&f, path, op)
	defer func() {
		for _, q := range questions {
			q.object.Close()
		}
	}()
	if refused := (*refusedLink)(nil); errors.As(err, &refused) {
		return refused.opinion, nil
	}
	if err != nil {
		return nil, err
	}
	var last *Opinion
	for _, q := range questions {
		o, err := e.opinion(j.slot, task, q)
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

// refusedLink is what ends a search at a link that the jail does not follow.
type refusedLink struct{ opinion *Opinion }

func (r *refusedLink) Error() string { return "the jail does not follow " + r.opinion.Object }

// chainRefusesLinks reports whether a jail, or one around it, does not follow the links of its own trees.
func (e *Enforcer) chainRefusesLinks(slot int) bool {
	for range int(enforcerTfLimitTF_MAX_INNER) {
		s := &e.jailSlots[slot]
		if atomic.LoadUint32(&s.Flags)&noSymlinks != 0 {
			return true
		}
		parent := atomic.LoadUint32(&s.Parent)
		if parent == 0 {
			break
		}
		slot = int(parent) - 1
	}
	return false
}

// kernelQuestion is one thing that the programs judge in an operation.
type kernelQuestion struct {
	object  *os.File
	as      judging
	need    engine.Rights
	missing bool // the object is the directory of something that is not there
}

// questionsOf lists what the hooks ask about an operation, as bpf/ has it.
func questionsOf(f *finder, path string, op engine.Op) (list []kernelQuestion, err error) {
	// Where a name is taken away or made, the object is what has it, link or not.
	ofName := op == engine.OpDelete || op == engine.OpRename || op == engine.OpLink || op == engine.OpCreate
	object, err := f.open(path, !ofName)
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
		dir, err := f.open(filepath.Dir(path), true)
		if err != nil {
			return list, err
		}
		add(dir, judgeObject, engine.Create)
	}
	return list, nil
}

// opinion asks one jail and those around it, as the programs do (ask_every_jail): the first that enforces and denies has
// the answer, else the first that would deny if it were not monitored.
func (e *Enforcer) opinion(slot int, task *Task, q kernelQuestion) (*Opinion, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", q.object.Fd()))
	if err != nil {
		return nil, err
	}
	var first *Opinion
	for range int(enforcerTfLimitTF_MAX_INNER) {
		s := &e.jailSlots[slot]
		answer, err := e.judge(slot, task, q.object, q.as, q.need)
		if err != nil {
			return nil, err
		}
		o := &Opinion{Object: path, Jail: formatID(s.Id), Code: answer.code, Allowed: answer.code == codeNames[0], Rights: answer.rights}
		if o.Grant, err = e.grantOf(s, answer.grant); err != nil {
			return nil, err
		}
		o.Monitored = !o.Allowed && isMonitored(atomic.LoadUint32(&s.Flags))
		if first == nil || !o.Allowed && (first.Allowed || !o.Monitored) {
			first = o
		}
		parent := atomic.LoadUint32(&s.Parent)
		if parent == 0 || !o.Allowed && !o.Monitored {
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
