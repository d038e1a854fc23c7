package learn

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/thenforce/thenforce/pkg/engine"
)

// Suggestion is the smallest policy that a run needed.
type Suggestion struct {
	Jail            string
	Workspace       string
	WorkspaceRights engine.Rights
	Presets         []engine.Preset
	// Grants are in the order of their paths.
	Grants []Needed
	// Made are directories that the run made and left, and which nothing grants to be made.
	Made []string
	// Impossible is what the run did and no grant can allow, most frequent first.
	Impossible []Refusal
	// EventsLost: so many events are in no report, so that something may be missing here.
	EventsLost uint64
	// Enforced: the run was denied what it tried, so that it may not have got to do all it needs.
	Enforced bool
}

// Needed is one grant, and what it was needed for.
type Needed struct {
	Path   string
	Rights engine.Rights
	// Own: the run's own policy has it, with fewer rights or the same.
	Own bool
	// Ops are the operations it was needed for, with how often; Comms the programs.
	Ops   map[string]uint64
	Comms []string
	// Listed: the directory itself was read, which takes a grant of everything below it.
	Listed bool
}

// Refusal is a kind of operation that no grant can allow.
type Refusal struct {
	Op, Path, Comm, Code string
	Count                uint64
}

// gather is from how many entries of one directory on the directory is granted instead.
const gather = 4

// Stat describes what is at a path now, without following a link there, as os.Lstat does. What the run made and left is
// told by it from what it removed again.
type Stat func(path string) (fs.FileInfo, error)

// need is the rights that an operation takes. of says of what: the object itself, or the directory it is named in.
type need struct {
	rights engine.Rights
	inDir  bool
}

const (
	modify = engine.Read | engine.Write
	manage = engine.Read | engine.Write | engine.Create | engine.Delete
)

// needs has every operation that a grant can allow. A write may be one of an open that also reads, and who makes names in
// a directory also removes some: a policy for one run only would be of no use.
var needs = map[string]need{
	"read": {rights: engine.Read}, "receive": {rights: engine.Read}, "watch": {rights: engine.Read}, "list": {rights: engine.Read},
	"write": {rights: modify}, "attributes": {rights: modify},
	"exec":    {rights: engine.Read | engine.Exec},
	"connect": {rights: engine.Connect},
	"create":  {manage, true}, "delete": {manage, true}, "rename": {manage, true},
	// Of the source, which is asked about first. The target is a name that is made, in a directory where others are too.
	"link": {rights: engine.Read},
}

// grantable are the codes that a grant answers.
var grantable = []string{"no-grant", "rights", "mount-boundary", "generation", "expired", "device-node"}

// Suggest makes the policy. Paths are looked at as they are now.
func (r *Report) Suggest(stat Stat) Suggestion {
	s := Suggestion{Jail: r.Jail, Workspace: r.Policy.Workspace, EventsLost: r.EventsLost, Enforced: r.Policy.Mode == "enforce"}
	tree := wants{}
	for _, g := range r.Policy.Grants {
		rights, err := engine.ParseRights(g.Rights)
		if err != nil {
			continue
		}
		switch engine.Source(g.Source) {
		case engine.SourceWorkspace:
			s.WorkspaceRights = rights
		case engine.SourcePreset:
			s.Presets = []engine.Preset{engine.PresetSystem}
		case engine.SourcePolicy:
			tree[g.Path] = &Needed{Path: g.Path, Rights: rights, Own: true, Ops: map[string]uint64{}}
		}
	}
	refused := map[Refusal]uint64{}
	for _, e := range r.Denials {
		count := max(e.Count, 1)
		at, rights, ok := e.object(stat)
		if !ok {
			refused[Refusal{Op: e.Op, Path: e.Path, Comm: e.Comm, Code: e.Code}] += count
			continue
		}
		if rights == engine.None {
			if !slices.Contains(s.Made, at) {
				s.Made = append(s.Made, at)
			}
			continue
		}
		if e.Code != "mount-boundary" && contains(s.Workspace, at) && !tree.hasBetween(s.Workspace, at) {
			s.WorkspaceRights |= rights
			continue
		}
		tree.add(at, rights, e, count)
	}
	tree.gather(s.Workspace)
	tree.nest()
	s.Grants = tree.sorted()
	s.Made = slices.DeleteFunc(s.Made, func(dir string) bool { return tree.rights(path.Dir(dir)).Has(engine.Create) })
	slices.Sort(s.Made)
	for refusal, n := range refused {
		refusal.Count = n
		s.Impossible = append(s.Impossible, refusal)
	}
	slices.SortFunc(s.Impossible, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Comm, b.Comm), cmp.Compare(a.Code, b.Code))
	})
	return s
}

// object gives what has to be granted for an event: the object, or where it is gone or names come and go in it, the
// directory.
func (e *Event) object(stat Stat) (string, engine.Rights, bool) {
	n, ok := needs[e.Op]
	if !ok || !slices.Contains(grantable, e.Code) || len(e.PathBytes) > 0 || !strings.HasPrefix(e.Path, "/") || path.Clean(e.Path) != e.Path || isDynamic(e.Path) {
		return "", 0, false
	}
	info, err := stat(e.Path)
	if e.Op == "create" && err == nil {
		switch {
		case info.IsDir():
			// It was made, and is there now: the next run need not make it. What happened in it has events of its own.
			return e.Path, engine.None, true
		case isBroad(path.Dir(e.Path)):
			return e.Path, modify, true
		}
	}
	at := e.Path
	if n.inDir {
		at = path.Dir(at)
		_, err = stat(at)
	}
	for err != nil && at != "/" {
		at = path.Dir(at)
		_, err = stat(at)
	}
	return at, n.rights, true
}

// isDynamic reports whether a path names something that is another one at the next run: processes and descriptors.
func isDynamic(name string) bool {
	rest, ok := strings.CutPrefix(name, "/proc/")
	if !ok {
		return false
	}
	first, _, _ := strings.Cut(rest, "/")
	return strings.Trim(first, "0123456789") == "" || first == "self" || first == "thread-self"
}

// isBroad reports whether everything lies below a directory: what a system or a person keeps there has nothing in common.
func isBroad(dir string) bool {
	names := strings.Split(strings.Trim(dir, "/"), "/")
	switch {
	case len(names) <= 1: // the root, /etc, /home
		return true
	case slices.Contains([]string{"proc", "sys", "dev"}, names[0]):
		return true
	case len(names) == 2 && slices.Contains([]string{"home", "var", "usr", "run"}, names[0]):
		return true
	case len(names) == 3 && names[0] == "run" && names[1] == "user":
		return true
	}
	// Below a home: where programs keep theirs side by side.
	home := 1
	if names[0] == "home" {
		home = 2
	}
	if names[0] != "home" && names[0] != "root" {
		return false
	}
	switch strings.Join(names[home:], "/") {
	case ".config", ".cache", ".local", ".local/share", ".local/state", ".local/lib", ".ssh", ".gnupg":
		return true
	}
	return false
}

func contains(dir, name string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// wants is what has to be granted, by path.
type wants map[string]*Needed

func (w wants) sorted() []Needed {
	var list []Needed
	for _, name := range slices.Sorted(maps.Keys(w)) {
		list = append(list, *w[name])
	}
	return list
}

func (w wants) add(at string, rights engine.Rights, e Event, count uint64) {
	n := w[at]
	if n == nil {
		n = &Needed{Path: at, Ops: map[string]uint64{}}
		w[at] = n
	}
	n.Rights |= rights
	n.Ops[e.Op] += count
	if e.Comm != "" && !slices.Contains(n.Comms, e.Comm) {
		n.Comms = append(n.Comms, e.Comm)
	}
	if at == e.Path && (e.Op == "read" || e.Op == "list") {
		n.Listed = true
	}
}

// rights is what is granted at a path.
func (w wants) rights(name string) engine.Rights {
	for at := name; ; at = path.Dir(at) {
		if n, ok := w[at]; ok {
			return n.Rights
		}
		if at == "/" {
			return engine.None
		}
	}
}

// hasBetween reports whether a grant of the policy itself lies below dir and holds name.
func (w wants) hasBetween(dir, name string) bool {
	for at := name; at != dir && at != "/"; at = path.Dir(at) {
		if n, ok := w[at]; ok && n.Own {
			return true
		}
	}
	return false
}

// gather puts many grants of one directory together, deepest first.
func (w wants) gather(workspace string) {
	for {
		byDir := map[string][]*Needed{}
		for _, n := range w {
			if dir := path.Dir(n.Path); !n.Own && !isBroad(dir) && !contains(dir, workspace) {
				byDir[dir] = append(byDir[dir], n)
			}
		}
		deepest := ""
		for dir, list := range byDir {
			// Nothing to gather but what is already below a grant of the directory.
			if len(list) >= gather && (deepest == "" || strings.Count(dir, "/") > strings.Count(deepest, "/") ||
				strings.Count(dir, "/") == strings.Count(deepest, "/") && dir < deepest) {
				deepest = dir
			}
		}
		if deepest == "" {
			return
		}
		for _, n := range byDir[deepest] {
			w.merge(deepest, n)
		}
	}
}

// merge makes a grant part of that of a directory above.
func (w wants) merge(dir string, n *Needed) {
	into := w[dir]
	if into == nil {
		into = &Needed{Path: dir, Ops: map[string]uint64{}}
		w[dir] = into
	}
	into.Rights |= n.Rights
	for op, count := range n.Ops {
		into.Ops[op] += count
	}
	for _, comm := range n.Comms {
		if !slices.Contains(into.Comms, comm) {
			into.Comms = append(into.Comms, comm)
		}
	}
	delete(w, n.Path)
}

// nest gives each grant the rights of those around it, and drops those that add nothing.
func (w wants) nest() {
	for _, name := range slices.Sorted(maps.Keys(w)) {
		n := w[name]
		for at := path.Dir(name); ; at = path.Dir(at) {
			if around, ok := w[at]; ok && at != name {
				if n.Own && n.Rights == engine.None {
					break // the policy's own exception
				}
				n.Rights |= around.Rights
				if n.Rights == around.Rights && !n.Own {
					w.merge(at, n)
				}
				break
			}
			if at == "/" {
				break
			}
		}
	}
}

// why is the reason of a grant, for its reader.
func (n *Needed) why() string {
	var parts []string
	for _, op := range slices.SortedFunc(maps.Keys(n.Ops), func(a, b string) int {
		return cmp.Or(cmp.Compare(n.Ops[b], n.Ops[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%s %d", op, n.Ops[op]))
	}
	return strings.Join(parts, ", ")
}
