package loader

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
)

// forgetVerdicts makes the programs forget what they remember of earlier verdicts (bpf/cache.h). It has to follow every
// change by which somebody in a jail loses rights: when the change is made no later look-up gives the old answer, and
// after this nothing remembered does.
func (e *Enforcer) forgetVerdicts() { atomic.AddUint32(&e.state.Epoch, 1) }

// cells of the filter that a grant is counted in. A program that finds 0 in one looks no further, so they are counted up
// before the grant can be found, and down when it no longer can. Whoever changes grants holds the lock, and programs only
// read the filter, so plain stores will do: the system calls between them order them.
func (e *Enforcer) cells(key enforcerTfGrantKey, grant enforcerTfGrant) []*uint16 {
	at := key.Ino % uint64(len(e.state.Granted))
	cells := []*uint16{&e.state.Granted[at]}
	if grant.Rights&uint16(enforcerTfMarkTF_NO_FILE) == 0 {
		cells = append(cells, &e.state.GrantedFiles[at])
	}
	return cells
}

// addGrant writes a grant that is not there yet.
func (e *Enforcer) addGrant(key enforcerTfGrantKey, grant enforcerTfGrant) error {
	cells := e.cells(key, grant)
	enterCells(cells)
	err := e.grants.Update(key, grant, ebpf.UpdateNoExist)
	if err != nil {
		leaveCells(cells)
	}
	return err
}

// addGrants writes the grants of a policy that has none yet.
func (e *Enforcer) addGrants(keys []enforcerTfGrantKey, grants []enforcerTfGrant) error {
	for i, key := range keys {
		enterCells(e.cells(key, grants[i]))
	}
	if len(keys) == 0 {
		return nil
	}
	done, err := e.grants.BatchUpdate(keys, grants, nil)
	if err != nil {
		for i := done; i < len(keys); i++ {
			leaveCells(e.cells(keys[i], grants[i]))
		}
	}
	return err
}

// deleteGrant removes a grant; one that is not there is fine.
func (e *Enforcer) deleteGrant(key enforcerTfGrantKey) error {
	var grant enforcerTfGrant
	switch err := e.grants.LookupAndDelete(key, &grant); {
	case err == nil:
		leaveCells(e.cells(key, grant))
		return nil
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return nil
	default:
		return err
	}
}

// enterCells counts cells up.
func enterCells(cells []*uint16) {
	for _, cell := range cells {
		if *cell < math.MaxUint16 {
			*cell++
		}
	}
}

// leaveCells counts cells down. One that was full once is full for good: how many it holds is not known.
func leaveCells(cells []*uint16) {
	for _, cell := range cells {
		if *cell < math.MaxUint16 {
			*cell--
		}
	}
}

// countRuns adds to a status how often each hook has made a verdict. What is only read, and by many system calls, is
// left out of what every start has to know.
func (e *Enforcer) countRuns(s *engine.EnforcementStatus) {
	for i := range s.Hooks {
		hook := slices.Index(hookNames[:], s.Hooks[i].Name)
		if hook < 0 {
			continue
		}
		s.Hooks[i].Runs = sumOf(e.runs, uint32(hook), func(n uint64) uint64 { return n })
	}
	for i := range s.Hooks {
		if s.Hooks[i].Name != hookNames[enforcerTfHookTF_HOOK_FILE_OPEN] {
			continue
		}
		for place := range e.verdicts.MaxEntries() {
			s.Hooks[i].Runs += sumOf(e.verdicts, place, func(v enforcerTfVerdict) uint64 { return v.Opens })
		}
	}
}

// sumOf adds up what the CPUs have at a place of an array.
func sumOf[V any](m *ebpf.Map, place uint32, number func(V) uint64) (sum uint64) {
	var each []V
	if err := m.Lookup(place, &each); err != nil {
		return 0
	}
	for _, v := range each {
		sum += number(v)
	}
	return sum
}
