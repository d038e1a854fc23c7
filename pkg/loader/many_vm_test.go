//go:build vm

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// crowd is many jails, each with a folder of its own: "work" with two files, and further files that are granted one by one.
type crowd struct {
	t     *testing.T
	e     *Enforcer
	base  string
	exe   string
	files int
	// The last of the jails, as many, are made, changed and ended by the command.
	byCommand int
	jails     []*Jail
	held      map[string]int // entries of the maps before
}

func (c *crowd) dir(i int) string       { return fmt.Sprintf("%s/%d", c.base, i) }
func (c *crowd) work(i int) string      { return c.dir(i) + "/work" }
func (c *crowd) file(i, k int) string   { return fmt.Sprintf("%s/%d", c.dir(i), k) }
func (c *crowd) cgroup(i int) string    { return fmt.Sprintf("/sys/fs/cgroup/crowd-%d", i) }
func (c *crowd) isByCommand(i int) bool { return i >= len(c.jails)-c.byCommand }
func (c *crowd) command(a ...string) string {
	c.t.Helper()
	out, err := exec.Command("thenforce", a...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %v: %s", a, err, out)
	}
	return strings.TrimSpace(string(out))
}

// policy is the i-th jail's: the first, or the one by which it is replaced. The second one takes the right to write and
// one of the files away, and grants another.
func (c *crowd) policy(i int, second bool) (objects []engine.Object) {
	rights, first := engine.AllRights, 0
	if second {
		rights, first = engine.Read, 1
	}
	objects = append(objects,
		engine.Object{Path: c.work(i), Rights: rights, Source: engine.SourceWorkspace},
		engine.Object{Path: c.exe, Rights: engine.Read | engine.Exec, Source: engine.SourcePreset})
	for k := first; k < first+c.files; k++ {
		objects = append(objects, engine.Object{Path: c.file(i, k), Rights: engine.Read, Source: engine.SourcePolicy})
	}
	return objects
}

// flags is the same policy for the command.
func (c *crowd) flags(i int, second bool) []string {
	objects := c.policy(i, second)
	args := []string{"--preset", "none", "--workspace", objects[0].Path, "--workspace-rights", objects[0].Rights.String()}
	for _, o := range objects[1:] {
		args = append(args, "--grant", o.Path+":"+o.Rights.String())
	}
	return args
}

func (c *crowd) spec(i int, second bool) JailSpec {
	return JailSpec{Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: c.work(i), WorkspaceID: engine.WorkspaceID(c.work(i), engine.CaseSensitive)},
		Objects:   c.policy(i, second),
	}}
}

func (c *crowd) make(i int) {
	c.t.Helper()
	if err := errors.Join(os.MkdirAll(c.work(i), 0o755), os.Mkdir(c.cgroup(i), 0o755),
		os.WriteFile(c.work(i)+"/file", nil, 0o644)); err != nil {
		c.t.Fatal(err)
	}
	for k := range c.files + 1 {
		if err := os.WriteFile(c.file(i, k), nil, 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	if c.isByCommand(i) {
		id := c.command(append([]string{"jail", "create", "--cgroup", c.cgroup(i), "--name", c.name(i)}, c.flags(i, false)...)...)
		c.jails[i] = &Jail{ID: id}
		return
	}
	dir, err := os.Open(c.cgroup(i))
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	spec := c.spec(i, false)
	spec.Cgroup, spec.CgroupPath, spec.Name = dir, c.cgroup(i), c.name(i)
	if c.jails[i], err = c.e.CreateJail(spec); err != nil {
		c.t.Fatalf("jail %d: %v", i, err)
	}
}

func (c *crowd) name(i int) string { return fmt.Sprintf("crowd-%d", i) }

func (c *crowd) replace(i int) {
	c.t.Helper()
	if c.isByCommand(i) {
		c.command(append([]string{"jail", "replace", c.name(i)}, c.flags(i, true)...)...)
	} else if _, err := c.e.Replace(c.jails[i].ID, c.spec(i, true)); err != nil {
		c.t.Fatalf("jail %d: %v", i, err)
	}
}

func (c *crowd) delete(i int) {
	c.t.Helper()
	if c.isByCommand(i) {
		c.command("jail", "delete", c.name(i))
	} else if err := c.e.DeleteJail(c.jails[i].ID); err != nil {
		c.t.Fatalf("jail %d: %v", i, err)
	}
}

// samples are the jails in which it is tried what holds: at both ends, at the border between the two ways, and between.
func (c *crowd) samples() []int {
	n := len(c.jails)
	return []int{0, 1, n / 3, n / 2, n - c.byCommand - 1, n - c.byCommand, n - 1}
}

// try checks by a process in the cgroup of a sample what its policy says, and that nothing of its neighbours' is granted.
func (c *crowd) try(i int, second bool) {
	c.t.Helper()
	own := map[bool]unix.Errno{true: noErrno, false: eacces}
	c.within(i, func(child *canaryChild) {
		want(c.t, child, "open "+c.work(i)+"/file", noErrno)
		want(c.t, child, "truncate "+c.work(i)+"/file", own[!second])
		for k := range c.files + 1 {
			granted := k < c.files
			if second {
				granted = k > 0
			}
			want(c.t, child, "open "+c.file(i, k), own[granted])
		}
		for _, other := range []int{(i + 1) % len(c.jails), (i + len(c.jails) - 1) % len(c.jails)} {
			want(c.t, child, "open "+c.work(other)+"/file", eacces)
			want(c.t, child, "open "+c.file(other, 1), eacces)
		}
	})
}

func (c *crowd) within(i int, do func(*canaryChild)) {
	c.t.Helper()
	dir, err := os.Open(c.cgroup(i))
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	child, err := startCanary(dir, nil, nil)
	if err != nil {
		c.t.Fatalf("in jail %d: %v", i, err)
	}
	do(child)
	if err := child.stop(); err != nil {
		c.t.Error(err)
	}
}

// entries counts what lies in the maps that a jail takes room in.
func (c *crowd) entries() map[string]int {
	return map[string]int{
		"jails":      len(c.e.liveSlots()),
		"members":    entriesOf[uint64, enforcerTfMember](c.t, c.e.members),
		"grants":     entriesOf[enforcerTfGrantKey, enforcerTfGrant](c.t, c.e.grants),
		"names":      entriesOf[enforcerTfNameKey, enforcerTfName](c.t, c.e.names),
		"expansions": entriesOf[enforcerTfGrantKey, enforcerTfExpanded](c.t, c.e.expansions),
	}
}

func (c *crowd) wantEntries(more map[string]int) {
	c.t.Helper()
	for name, n := range c.entries() {
		if want := c.held[name] + more[name]; n != want {
			c.t.Errorf("%d %s, want %d", n, name, want)
		}
	}
}

// Many jails, most of them made by one process and some by the command: all of them hold, and each by its own policy.
func TestManyJails(t *testing.T) {
	n, byCommand := 60, 4
	if inSoak() {
		n, byCommand = 1000, 20
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{t: t, e: openVerified(t), base: tmpfsIn(t), exe: exe, files: 8, byCommand: byCommand, jails: make([]*Jail, n)}
	c.held = c.entries()
	t.Cleanup(func() {
		for i := range n {
			if c.jails[i] != nil {
				c.e.DeleteJail(c.jails[i].ID)
			}
			os.Remove(c.cgroup(i))
		}
	})
	step := time.Now()
	took := func(what string) {
		t.Logf("%s: %v", what, time.Since(step).Round(time.Millisecond))
		step = time.Now()
	}
	for i := range n {
		c.make(i)
	}
	took(fmt.Sprintf("%d jails made", n))
	c.wantEntries(map[string]int{"jails": n, "members": n, "grants": n * (c.files + 2)})

	jails, err := c.e.Jails()
	if err != nil || len(jails) != n {
		t.Fatalf("%d jails are listed, %v", len(jails), err)
	}
	slices.SortFunc(jails, func(a, b *Jail) int { return a.CreatedAt.Compare(b.CreatedAt) })
	for i, j := range jails {
		if j.ID != c.jails[i].ID || j.Name != c.name(i) || j.Cgroup != c.cgroup(i) || j.Workspace != c.work(i) || j.Gone || j.GrantCount != c.files+2 {
			t.Errorf("jail %d is listed as %+v", i, j)
		}
	}
	if lines := strings.Split(c.command("jail", "list"), "\n"); len(lines) != n+1 {
		t.Errorf("the command lists %d lines", len(lines))
	}
	took("listed")
	for _, i := range c.samples() {
		c.try(i, false)
	}
	took("tried")
	c.wantVerified("with all of them")

	for i := range n {
		c.replace(i)
	}
	took("replaced")
	c.wantEntries(map[string]int{"jails": n, "members": n, "grants": n * (c.files + 2)})
	for _, i := range c.samples() {
		c.try(i, true)
	}
	c.wantVerified("with other policies")
	if inFull() { // to fill the table takes its time
		c.wantNoMore()
	}

	// Every other one ends. The others hold as before.
	for i := 0; i < n; i += 2 {
		c.delete(i)
	}
	took("half of them ended")
	for _, i := range c.samples() {
		if i%2 == 1 {
			c.try(i, true)
			continue
		}
		c.within(i, func(child *canaryChild) { want(t, child, "open "+c.work((i+1)%n)+"/file", noErrno) })
	}
	for i := 1; i < n; i += 2 {
		c.delete(i)
	}
	c.wantEntries(nil)
	for _, dir := range []string{c.e.jailsDir(), c.e.replacingDir()} {
		if left, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
			t.Errorf("%s holds %v, %v", dir, left, err)
		}
	}
	for i := range n {
		if err := os.Remove(c.cgroup(i)); err != nil {
			t.Error(err)
		}
	}
	c.wantVerified("after the last")
}

func (c *crowd) wantVerified(when string) {
	c.t.Helper()
	if status := Inspect(Options{}); status.State != engine.Verified {
		c.t.Errorf("%s: %v", when, status.Reasons)
	}
}

// wantNoMore fills what is left of the table with jails that grant nothing, whose cgroups are numbers that no cgroup has:
// then another one is refused, and nothing of it stays.
func (c *crowd) wantNoMore() {
	c.t.Helper()
	const noCgroup = 1 << 50
	var filled []int
	defer func() {
		empty(c.t, c.e.members, func(id uint64, _ enforcerTfMember) bool { return id >= noCgroup })
		for _, slot := range filled {
			id := c.e.jailSlots[slot].Id
			atomic.StoreUint32(&c.e.jailSlots[slot].Flags, 0)
			if err := c.e.removeRecord(id); err != nil {
				c.t.Error(err)
			}
			atomic.StoreUint64(&c.e.jailSlots[slot].Id, 0)
		}
	}()
	for slot := range c.e.jailSlots {
		s := &c.e.jailSlots[slot]
		if s.Id != 0 {
			continue
		}
		id, cgroup := uint64(noCgroup>>4+slot), uint64(noCgroup+slot)
		setBit(&c.e.state.Members, cgroup)
		if err := errors.Join(c.e.members.Put(cgroup, enforcerTfMember{Jail: id, Slot: uint32(slot)}),
			c.e.writeHeader(&header{ID: formatID(id), CgroupID: cgroup, CreatedAt: time.Now()})); err != nil {
			c.t.Fatal(err)
		}
		s.Parent, s.Policy = 0, atomic.AddUint32(&c.e.state.NextPolicy, 1)
		atomic.StoreUint64(&s.Id, id)
		atomic.StoreUint32(&s.Flags, uint32(enforcerTfJailFlagTF_JAIL_LIVE))
		filled = append(filled, slot)
	}
	held := c.entries()
	c.wantVerified("with as many as there can be")
	const group = "/sys/fs/cgroup/crowd-over"
	if err := os.Mkdir(group, 0o755); err != nil {
		c.t.Fatal(err)
	}
	defer os.Remove(group)
	dir, err := os.Open(group)
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	spec := c.spec(0, false)
	spec.Cgroup, spec.CgroupPath = dir, group
	_, err = c.e.CreateJail(spec)
	var unverified *engine.UnverifiedError
	if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.MapFull {
		c.t.Errorf("one more than there can be: %v", err)
	}
	out, err := exec.Command("thenforce", append([]string{"jail", "create", "--cgroup", group}, c.flags(0, false)...)...).CombinedOutput()
	if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), string(engine.MapFull)) ||
		!strings.Contains(string(out), strconv.Itoa(len(c.e.jailSlots))+" jails") {
		c.t.Errorf("one more than there can be, by the command: %v: %s", err, out)
	}
	for name, n := range c.entries() {
		if n != held[name] {
			c.t.Errorf("a refused jail left %d %s", n-held[name], name)
		}
	}
	if left, err := filepath.Glob(c.e.jailsDir() + "/*.policy.json"); err != nil || len(left) != len(c.jails) {
		c.t.Errorf("%d records of policies, %v", len(left), err)
	}
}
