package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
)

// Difference is a case in which the journal of expansions and the kernel did not say the same, and what came of it.
type Difference struct {
	Jail      string // id
	Expansion string // id
	What      string // a sentence: what was found, and how it was resolved
}

func (d Difference) String() string {
	return fmt.Sprintf("jail %s: expansion %s %s", d.Jail, d.Expansion, d.What)
}

// Reconcile compares the expansions of all live jails in the kernel with those in the journal at path, and resolves every
// difference towards less access: what the journal does not hold as active is withdrawn from the kernel, and what the
// kernel does not have, or has expired, is revoked in the journal. A jail is left alone by a process that was killed
// between the two, by a clock that was set, or by somebody's hand in a map.
//
// A journal that is damaged counts as one that holds nothing, and is an error as well. With one that another process has
// open, what is to be revoked in it is not: [engine.ErrJournalLocked].
func (e *Enforcer) Reconcile(path string) ([]Difference, error) {
	if len(e.liveSlots()) == 0 {
		return nil, nil
	}
	unlock, err := lock(e.opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	recorded, damage := engine.ReadExpansions(path)
	if errors.Is(damage, fs.ErrNotExist) {
		damage = nil
	}
	if damage != nil && !errors.Is(damage, engine.ErrJournalDamaged) {
		return nil, damage
	}
	held, err := e.allExpansions()
	if err != nil {
		return nil, err
	}
	if len(held) == 0 && len(recorded) == 0 {
		return nil, damage
	}
	jails, err := e.list()
	if err != nil {
		return nil, err
	}
	var all []Difference
	for _, j := range jails {
		found, err := e.reconcile(j, path, recorded, held[e.jailSlots[j.slot].Policy], damage == nil)
		all = append(all, found...)
		if err != nil {
			return all, errors.Join(damage, err)
		}
	}
	return all, damage
}

func (e *Enforcer) reconcile(j *Jail, path string, recorded []engine.BoundaryExpansion, held []Expansion, readable bool) ([]Difference, error) {
	activation, err := e.activation(j)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	active := map[string]*engine.BoundaryExpansion{}
	known := map[string]*engine.BoundaryExpansion{}
	for i := range recorded {
		x := &recorded[i]
		if x.Activation != activation {
			continue
		}
		known[x.ExpansionID] = x
		if !x.Revoked && (x.ExpiresAt == nil || now.Before(*x.ExpiresAt)) {
			active[x.ExpansionID] = x
		}
	}
	var (
		all      []Difference
		withdraw []string
		revoke   []string
	)
	found := func(id, what string) { all = append(all, Difference{j.ID, id, what}) }
	for _, x := range held {
		record := active[x.ID]
		switch {
		case record != nil && record.Rights().Has(x.Rights):
			if x.Expired {
				found(x.ID, "has expired by the time since boot, and not by the clock, which was set back: revoked")
				revoke = append(revoke, x.ID)
			}
		case x.Expired:
			// Both say so, or the journal says less: it does nothing any more, and its place is taken when it is needed.
		case record != nil:
			found(x.ID, "has more rights in the kernel than in the journal: withdrawn and revoked")
			withdraw, revoke = append(withdraw, x.ID), append(revoke, x.ID)
		case known[x.ID] == nil:
			found(x.ID, "is in force without being in the journal: withdrawn")
			withdraw = append(withdraw, x.ID)
		case known[x.ID].Revoked:
			found(x.ID, "is in force though revoked in the journal: withdrawn")
			withdraw = append(withdraw, x.ID)
		case x.expires-bootTime() < uint64(time.Second):
			// The two clocks are read one after the other, and it ends about now.
		default:
			found(x.ID, "has expired by the clock, and not yet by the time since boot: withdrawn")
			withdraw = append(withdraw, x.ID)
		}
	}
	for id := range active {
		if !slices.ContainsFunc(held, func(x Expansion) bool { return x.ID == id }) {
			found(id, "is active in the journal and not in force in the kernel: revoked")
			revoke = append(revoke, id)
		}
	}
	if len(withdraw) > 0 {
		if err := e.withdraw(j, func(x Expansion) bool { return slices.Contains(withdraw, x.ID) }); err != nil {
			return all, err
		}
	}
	if len(revoke) == 0 || !readable {
		return all, nil
	}
	registry, err := e.registry(path, j)
	if err != nil {
		return all, err
	}
	for _, id := range revoke {
		if _, err := registry.Revoke(id); err != nil {
			return all, errors.Join(err, registry.Close())
		}
	}
	return all, registry.Close()
}
