package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// prepared is a policy whose objects the kernel has named, as it is going to lie in the maps. It has no number yet.
type prepared struct {
	grants  []GrantInfo
	values  []enforcerTfGrant // of each grant, as the maps have it
	names   *denyTree
	denied  []string
	notices []string
	// digest sums up what the maps have to hold, in whatever order it is read back.
	digest uint64
	flags  uint32        // of the jail, as far as they are the policy's
	rights engine.Rights // of the workspace
}

// prepare looks at everything a policy names. Nothing is changed.
func (e *Enforcer) prepare(spec JailSpec) (*prepared, error) {
	if err := refuseFolding(spec.Sets); err != nil {
		return nil, err
	}
	names, err := newDenyTree(spec.Sets.Deny)
	if err != nil {
		return nil, err
	}
	p := &prepared{names: names, denied: spec.Sets.Deny}
	if p.grants, p.notices, err = e.learnAll(spec); err != nil {
		return nil, err
	}
	p.notices = append(slices.Clone(spec.Sets.Notices), p.notices...)
	if spec.Sets.Mode == engine.Monitor {
		p.flags |= uint32(enforcerTfJailFlagTF_JAIL_MONITOR)
	}
	if spec.Sets.FollowMounts {
		p.flags |= uint32(enforcerTfJailFlagTF_JAIL_FOLLOW_MOUNTS)
	}
	if spec.Sets.NoSymlinks {
		p.flags |= noSymlinks
	}
	if len(spec.Sets.Objects) > 0 {
		p.rights = spec.Sets.Objects[0].Rights
	}
	return p, p.encode()
}

// encode makes what the maps are to hold of the grants.
func (p *prepared) encode() error {
	if err := p.names.place(p.grants); err != nil {
		return err
	}
	p.values, p.digest = make([]enforcerTfGrant, len(p.grants)), 0
	for i, g := range p.grants {
		rights, err := engine.ParseRights(g.Rights)
		if err != nil {
			return bug(err.Error())
		}
		p.values[i] = enforcerTfGrant{Generation: g.Generation, Rights: uint16(rights), Node: g.node, Expires: bootInstant(g.Expires)}
		if g.denied {
			p.values[i].Rights = uint16(enforcerTfMarkTF_DENIED)
		}
		if g.Source == engine.SourcePreset {
			p.values[i].Rights |= uint16(enforcerTfMarkTF_HOSTS_OWN)
		}
		if kind := g.mode & unix.S_IFMT; kind != 0 && kind != unix.S_IFREG {
			p.values[i].Rights |= uint16(enforcerTfMarkTF_NO_FILE)
		}
		p.digest += digestGrant(g.key(0), p.values[i])
	}
	for _, edge := range p.names.edges {
		p.digest += digestName(edge.key(0), enforcerTfName{Node: uint32(edge.to)})
	}
	return nil
}

// digestGrant is a grant's part of a policy's digest. Expansions come and go by themselves, so their marks do not count.
func digestGrant(key enforcerTfGrantKey, value enforcerTfGrant) uint64 {
	rights := value.Rights &^ uint16(enforcerTfMarkTF_EXPANDED)
	return digest(1, key.Ino, key.Volume, uint64(key.Dev), uint64(value.Generation), uint64(rights), uint64(value.Node), value.Expires)
}

func digestName(key enforcerTfNameKey, value enforcerTfName) uint64 {
	return digest(2, key.Hash, uint64(key.Node), uint64(value.Node))
}

func digest(words ...uint64) uint64 {
	h := fnv.New64a()
	for _, w := range words {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], w)
		h.Write(b[:])
	}
	return h.Sum64()
}

// digests gives what the maps hold now, by policy number, and how many cells of the filter count fewer grants than that.
// Such a grant may not be found, and where it takes rights away the one around it decides.
func (e *Enforcer) digests() (sums map[uint32]uint64, short int, err error) {
	sums = map[uint32]uint64{}
	held := map[*uint16]int{}
	err = each(e.grants, func(key enforcerTfGrantKey, value enforcerTfGrant) {
		if value.Rights&uint16(enforcerTfMarkTF_ADDS_ONLY) == 0 {
			sums[key.Policy] += digestGrant(key, value)
		}
		for _, cell := range e.cells(key, value) {
			held[cell]++
		}
	})
	if err == nil {
		err = each(e.names, func(key enforcerTfNameKey, value enforcerTfName) { sums[key.Policy] += digestName(key, value) })
	}
	for cell, n := range held {
		if int(*cell) < min(n, math.MaxUint16) {
			short++
		}
	}
	return sums, short, err
}

// each gives all a hash map holds, by as few system calls as possible. What is changed meanwhile may be missed.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	var cursor ebpf.MapBatchCursor
	const many = 512
	keys, values := make([]K, many), make([]V, many)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", m.String(), err)
		}
	}
}

// install fills a policy that no jail uses yet, and reads it back.
func (e *Enforcer) install(policy uint32, p *prepared) error {
	keys := make([]enforcerTfGrantKey, len(p.grants))
	for i, g := range p.grants {
		keys[i] = g.key(policy)
	}
	if err := e.addGrants(keys, p.values); err != nil {
		return full("write grants", err)
	}
	for i, g := range p.grants {
		key, value := keys[i], p.values[i]
		var back enforcerTfGrant
		if err := e.grants.Lookup(key, &back); err != nil || back != value {
			return mismatch(fmt.Sprintf("grant %s reads back as %+v (%v)", g.Path, back, err))
		}
	}
	return e.writeNames(policy, p.names)
}

// erase removes a policy that no jail uses any more.
func (e *Enforcer) erase(policy uint32, grants []GrantInfo, denied []string) error {
	var errs []error
	for _, g := range grants {
		if err := e.deleteGrant(g.key(policy)); err != nil {
			errs = append(errs, fmt.Errorf("delete grant %s: %w", g.Path, err))
		}
	}
	return errors.Join(append(errs, e.eraseNames(policy, denied), e.eraseExpansions(policy))...)
}

func mismatch(detail string) error {
	return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{engine.NewReason(engine.MapMismatch, detail)}}
}
