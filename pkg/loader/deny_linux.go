package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
)

// denyTree is the denied names of one policy as the kernel programs want them: absolute paths, cut into names. Nodes are
// the directories on the way to a denied name; node 0 is none of them.
type denyTree struct {
	nodes  map[string]uint16 // directory -> node
	edges  []denyEdge
	denied map[string]bool // paths, without those below another one
	below  map[string]int  // directory -> names down to the farthest denied one
}

type denyEdge struct {
	from, to uint16 // to 0: denied
	name     string
}

// newDenyTree makes the tree of denied paths, which are absolute and clean. The same paths always make the same tree.
func newDenyTree(denied []string) (*denyTree, error) {
	denied = slices.Clone(denied)
	slices.Sort(denied)
	t := &denyTree{nodes: map[string]uint16{}, denied: map[string]bool{}, below: map[string]int{}}
	for _, name := range denied {
		if t.isDenied(name) {
			continue // below another one, which comes first
		}
		t.denied[name] = true
		at := "/"
		if err := t.enter(at); err != nil {
			return nil, err
		}
		names := strings.Split(strings.Trim(name, "/"), "/")
		for i, child := range names[:len(names)-1] {
			t.below[at] = max(t.below[at], len(names)-i)
			from := t.nodes[at]
			at = path.Join(at, child)
			if t.nodes[at] != 0 {
				continue
			}
			if err := t.enter(at); err != nil {
				return nil, err
			}
			t.edges = append(t.edges, denyEdge{from: from, to: t.nodes[at], name: child})
		}
		t.below[at] = max(t.below[at], 1)
		t.edges = append(t.edges, denyEdge{from: t.nodes[at], name: names[len(names)-1]})
	}
	return t, nil
}

func (t *denyTree) enter(dir string) error {
	if t.nodes[dir] != 0 {
		return nil
	}
	if len(t.nodes) == math.MaxUint16 {
		return fmt.Errorf("deny: more than %d directories lie on the way to denied names; deny the directories above instead", math.MaxUint16)
	}
	t.nodes[dir] = uint16(len(t.nodes) + 1)
	return nil
}

// isDenied reports whether a path has a denied name or lies below one.
func (t *denyTree) isDenied(name string) bool {
	for ; name != "/" && name != "."; name = path.Dir(name) {
		if t.denied[name] {
			return true
		}
	}
	return false
}

// place tells each grant its node, and takes all rights from those that have a denied name themselves.
func (t *denyTree) place(grants []GrantInfo) error {
	for i := range grants {
		g := &grants[i]
		if t.isDenied(g.Path) {
			g.Rights, g.denied = engine.None.String(), true
			continue
		}
		g.node = t.nodes[g.Path]
		if depth := t.below[g.Path]; depth > int(enforcerTfLimitTF_DENY_DEPTH) {
			return fmt.Errorf("deny: a name lies %d levels below %s, and %d is the most the kernel programs compare; deny one of the directories above it",
				depth, g.Path, int(enforcerTfLimitTF_DENY_DEPTH))
		}
	}
	return nil
}

// denyObjects adds what has a denied name now. The name alone keeps the jail from it; the object is denied too, so that
// another hard link of it is no way around.
func (e *Enforcer) denyObjects(root *os.File, denied []string, add func(path string, id Identity)) error {
	for _, name := range denied {
		f, err := open(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		id, err := e.identify(f)
		f.Close()
		if errors.Is(err, errRemoved) {
			continue
		}
		if err != nil {
			return err
		}
		add(name, id)
	}
	return nil
}

// refuseFolding refuses denied names where the file system compares names otherwise than byte by byte: the kernel
// programs would deny everything there.
func refuseFolding(sets engine.AllowedSets) error {
	if len(sets.Folding) == 0 {
		return nil
	}
	return fmt.Errorf("deny: %s matches names whatever their case, which the kernel programs cannot; keep the workspace on another file system, or deny nothing in it", sets.Folding[0])
}

// nameHash is tf_hash_name of bpf/walk.h.
func nameHash(name string) uint64 {
	hash := uint64(enforcerNameHashSeed) ^ uint64(len(name))
	for len(name) > 0 {
		var word [8]byte
		name = name[copy(word[:], name):]
		hash = (hash ^ binary.LittleEndian.Uint64(word[:])) * enforcerNameHashFactor
		hash ^= hash >> 32
	}
	return hash
}

const (
	enforcerNameHashSeed   = 0xcbf29ce484222325
	enforcerNameHashFactor = 0x9e3779b97f4a7c15
)

func (d denyEdge) key(policy uint32) enforcerTfNameKey {
	return enforcerTfNameKey{Hash: nameHash(d.name), Policy: policy, Node: d.from}
}

// writeNames gives a policy that no jail uses yet its denied names, and reads them back.
func (e *Enforcer) writeNames(policy uint32, t *denyTree) error {
	for _, edge := range t.edges {
		key, value := edge.key(policy), enforcerTfName{Node: uint32(edge.to)}
		if err := e.names.Update(key, value, ebpf.UpdateNoExist); err != nil {
			if errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("deny: two names below one directory have the same hash, one is %q; deny their directory instead", edge.name)
			}
			return full(fmt.Sprintf("write denied name %s", edge.name), err)
		}
		var back enforcerTfName
		if err := e.names.Lookup(key, &back); err != nil || back != value {
			return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
				engine.NewReason(engine.MapMismatch, fmt.Sprintf("denied name %s reads back as %+v (%v)", edge.name, back, err))}}
		}
	}
	return nil
}

// eraseNames removes a policy's denied names.
func (e *Enforcer) eraseNames(policy uint32, denied []string) error {
	t, err := newDenyTree(denied)
	if err != nil {
		return err
	}
	var errs []error
	for _, edge := range t.edges {
		if err := e.names.Delete(edge.key(policy)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("delete denied name %s: %w", edge.name, err))
		}
	}
	return errors.Join(errs...)
}
