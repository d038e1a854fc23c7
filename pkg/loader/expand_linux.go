package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
	"golang.org/x/sys/unix"
)

// ErrNotGranted is returned for an expansion where the policy grants nothing that it could add to.
var ErrNotGranted = errors.New("nothing is granted there that could be expanded; replace the policy instead")

// Expansion is one expansion as the kernel has it.
type Expansion struct {
	ID     string
	Rights engine.Rights
	// Expired says that the kernel lets it add nothing any more.
	Expired bool
	// Who the object is, as in [GrantInfo].
	Device     string
	Inode      uint64
	Volume     uint64
	Generation uint32

	key     enforcerTfGrantKey
	at      int // in the object's list
	expires uint64
}

// Expand adds rights to what a live jail's policy gives on an object and all below it. Several on one object hold
// independently of each other, and each ends by itself when it expires, by the time since boot. An expansion never lifts
// none or a denied name, and adds nothing where the policy grants nothing: then the error is [ErrNotGranted].
//
// The expansion is recorded first, in the journal at that path; when Expand returns, it is in force and recorded, or
// neither. The resource of req should be the path of the object; its workspace is the jail's.
func (e *Enforcer) Expand(journal, ref string, object *os.File, req engine.ExpansionRequest) (engine.BoundaryExpansion, error) {
	var x engine.BoundaryExpansion
	err := e.change(ref, func(j *Jail) (err error) {
		rights := (&engine.BoundaryExpansion{ActionClasses: req.ActionClasses}).Rights()
		if rights == engine.None {
			return fmt.Errorf("expand %s: the actions %q carry no rights", object.Name(), req.ActionClasses)
		}
		id, err := e.expandable(j, object, rights)
		if err != nil {
			return err
		}
		registry, err := e.registry(journal, j)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, registry.Close()) }()
		req.WorkspaceID = j.WorkspaceID
		if x, err = registry.Grant(req); err != nil {
			return err
		}
		if err := e.writeExpansion(e.jailSlots[j.slot].Policy, id, &x); err != nil {
			_, revoke := registry.Revoke(x.ExpansionID)
			return errors.Join(err, revoke)
		}
		return nil
	})
	return x, err
}

// registry opens the journal for the expansions of one jail in this boot.
func (e *Enforcer) registry(journal string, j *Jail) (*engine.Registry, error) {
	activation, err := e.activation(j)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(journal), 0o700); err != nil {
		return nil, err
	}
	registry, _, err := engine.OpenRegistry(journal, activation)
	return registry, err
}

// activation is what the expansions of a jail are bound to.
func (e *Enforcer) activation(j *Jail) (engine.Activation, error) {
	boot, err := bootID()
	return engine.Activation{BootID: formatBootID(boot), Scope: j.ID}, err
}

// expandable checks that an expansion of the object would add something it may add.
func (e *Enforcer) expandable(j *Jail, object *os.File, rights engine.Rights) (Identity, error) {
	id, err := e.identify(object)
	if err == nil && id.Ambiguous {
		err = refuseAmbiguous(object.Name())
	}
	if err != nil {
		return id, err
	}
	guard := guard{e: e}
	defer guard.close()
	if err := guard.check(object.Name(), id, rights); err != nil {
		return id, err
	}
	v, err := e.judge(j.slot, nil, object, judgeObject, engine.None)
	switch {
	case err != nil:
		return id, err
	case v.code == "denied-name":
		return id, fmt.Errorf("expand %s: its name is denied, and an expansion does not lift that", object.Name())
	case v.code != "ok" && v.code != "rights":
		return id, fmt.Errorf("expand %s: %w (%s)", object.Name(), ErrNotGranted, v.code)
	case v.rights == engine.None:
		return id, fmt.Errorf("expand %s: the policy grants none there, and an expansion does not lift that", object.Name())
	}
	return id, nil
}

// writeExpansion puts an expansion into the kernel. The mark at the object's grant comes first: what counts is the
// expansion itself, so that whatever is found in tf_expansions is in force.
func (e *Enforcer) writeExpansion(policy uint32, id Identity, x *engine.BoundaryExpansion) error {
	number, err := expansionNumber(x.ExpansionID)
	if err != nil {
		return err
	}
	value := enforcerTfExpansion{Id: number, Expires: never, Generation: id.Generation, Rights: uint32(x.Rights())}
	if x.ExpiresAt != nil {
		value.Expires = bootInstant(x.ExpiresAt)
	}
	key := id.key(policy)
	object, err := e.lookupExpanded(key)
	if err != nil {
		return err
	}
	// Those that have expired are of no use to anybody any more.
	now := bootTime()
	free := slices.IndexFunc(object.Each[:], func(have enforcerTfExpansion) bool { return have.Expires <= now })
	if free < 0 {
		return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.MapFull, fmt.Sprintf("%s has %d expansions that hold, and there is room for no more: revoke one", x.ResourceIdentity, len(object.Each)))}}
	}
	object.Each[free] = value
	if err := e.mark(key); err != nil {
		return err
	}
	return e.putExpanded(key, object)
}

// never is TF_NEVER of bpf/abi.h.
const never = 1<<63 - 1

// expansionNumber is an expansion's id as the kernel has it.
func expansionNumber(id string) (uint64, error) {
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil || n == 0 || expansionID(n) != id {
		return 0, fmt.Errorf("expansion %q: no id that the kernel could hold", id)
	}
	return n, nil
}

func expansionID(n uint64) string { return fmt.Sprintf("%016x", n) }

func (e *Enforcer) lookupExpanded(key enforcerTfGrantKey) (enforcerTfExpanded, error) {
	var object enforcerTfExpanded
	err := e.expansions.Lookup(key, &object)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return object, err
}

func (e *Enforcer) putExpanded(key enforcerTfGrantKey, object enforcerTfExpanded) error {
	if err := e.expansions.Put(key, object); err != nil {
		return full("write expansion", err)
	}
	var back enforcerTfExpanded
	if err := e.expansions.Lookup(key, &back); err != nil || back != object {
		return mismatch(fmt.Sprintf("expansions of an object read back as %+v (%v)", back, err))
	}
	return nil
}

// mark says at an object's entry among the grants that it has expansions.
func (e *Enforcer) mark(key enforcerTfGrantKey) error {
	var grant enforcerTfGrant
	err := e.grants.Lookup(key, &grant)
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		err = e.addGrant(key, enforcerTfGrant{Rights: uint16(enforcerTfMarkTF_EXPANDED | enforcerTfMarkTF_ADDS_ONLY)})
		if err != nil {
			return full("mark grant", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("look up grant: %w", err)
	case grant.Rights&uint16(enforcerTfMarkTF_EXPANDED) != 0:
		return nil
	}
	grant.Rights |= uint16(enforcerTfMarkTF_EXPANDED)
	if err := e.grants.Put(key, grant); err != nil {
		return full("mark grant", err)
	}
	return nil
}

// unmark removes an entry that was only made for a mark. The mark at a grant stays: it costs a walk one look, and to write
// the grant again could undo what the programs write there when its file system is unmounted. (To mark it is safe: the
// object is open then.)
func (e *Enforcer) unmark(key enforcerTfGrantKey) error {
	var grant enforcerTfGrant
	err := e.grants.Lookup(key, &grant)
	if err == nil && grant.Rights&uint16(enforcerTfMarkTF_ADDS_ONLY) != 0 {
		err = e.deleteGrant(key)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("unmark grant: %w", err)
	}
	return nil
}

// Revoke ends an expansion of a live jail, for good. When it returns, the kernel denies what only the expansion allowed.
// It reports whether it did: an expansion that is unknown, another jail's, or was revoked before is not revoked again.
// What the jail did under the expansion stays done, and what it has open stays open.
func (e *Enforcer) Revoke(journal, ref, id string) (bool, error) {
	revoked := false
	err := e.change(ref, func(j *Jail) error {
		// The kernel first: if this process dies in between, there is less than the journal says, and not more.
		err := e.withdraw(j, func(x Expansion) bool { return x.ID == id })
		if err != nil {
			return err
		}
		registry, err := e.registry(journal, j)
		if err != nil {
			return err
		}
		revoked, err = registry.Revoke(id)
		return errors.Join(err, registry.Close())
	})
	return revoked, err
}

// Expansions gives the expansions that a live jail has in the kernel, in no order.
func (e *Enforcer) Expansions(j *Jail) ([]Expansion, error) {
	all, err := e.allExpansions()
	return all[e.jailSlots[j.slot].Policy], err
}

// allExpansions gives all there are, by policy number.
func (e *Enforcer) allExpansions() (map[uint32][]Expansion, error) {
	all := map[uint32][]Expansion{}
	now := bootTime()
	err := each(e.expansions, func(key enforcerTfGrantKey, object enforcerTfExpanded) {
		for i, x := range object.Each {
			if x.Expires == 0 {
				continue
			}
			all[key.Policy] = append(all[key.Policy], Expansion{
				ID: expansionID(x.Id), Rights: engine.Rights(x.Rights), Expired: x.Expires <= now,
				Device: mountmap.KernelDev(key.Dev).String(), Inode: key.Ino, Volume: key.Volume, Generation: x.Generation,
				key: key, at: i, expires: x.Expires,
			})
		}
	})
	return all, err
}

// withdraw takes expansions out of the kernel, and waits until no verdict by them is still to come.
func (e *Enforcer) withdraw(j *Jail, which func(Expansion) bool) error {
	all, err := e.Expansions(j)
	if err != nil {
		return err
	}
	for _, x := range all {
		if !which(x) {
			continue
		}
		object, err := e.lookupExpanded(x.key)
		if err != nil {
			return err
		}
		object.Each[x.at] = enforcerTfExpansion{}
		if object != (enforcerTfExpanded{}) {
			if err := e.putExpanded(x.key, object); err != nil {
				return err
			}
			continue
		}
		if err := e.expansions.Delete(x.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete expansion: %w", err)
		}
		if err := e.unmark(x.key); err != nil {
			return err
		}
	}
	waitForPrograms()
	return nil
}

// copyExpansions gives a policy that no jail uses yet the expansions of another one.
func (e *Enforcer) copyExpansions(from, to uint32) error {
	objects := map[enforcerTfGrantKey]enforcerTfExpanded{}
	err := each(e.expansions, func(key enforcerTfGrantKey, object enforcerTfExpanded) {
		if key.Policy == from {
			key.Policy = to
			objects[key] = object
		}
	})
	for key, object := range objects {
		err = errors.Join(err, e.mark(key), e.putExpanded(key, object))
	}
	return err
}

// eraseExpansions removes those of a policy that no jail uses any more.
func (e *Enforcer) eraseExpansions(policy uint32) error {
	var keys []enforcerTfGrantKey
	err := each(e.expansions, func(key enforcerTfGrantKey, _ enforcerTfExpanded) {
		if key.Policy == policy {
			keys = append(keys, key)
		}
	})
	for _, key := range keys {
		if failed := e.expansions.Delete(key); failed != nil && !errors.Is(failed, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, fmt.Errorf("delete expansion: %w", failed))
		}
		err = errors.Join(err, e.unmark(key))
	}
	return err
}

// judging is how tf_judge looks at an object.
type judging uint32

const (
	judgeFile   = judging(enforcerTfJudgeAsTF_JUDGE_FILE)
	judgeObject = judging(enforcerTfJudgeAsTF_JUDGE_OBJECT)
	judgeName   = judging(enforcerTfJudgeAsTF_JUDGE_NAME)
	judgeLink   = judging(enforcerTfJudgeAsTF_JUDGE_LINK)
)

// judgement is what the kernel programs answer for a jail and an object.
type judgement struct {
	code   string
	rights engine.Rights       // that hold there, with what expansions add
	grant  *enforcerTfGrantKey // the one that decided; nil where none did
}

// judge asks the kernel what a jail's tasks may do with an open object: a certain one, whose terminal is its own to use, or
// any, for nil. Nothing is counted or recorded.
func (e *Enforcer) judge(slot int, task *Task, object *os.File, as judging, need engine.Rights) (judgement, error) {
	out := enforcerTfJudging{Fd: int32(object.Fd()), Slot: uint32(slot), As: uint32(as), Need: uint32(need), Task: -1}
	if task != nil {
		out.Task = int32(task.proc.Fd())
	}
	runtime.LockOSThread() // the program looks into the thread's own descriptor table
	defer runtime.UnlockOSThread()
	err := runProgram(e.judgeProgram, &out)
	if err == nil && out.Err != 0 {
		err = unix.Errno(-out.Err)
	}
	if err != nil {
		return judgement{}, fmt.Errorf("ask the kernel about %s: %w", object.Name(), err)
	}
	j := judgement{code: nameIn(codeNames[:], int(out.Code)), rights: engine.Rights(out.Rights)}
	if out.Found != 0 {
		j.grant = &out.Key
	}
	return j, nil
}
