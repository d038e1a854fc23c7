//go:build vm

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// cell is a small jail: /in to be read, with the trees a, b, and none with no rights and the denied name secret in it;
// outside it /out. A child in it does what it is told.
type cell struct {
	*scene
	e                *Enforcer
	base             string
	jail             *Jail
	journal          string
	open             []OpenObject
	entries, objects int // of the maps, before the jail was made
}

func newCell(t *testing.T, e *Enforcer) *cell {
	t.Helper()
	c := &cell{scene: &scene{}, e: e, base: tmpfsIn(t), journal: filepath.Join(t.TempDir(), "expansions.journal")}
	c.entries, c.objects = entriesOf[enforcerTfGrantKey, enforcerTfGrant](t, e.grants), entriesOf[enforcerTfGrantKey, enforcerTfExpanded](t, e.expansions)
	for _, dir := range []string{"in/a", "in/a/deep", "in/b", "in/none", "in/secret", "out"} {
		if err := os.MkdirAll(filepath.Join(c.base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"file", "victim"} {
			if err := os.WriteFile(filepath.Join(c.base, dir, name), []byte(canaryText), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.makeCgroup("/sys/fs/cgroup", "cell-"); err != nil {
		t.Fatal(err)
	}
	open, closeAll, err := canaryObjects()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	c.open = open
	spec := c.spec(engine.Read)
	spec.Cgroup, spec.CgroupPath, spec.Open = c.cgroup, c.path, open
	if c.jail, err = e.CreateJail(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.DeleteJail(c.jail.ID); err != nil && !errors.Is(err, ErrNoJail) {
			t.Error(err)
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
		c.wantNothingLeft(t)
	})
	if c.child, err = startCanary(c.cgroup, nil, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// spec is a policy with these rights in the workspace, and further grants.
func (c *cell) spec(rights engine.Rights, more ...engine.Object) JailSpec {
	in := c.base + "/in"
	return JailSpec{Sets: engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: in, WorkspaceID: engine.WorkspaceID(in, engine.CaseSensitive)},
		Objects: append([]engine.Object{
			{Path: in, Rights: rights, Source: engine.SourceWorkspace},
			{Path: in + "/none", Rights: engine.None, Source: engine.SourcePolicy},
		}, more...),
		Deny: []string{in + "/secret"},
	}}
}

// wantNothingLeft checks that the maps hold what they held before the cell.
func (c *cell) wantNothingLeft(t *testing.T) {
	t.Helper()
	if n := entriesOf[enforcerTfGrantKey, enforcerTfGrant](t, c.e.grants); n != c.entries {
		t.Errorf("%d grants, before it were %d", n, c.entries)
	}
	if n := entriesOf[enforcerTfGrantKey, enforcerTfExpanded](t, c.e.expansions); n != c.objects {
		t.Errorf("%d expanded objects, before it were %d", n, c.objects)
	}
	for _, dir := range []string{c.e.jailsDir(), c.e.replacingDir()} {
		files, err := filepath.Glob(filepath.Join(dir, c.jail.ID+"*"))
		if err != nil || len(files) > 0 {
			t.Errorf("left: %v, %v", files, err)
		}
	}
}

func entriesOf[K, V any](t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	if err := each(m, func(K, V) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *cell) want(t *testing.T, operation string, errno unix.Errno) {
	t.Helper()
	words := strings.Fields(operation)
	for i := range words[1:] {
		words[i+1] = c.base + words[i+1]
	}
	want(t, c.child, strings.Join(words, " "), errno)
}

func (c *cell) expand(t *testing.T, path string, expires time.Time, actions ...string) (engine.BoundaryExpansion, error) {
	t.Helper()
	f, err := open(nil, c.base+path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return c.e.Expand(c.journal, c.jail.ID, f, engine.ExpansionRequest{
		ResourceIdentity: c.base + path, ActionClasses: actions, Reason: "a test", ExpiresAt: expires,
	})
}

func (c *cell) mustExpand(t *testing.T, path string, expires time.Time, actions ...string) string {
	t.Helper()
	x, err := c.expand(t, path, expires, actions...)
	if err != nil {
		t.Fatalf("expand %s: %v", path, err)
	}
	return x.ExpansionID
}

func (c *cell) revoke(t *testing.T, id string, want bool) {
	t.Helper()
	if done, err := c.e.Revoke(c.journal, c.jail.ID, id); done != want || err != nil {
		t.Errorf("revoke %s: %v, %v", id, done, err)
	}
}

func (c *cell) wantVerified(t *testing.T) {
	t.Helper()
	if status := Inspect(Options{}); status.State != engine.Verified {
		t.Errorf("%v", status.Reasons)
	}
}

func TestExpansionsHoldIndependently(t *testing.T) {
	c := newCell(t, openVerified(t))
	never := time.Time{}
	c.want(t, "open /in/a/deep/file", noErrno)
	c.want(t, "truncate /in/a/deep/file", eacces)
	c.want(t, "create /in/a/deep/new", eacces)
	c.want(t, "unlink /in/a/deep/victim", eacces)

	write := c.mustExpand(t, "/in/a", never, engine.ActionWriteFile)
	c.want(t, "truncate /in/a/deep/file", noErrno)
	c.want(t, "create /in/a/deep/new", noErrno)
	c.want(t, "unlink /in/a/deep/new", eacces)
	c.want(t, "truncate /in/b/file", eacces)
	c.want(t, "truncate /in/file", unix.ENOENT)
	c.want(t, "open /out/file", eacces)
	c.wantVerified(t)

	// A second one on the same object, and one on the workspace itself, which is a grant of the policy.
	remove := c.mustExpand(t, "/in/a", never, engine.ActionDelete)
	c.want(t, "unlink /in/a/deep/new", noErrno)
	all := c.mustExpand(t, "/in", never, engine.ActionWriteFile)
	c.want(t, "truncate /in/b/file", noErrno)
	c.want(t, "open /in/none/file", eacces)
	c.want(t, "truncate /in/none/file", eacces)
	c.want(t, "open /in/secret/file", eacces)
	c.wantVerified(t)

	c.revoke(t, write, true)
	c.want(t, "truncate /in/a/file", noErrno) // by the one on the workspace
	c.revoke(t, all, true)
	c.want(t, "truncate /in/a/file", eacces)
	c.want(t, "create /in/a/deep/new", eacces)
	c.want(t, "unlink /in/a/deep/victim", noErrno)
	c.revoke(t, remove, true)
	c.want(t, "unlink /in/a/victim", eacces)
	c.revoke(t, remove, false)
	c.revoke(t, "0123456789abcdef", false)
	c.want(t, "open /in/a/file", noErrno)
	c.wantVerified(t)
	if n := entriesOf[enforcerTfGrantKey, enforcerTfExpanded](t, c.e.expansions); n != c.objects {
		t.Errorf("%d objects are still expanded", n)
	}
	// Of a single file.
	c.mustExpand(t, "/in/b/file", never, engine.ActionWriteFile)
	c.want(t, "truncate /in/b/file", noErrno)
	c.want(t, "truncate /in/b/victim", eacces)
}

func TestExpansionsNeverLift(t *testing.T) {
	c := newCell(t, openVerified(t))
	for path, says := range map[string]string{
		"/in/none": "the policy grants none there", "/in/none/file": "the policy grants none there",
		"/in/secret": "its name is denied", "/in/secret/file": "its name is denied", "/out": "replace the policy instead",
	} {
		if _, err := c.expand(t, path, time.Time{}, engine.ActionReadFile); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := c.expand(t, "/out", time.Time{}, engine.ActionReadFile); !errors.Is(err, ErrNotGranted) {
		t.Error(err)
	}
	if _, err := c.expand(t, "/in/a", time.Time{}, "dance"); err == nil {
		t.Error("an action that is none was taken")
	}
	if found, err := c.e.Expansions(c.jail); err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
	if list, err := engine.ReadExpansions(c.journal); err == nil && len(list) > 0 {
		t.Errorf("in the journal all the same: %+v", list)
	}
}

// Whose number a stranger's inode has got, that it adds nothing to.
func TestExpansionOfAGoneObject(t *testing.T) {
	c := newCell(t, openVerified(t))
	id := c.mustExpand(t, "/in/a", time.Time{}, engine.ActionWriteFile)
	found, err := c.e.Expansions(c.jail)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	object, err := c.e.lookupExpanded(found[0].key)
	if err != nil {
		t.Fatal(err)
	}
	object.Each[found[0].at].Generation++
	if err := c.e.expansions.Put(found[0].key, object); err != nil {
		t.Fatal(err)
	}
	c.want(t, "truncate /in/a/file", eacces)
	c.want(t, "open /in/a/file", noErrno)
	c.revoke(t, id, true)
}

func TestExpansionsExpire(t *testing.T) {
	c := newCell(t, openVerified(t))
	short := time.Now().Add(3 * time.Second)
	c.mustExpand(t, "/in/a", short, engine.ActionWriteFile)
	c.mustExpand(t, "/in/a", time.Now().Add(time.Hour), engine.ActionDelete)
	c.want(t, "truncate /in/a/file", noErrno)
	time.Sleep(time.Until(short) + 50*time.Millisecond)
	c.want(t, "truncate /in/a/file", eacces)
	c.want(t, "unlink /in/a/victim", noErrno)
	// The place of the one that expired is taken when all others hold.
	for range 7 {
		c.mustExpand(t, "/in/a", time.Time{}, engine.ActionReadFile)
	}
	var full *engine.UnverifiedError
	if _, err := c.expand(t, "/in/a", time.Time{}, engine.ActionReadFile); !errors.As(err, &full) || full.Reasons[0].Code != engine.MapFull {
		t.Errorf("a ninth: %v", err)
	}
	c.want(t, "truncate /in/a/file", eacces)
	list, err := engine.ReadExpansions(c.journal)
	if err != nil {
		t.Fatal(err)
	}
	if last := list[len(list)-1]; !last.Revoked {
		t.Errorf("the one there was no room for is active in the journal: %+v", last)
	}
	if found, err := c.e.Reconcile(c.journal); err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestGrantsExpire(t *testing.T) {
	c := newCell(t, openVerified(t))
	at := time.Now().Add(3 * time.Second)
	if _, err := c.e.Replace(c.jail.ID, c.spec(engine.Read, engine.Object{Path: c.base + "/in/a", Rights: engine.Read | engine.Write, Expires: at})); err != nil {
		t.Fatal(err)
	}
	c.want(t, "truncate /in/a/file", noErrno)
	c.wantVerified(t)
	time.Sleep(time.Until(at) + 50*time.Millisecond)
	c.want(t, "open /in/a/file", eacces)
	c.want(t, "open /in/b/file", noErrno)
	c.wantVerified(t)
}

func TestModeIsSwitchedLive(t *testing.T) {
	c := newCell(t, openVerified(t))
	c.want(t, "open /out/file", eacces)
	for range 20 {
		if err := c.e.SetMode(c.jail.ID, engine.Monitor); err != nil {
			t.Fatal(err)
		}
		c.want(t, "open /out/file", noErrno)
		if j, err := c.e.FindJail(c.jail.ID); err != nil || j.Mode != engine.Monitor || j.Denials == 0 {
			t.Errorf("%+v, %v", j, err)
		}
		if err := c.e.SetMode(c.jail.ID, engine.Enforce); err != nil {
			t.Fatal(err)
		}
		c.want(t, "open /out/file", eacces)
	}
	c.wantVerified(t)
}

// While policies are replaced, what all of them grant works every time, and what none of them grants never does.
func TestReplaceHasNoMoment(t *testing.T) {
	c := newCell(t, openVerified(t))
	other, err := startCanary(c.cgroup, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.peer = other // for close
	var (
		stop  atomic.Bool
		done  sync.WaitGroup
		tries [2]int
	)
	hammer := func(i int, child *canaryChild, operation string, errno unix.Errno) {
		defer done.Done()
		for ; !stop.Load(); tries[i]++ {
			if got, err := child.do(strings.Fields(operation)); err != nil || got != errno {
				t.Errorf("%s after %d tries: %s, %v", operation, tries[i], errnoName(got), err)
				return
			}
		}
	}
	done.Add(2)
	go hammer(0, c.child, "open "+c.base+"/in/a/file", noErrno)
	go hammer(1, other, "truncate "+c.base+"/in/a/file", eacces)
	in := c.base + "/in"
	policies := []JailSpec{
		c.spec(engine.Read),
		c.spec(engine.None, engine.Object{Path: in + "/a", Rights: engine.Read}),
		c.spec(engine.Read|engine.Delete, engine.Object{Path: in + "/a/file", Rights: engine.Read}),
	}
	for i := range 60 {
		if _, err := c.e.Replace(c.jail.ID, policies[i%len(policies)]); err != nil {
			t.Error(err)
			break
		}
	}
	stop.Store(true)
	done.Wait()
	if tries[0] < 20 || tries[1] < 20 {
		t.Errorf("only %d and %d operations were tried meanwhile", tries[0], tries[1])
	}
	c.wantVerified(t)
}

func TestReplaceIsWhole(t *testing.T) {
	c := newCell(t, openVerified(t))
	kept := c.mustExpand(t, "/in/b", time.Time{}, engine.ActionDelete)
	monitored := c.spec(engine.Read, engine.Object{Path: c.base + "/out", Rights: engine.Read, Source: engine.SourcePolicy})
	monitored.Sets.Mode, monitored.Sets.Deny = engine.Monitor, nil
	j, err := c.e.Replace(c.jail.ID, monitored)
	if err != nil {
		t.Fatal(err)
	}
	if j.Mode != engine.Monitor || j.GrantCount != 3+len(c.open) || len(j.Denied) != 0 {
		t.Errorf("%+v", j)
	}
	c.want(t, "truncate /out/file", noErrno) // monitored
	enforced := c.spec(engine.Read, engine.Object{Path: c.base + "/out", Rights: engine.Read, Source: engine.SourcePolicy})
	enforced.Sets.Deny = nil
	if _, err := c.e.Replace(c.jail.ID, enforced); err != nil {
		t.Fatal(err)
	}
	c.want(t, "truncate /out/file", eacces)
	c.want(t, "open /out/file", noErrno)
	c.want(t, "open /in/secret/file", noErrno) // denied no more
	c.want(t, "unlink /in/b/victim", noErrno)  // expansions stay
	c.wantVerified(t)

	// What cannot be applied leaves the former policy in force, whole.
	missing := c.spec(engine.AllRights, engine.Object{Path: c.base + "/nowhere", Rights: engine.Read})
	if _, err := c.e.Replace(c.jail.ID, missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a grant that does not exist: %v", err)
	}
	c.want(t, "open /out/file", noErrno)
	c.want(t, "truncate /in/a/file", eacces)
	c.wantVerified(t)

	// Expansions are bound to the workspace: in another one they are over.
	elsewhere := c.spec(engine.Read)
	elsewhere.Sets.Workspace.WorkspaceID = "0000000000000000"
	if _, err := c.e.Replace(c.jail.ID, elsewhere); err != nil {
		t.Fatal(err)
	}
	c.want(t, "unlink /in/b/file", eacces)
	found, err := c.e.Reconcile(c.journal)
	if err != nil || len(found) != 1 || found[0].Expansion != kept {
		t.Errorf("%v, %v", found, err)
	}
}

// A process that is killed while it replaces a policy leaves one of the two, whole, and nothing of the other.
func TestReplaceCutShort(t *testing.T) {
	e := openVerified(t)
	for _, swapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("swapped %v", swapped), func(t *testing.T) {
			c := newCell(t, e)
			h, err := e.freshHeader(c.jail.id)
			if err != nil {
				t.Fatal(err)
			}
			spec := c.spec(engine.Read | engine.Write)
			spec.Sets.Mode = engine.Monitor
			p, err := e.prepare(spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.keep(c.jail.Grants); err != nil {
				t.Fatal(err)
			}
			r := replacing{policyRecord: *recordOf(1<<30, p), Header: *h, Monitor: true}
			r.Former.Header, r.Header.Digest = *h, p.digest
			if err := errors.Join(e.writeJSON(e.replacingPath(c.jail.ID), &r), e.install(1<<30, p), e.writeHeader(&r.Header)); err != nil {
				t.Fatal(err)
			}
			e.setMonitor(c.jail.slot, true)
			errno := eacces
			if swapped {
				errno = noErrno
				e.swap(c.jail.slot, 1<<30, p.flags)
			}
			next := openVerified(t)
			j, err := next.FindJail(c.jail.ID)
			if err != nil {
				t.Fatal(err)
			}
			if (j.Mode == engine.Monitor) != swapped {
				t.Errorf("mode %v", j.Mode)
			}
			if err := next.SetMode(j.ID, engine.Enforce); err != nil {
				t.Fatal(err)
			}
			c.want(t, "truncate /in/a/file", errno)
			c.want(t, "open /out/file", eacces)
			c.wantVerified(t)
			if n := entriesOf[enforcerTfGrantKey, enforcerTfGrant](t, e.grants); n != c.entries+len(p.grants) {
				t.Errorf("%d grants, want %d and %d", n, c.entries, len(p.grants))
			}
		})
	}
}

func TestReconcile(t *testing.T) {
	c := newCell(t, openVerified(t))
	reconcile := func(want ...string) {
		t.Helper()
		found, err := c.e.Reconcile(c.journal)
		if err != nil {
			t.Fatal(err)
		}
		var says []string
		for _, d := range found {
			says = append(says, d.What)
		}
		if len(says) != len(want) {
			t.Errorf("got %q, want %q", says, want)
			return
		}
		for i := range want {
			if !strings.HasPrefix(says[i], want[i]) {
				t.Errorf("got %q, want %q", says[i], want[i])
			}
		}
	}
	active := func(id string) bool {
		t.Helper()
		list, err := engine.ReadExpansions(c.journal)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			if x.ExpansionID == id {
				return !x.Revoked
			}
		}
		return false
	}
	reconcile() // no journal at all
	id := c.mustExpand(t, "/in/a", time.Time{}, engine.ActionWriteFile)
	reconcile()
	c.want(t, "truncate /in/a/file", noErrno)

	// Lost in the kernel: not active in the journal either.
	if err := c.e.withdraw(c.jail, func(Expansion) bool { return true }); err != nil {
		t.Fatal(err)
	}
	reconcile("is active in the journal and not in force")
	if active(id) {
		t.Error("still active")
	}
	reconcile()

	// Revoked in the journal, and still in force.
	id = c.mustExpand(t, "/in/a", time.Time{}, engine.ActionWriteFile)
	registry, err := c.e.registry(c.journal, c.jail)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Revoke(id); err != nil {
		t.Fatal(err)
	}
	registry.Close()
	c.want(t, "truncate /in/a/file", noErrno)
	reconcile("is in force though revoked")
	c.want(t, "truncate /in/a/file", eacces)

	// By somebody's hand: never recorded, or with other rights.
	id = c.mustExpand(t, "/in/a", time.Time{}, engine.ActionReadFile)
	found, err := c.e.Expansions(c.jail)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	object, _ := c.e.lookupExpanded(found[0].key)
	object.Each[0].Rights = uint32(engine.AllRights)
	object.Each[1] = enforcerTfExpansion{Id: 7, Expires: never, Generation: object.Each[0].Generation, Rights: uint32(engine.AllRights)}
	if err := c.e.putExpanded(found[0].key, object); err != nil {
		t.Fatal(err)
	}
	c.want(t, "truncate /in/a/file", noErrno)
	reconcile("has more rights in the kernel", "is in force without being in the journal")
	c.want(t, "truncate /in/a/file", eacces)
	if active(id) {
		t.Error("still active")
	}

	// A journal that is damaged says nothing, so nothing is in force.
	c.mustExpand(t, "/in/a", time.Time{}, engine.ActionWriteFile)
	text, err := os.ReadFile(c.journal)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(c.journal, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := c.e.Reconcile(c.journal); !errors.Is(err, engine.ErrJournalDamaged) || len(found) != 1 {
		t.Errorf("damaged: %v, %v", found, err)
	}
	c.want(t, "truncate /in/a/file", eacces)
	c.wantVerified(t)
}

// What the maps hold is read back by every status: a hand in them shows.
func TestStatusReadsBack(t *testing.T) {
	c := newCell(t, openVerified(t))
	c.wantVerified(t)
	wantMismatch := func(what string) {
		t.Helper()
		status := Inspect(Options{})
		if status.State == engine.Verified || !hasCode(status, engine.MapMismatch) {
			t.Errorf("%s: %v %v", what, status.State, status.Reasons)
		}
	}
	s := &c.e.jailSlots[c.jail.slot]
	for _, g := range c.jail.Grants {
		key := g.key(s.Policy)
		var value enforcerTfGrant
		if err := c.e.grants.Lookup(key, &value); err != nil {
			t.Fatal(err)
		}
		if err := c.e.grants.Delete(key); err != nil {
			t.Fatal(err)
		}
		wantMismatch("without the grant " + g.Path)
		wrong := value
		wrong.Rights |= uint16(engine.Write)
		wrong.Generation++
		if err := c.e.grants.Put(key, wrong); err != nil {
			t.Fatal(err)
		}
		wantMismatch("with another grant " + g.Path)
		if err := c.e.grants.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	c.wantVerified(t)
	extra := enforcerTfGrantKey{Ino: 1, Dev: 1, Policy: s.Policy}
	if err := c.e.grants.Put(extra, enforcerTfGrant{Rights: uint16(engine.AllRights)}); err != nil {
		t.Fatal(err)
	}
	wantMismatch("with a grant more")
	if err := c.e.grants.Delete(extra); err != nil {
		t.Fatal(err)
	}
	atomic.OrUint32(&s.Flags, uint32(enforcerTfJailFlagTF_JAIL_PENDING)) // then none of its tasks is judged
	wantMismatch("waiting for a container")
	atomic.AndUint32(&s.Flags, ^uint32(enforcerTfJailFlagTF_JAIL_PENDING))
	var member enforcerTfMember
	if err := c.e.members.Lookup(c.jail.CgroupID, &member); err != nil {
		t.Fatal(err)
	}
	if err := c.e.members.Delete(c.jail.CgroupID); err != nil {
		t.Fatal(err)
	}
	wantMismatch("without the member")
	if jails, err := c.e.Jails(); err != nil || len(jails) != 1 || jails[0].Gone {
		t.Errorf("the jail was taken for one whose cgroup is gone: %+v, %v", jails, err)
	}
	if err := c.e.members.Put(c.jail.CgroupID, member); err != nil {
		t.Fatal(err)
	}
	word := &c.e.state.Members[c.jail.CgroupID/64%uint64(len(c.e.state.Members))]
	old := atomic.LoadUint64(word)
	atomic.StoreUint64(word, old&^(1<<(c.jail.CgroupID%64)))
	wantMismatch("without the bit")
	atomic.StoreUint64(word, old)
	for _, g := range c.jail.Grants {
		var value enforcerTfGrant
		if err := c.e.grants.Lookup(g.key(s.Policy), &value); err != nil {
			t.Fatal(err)
		}
		for _, cell := range c.e.cells(g.key(s.Policy), value) {
			old := *cell
			*cell = 0
			wantMismatch("with a filter that hides " + g.Path)
			*cell = old
		}
	}
	c.wantVerified(t)
}

// The kernel's own answer for a jail and an object is the hooks', and names the grant that decided.
func TestJudge(t *testing.T) {
	c := newCell(t, openVerified(t))
	for _, row := range []struct {
		path  string
		as    judging
		need  engine.Rights
		code  string
		grant string
	}{
		{"/in/a/file", judgeFile, engine.Read, "ok", "/in"},
		{"/in/a/file", judgeFile, engine.Write, "rights", "/in"},
		{"/in/a", judgeObject, engine.Create, "rights", "/in"},
		{"/in/a/file", judgeName, engine.None, "rights", "/in"},
		{"/in/none/file", judgeFile, engine.Read, "rights", "/in/none"},
		{"/in/secret/file", judgeFile, engine.Read, "denied-name", ""},
		{"/out/file", judgeFile, engine.Read, "no-grant", ""},
	} {
		f, err := open(nil, c.base+row.path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.e.judge(c.jail.slot, nil, f, row.as, row.need)
		f.Close()
		if err != nil || got.code != row.code {
			t.Errorf("%s: %+v, %v; want %s", row.path, got, err, row.code)
			continue
		}
		path := ""
		for _, g := range c.jail.Grants {
			if got.grant != nil && g.key(got.grant.Policy) == *got.grant {
				path = g.Path
			}
		}
		if row.grant != "" && path != c.base+row.grant {
			t.Errorf("%s: decided by %q, want %s", row.path, path, row.grant)
		}
	}
}
