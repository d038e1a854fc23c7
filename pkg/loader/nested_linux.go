package loader

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// A jail inside a jail: its cgroup lies in the other's subtree, its slot knows the slot of the one around it, and its
// members are its own. The kernel programs ask it and every one around it, and all have to agree. Jails may be made and
// deleted in any order.

// innerOf lists the slots of the jails directly inside one.
func (e *Enforcer) innerOf(slot int) []int {
	var inner []int
	for _, at := range e.liveSlots() {
		if atomic.LoadUint32(&e.jailSlots[at].Parent) == uint32(slot)+1 {
			inner = append(inner, at)
		}
	}
	return inner
}

// nesting counts the jails that a chain holds from one outwards, itself included.
func (e *Enforcer) nesting(slot int) int {
	n := 1
	for parent := e.jailSlots[slot].Parent; parent != 0 && n <= len(e.jailSlots); n++ {
		parent = e.jailSlots[parent-1].Parent
	}
	return n
}

// height counts the jails of the longest chain inside one, itself included.
func (e *Enforcer) height(slot int) int {
	deepest := 0
	for _, inner := range e.innerOf(slot) {
		deepest = max(deepest, e.height(inner))
	}
	return 1 + deepest
}

// around finds the jail that a cgroup is a member of: the one that a new jail there would lie in. -1: none.
func (e *Enforcer) around(cgroup uint64) (slot int, jail uint64, err error) {
	var member enforcerTfMember
	switch err := e.members.Lookup(cgroup, &member); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return -1, 0, nil
	case err != nil:
		return -1, 0, fmt.Errorf("look up cgroup %d: %w", cgroup, err)
	}
	return int(member.Slot), member.Jail, nil
}

// enclose puts a jail that was found inside a new one's cgroup inside the new jail. It is inside the jail around the new
// one, if there is one, or in none.
func (e *Enforcer) enclose(inner enforcerTfMember, slot int) error {
	s := &e.jailSlots[inner.Slot]
	if s.Id != inner.Jail {
		return bug(fmt.Sprintf("slot %d holds jail %s and has a member of %s", inner.Slot, formatID(s.Id), formatID(inner.Jail)))
	}
	if s.Parent == uint32(slot)+1 {
		return nil // another of its cgroups was found before
	}
	if s.Parent != e.jailSlots[slot].Parent {
		return bug(fmt.Sprintf("jail %s lies in slot %d, not in %d", formatID(s.Id), int(s.Parent)-1, int(e.jailSlots[slot].Parent)-1))
	}
	if err := nestable(e.nesting(slot) + e.height(int(inner.Slot))); err != nil {
		return err
	}
	atomic.StoreUint32(&s.Parent, uint32(slot)+1)
	return nil
}

// nestable refuses more jails around one another than the kernel programs ask.
func nestable(jails int) error {
	if jails > int(enforcerTfLimitTF_MAX_INNER) {
		return fmt.Errorf("%d jails would lie inside one another; %d is the most that the kernel programs ask", jails, int(enforcerTfLimitTF_MAX_INNER))
	}
	return nil
}

// release gives a jail's cgroups to the jail around it, or sets them free, and takes the jail out of the chain of those
// inside it. It looks until there are none left: a cgroup made meanwhile may still have inherited this jail.
func (e *Enforcer) release(slot int, id uint64) error {
	s := &e.jailSlots[slot]
	parent := atomic.LoadUint32(&s.Parent)
	for _, inner := range e.innerOf(slot) {
		atomic.StoreUint32(&e.jailSlots[inner].Parent, parent)
	}
	for {
		left, err := e.membersOf(id)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, cgroup := range left {
			if parent == 0 {
				err = e.members.Delete(cgroup)
			} else {
				heir := enforcerTfMember{Jail: e.jailSlots[parent-1].Id, Slot: parent - 1}
				err = e.members.Update(cgroup, heir, ebpf.UpdateExist)
			}
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("release cgroup %d: %w", cgroup, err)
			}
		}
	}
}

// membersOf lists the cgroups of a jail, without those of jails inside it.
func (e *Enforcer) membersOf(id uint64) ([]uint64, error) {
	var all []uint64
	// Cgroups come and go meanwhile. What this round misses the next one finds.
	err := each(e.members, func(cgroup uint64, member enforcerTfMember) {
		if member.Jail == id {
			all = append(all, cgroup)
		}
	})
	return all, err
}
