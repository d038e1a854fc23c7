package loader

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// Options says where the enforcer lives. The zero value is right for every use but tests.
type Options struct {
	// PinRoot is the folder below a BPF file system; empty: /sys/fs/bpf/thenforce.
	PinRoot string
	// StateDir holds the lock and the records of live jails; empty: /run/thenforce.
	StateDir string
}

func (o Options) withDefaults() Options {
	if o.PinRoot == "" {
		o.PinRoot = filepath.Join(bpffsPath, "thenforce")
	}
	if o.StateDir == "" {
		o.StateDir = "/run/thenforce"
	}
	return o
}

func (o Options) pins() string { return filepath.Join(o.PinRoot, fmt.Sprintf("v%d", ABI)) }

// staging is where pins are made before they are published. BPF file systems take no dot in a name.
func (o Options) staging() string { return o.pins() + "-new" }

// Enforcer is the set of attached programs and their maps. It is not safe for concurrent use; two processes that hold
// one each are safe, a lock file keeps their changes apart.
type Enforcer struct {
	opts Options

	learnProgram, judgeProgram, followProgram           *ebpf.Program
	jails, members, grants, events, canary, runs, proof *ebpf.Map
	names, objects, ptys, roots, armed, expansions      *ebpf.Map
	verdicts, global                                    *ebpf.Map

	headers map[uint64]*cachedHeader
	cgroups string // where cgroup v2 is mounted; empty: not known yet

	jailSlots []enforcerTfJail // mapped: the kernel's own memory
	state     *enforcerTfGlobal
	unmap     []func()
}

// maps gives the place of every map by the name it is pinned under.
func (e *Enforcer) maps() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		enforcerMapTfJails:      &e.jails,
		enforcerMapTfMembers:    &e.members,
		enforcerMapTfGrants:     &e.grants,
		enforcerMapTfNames:      &e.names,
		enforcerMapTfObjects:    &e.objects,
		enforcerMapTfExpansions: &e.expansions,
		enforcerMapTfEvents:     &e.events,
		enforcerMapTfCanary:     &e.canary,
		enforcerMapTfRuns:       &e.runs,
		enforcerMapTfProofs:     &e.proof,
		enforcerMapTfPtys:       &e.ptys,
		enforcerMapTfRoots:      &e.roots,
		enforcerMapTfArmed:      &e.armed,
		enforcerMapTfVerdicts:   &e.verdicts,
		globalPin:               &e.global,
	}
}

// runnable gives the place of every program that is not attached but run by this package.
func (e *Enforcer) runnable() map[string]**ebpf.Program {
	return map[string]**ebpf.Program{
		enforcerProgTfLearn: &e.learnProgram, enforcerProgTfJudge: &e.judgeProgram,
		enforcerProgTfInodeFollowLink: &e.followProgram,
	}
}

const (
	globalSection = ".data.global"
	globalPin     = "tf_global"
)

// Open adopts the pinned enforcer or loads one, proves it where no valid proof is there, and says in the status what
// is in force. With an unverified status it returns no Enforcer where there is none to speak of; with one, jails that
// are live can still be listed and deleted. An error means that the status could not be found out.
func Open(opts Options) (*Enforcer, engine.EnforcementStatus, error) {
	opts = opts.withDefaults()
	status := look(opts)
	if hasBlocking(status) {
		status.Settle()
		return nil, status, nil
	}
	// Most of the time all is there and proven: then nothing is locked, and a process in a jail, which may not touch
	// the lock, still gets the right answer.
	if e, err := adopt(opts); err == nil {
		e.report(&status, false)
		if status.Settle(); !onlyUnproven(status) && (e.isThisBuild() || hasCode(status, engine.InsideJail)) {
			return e, status, nil
		}
		e.Close()
		status = look(opts)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, withLoadError(status, err), nil
	}
	return openLocked(opts, false)
}

// openLocked loads what is not there and proves what is not proven, or all of it. Another process may have done so
// meanwhile. Programs of another build with the same ABI are replaced by this one's, also under live jails.
func openLocked(opts Options, prove bool) (*Enforcer, engine.EnforcementStatus, error) {
	status := look(opts)
	unlock, err := lock(opts)
	if err != nil {
		return nil, status, err
	}
	defer unlock()
	e, err := adopt(opts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e, err = load(opts)
	case err == nil:
		e.endUpgrade()
		if e.isThisBuild() {
			break
		}
		other := e
		if e, err = other.upgrade(status.Cgroup.Mount); err != nil {
			status = withLoadError(status, err)
			other.report(&status, true)
			status.Settle()
			return other, status, nil
		}
		other.Close()
	}
	if err != nil {
		return nil, withLoadError(status, err), nil
	}
	e.report(&status, true)
	if status.Settle(); onlyUnproven(status) || prove && !hasBlocking(status) {
		status = e.proveAndReport()
	}
	return e, status, nil
}

// isThisBuild reports whether the programs in the kernel are those of this build's object file.
func (e *Enforcer) isThisBuild() bool {
	var proof enforcerTfProof
	return e.proof.Lookup(uint32(0), &proof) == nil && proof.Build == buildDigest()
}

// OpenLoaded adopts what is pinned, whatever its state, to look at jails and to end them. It returns nil where nothing
// is loaded.
func OpenLoaded(opts Options) (*Enforcer, error) {
	e, err := adopt(opts.withDefaults())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return e, err
}

// Inspect says what is in force without loading, attaching or changing anything.
func Inspect(opts Options) engine.EnforcementStatus {
	opts = opts.withDefaults()
	status := look(opts)
	if hasCode(status, engine.PermissionDenied) || hasCode(status, engine.BPFFSMissing) {
		status.Settle()
		return status
	}
	e, err := adopt(opts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		status.Add(engine.NotLoaded, "")
		status.Settle()
		return status
	case err != nil:
		return withLoadError(status, err)
	}
	defer e.Close()
	e.report(&status, false)
	if status.Settle(); onlyUnproven(status) {
		// While somebody proves them, the programs are not proven: that one is waited for.
		if unlock, err := lock(opts); err == nil {
			status = look(opts)
			e.report(&status, true)
			unlock()
		}
	}
	e.countRuns(&status)
	status.Settle()
	return status
}

// Verify runs the canaries again whatever has been proven before, loading the programs first where they are not.
func Verify(opts Options) (engine.EnforcementStatus, error) {
	opts = opts.withDefaults()
	status := look(opts)
	if hasBlocking(status) {
		status.Settle()
		return status, nil
	}
	e, status, err := openLocked(opts, true)
	if e != nil {
		e.countRuns(&status)
		e.Close()
	}
	return status, err
}

func hasBlocking(s engine.EnforcementStatus) bool { return len(s.Blocking()) > 0 }

func hasCode(s engine.EnforcementStatus, code engine.EnforcementCode) bool {
	for _, r := range s.Reasons {
		if r.Code == code {
			return true
		}
	}
	return false
}

func onlyUnproven(s engine.EnforcementStatus) bool {
	codes := s.Blocking()
	return len(codes) == 1 && codes[0] == engine.NotProven
}

// reasonError is an error that already knows which reason it is.
type reasonError struct {
	code engine.EnforcementCode
	err  error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

func withLoadError(status engine.EnforcementStatus, err error) engine.EnforcementStatus {
	var known *reasonError
	if errors.As(err, &known) {
		status.Add(known.code, known.err.Error())
	} else {
		code, detail := reasonForLoad(err), err.Error()
		if code == engine.PermissionDenied && mayListPrograms() == nil {
			detail += " (this process has the capabilities: a seccomp filter or another security module refuses it)"
		}
		status.Add(code, detail)
	}
	status.Settle()
	return status
}

// lock keeps changes of different processes apart. The file stays; the lock goes with the descriptor.
func lock(opts Options) (func(), error) {
	if err := os.MkdirAll(opts.StateDir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(opts.StateDir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { f.Close() }, nil
}

// lockPinned is lock for what must not be done to maps that no attached program reads: they would confine nobody. Until a
// jail is live, another process may unload the programs, or put those of its own build in their place, whatever was seen
// of them before.
func (e *Enforcer) lockPinned() (func(), error) {
	unlock, err := lock(e.opts)
	if err != nil {
		return nil, err
	}
	have, err := mapID(e.global.FD())
	if err == nil {
		var pinned uint32
		if pinned, err = pinnedMapID(filepath.Join(e.opts.pins(), globalPin)); err == nil && pinned != have {
			err = errors.New("others are in their place")
		}
	}
	if err != nil {
		unlock()
		return nil, &engine.UnverifiedError{Reasons: []engine.EnforcementReason{
			engine.NewReason(engine.NotLoaded, fmt.Sprintf("they were unloaded or replaced meanwhile (%v); try again", err))}}
	}
	return unlock, nil
}

// load puts the programs into the kernel and pins them. What it made is gone again when it fails: the pins become
// visible in one rename at the end.
func load(opts Options) (*Enforcer, error) {
	e, err := loadStaged(opts, nil)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(opts.staging(), opts.pins()); err != nil {
		e.Close()
		return nil, errors.Join(fmt.Errorf("publish pins: %w", err), removePins(opts.staging()))
	}
	return e, nil
}

// loadStaged puts the programs into the kernel, with everything pinned in the staging folder. With live, they work on the maps
// of that one that hold jails.
func loadStaged(opts Options, live *Enforcer) (_ *Enforcer, err error) {
	if err := os.MkdirAll(opts.PinRoot, 0o700); err != nil {
		return nil, fmt.Errorf("make pin folder: %w", err)
	}
	staging := opts.staging()
	if err := removePins(staging); err != nil {
		return nil, &reasonError{engine.StalePins, err}
	}
	chosen, err := choosePrograms()
	if err != nil {
		return nil, err
	}
	spec, err := programs(chosen)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: live.shared()})
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return nil, &reasonError{engine.StalePins, err}
	}
	if err != nil {
		return nil, err
	}
	defer coll.Close()

	e := &Enforcer{opts: opts}
	var links []link.Link
	defer func() {
		for _, l := range links {
			l.Close() // pinned, or not to be
		}
		if err != nil {
			e.Close()
			removePins(staging)
		}
	}()
	if err := os.Mkdir(staging, 0o700); err != nil {
		return nil, fmt.Errorf("make pin folder: %w", err)
	}
	if live != nil && live.wantsFollowLink() {
		chosen[followLinkIndex()] = enforcerProgTfInodeFollowLink
	}
	for i, a := range attachments {
		if chosen[i] == "" {
			continue
		}
		l, err := attach(a, coll.Programs[chosen[i]])
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", a.name, err)
		}
		links = append(links, l)
		if err := l.Pin(filepath.Join(staging, linkPin(a))); err != nil {
			return nil, fmt.Errorf("pin link of %s: %w", a.name, err)
		}
	}
	for name, place := range e.runnable() {
		*place = coll.DetachProgram(name)
		if err := (*place).Pin(filepath.Join(staging, name)); err != nil {
			return nil, fmt.Errorf("pin %s: %w", name, err)
		}
	}
	for name, place := range e.maps() {
		if *place = coll.DetachMap(nameInObject(name)); *place == nil {
			return nil, bug("no map " + name)
		}
		if err := (*place).Pin(filepath.Join(staging, name)); err != nil {
			return nil, fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	if err := e.mapMemory(); err != nil {
		return nil, err
	}
	if live == nil {
		e.state.Attached = attachedIn(staging)
	}
	if err := e.proof.Put(uint32(0), &enforcerTfProof{Build: buildDigest()}); err != nil {
		return nil, fmt.Errorf("write proof: %w", err)
	}
	return e, nil
}

// nameInObject is how the object file calls the map of a pin.
func nameInObject(pin string) string {
	if pin == globalPin {
		return globalSection
	}
	return pin
}

// programs is the object file with the chosen programs only. Its .bss is left out: that only holds the pointers which
// bring the shared types into BTF.
func programs(chosen []string) (*ebpf.CollectionSpec, error) {
	spec, err := loadEnforcer()
	if err != nil {
		return nil, err
	}
	runnable := new(Enforcer).runnable()
	for name := range spec.Programs {
		if _, ok := runnable[name]; !ok && !slices.Contains(chosen, name) {
			delete(spec.Programs, name)
		}
	}
	for name, v := range spec.Variables {
		if v.SectionName == ".bss" {
			delete(spec.Variables, name)
		}
	}
	delete(spec.Maps, ".bss")
	return spec, nil
}

// choosePrograms asks the kernel's type information for every hook: which program fits it, "" where the kernel has no
// such hook and needs none. A required hook that is missing is named instead of failing somewhere within a load.
func choosePrograms() ([]string, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, &reasonError{engine.BTFMissing, err}
	}
	chosen := make([]string, len(attachments))
	for i, a := range attachments {
		if a.onDemand {
			continue
		}
		args, err := arguments(kernel, a)
		if err != nil {
			if a.newer && errors.Is(err, btf.ErrNotFound) {
				continue
			}
			return nil, fmt.Errorf("%s: %w (%v)", a.name, errHookMissing, err)
		}
		program, ok := a.programs[args]
		if !ok {
			program, ok = a.programs[0]
		}
		if !ok {
			return nil, fmt.Errorf("%s: %w in a form that this build knows (%d arguments)", a.name, errHookMissing, args)
		}
		chosen[i] = program
	}
	return chosen, nil
}

// arguments is how many a hook takes on this kernel.
func arguments(kernel *btf.Spec, a attachment) (int, error) {
	switch a.kind {
	case tracepoint:
		var typedef *btf.Typedef
		return 0, kernel.TypeByName("btf_trace_"+a.name, &typedef)
	case function, functionExit:
		var fn *btf.Func
		return 0, kernel.TypeByName(a.name, &fn)
	}
	var fn *btf.Func
	if err := kernel.TypeByName("bpf_lsm_"+a.name, &fn); err != nil {
		return 0, err
	}
	proto, ok := fn.Type.(*btf.FuncProto)
	if !ok {
		return 0, bug("bpf_lsm_" + a.name + " is no function")
	}
	return len(proto.Params), nil
}

func attach(a attachment, program *ebpf.Program) (link.Link, error) {
	if program == nil {
		return nil, bug("no program for " + a.name)
	}
	switch a.kind {
	case tracepoint:
		return link.AttachTracing(link.TracingOptions{Program: program, AttachType: ebpf.AttachTraceRawTp})
	case function:
		return link.AttachTracing(link.TracingOptions{Program: program, AttachType: ebpf.AttachTraceFEntry})
	case functionExit:
		return link.AttachTracing(link.TracingOptions{Program: program, AttachType: ebpf.AttachTraceFExit})
	default:
		return link.AttachLSM(link.LSMOptions{Program: program})
	}
}

// expected reports whether the i-th program was attached when the programs were loaded.
func (e *Enforcer) expected(i int) bool {
	return atomic.LoadUint64(&e.state.Attached[i/64])>>(i%64)&1 != 0
}

// adopt opens what is pinned. No pins at all is fs.ErrNotExist; pins that are incomplete are stale.
func adopt(opts Options) (_ *Enforcer, err error) {
	dir := opts.pins()
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	e := &Enforcer{opts: opts}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	stale := func(what string, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("open %s: %w", what, err)
		}
		// Not wrapped: a missing pin must not look like "nothing is pinned".
		return &reasonError{engine.StalePins, fmt.Errorf("open %s: %v", filepath.Join(dir, what), err)}
	}
	for name, place := range e.runnable() {
		if *place, err = ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil); err != nil {
			return nil, stale(name, err)
		}
	}
	for name, place := range e.maps() {
		if *place, err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			return nil, stale(name, err)
		}
	}
	if err := e.mapMemory(); err != nil {
		return nil, err
	}
	return e, nil
}

const jailsSize = int(enforcerTfLimitTF_MAX_JAILS) * int(unsafe.Sizeof(enforcerTfJail{}))

func slotsIn(mem []byte) []enforcerTfJail {
	return unsafe.Slice((*enforcerTfJail)(unsafe.Pointer(&mem[0])), int(enforcerTfLimitTF_MAX_JAILS))
}

// mapMemory maps the maps that are changed by single stores.
func (e *Enforcer) mapMemory() error {
	slots, err := e.mmap(e.jails, jailsSize)
	if err != nil {
		return fmt.Errorf("map jails: %w", err)
	}
	e.jailSlots = slotsIn(slots)
	state, err := e.mmap(e.global, int(unsafe.Sizeof(enforcerTfGlobal{})))
	if err != nil {
		return fmt.Errorf("map state: %w", err)
	}
	e.state = (*enforcerTfGlobal)(unsafe.Pointer(&state[0]))
	return nil
}

func (e *Enforcer) mmap(m *ebpf.Map, size int) ([]byte, error) {
	mem, unmap, err := mapWhole(m, size, unix.PROT_READ|unix.PROT_WRITE)
	if err == nil {
		e.unmap = append(e.unmap, unmap)
	}
	return mem, err
}

// mapWhole maps the first bytes of a map, which has to have as many.
func mapWhole(m *ebpf.Map, size, protection int) (mem []byte, unmap func(), err error) {
	if have := int(m.ValueSize()) * int(m.MaxEntries()); have < size {
		return nil, nil, &reasonError{engine.StalePins, fmt.Errorf("pinned map holds %d bytes, this build needs %d", have, size)}
	}
	page := os.Getpagesize()
	mem, err = unix.Mmap(m.FD(), 0, (size+page-1)/page*page, protection, unix.MAP_SHARED)
	return mem, func() { unix.Munmap(mem) }, err
}

// Close lets go of the descriptors. Nothing in the kernel changes.
func (e *Enforcer) Close() error {
	e.jailSlots, e.state = nil, nil
	for _, f := range e.unmap {
		f()
	}
	e.unmap = nil
	var errs []error
	for _, place := range e.runnable() {
		if *place != nil {
			errs = append(errs, (*place).Close())
			*place = nil
		}
	}
	for _, place := range e.maps() {
		if *place != nil {
			errs = append(errs, (*place).Close())
			*place = nil
		}
	}
	return errors.Join(errs...)
}

// Unload detaches and unpins everything, and what other versions have left unused. It refuses while jails live, or while
// programs of another version are attached, unless forced.
func Unload(opts Options, force bool) error {
	opts = opts.withDefaults()
	unlock, err := lock(opts)
	if err != nil {
		return err
	}
	defer unlock()
	e, err := adopt(opts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && !force:
		return err
	case err == nil:
		live := len(e.liveSlots())
		e.Close()
		if live > 0 && !force {
			return fmt.Errorf("unload: there are live jails (%d) that would no longer be enforced: delete them first (thenforce jail list), or use --force", live)
		}
	}
	var errs []error
	kept := false
	others, err := opts.otherVersions()
	if err != nil {
		errs, kept = append(errs, err), true
	}
	for _, dir := range others {
		if links, err := pinnedLinks(dir); !force && (links > 0 || err != nil) {
			kept = true
			errs = append(errs, errors.Join(err, fmt.Errorf("unload: %s holds attached programs of another version, and maybe live jails: unload them with that version, or use --force", dir)))
			continue
		}
		errs = append(errs, removePins(dir))
	}
	// First out of sight, all at once: a half removed folder would be stale pins, and what is left in staging is removed by
	// the next load.
	errs = append(errs, removePins(opts.staging()))
	if err := os.Rename(opts.pins(), opts.staging()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, removePins(opts.staging()))
	for _, dir := range []string{"jails", "replacing"} {
		if !kept { // else the records of that version's jails are among them
			errs = append(errs, os.RemoveAll(filepath.Join(opts.StateDir, dir)))
		}
	}
	return errors.Join(errs...)
}

// removePins removes a folder of pins; one that is not there is fine. A program stays attached until the last pin or
// descriptor of its link goes.
func removePins(dir string) error {
	return os.RemoveAll(dir)
}

// report adds what the kernel says about the attached programs now. locked says that the caller has the lock.
func (e *Enforcer) report(s *engine.EnforcementStatus, locked bool) {
	s.Pins = &engine.PinStatus{Path: e.opts.pins(), ABI: ABI}
	e.cgroups = s.Cgroup.Mount
	now, lost, skipped := e.attached()
	s.Hooks = s.Hooks[:0]
	for i, a := range attachments {
		if e.expected(i) {
			s.Hooks = append(s.Hooks, engine.HookStatus{
				Name: a.name, Required: true, Attached: now[i] != enforcerTfProofEntry{},
			})
		}
	}
	for _, name := range lost {
		s.Add(engine.LinkLost, name)
	}
	if inside, err := e.insideJail(); err != nil {
		s.Add(engine.InsideJail, "whether it is cannot be found out: "+err.Error())
	} else if inside {
		s.Add(engine.InsideJail, "")
	}
	if len(skipped) > 0 {
		s.Add(engine.CanaryFailed, "the kernel skipped programs while they ran on the same CPU: "+strings.Join(skipped, ", ")+
			" (boot with preempt=voluntary, or a kernel that has commit 271de525e1d7)")
	}
	if replaced, err := e.replaced(now); err != nil {
		s.Add(engine.CanaryFailed, "whether other programs replace functions of the attached ones cannot be found out: "+err.Error())
	} else if len(replaced) > 0 {
		s.Add(engine.CanaryFailed, "other programs replace functions of the attached ones (bpftool link list): "+strings.Join(replaced, ", "))
	}
	for _, slot := range e.liveSlots() {
		s.Jails++
		s.Events.Lost += atomic.LoadUint64(&e.jailSlots[slot].Lost)
	}
	if s.Events.Lost > 0 {
		s.Add(engine.EventsLost, fmt.Sprintf("%d events", s.Events.Lost))
	}
	if atomic.LoadUint32(&e.state.Overflow) != 0 {
		s.Add(engine.MapFull, "the table of jailed cgroups was full once: every check now looks at all ancestors")
	}
	e.reportMaps(s, locked)
	proof, ok := e.validProof(now)
	if !ok {
		s.Add(engine.NotProven, "")
		return
	}
	for i := range s.Hooks {
		h := &s.Hooks[i]
		if absence(proof.Absent).has(h.Name) {
			h.Required = false
			s.Add(engine.OptionalHookMissing, h.Name)
		}
		h.Proven = h.Attached && h.Required
	}
	s.Proof = &engine.EnforcementProof{
		BootID: formatBootID(proof.Boot), ABI: ABI, Time: time.Unix(0, int64(proof.Time)).UTC(),
	}
}

// linkPrefix begins the names of pinned links, in every version.
const linkPrefix = "link_"

func linkPin(a attachment) string { return linkPrefix + a.name }

// attached asks the kernel which program every link runs. A link that is lost has the zero entry, as has one that this
// kernel needs none of. skipped names programs that the kernel skipped because the same program was already running on
// that CPU: before commit 271de525e1d7 ("bpf: Remove prog->active check for bpf_lsm and bpf_iter", Linux 6.2) a
// preemptible kernel did that to LSM programs, and a skipped program allows.
func (e *Enforcer) attached() (entries []enforcerTfProofEntry, lost, skipped []string) {
	entries = make([]enforcerTfProofEntry, len(attachments))
	for i, a := range attachments {
		if !e.expected(i) {
			// Pins of an older build, kept because jails are live, may lack a hook that this one requires.
			if a.onDemand && e.wantsFollowLink() || !a.onDemand && !a.newer {
				lost = append(lost, a.name+" (it was never attached)")
			}
			continue
		}
		p, err := readPin(filepath.Join(e.opts.pins(), linkPin(a)))
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("its pin is gone")
		}
		if err != nil {
			lost = append(lost, fmt.Sprintf("%s (%v)", a.name, err))
			continue
		}
		entries[i] = enforcerTfProofEntry{Program: p.program, Link: p.link, Tag: p.tag}
		if a.kind == lsmHook && p.misses > 0 {
			skipped = append(skipped, fmt.Sprintf("%s %d times", a.name, p.misses))
		}
	}
	return entries, lost, skipped
}

// replaced names what is attached and has functions that another BPF user has replaced.
func (e *Enforcer) replaced(now []enforcerTfProofEntry) (names []string, err error) {
	own := map[uint32]bool{}
	for _, entry := range now {
		own[entry.Link] = true
	}
	programs, err := replacements(own)
	for i, entry := range now {
		if entry.Program != 0 && slices.Contains(programs, entry.Program) {
			names = append(names, attachments[i].name)
		}
	}
	return names, err
}

// validProof reads the record of the last passed canaries. It is valid for exactly what is attached now.
func (e *Enforcer) validProof(now []enforcerTfProofEntry) (*enforcerTfProof, bool) {
	var proof enforcerTfProof
	if err := e.proof.Lookup(uint32(0), &proof); err != nil {
		return nil, false
	}
	boot, err := bootID()
	if err != nil || proof.Boot != boot || int(proof.Count) != len(now) {
		return nil, false
	}
	for i, entry := range now {
		if e.expected(i) && entry == (enforcerTfProofEntry{}) || proof.Entries[i] != entry {
			return nil, false
		}
	}
	return &proof, absence(proof.Absent).holds()
}

func (e *Enforcer) writeProof(entries []enforcerTfProofEntry, absent absence) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	proof := enforcerTfProof{Time: uint64(time.Now().UnixNano()), Boot: boot, Build: buildDigest(), Count: uint32(len(entries)), Absent: uint32(absent)}
	copy(proof.Entries[:], entries)
	return e.proof.Put(uint32(0), &proof)
}

// bootID reads the random id of this boot; see random(4).
func bootID() (id [16]byte, err error) {
	const path = "/proc/sys/kernel/random/boot_id"
	text, err := os.ReadFile(path)
	if err != nil {
		return id, err
	}
	digits := strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")
	if n, err := decodeHex(id[:], digits); n != len(id) || err != nil {
		return id, fmt.Errorf("parse %s: %q is no boot id", path, text)
	}
	return id, nil
}

// decodeHex fills all of dst or fails.
func decodeHex(dst []byte, digits string) (int, error) {
	if len(digits) != hex.EncodedLen(len(dst)) {
		return 0, hex.ErrLength
	}
	return hex.Decode(dst, []byte(digits))
}

func formatBootID(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

// buildDigest tells which object file this build carries. It was taken when the file was made: to hash half a megabyte
// at each start would be a good part of what a start costs.
func buildDigest() (digest [32]byte) {
	if _, err := decodeHex(digest[:], objectDigest); err != nil {
		return [32]byte{} // no pin was ever made by this: TestObjectDigest
	}
	return digest
}

// bug is for states that no input and no kernel can bring about.
func bug(what string) error { return fmt.Errorf("bug in thenforce: %s; please report it", what) }

// bootTime is now on the clock that grants expire by, the kernel's own: in a time namespace clock_gettime(2) tells another.
// 0: it cannot be found out.
func bootTime() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	offset, err := bootOffset()
	if err != nil {
		return 0
	}
	return uint64(ts.Nano() - offset)
}

// bootOffset is what this process's time namespace adds to the time since boot, see time_namespaces(7).
var bootOffset = sync.OnceValues(func() (int64, error) {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // a kernel without time namespaces
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var seconds, nanoseconds int64
		if n, _ := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanoseconds); n == 2 {
			return seconds*int64(time.Second) + nanoseconds, nil
		}
	}
	return 0, errors.New("read /proc/self/timens_offsets: no line for the time since boot")
})
