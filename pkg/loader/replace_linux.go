package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// policyFlags are the flags of a jail that its policy sets; the others are the jail's.
const policyFlags = uint32(enforcerTfJailFlagTF_JAIL_MONITOR|enforcerTfJailFlagTF_JAIL_FOLLOW_MOUNTS) | noSymlinks

// SetMode makes a live jail enforce or only monitor. When it returns no verdict of the former mode is still to come.
func (e *Enforcer) SetMode(ref string, mode engine.Mode) error {
	return e.change(ref, func(j *Jail) error {
		e.setMonitor(j.slot, mode == engine.Monitor)
		return nil
	})
}

// Hold does something with one live jail while no other command makes, changes or ends any. What do does should be short,
// and must not call methods that change jails themselves.
func (e *Enforcer) Hold(ref string, do func(*Jail) error) error {
	unlock, err := e.lockPinned()
	if err != nil {
		return err
	}
	defer unlock()
	e.collectLocked()
	j, err := e.find(ref)
	if err != nil {
		return err
	}
	return do(j)
}

// change is Hold for what a jail may not do for itself.
func (e *Enforcer) change(ref string, do func(*Jail) error) error {
	return e.Hold(ref, func(j *Jail) error {
		if inside, err := e.insideJail(); err != nil {
			return fmt.Errorf("ask for own jail: %w", err)
		} else if inside {
			return unobserved(engine.InsideJail, "a jail is changed by the host", errors.New("refused"))
		}
		return do(j)
	})
}

func (e *Enforcer) setMonitor(slot int, monitor bool) {
	bit := uint32(enforcerTfJailFlagTF_JAIL_MONITOR)
	if monitor {
		atomic.OrUint32(&e.jailSlots[slot].Flags, bit)
	} else {
		atomic.AndUint32(&e.jailSlots[slot].Flags, ^bit)
	}
	waitForPrograms()
}

// waitForPrograms returns when every program that may have seen what was in the maps before has ended: they run in RCU
// read-side critical sections, and MEMBARRIER_CMD_GLOBAL waits for all that there are (membarrier(2)). A kernel booted
// with nohz_full= refuses it; then a program that is running at this moment on another CPU may still give one verdict.
func waitForPrograms() {
	const global = 1 << 0
	unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
}

// Replace gives a live jail another policy, whole: every operation is judged by the old one or by the new one, and when
// Replace returns no verdict of the old one is still to come. Of the former policy only those grants stay that came from
// [JailSpec.Open]: what the jail was started with, a private /tmp say. Expansions stay where the workspace does.
//
// spec needs no cgroup. An error means that the former policy is in force as before. A jail that was made with a
// [JailSpec.Root] cannot be given another policy: its paths are those of the container.
func (e *Enforcer) Replace(ref string, spec JailSpec) (*Jail, error) {
	var out *Jail
	err := e.change(ref, func(j *Jail) (err error) {
		h, err := e.freshHeader(j.id)
		if err != nil {
			return err
		}
		if h.Contained {
			return fmt.Errorf("jail %s is a container's: its policy's paths cannot be looked up from outside; start the container anew with the other policy", j.ID)
		}
		if spec.Sets.NoSymlinks {
			if err := e.attachFollowLink(); err != nil {
				return fmt.Errorf("symlinks: refuse: %w", err)
			}
		}
		defer func() {
			if !e.wantsFollowLink() {
				err = errors.Join(err, e.detachFollowLink())
			}
		}()
		p, err := e.prepare(spec)
		if err != nil {
			return err
		}
		if err := p.keep(j.Grants); err != nil {
			return err
		}
		if err := e.replace(j, *h, spec, p); err != nil {
			return err
		}
		out = e.describe(j.slot, e.isMember)
		out.Grants, out.Denied, out.Notices = p.grants, p.denied, p.notices
		return nil
	})
	return out, err
}

// keep adds the grants that are not the former policy's but the jail's. An object that the new policy names is its own.
func (p *prepared) keep(former []GrantInfo) error {
	named := map[enforcerTfGrantKey]bool{}
	for _, g := range p.grants {
		named[g.key(0)] = true
	}
	for _, g := range former {
		if g.open && !named[g.key(0)] {
			p.grants = append(p.grants, g)
		}
	}
	return p.encode()
}

// replacing is what lies in the state directory while a policy is replaced: whoever finds it after a crash knows by the
// jail's policy number which of the two is in force.
type replacing struct {
	policyRecord // the one that comes
	Header       header
	Monitor      bool
	Former       struct {
		Header  header
		Monitor bool
	}
}

func (e *Enforcer) replace(j *Jail, h header, spec JailSpec, p *prepared) error {
	if j.Grants == nil {
		return fmt.Errorf("replace the policy of jail %s: the record of the one it has cannot be read", j.ID)
	}
	s := &e.jailSlots[j.slot]
	former := s.Policy
	policy := atomic.AddUint32(&e.state.NextPolicy, 1)
	r := replacing{policyRecord: *recordOf(policy, p), Header: h, Monitor: isMonitored(p.flags)}
	r.Former.Header, r.Former.Monitor = h, isMonitored(s.Flags)
	r.Header.Workspace, r.Header.WorkspaceID = spec.Sets.Workspace.CanonicalRoot, spec.Sets.Workspace.WorkspaceID
	r.Header.Grants, r.Header.Digest = len(p.grants), p.digest
	if err := e.writeJSON(e.replacingPath(j.ID), &r); err != nil {
		return err
	}
	err := e.install(policy, p)
	if err == nil && r.Header.WorkspaceID == h.WorkspaceID {
		err = e.copyExpansions(former, policy)
	}
	if err == nil {
		err = e.writeHeader(&r.Header)
	}
	if err != nil {
		return errors.Join(err, e.undoReplacing(j.ID, &r, j.slot))
	}
	// In monitor mode nothing is denied, so while one of the two policies is monitored the jail is in that mode: then no
	// operation is judged by one policy in the other's mode.
	if r.Monitor {
		e.setMonitor(j.slot, true)
	}
	atomic.StoreUint32(&s.Rights, s.Rights&uint32(p.rights))
	e.swap(j.slot, policy, p.flags)
	waitForPrograms()
	atomic.StoreUint32(&s.Rights, uint32(p.rights))
	e.setMonitor(j.slot, r.Monitor)
	return e.finishReplacing(j.ID, former, j.Grants, j.Denied)
}

func isMonitored(flags uint32) bool {
	return flags&uint32(enforcerTfJailFlagTF_JAIL_MONITOR) != 0
}

// swap changes policy number and flags by one store: the two lie in one aligned word. Programs change flags too.
func (e *Enforcer) swap(slot int, policy, flags uint32) {
	word := (*uint64)(unsafe.Pointer(&e.jailSlots[slot].Policy))
	for {
		old := atomic.LoadUint64(word)
		// Mode is changed apart, before or after.
		keep := uint32(old>>32)&^policyFlags | uint32(old>>32)&uint32(enforcerTfJailFlagTF_JAIL_MONITOR)
		set := flags & policyFlags &^ uint32(enforcerTfJailFlagTF_JAIL_MONITOR)
		if atomic.CompareAndSwapUint64(word, old, uint64(policy)|uint64(keep|set)<<32) {
			e.forgetVerdicts()
			return
		}
	}
}

// finishReplacing makes the record of the policy that came the jail's, and erases the former one.
func (e *Enforcer) finishReplacing(id string, former uint32, grants []GrantInfo, denied []string) error {
	err := e.erase(former, grants, denied)
	return errors.Join(err, os.Rename(e.replacingPath(id), e.policyPath(id)), e.removeReplacingDir())
}

// undoReplacing removes what was made for a policy that did not come into force.
func (e *Enforcer) undoReplacing(id string, r *replacing, slot int) error {
	e.setMonitor(slot, r.Former.Monitor)
	err := errors.Join(e.writeHeader(&r.Former.Header), e.erase(r.Policy, r.grants(), r.Denied))
	return errors.Join(err, os.Remove(e.replacingPath(id)), e.removeReplacingDir())
}

// removeReplacingDir removes the folder where nothing else is in it.
func (e *Enforcer) removeReplacingDir() error {
	err := os.Remove(e.replacingDir())
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// resumeReplacing ends what a killed process left of replacing policies: one that has come is made the jail's, one that
// has not is erased.
func (e *Enforcer) resumeReplacing() {
	entries, err := os.ReadDir(e.replacingDir())
	if err != nil {
		return // almost always: it is not there
	}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || e.resume(id) != nil {
			os.Remove(filepath.Join(e.replacingDir(), entry.Name())) // half a file, or that of a jail that is gone
		}
	}
	e.removeReplacingDir()
}

func (e *Enforcer) resume(id string) error {
	var r replacing
	if err := readJSON(e.replacingPath(id), &r); err != nil {
		return err
	}
	slot := e.slotOf(id)
	if slot < 0 {
		return e.erase(r.Policy, r.grants(), r.Denied)
	}
	if e.jailSlots[slot].Policy != r.Policy {
		return e.undoReplacing(id, &r, slot)
	}
	former, err := e.readPolicy(id)
	if err != nil {
		return err
	}
	e.forgetVerdicts()
	e.setMonitor(slot, r.Monitor)
	return errors.Join(e.writeHeader(&r.Header), e.finishReplacing(id, former.Policy, former.grants(), former.Denied))
}

// slotOf finds a jail's slot, live or not, by its id; -1 where there is none.
func (e *Enforcer) slotOf(id string) int {
	number, err := strconv.ParseUint(id, 16, 64)
	if err != nil || number == 0 || formatID(number) != id {
		return -1
	}
	return slices.IndexFunc(e.jailSlots, func(s enforcerTfJail) bool { return s.Id == number })
}
