package loader

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// validName: a pattern with a count is a good part of what the start of a command costs.
func validName(name string) bool {
	return name != "" && len(name) <= 63 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

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
	// ExpansionID is of one that expands the policy's grants, see [Enforcer.Expand].
	ExpansionID string     `json:"expansionId,omitempty"`
	Expires     *time.Time `json:"expires,omitempty"`

	dev    uint32
	node   uint16 // on the way to denied names; 0: nothing below is denied
	denied bool   // by its name: all rights are taken, and grants on the way do not bring them back
	open   bool   // from JailSpec.Open
	mode   uint32 // as st_mode; 0: not known
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
	// WorkspaceID is the workspace's id as the engine has it: expansions are bound to it.
	WorkspaceID string
	// GrantCount is how many grants there are. Grants and Denied, the denied names as absolute paths, are only read for
	// a single jail, not for a list of them.
	GrantCount int
	Grants     []GrantInfo
	Denied     []string
	// Notices are things the operator should know, such as two grants of the same object.
	Notices []string

	Denials uint64 // so far
	Lost    uint64 // events of this jail that nobody can read any more
	Gone    bool   // the cgroup is not there any more
	Parent  string // id of the jail around this one, or empty
	Pending bool   // made with a Root, and no task has had it yet
	// Contained says that it was made with a Root: a process of the host that is put into its cgroup is not judged.
	Contained bool

	slot int
	id   uint64
}

// isEmpty reports whether no process is in a cgroup or below it.
func isEmpty(cgroup string) bool {
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && strings.Contains("\n"+string(text), "\npopulated 0\n")
}

// CreateJail puts a cgroup and all below it into a jail. When it returns every task in it is judged.
func (e *Enforcer) CreateJail(spec JailSpec) (*Jail, error) {
	unlock, err := e.lockPinned()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if spec.Sets.NoSymlinks {
		if err := e.attachFollowLink(); err != nil {
			return nil, fmt.Errorf("symlinks: refuse: %w", err)
		}
	}
	j, err := e.createJail(spec)
	if err != nil && spec.Sets.NoSymlinks && !e.wantsFollowLink() {
		err = errors.Join(err, e.detachFollowLink())
	}
	return j, err
}

func (e *Enforcer) createJail(spec JailSpec) (_ *Jail, err error) {
	if spec.Name != "" && !validName(spec.Name) {
		return nil, fmt.Errorf("name %q: use 1 to 63 of a-z 0-9 . _ -", spec.Name)
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
	p, err := e.prepare(spec)
	if err != nil {
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
		Workspace: spec.Sets.Workspace.CanonicalRoot, WorkspaceID: spec.Sets.Workspace.WorkspaceID, Mode: spec.Sets.Mode,
		CreatedAt: time.Now().UTC(), GrantCount: len(p.grants), Grants: p.grants, Denied: p.denied, Pending: root != nil,
		Notices: p.notices, slot: slot, id: id,
	}
	defer func() {
		if err != nil {
			e.dropLocked(j)
		}
	}()
	h := &header{
		ID: j.ID, Name: j.Name, Cgroup: j.Cgroup, CgroupID: j.CgroupID, CreatedAt: j.CreatedAt, Contained: root != nil,
		Workspace: j.Workspace, WorkspaceID: j.WorkspaceID, Grants: len(p.grants), Digest: p.digest,
	}
	if spec.Owned {
		if h.Owner, err = ownerOf(os.Getpid()); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(e.writeJSON(e.policyPath(j.ID), recordOf(policy, p)), e.writeHeader(h)); err != nil {
		return nil, err
	}
	if err := e.install(policy, p); err != nil {
		return nil, err
	}
	flags := uint32(enforcerTfJailFlagTF_JAIL_LIVE) | partial | spec.flags | p.flags
	if root != nil {
		flags |= uint32(enforcerTfJailFlagTF_JAIL_PENDING)
		atomic.StoreUint32(&e.state.Arming, 1)
		if err := e.roots.Put(uint32(slot), root); err != nil {
			return nil, full("write root", err)
		}
	}
	atomic.StoreUint32(&e.jailSlots[slot].Rights, uint32(p.rights))
	atomic.StoreUint32(&e.jailSlots[slot].Flags, flags)
	if err := e.enter(spec.Cgroup, enforcerTfMember{Jail: id, Slot: uint32(slot)}, outerID); err != nil {
		return nil, err
	}
	atomic.AndUint32(&e.jailSlots[slot].Flags, ^partial)
	e.forgetVerdicts() // of a jail around this one, or in it
	return j, nil
}

// checkFree refuses a name or a cgroup that a live jail has.
func (e *Enforcer) checkFree(spec JailSpec, cgroupID uint64) error {
	for _, slot := range e.liveSlots() {
		h, err := e.header(e.jailSlots[slot].Id)
		switch {
		case err != nil: // what it holds cannot be told, and the status says so
		case spec.Name != "" && h.Name == spec.Name:
			return fmt.Errorf("name %q: %w (%s)", spec.Name, ErrInUse, h.ID)
		case h.CgroupID == cgroupID:
			return fmt.Errorf("cgroup %s: %w (%s); delete that jail first", spec.CgroupPath, ErrInUse, h.ID)
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
		// What nothing is granted on may well be too much.
		if id.Ambiguous && rights != engine.None {
			if source != engine.SourceStdio && source != engine.SourcePreset {
				return refuseAmbiguous(path)
			}
			notices = append(notices, fmt.Sprintf("%s is not granted by itself: files of several layers of its overlay may have its number", path))
			return nil
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
			Rights: rights.String(), Source: source, dev: uint32(id.Device), mode: id.Mode,
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
		own := len(grants)
		if err := add(object.File, object.Path, object.Rights, object.Source, time.Time{}); err != nil {
			return nil, nil, err
		}
		if len(grants) > own {
			grants[own].open = true
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
			Rights: engine.None.String(), Source: engine.SourcePolicy, dev: uint32(id.Device), mode: id.Mode, denied: true,
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

func full(what string, err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) {
		return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.MapFull, fmt.Sprintf("%s: %v", what, err))}}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// bootInstant turns an instant into the clock that the kernel compares with: later changes of the wall clock do not
// move it. An instant that has passed stays one that has passed; 1 is TF_GONE.
func bootInstant(at *time.Time) uint64 {
	if at == nil {
		return 0
	}
	left := time.Until(*at)
	now := bootTime()
	if left < 0 || now == 0 {
		return expiresGone + 1
	}
	return min(now+uint64(left), never)
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
	unlock, err := lock(e.opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	e.collectLocked()
	return e.find(ref)
}

// find finds one live jail and reads its policy.
func (e *Enforcer) find(ref string) (*Jail, error) {
	j := e.findID(ref)
	if j == nil {
		jails, err := e.list()
		if err != nil {
			return nil, err
		}
		if j, err = find(jails, ref); err != nil {
			return nil, err
		}
	}
	if r, err := e.readPolicy(j.ID); err == nil {
		j.Grants, j.Denied = r.grants(), r.Denied
	}
	return j, nil
}

// findID finds a live jail by its whole id, without a look at any other; nil: there is none.
func (e *Enforcer) findID(id string) *Jail {
	slot := e.slotOf(id)
	if slot < 0 || e.jailSlots[slot].Flags&uint32(enforcerTfJailFlagTF_JAIL_LIVE) == 0 {
		return nil
	}
	return e.describe(slot, e.isMember)
}

func (e *Enforcer) isMember(cgroup uint64) bool {
	var member enforcerTfMember
	return e.members.Lookup(cgroup, &member) == nil
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
	j, err := e.find(ref)
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
	live := e.liveSlots()
	if len(live) == 0 {
		return jails, nil
	}
	members, err := e.memberIDs()
	if err != nil {
		return nil, err
	}
	for _, slot := range live {
		jails = append(jails, e.describe(slot, func(cgroup uint64) bool {
			_, ok := members[cgroup]
			return ok
		}))
	}
	slices.SortFunc(jails, func(a, b *Jail) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return jails, nil
}

// describe says what is known of a live jail.
func (e *Enforcer) describe(slot int, isMember func(cgroup uint64) bool) *Jail {
	s := &e.jailSlots[slot]
	j := &Jail{slot: slot, id: s.Id, ID: formatID(s.Id)}
	if isMonitored(s.Flags) {
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
	if h, err := e.freshHeader(s.Id); err == nil {
		j.Name, j.Cgroup, j.CgroupID, j.CreatedAt = h.Name, h.Cgroup, h.CgroupID, h.CreatedAt
		j.Workspace, j.WorkspaceID, j.GrantCount, j.Contained = h.Workspace, h.WorkspaceID, h.Grants, h.Contained
		j.Gone = !isMember(h.CgroupID) && !h.cgroupIsThere()
	}
	return j
}

// memberIDs gives the jail of every member.
func (e *Enforcer) memberIDs() (map[uint64]uint64, error) {
	ids := map[uint64]uint64{}
	err := each(e.members, func(cgroup uint64, m enforcerTfMember) { ids[cgroup] = m.Jail })
	return ids, err
}

// cgroupIsThere reports whether the jail's own cgroup, and no later one of its name, still exists.
func (h *header) cgroupIsThere() bool {
	dir, err := os.OpenFile(h.Cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	id, err := CgroupID(dir)
	return err == nil && id == h.CgroupID
}

// partial is the flag of a jail that does not hold for all of its cgroup's tree yet, or no longer does. Whoever finds it
// and has the lock knows that the process which made or ended the jail was killed, and ends it: nobody was ever told that
// it is there, or somebody wanted it to go.
const partial = uint32(enforcerTfJailFlagTF_JAIL_PARTIAL)

// collectLocked takes back what dead processes left: slots that never went live, jails that were half made or half ended,
// policies that were half replaced, jails whose cgroup is gone, canaries (one that is alive holds the lock), owned jails
// whose owner is gone and whose cgroup is empty, and what else a killed process left lying.
func (e *Enforcer) collectLocked() {
	e.resumeReplacing()
	e.collectFiles()
	defer e.collectCgroups()
	var members map[uint64]uint64
	for i := range e.jailSlots {
		s := &e.jailSlots[i]
		if s.Id == 0 {
			continue
		}
		if members == nil {
			var err error
			if members, err = e.memberIDs(); err != nil {
				return
			}
		}
		live := s.Flags&uint32(enforcerTfJailFlagTF_JAIL_LIVE) != 0 && s.Flags&partial == 0
		h, err := e.header(s.Id)
		if err != nil {
			if !live {
				e.dropLocked(&Jail{slot: i, id: s.Id})
			}
			continue
		}
		_, member := members[h.CgroupID]
		gone := !member && !h.cgroupIsThere()
		canary := s.Flags&uint32(enforcerTfJailFlagTF_JAIL_CANARY) != 0
		abandoned := h.Owner != nil && h.Owner.isGone() && isEmpty(h.Cgroup)
		if live && !gone && !canary && !abandoned {
			continue
		}
		cgroup := h.Cgroup
		e.dropLocked(&Jail{slot: i, id: s.Id})
		switch {
		case canary:
			endCanaries(cgroup)
		case abandoned:
			removeTree(cgroup)
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
	if os.Remove(cgroup) == nil && filepath.Base(filepath.Dir(cgroup)) == groupsName {
		os.Remove(filepath.Dir(cgroup))
	}
}

// dropLocked removes a jail: first its members, so that nobody is judged by half a policy, then the slot, last the
// policy. Its record goes after that: it says what there is to erase.
func (e *Enforcer) dropLocked(j *Jail) error {
	var errs []error
	s := &e.jailSlots[j.slot]
	atomic.OrUint32(&s.Flags, partial)
	if err := e.release(j.slot, j.id); err != nil {
		errs = append(errs, err)
	}
	policy := s.Policy
	isCanary := s.Flags&uint32(enforcerTfJailFlagTF_JAIL_CANARY) != 0
	atomic.StoreUint32(&s.Flags, 0)
	e.forgetVerdicts()
	if j.Grants == nil {
		if r, err := e.readPolicy(formatID(j.id)); err == nil {
			j.Grants, j.Denied = r.grants(), r.Denied
		}
	}
	errs = append(errs, e.erase(policy, j.Grants, j.Denied), e.removeRecord(j.id))
	atomic.StoreUint64(&s.Id, 0)
	if e.expected(followLinkIndex()) && !e.wantsFollowLink() && !isCanary {
		errs = append(errs, e.detachFollowLink())
	}
	return errors.Join(errs...)
}

func (g GrantInfo) key(policy uint32) enforcerTfGrantKey {
	return enforcerTfGrantKey{Ino: g.Inode, Volume: g.Volume, Dev: g.dev, Policy: policy}
}

// formatID is 12 hex digits.
func formatID(id uint64) string {
	text := strconv.FormatUint(id, 16)
	return strings.Repeat("0", max(0, 12-len(text))) + text
}
