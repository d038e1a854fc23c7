package loader

import (
	"fmt"
	"sync/atomic"

	"github.com/thenforce/thenforce/pkg/engine"
)

// readBack checks that the maps hold what was written for every live jail, and says what does not. What another process is
// just changing, or was changing when it was killed, looks the same as what nobody may have changed. So it counts only
// if it is still there when the one was waited for, and what the other left was put right. locked says that this process
// keeps the others from changing anything already.
func (e *Enforcer) readBack(locked bool) []string {
	wrong := e.compareMaps()
	if len(wrong) == 0 {
		return nil
	}
	if !locked {
		unlock, err := lock(e.opts)
		if err != nil {
			return append(wrong, fmt.Sprintf("(%v)", err))
		}
		defer unlock()
	}
	e.collectLocked()
	return e.compareMaps()
}

func (e *Enforcer) compareMaps() []string {
	live := e.liveSlots()
	if len(live) == 0 {
		return nil
	}
	held, short, err := e.digests()
	if err != nil {
		return []string{err.Error()}
	}
	members, err := e.memberIDs()
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	for _, slot := range live {
		s := &e.jailSlots[slot]
		h, err := e.freshHeader(s.Id)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("jail %s: what was written for it cannot be told: %v", formatID(s.Id), err))
			continue
		}
		flags := atomic.LoadUint32(&s.Flags)
		if flags&partial != 0 {
			wrong = append(wrong, fmt.Sprintf("jail %s: it does not hold for all of its cgroup", h.ID))
		}
		if flags&uint32(enforcerTfJailFlagTF_JAIL_PENDING) != 0 && !h.Contained {
			wrong = append(wrong, fmt.Sprintf("jail %s: it waits for a container to start, and is none's", h.ID))
		}
		if held[atomic.LoadUint32(&s.Policy)] != h.Digest && !e.holdsExactly(h, s.Policy) {
			wrong = append(wrong, fmt.Sprintf("jail %s: its grants are not those that were written", h.ID))
		}
		if members[h.CgroupID] != s.Id && h.cgroupIsThere() {
			wrong = append(wrong, fmt.Sprintf("jail %s: the cgroup %s is no member of it any more", h.ID, h.Cgroup))
		}
	}
	if short > 0 {
		wrong = append(wrong, fmt.Sprintf("the filter of granted inode numbers counts too few grants in some cells (%d), and may hide them", short))
	}
	unfiltered := 0
	for cgroup := range members {
		if word := atomic.LoadUint64(&e.state.Members[cgroup/64%uint64(len(e.state.Members))]); word>>(cgroup%64)&1 == 0 {
			unfiltered++
		}
	}
	if unfiltered > 0 {
		wrong = append(wrong, fmt.Sprintf("jailed cgroups (%d) are not in the first filter, and not judged", unfiltered))
	}
	return wrong
}

// holdsExactly compares one by one what the digests say is not the same: grants whose file system was unmounted are
// marked by the kernel programs, and that is as it must be.
func (e *Enforcer) holdsExactly(h *header, policy uint32) bool {
	r, err := e.readPolicy(h.ID)
	if err != nil || r.Policy != policy {
		return false
	}
	held := map[enforcerTfGrantKey]enforcerTfGrant{}
	names := 0
	err = each(e.grants, func(key enforcerTfGrantKey, value enforcerTfGrant) {
		if key.Policy == policy && value.Rights&uint16(enforcerTfMarkTF_ADDS_ONLY) == 0 {
			value.Rights &^= uint16(enforcerTfMarkTF_EXPANDED)
			held[key] = value
		}
	})
	if err != nil || len(held) != len(r.Grants) {
		return false
	}
	for i, g := range r.grants() {
		value, want := held[g.key(policy)], r.Grants[i].Value
		if value.Expires == expiresGone {
			value.Expires = want.Expires
		}
		if value != want {
			return false
		}
	}
	tree, err := newDenyTree(r.Denied)
	if err != nil {
		return false
	}
	want := map[enforcerTfNameKey]enforcerTfName{}
	for _, edge := range tree.edges {
		want[edge.key(policy)] = enforcerTfName{Node: uint32(edge.to)}
	}
	same := true
	err = each(e.names, func(key enforcerTfNameKey, value enforcerTfName) {
		if key.Policy == policy {
			names++
			have, ok := want[key]
			same = same && ok && have == value
		}
	})
	return err == nil && same && names == len(want)
}

// expiresGone is TF_GONE of bpf/abi.h.
const expiresGone = 1

// reportMaps adds what readBack found.
func (e *Enforcer) reportMaps(s *engine.EnforcementStatus, locked bool) {
	for _, what := range e.readBack(locked) {
		s.Add(engine.MapMismatch, what)
	}
}
