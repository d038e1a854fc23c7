package loader

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	// ErrNoJail: no live jail has that id, prefix or name.
	ErrNoJail = errors.New("no such jail")
	// ErrAmbiguous: a prefix fits more than one jail.
	ErrAmbiguous = errors.New("more than one jail")
	// ErrInUse: the name or the cgroup belongs to a jail already.
	ErrInUse = errors.New("in use by another jail")
)

var namePattern = regexp.MustCompile(`^[a-z0-9._-]{1,63}$`)

// OpenObject is a grant whose object is already open: what has no path to open it by, such as a file behind standard
// input, or a directory in another mount namespace.
type OpenObject struct {
	File   *os.File
	Path   string // for people
	Rights engine.Rights
	Source engine.Source
}

// JailSpec is what a jail is made of.
type JailSpec struct {
	// Cgroup is an open directory of the cgroup v2 hierarchy. Its whole subtree becomes the jail.
	Cgroup *os.File
	// CgroupPath is its path, for people and for finding it again.
	CgroupPath string
	// Name is optional: [a-z0-9._-]{1,63}, unique among live jails.
	Name string
	// Sets is what engine.Compile made of a policy.
	Sets engine.AllowedSets
	// Owned ties the jail to this process: once the process is gone and the cgroup is empty, the next command that
	// looks collects the jail and removes the cgroup. Until then it holds.
	Owned bool
	// Root, where it is given, makes the jail pending: a task in it is judged from its own exec on that it makes with
	// this directory as its root, and so is what that starts. It is for containers, whose runtimes prepare them in the
	// container's own cgroup. A pending task can do all it could before, and the jail's others can neither trace nor
	// signal it. nil: every task is judged at once.
	//
	// The paths of Sets are then taken below this directory, as a process with that root would see them, in whatever
	// mount namespace the descriptor is of.
	Root *os.File
	// Open holds further grants. Where one is an object of Sets too, the rights of Sets count.
	Open []OpenObject

	flags uint32
}

// GrantInfo is one grant of a live jail.
type GrantInfo struct {
	Path       string        `json:"path"`
	Device     string        `json:"device"`
	Inode      uint64        `json:"ino,string"`
	Volume     uint64        `json:"volume,string,omitempty"`
	Generation uint32        `json:"generation"`
	Rights     string        `json:"rights"`
	Source     engine.Source `json:"source"`
	Expires    *time.Time    `json:"expires,omitempty"`

	dev    uint32
	node   uint16 // on the way to denied names; 0: nothing below is denied
	denied bool   // by its name: all rights are taken, and grants on the way do not bring them back
}

// Jail is one live jail.
type Jail struct {
	ID        string
	Name      string
	Cgroup    string
	CgroupID  uint64
	Workspace string
	Mode      engine.Mode
	CreatedAt time.Time
	Grants    []GrantInfo
	Denied    []string // names, as absolute paths
	// Notices are things the operator should know, such as two grants of the same object.
	Notices []string

	Denials uint64 // so far
	Lost    uint64 // events of this jail that nobody can read any more
	Gone    bool   // the cgroup is not there any more
	Parent  string // id of the jail around this one, or empty
	Pending bool   // made with a Root, and no task has had it yet

	slot  int
	id    uint64
	owner *owner
}

// record is a jail as it lies in the state directory.
type record struct {
	ID        string        `json:"id"`
	Name      string        `json:"name,omitempty"`
	Cgroup    string        `json:"cgroup"`
	CgroupID  uint64        `json:"cgroupId,string"`
	Workspace string        `json:"workspace"`
	CreatedAt time.Time     `json:"createdAt"`
	Owner     *owner        `json:"owner,omitempty"`
	Grants    []grantRecord `json:"grants"`
	Denied    []string      `json:"denied,omitempty"`
}

// owner is a process; with its start time the number cannot be taken for another one's.
type owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start,string"` // field 22 of proc_pid_stat(5)
}

func ownerOf(pid int) (*owner, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name in field 2 may hold anything, but the last parenthesis ends it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const start = 22 - 3
	if len(fields) <= start {
		return nil, fmt.Errorf("read /proc/%d/stat: it is cut short", pid)
	}
	at, err := strconv.ParseUint(fields[start], 10, 64)
	return &owner{PID: pid, Start: at}, err
}

// isGone reports whether the process has ended. What cannot be found out counts as there.
func (o *owner) isGone() bool {
	now, err := ownerOf(o.PID)
	return errors.Is(err, fs.ErrNotExist) || err == nil && now.Start != o.Start
}

// isEmpty reports whether no process is in a cgroup or below it.
func isEmpty(cgroup string) bool {
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && strings.Contains("\n"+string(text), "\npopulated 0\n")
}

type grantRecord struct {
	GrantInfo
	Dev uint32 `json:"dev"`
}

// CreateJail puts a cgroup and all below it into a jail. When it returns every task in it is judged.
func (e *Enforcer) CreateJail(spec JailSpec) (*Jail, error) {
	unlock, err := lock(e.opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return e.createJail(spec)
}

func (e *Enforcer) createJail(spec JailSpec) (_ *Jail, err error) {
	if spec.Name != "" && !namePattern.MatchString(spec.Name) {
		return nil, fmt.Errorf("name %q: use 1 to 63 of a-z 0-9 . _ -", spec.Name)
	}
	if err := refuseFolding(spec.Sets); err != nil {
		return nil, err
	}
	denied, err := newDenyTree(spec.Sets.Deny)
	if err != nil {
		return nil, err
	}
	if spec.Sets.NoSymlinks {
		return nil, errors.New("no symlinks: this build cannot enforce it in the kernel")
	}
	if inside, err := e.insideJail(); err != nil {
		return nil, fmt.Errorf("ask for own jail: %w", err)
	} else if inside {
		return nil, unobserved(engine.InsideJail, "a jail is made by the host", errors.New("refused"))
	}
	cgroupID, err := CgroupID(spec.Cgroup)
	if err != nil {
		return nil, err
	}
	if spec.flags&uint32(enforcerTfJailFlagTF_JAIL_CANARY) == 0 { // else it would collect the verification's other jail
		e.collectLocked()
	}
	if err := e.checkFree(spec, cgroupID); err != nil {
		return nil, err
	}
	grants, notices, err := e.learnAll(spec)
	if err != nil {
		return nil, err
	}
	if err := denied.place(grants); err != nil {
		return nil, err
	}
	root, err := e.learnRoot(spec.Root)
	if err != nil {
		return nil, err
	}
	outer, outerID, err := e.around(cgroupID)
	if err != nil {
		return nil, err
	}
	if outer >= 0 {
		if err := nestable(e.nesting(outer) + 1); err != nil {
			return nil, fmt.Errorf("cgroup %s: %w", spec.CgroupPath, err)
		}
	}
	slot, id, policy, err := e.reserve()
	if err != nil {
		return nil, err
	}
	atomic.StoreUint32(&e.jailSlots[slot].Parent, uint32(outer+1))
	j := &Jail{
		ID: formatID(id), Name: spec.Name, Cgroup: spec.CgroupPath, CgroupID: cgroupID,
		Workspace: spec.Sets.Workspace.CanonicalRoot, Mode: spec.Sets.Mode, CreatedAt: time.Now().UTC(),
		Grants: grants, Denied: spec.Sets.Deny, Pending: root != nil,
		Notices: append(slices.Clone(spec.Sets.Notices), notices...), slot: slot, id: id,
	}
	defer func() {
		if err != nil {
			e.dropLocked(j)
		}
	}()
	if spec.Owned {
		if j.owner, err = ownerOf(os.Getpid()); err != nil {
			return nil, err
		}
	}
	if err := e.writeRecord(j); err != nil {
		return nil, err
	}
	if err := e.writeGrants(policy, grants); err != nil {
		return nil, err
	}
	if err := e.writeNames(policy, denied); err != nil {
		return nil, err
	}
	flags := uint32(enforcerTfJailFlagTF_JAIL_LIVE) | spec.flags
	if spec.Sets.Mode == engine.Monitor {
		flags |= uint32(enforcerTfJailFlagTF_JAIL_MONITOR)
	}
	if spec.Sets.FollowMounts {
		flags |= uint32(enforcerTfJailFlagTF_JAIL_FOLLOW_MOUNTS)
	}
	if root != nil {
		flags |= uint32(enforcerTfJailFlagTF_JAIL_PENDING)
		atomic.StoreUint32(&e.state.Arming, 1)
		if err := e.roots.Put(uint32(slot), root); err != nil {
			return nil, full("write root", err)
		}
	}
	if len(spec.Sets.Objects) > 0 {
		atomic.StoreUint32(&e.jailSlots[slot].Rights, uint32(spec.Sets.Objects[0].Rights))
	}
	atomic.StoreUint32(&e.jailSlots[slot].Flags, flags)
	if err := e.enter(spec.Cgroup, enforcerTfMember{Jail: id, Slot: uint32(slot)}, outerID); err != nil {
		return nil, err
	}
	return j, nil
}

// checkFree refuses a name or a cgroup that a live jail has.
func (e *Enforcer) checkFree(spec JailSpec, cgroupID uint64) error {
	jails, err := e.list()
	if err != nil {
		return err
	}
	for _, j := range jails {
		if spec.Name != "" && j.Name == spec.Name {
			return fmt.Errorf("name %q: %w (%s)", spec.Name, ErrInUse, j.ID)
		}
	}
	for _, j := range jails {
		if j.CgroupID == cgroupID {
			return fmt.Errorf("cgroup %s: %w (%s); delete that jail first", spec.CgroupPath, ErrInUse, j.ID)
		}
	}
	return nil
}

// learnRoot asks the kernel who the root of a pending jail's tasks will be; nil for a jail that is not pending. The
// host's own root would arm the runtime itself.
func (e *Enforcer) learnRoot(dir *os.File) (*enforcerTfRoot, error) {
	if dir == nil {
		return nil, nil
	}
	id, err := e.Learn(dir)
	if err != nil {
		return nil, err
	}
	if id.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, &fs.PathError{Op: "use as root", Path: dir.Name(), Err: unix.ENOTDIR}
	}
	return &enforcerTfRoot{Ino: id.Inode, Volume: id.Volume, Dev: uint32(id.Device), Generation: id.Generation}, nil
}

// learnAll opens every object of the policy and asks the kernel who it is.
func (e *Enforcer) learnAll(spec JailSpec) (grants []GrantInfo, notices []string, err error) {
	seen := map[enforcerTfGrantKey]int{}
	guard := guard{e: e}
	defer guard.close()
	add := func(f *os.File, path string, rights engine.Rights, source engine.Source, expires time.Time) error {
		id, err := e.identify(f)
		if errors.Is(err, errRemoved) {
			if source == engine.SourceStdio {
				return nil // the command has it open, and no name leads to it
			}
			return &fs.PathError{Op: "grant", Path: path, Err: err}
		}
		if err != nil {
			return err
		}
		if at, ok := seen[id.key(0)]; ok {
			first := grants[at]
			if first.Rights != rights.String() && source != engine.SourceStdio {
				return fmt.Errorf("grant %s:%s: it is the same object as %s, which has %s; give it one set of rights",
					path, rights, first.Path, first.Rights)
			}
			if source != engine.SourceStdio {
				notices = append(notices, fmt.Sprintf("%s is the same object as %s", path, first.Path))
			}
			return nil
		}
		if err := guard.check(path, id, rights); err != nil {
			return err
		}
		seen[id.key(0)] = len(grants)
		g := GrantInfo{
			Path: path, Device: id.Device.String(), Inode: id.Inode, Volume: id.Volume, Generation: id.Generation,
			Rights: rights.String(), Source: source, dev: uint32(id.Device),
		}
		if !expires.IsZero() {
			at := expires.UTC()
			g.Expires = &at
		}
		grants = append(grants, g)
		return nil
	}
	for i, object := range spec.Sets.Objects {
		f, err := open(spec.Root, object.Path)
		if err != nil {
			return nil, nil, err
		}
		err = sameWorkspace(f, i, spec.Sets.Workspace)
		if err == nil {
			err = add(f, object.Path, object.Rights, object.Source, object.Expires)
		}
		f.Close()
		if err != nil {
			return nil, nil, err
		}
	}
	for _, object := range spec.Open {
		if err := add(object.File, object.Path, object.Rights, object.Source, time.Time{}); err != nil {
			return nil, nil, err
		}
	}
	err = e.denyObjects(spec.Root, spec.Sets.Deny, func(path string, id Identity) {
		if at, ok := seen[id.key(0)]; ok {
			grants[at].Rights, grants[at].denied = engine.None.String(), true
			return
		}
		seen[id.key(0)] = len(grants)
		grants = append(grants, GrantInfo{
			Path: path, Device: id.Device.String(), Inode: id.Inode, Volume: id.Volume, Generation: id.Generation,
			Rights: engine.None.String(), Source: engine.SourcePolicy, dev: uint32(id.Device), denied: true,
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if len(grants) == 0 {
		return nil, nil, errors.New("policy grants nothing: give it a workspace")
	}
	return grants, notices, nil
}

// guard refuses grants by which a jail could change what jails rest on: cgroups, pins, and this package's own records. (In
// the first two the kernel programs allow no more than reading in any case.) It goes by identity, as a container may have
// /run mounted at any place.
type guard struct {
	e   *Enforcer
	dir *os.File   // the state directory, once it was needed
	own Identity   // of it
	all []Identity // its own, of what lies in it, and of those above it on its device; nil: not needed yet
}

func (g *guard) close() {
	if g.dir != nil {
		g.dir.Close()
	}
}

func (g *guard) check(path string, id Identity, rights engine.Rights) error {
	if rights&^(engine.Read|engine.Exec) == 0 {
		return nil
	}
	switch int64(id.Magic) {
	case unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC:
		return fmt.Errorf("grant %s:%s: by this file system a jail could be left; grant it ro at most", path, rights)
	}
	if err := g.open(); err != nil {
		return err
	}
	// Asked first, because it costs every start of a command something.
	if id.Device != g.own.Device || id.Volume != g.own.Volume {
		return nil
	}
	if err := g.look(); err != nil {
		return err
	}
	if slices.ContainsFunc(g.all, id.same) {
		return fmt.Errorf("grant %s:%s: by it %s could be changed, where thenforce keeps its jails; grant something narrower", path, rights, g.dir.Name())
	}
	return nil
}

func (g *guard) open() (err error) {
	if g.dir != nil {
		return nil
	}
	if g.dir, err = os.Open(g.e.opts.StateDir); err != nil {
		return err
	}
	g.own, err = g.e.Learn(g.dir)
	return err
}

func (g *guard) look() error {
	if g.all != nil {
		return nil
	}
	all := []Identity{g.own}
	names, err := g.dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		id, err := g.e.learnAt(g.dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, id)
	}
	for up := ".."; ; up += "/.." {
		id, err := g.e.learnAt(g.dir, up)
		if err != nil {
			return err
		}
		if id.Device != g.own.Device || id.Volume != g.own.Volume || slices.ContainsFunc(all, id.same) {
			g.all = all
			return nil
		}
		all = append(all, id)
	}
}

// learnAt tells what a path below a directory is.
func (e *Enforcer) learnAt(dir *os.File, path string) (Identity, error) {
	fd, err := unix.Openat(int(dir.Fd()), path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Identity{}, &fs.PathError{Op: "open", Path: filepath.Join(dir.Name(), path), Err: err}
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), path))
	defer f.Close()
	return e.Learn(f)
}

// sameWorkspace checks that the first object is still the directory the engine bound.
func sameWorkspace(f *os.File, index int, ws engine.WorkspaceIdentity) error {
	if index != 0 || ws.VolumeIdentity == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if uint64(st.Dev) != uint64(ws.VolumeIdentity.Dev) || st.Ino != uint64(ws.VolumeIdentity.Ino) {
		return fmt.Errorf("workspace %s: replaced by another directory while the jail was made; try again", f.Name())
	}
	return nil
}

// reserve takes a free slot and a policy number that was never used. The slot is not live yet; if this process dies
// now, the next one finds it by its id and takes it back.
func (e *Enforcer) reserve() (slot int, id uint64, policy uint32, err error) {
	slot = -1
	for i := range e.jailSlots {
		if e.jailSlots[i].Id == 0 {
			slot = i
			break
		}
	}
	if slot < 0 {
		return 0, 0, 0, &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.MapFull, fmt.Sprintf("%d jails are live", len(e.jailSlots)))}}
	}
	var random [8]byte
	rand.Read(random[2:])
	for _, b := range random[2:] {
		id = id<<8 | uint64(b)
	}
	id |= 1 // never 0, which means free
	policy = atomic.AddUint32(&e.state.NextPolicy, 1)
	s := &e.jailSlots[slot]
	atomic.StoreUint64(&s.Denials, 0)
	atomic.StoreUint64(&s.Lost, 0)
	atomic.StoreUint32(&s.Parent, 0)
	atomic.StoreUint32(&s.Policy, policy)
	atomic.StoreUint64(&s.Id, id)
	return slot, id, policy, nil
}

// writeGrants fills a policy that no jail uses yet, and reads it back.
func (e *Enforcer) writeGrants(policy uint32, grants []GrantInfo) error {
	for _, g := range grants {
		rights, err := engine.ParseRights(g.Rights)
		if err != nil {
			return bug(err.Error())
		}
		key := g.key(policy)
		value := enforcerTfGrant{Generation: g.Generation, Rights: uint16(rights), Node: g.node, Expires: bootInstant(g.Expires)}
		if g.denied {
			value.Rights = uint16(enforcerTfMarkTF_DENIED)
		}
		if err := e.grants.Update(key, value, ebpf.UpdateNoExist); err != nil {
			return full(fmt.Sprintf("write grant %s", g.Path), err)
		}
		var back enforcerTfGrant
		if err := e.grants.Lookup(key, &back); err != nil || back != value {
			return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
				engine.NewReason(engine.MapMismatch, fmt.Sprintf("grant %s reads back as %+v (%v)", g.Path, back, err))}}
		}
	}
	return nil
}

func full(what string, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) {
		return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.MapFull, fmt.Sprintf("%s: %v", what, err))}}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// bootInstant turns an instant into the clock that the kernel compares with: later changes of the wall clock do not
// move it. An instant that has passed stays one that has passed.
func bootInstant(at *time.Time) uint64 {
	if at == nil {
		return 0
	}
	left := time.Until(*at)
	now := bootTime()
	if left < 0 || now == 0 {
		return 1
	}
	return now + uint64(left)
}

// enter makes a cgroup and all below it members. A cgroup is entered before its children are listed: a child made
// before that is in the list, one made after it is entered by the cgroup_mkdir program.
//
// outer is the id of the jail around this one, 0 for none: its members become this one's. A jail that is met inside
// stays one, inside this one.
func (e *Enforcer) enter(dir *os.File, member enforcerTfMember, outer uint64) error {
	id, err := CgroupID(dir)
	if err != nil {
		return err
	}
	var have enforcerTfMember
	switch err := e.members.Lookup(id, &have); {
	case err == nil && have != member && (outer == 0 || have.Jail != outer):
		return e.enclose(have, int(member.Slot))
	case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
		return fmt.Errorf("look up cgroup %s: %w", dir.Name(), err)
	}
	if err := e.members.Put(id, member); err != nil {
		return full("enter cgroup "+dir.Name(), err)
	}
	var back enforcerTfMember
	if err := e.members.Lookup(id, &back); err != nil || back != member {
		return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.MapMismatch, fmt.Sprintf("cgroup %s reads back as %+v (%v)", dir.Name(), back, err))}}
	}
	setBit(&e.state.Members, id)

	list, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return err
	}
	entries, err := list.ReadDir(-1)
	list.Close()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), entry.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: filepath.Join(dir.Name(), entry.Name()), Err: err}
		}
		child := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), entry.Name()))
		err = e.enter(child, member, outer)
		child.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func setBit(words *[1024]uint64, id uint64) {
	word := &words[id/64%uint64(len(words))]
	for {
		old := atomic.LoadUint64(word)
		if atomic.CompareAndSwapUint64(word, old, old|1<<(id%64)) {
			return
		}
	}
}

// CgroupID is the id by which the kernel knows a cgroup v2 directory, from name_to_handle_at(2): the handle of a
// kernfs node is its 64-bit id.
func CgroupID(dir *os.File) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir.Name(), Err: err}
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.CgroupUnresolvable, dir.Name()+" is not a cgroup v2 directory")}}
	}
	handle, _, err := unix.NameToHandleAt(int(dir.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil || handle.Size() != 8 {
		return 0, &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.CgroupUnresolvable, fmt.Sprintf("%s: name_to_handle_at: %v", dir.Name(), err))}}
	}
	return leUint64(handle.Bytes()), nil
}

func leUint64(b []byte) uint64 {
	var n uint64
	for i := range 8 {
		n |= uint64(b[i]) << (8 * i)
	}
	return n
}

// Jails lists the live jails, oldest first. Jails whose cgroup is gone are collected on the way.
func (e *Enforcer) Jails() ([]*Jail, error) {
	unlock, err := lock(e.opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	e.collectLocked()
	return e.list()
}

// FindJail takes an id, a unique prefix of one, or a name.
func (e *Enforcer) FindJail(ref string) (*Jail, error) {
	jails, err := e.Jails()
	if err != nil {
		return nil, err
	}
	return find(jails, ref)
}

func find(jails []*Jail, ref string) (*Jail, error) {
	var hits []*Jail
	for _, j := range jails {
		if j.ID == ref || j.Name != "" && j.Name == ref {
			return j, nil
		}
		if ref != "" && strings.HasPrefix(j.ID, ref) {
			hits = append(hits, j)
		}
	}
	switch len(hits) {
	case 0:
		return nil, fmt.Errorf("jail %q: %w (thenforce jail list shows the live ones)", ref, ErrNoJail)
	case 1:
		return hits[0], nil
	default:
		return nil, fmt.Errorf("jail %q: %w begin with it", ref, ErrAmbiguous)
	}
}

// DeleteJail ends a jail: its tasks, if any are left, are confined no longer.
func (e *Enforcer) DeleteJail(ref string) error {
	unlock, err := lock(e.opts)
	if err != nil {
		return err
	}
	defer unlock()
	jails, err := e.list()
	if err != nil {
		return err
	}
	j, err := find(jails, ref)
	if err != nil {
		return err
	}
	return e.dropLocked(j)
}

// EndJail ends the jail of that name if no task is left in it. A jail that is not there is no error.
func (e *Enforcer) EndJail(name string) error {
	unlock, err := lock(e.opts)
	if err != nil {
		return err
	}
	defer unlock()
	jails, err := e.list()
	if err != nil {
		return err
	}
	for _, j := range jails {
		if j.Name == name && (j.Gone || isEmpty(j.Cgroup)) {
			return e.dropLocked(j)
		}
	}
	return nil
}

// Refresh reads the jail's counters again.
func (e *Enforcer) Refresh(j *Jail) {
	s := &e.jailSlots[j.slot]
	if atomic.LoadUint64(&s.Id) == j.id {
		j.Denials, j.Lost = atomic.LoadUint64(&s.Denials), atomic.LoadUint64(&s.Lost)
	}
}

func (e *Enforcer) liveSlots() []int {
	var live []int
	for i := range e.jailSlots {
		if flags := atomic.LoadUint32(&e.jailSlots[i].Flags); flags&uint32(enforcerTfJailFlagTF_JAIL_LIVE) != 0 {
			live = append(live, i)
		}
	}
	return live
}

func (e *Enforcer) list() ([]*Jail, error) {
	jails := []*Jail{}
	for _, slot := range e.liveSlots() {
		s := &e.jailSlots[slot]
		j := &Jail{slot: slot, id: s.Id, ID: formatID(s.Id)}
		if s.Flags&uint32(enforcerTfJailFlagTF_JAIL_MONITOR) != 0 {
			j.Mode = engine.Monitor
		}
		if s.Parent != 0 {
			j.Parent = formatID(e.jailSlots[s.Parent-1].Id)
		}
		e.Refresh(j)
		if s.Flags&uint32(enforcerTfJailFlagTF_JAIL_PENDING) != 0 {
			var root enforcerTfRoot
			j.Pending = e.roots.Lookup(uint32(slot), &root) == nil && root.Armed == 0
		}
		// The kernel's table is the truth; without a record only the description is missing.
		if r, err := e.readRecord(j.ID); err == nil {
			j.Name, j.Cgroup, j.CgroupID, j.Workspace, j.CreatedAt = r.Name, r.Cgroup, r.CgroupID, r.Workspace, r.CreatedAt
			j.Denied = r.Denied
			for _, g := range r.Grants {
				g.GrantInfo.dev = g.Dev
				j.Grants = append(j.Grants, g.GrantInfo)
			}
			var member enforcerTfMember
			j.Gone = errors.Is(e.members.Lookup(r.CgroupID, &member), ebpf.ErrKeyNotExist)
		}
		jails = append(jails, j)
	}
	slices.SortFunc(jails, func(a, b *Jail) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return jails, nil
}

// collectLocked takes back what dead processes left: slots that never went live, jails whose cgroup is gone, canaries
// (one that is alive holds the lock), and owned jails whose owner is gone and whose cgroup is empty.
func (e *Enforcer) collectLocked() {
	for i := range e.jailSlots {
		s := &e.jailSlots[i]
		if s.Id == 0 {
			continue
		}
		live := s.Flags&uint32(enforcerTfJailFlagTF_JAIL_LIVE) != 0
		r, err := e.readRecord(formatID(s.Id))
		if err != nil {
			if !live {
				e.dropLocked(&Jail{slot: i, id: s.Id})
			}
			continue
		}
		var member enforcerTfMember
		gone := errors.Is(e.members.Lookup(r.CgroupID, &member), ebpf.ErrKeyNotExist)
		canary := s.Flags&uint32(enforcerTfJailFlagTF_JAIL_CANARY) != 0
		abandoned := r.Owner != nil && r.Owner.isGone() && isEmpty(r.Cgroup)
		if live && !gone && !canary && !abandoned {
			continue
		}
		var grants []GrantInfo
		for _, g := range r.Grants {
			g.GrantInfo.dev = g.Dev
			grants = append(grants, g.GrantInfo)
		}
		e.dropLocked(&Jail{slot: i, id: s.Id, Grants: grants, Denied: r.Denied})
		switch {
		case canary:
			endCanaries(r.Cgroup)
		case abandoned:
			removeTree(r.Cgroup)
		}
	}
}

// removeTree removes an empty cgroup with those below it, and the folder that thenforce's are in when it is the last.
// A cgroup that somebody is in stays.
func removeTree(cgroup string) {
	entries, err := os.ReadDir(cgroup)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(cgroup, entry.Name()))
		}
	}
	if os.Remove(cgroup) == nil && filepath.Base(filepath.Dir(cgroup)) == "thenforce" {
		os.Remove(filepath.Dir(cgroup))
	}
}

// dropLocked removes a jail: first its members, so that nobody is judged by half a policy, then the slot, last the
// grants.
func (e *Enforcer) dropLocked(j *Jail) error {
	var errs []error
	if err := e.release(j.slot, j.id); err != nil {
		errs = append(errs, err)
	}
	s := &e.jailSlots[j.slot]
	policy := s.Policy
	atomic.StoreUint32(&s.Flags, 0)
	for _, g := range j.Grants {
		if err := e.grants.Delete(g.key(policy)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("delete grant %s: %w", g.Path, err))
		}
	}
	if err := e.eraseNames(policy, j.Denied); err != nil {
		errs = append(errs, err)
	}
	if err := os.Remove(e.recordPath(formatID(j.id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	atomic.StoreUint64(&s.Id, 0)
	return errors.Join(errs...)
}

func (g GrantInfo) key(policy uint32) enforcerTfGrantKey {
	return enforcerTfGrantKey{Ino: g.Inode, Volume: g.Volume, Dev: g.dev, Policy: policy}
}

func (e *Enforcer) recordPath(id string) string {
	return filepath.Join(e.opts.StateDir, "jails", id+".json")
}

func (e *Enforcer) writeRecord(j *Jail) error {
	r := record{ID: j.ID, Name: j.Name, Cgroup: j.Cgroup, CgroupID: j.CgroupID, Workspace: j.Workspace, CreatedAt: j.CreatedAt, Owner: j.owner, Denied: j.Denied}
	for _, g := range j.Grants {
		r.Grants = append(r.Grants, grantRecord{GrantInfo: g, Dev: g.dev})
	}
	text, err := json.Marshal(r)
	if err != nil {
		return bug(err.Error())
	}
	path := e.recordPath(j.ID)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// Written aside and renamed: a reader finds all of it or nothing.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (e *Enforcer) readRecord(id string) (record, error) {
	var r record
	text, err := os.ReadFile(e.recordPath(id))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, &fs.PathError{Op: "read", Path: e.recordPath(id), Err: err}
	}
	return r, nil
}

// formatID is 12 hex digits.
func formatID(id uint64) string {
	text := strconv.FormatUint(id, 16)
	return strings.Repeat("0", max(0, 12-len(text))) + text
}
