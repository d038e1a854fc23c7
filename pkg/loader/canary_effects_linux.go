package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// The canaries of programs that make no verdict: each is known by what it does to the maps.

// proveInheritance makes a child cgroup of the jailed one: a task in it must be denied, and once it is removed the
// kernel must have forgotten it.
func (e *Enforcer) proveInheritance(s *scene) error {
	sub := filepath.Join(s.path, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		return fmt.Errorf("cgroup_mkdir: %w", err)
	}
	dir, err := os.Open(sub)
	if err != nil {
		return errors.Join(err, removeCgroup(sub))
	}
	defer dir.Close()
	id, err := CgroupID(dir)
	if err != nil {
		return errors.Join(err, removeCgroup(sub))
	}
	tried := func() error {
		child, err := startCanary(dir, nil, nil)
		if err != nil {
			return err
		}
		errno, err := child.do([]string{"open", filepath.Join(s.out, "file")})
		if err == nil && errno != eacces {
			err = fmt.Errorf("a task in a new child cgroup got %s, want EACCES", errnoName(errno))
		}
		return errors.Join(err, child.stop())
	}()
	if tried != nil {
		tried = fmt.Errorf("cgroup_mkdir: %w", tried)
	}
	if err := removeCgroup(sub); err != nil {
		return errors.Join(tried, err)
	}
	var member enforcerTfMember
	if err := e.members.Lookup(id, &member); !errors.Is(err, ebpf.ErrKeyNotExist) {
		tried = errors.Join(tried, fmt.Errorf("cgroup_rmdir: a removed cgroup is still a member (%v)", err))
	}
	return tried
}

// proveTerminals: an entry for a pseudo terminal has to go when the terminal does, or its number would be somebody
// else's one day. The terminal is of a file system of its own, whatever the host has on /dev.
func (e *Enforcer) proveTerminals(base string, absent *absence) error {
	dir := filepath.Join(base, "pts")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	switch err := unix.Mount("thenforce", dir, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0600,ptmxmode=0600"); {
	case err == unix.ENODEV:
		absent.add(terminalEnd) // a kernel without pseudo terminals has none to confuse
		return nil
	case err != nil:
		return fmt.Errorf("%s: mount devpts: %w", terminalEnd, err)
	}
	master, err := unix.Open(filepath.Join(dir, "ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: open ptmx: %w", terminalEnd, err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		unix.Close(master)
		return fmt.Errorf("%s: ask for the terminal's number: %w", terminalEnd, err)
	}
	var id Identity
	slave, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), unix.O_PATH, 0)
	if err == nil {
		id, err = e.Learn(slave)
		slave.Close()
	}
	key := enforcerTfPtyKey{Ino: id.Inode, Dev: uint32(id.Device)}
	if err == nil {
		err = e.ptys.Put(key, uint64(1))
	}
	unix.Close(master)
	if err != nil {
		return fmt.Errorf("%s: %w", terminalEnd, err)
	}
	var owner uint64
	if err := e.ptys.Lookup(key, &owner); !errors.Is(err, ebpf.ErrKeyNotExist) {
		e.ptys.Delete(key)
		return fmt.Errorf("%s: a terminal that is gone still belongs to a jail (%v)", terminalEnd, err)
	}
	return nil
}

// proveArming makes a pending jail that waits for this thread's own root. A task that comes in from outside is not judged
// and nobody's peer, one that executes in it is, and so is what that starts.
func (e *Enforcer) proveArming(outer *scene, cgroups string, open []OpenObject) (err error) {
	s := &scene{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.mkdirCgroup(filepath.Join(cgroups, groupsName), canaryPrefix); err != nil {
		return err
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	jail, err := e.createJail(JailSpec{
		Cgroup: s.cgroup, CgroupPath: s.path, Root: root, Open: open, flags: uint32(enforcerTfJailFlagTF_JAIL_CANARY),
		Sets: engine.AllowedSets{
			Workspace: engine.WorkspaceIdentity{CanonicalRoot: outer.in},
			Objects:   []engine.Object{{Path: outer.in, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.dropLocked(jail)) }()
	if s.peer, err = startCanary(nil, nil, nil); err != nil {
		return err
	}
	pending := strconv.Itoa(s.peer.cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(s.path, "cgroup.procs"), []byte(pending), 0); err != nil {
		return err
	}
	if s.child, err = startCanary(s.cgroup, nil, nil); err != nil {
		return err
	}
	var failed []error
	for _, step := range []struct {
		hook  string
		child *canaryChild
		tries string
		want  unix.Errno
	}{
		{"bprm_check_security: before its exec", s.peer, "open %OUT/file", noErrno},
		{"bprm_check_security: after its exec", s.child, "open %OUT/file", eacces},
		{"task_alloc: a task started by an armed one", s.child, "elsewhere %OUT/file", eacces},
		{"ptrace_access_check: of a pending task", s.child, "trace " + pending, eacces},
		{"task_kill: of a pending task", s.child, "kill " + pending, eperm},
	} {
		switch errno, err := step.child.do(words(outer, step.tries)); {
		case err != nil:
			return fmt.Errorf("%s: %w", step.hook, err)
		case errno != step.want:
			failed = append(failed, fmt.Errorf("%s: %s got %s, want %s", step.hook, step.tries, errnoName(errno), errnoName(step.want)))
		}
	}
	return errors.Join(append(failed, e.proveDisarming(s))...)
}

// proveDisarming ends the armed task. Its mark has to go with it, or the next task at its address would be armed.
func (e *Enforcer) proveDisarming(s *scene) error {
	before := atomic.LoadUint32(&e.state.Disarmed)
	child := s.child
	s.child = nil
	if err := child.stop(); err != nil {
		return err
	}
	// The kernel frees a task a grace period after it was waited for; with CONFIG_RCU_LAZY that may take it ten seconds.
	for deadline := time.Now().Add(30 * time.Second); atomic.LoadUint32(&e.state.Disarmed) == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("sched_process_free: an armed task ended and its mark stays")
		}
	}
	return nil
}

// proveDeath makes a jail with grants on a file system whose inodes have no generation, where the serial number that a
// granted object gets instead has to end with it: removed, overwritten by a rename, or unmounted with all the rest.
func (e *Enforcer) proveDeath(base, cgroups string) (err error) {
	dir := filepath.Join(base, "ram")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("thenforce", dir, "ramfs", unix.MS_NOSUID, "mode=0700"); err != nil {
		return fmt.Errorf("mount ramfs on %s: %w", dir, err)
	}
	mounted := true
	defer func() {
		if mounted {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}()
	removed, overwritten, last, other := filepath.Join(dir, "removed"), filepath.Join(dir, "overwritten"),
		filepath.Join(dir, "last"), filepath.Join(dir, "other")
	var objects []engine.Object
	for _, path := range []string{removed, overwritten, last} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		objects = append(objects, engine.Object{Path: path, Rights: engine.Read, Source: engine.SourcePolicy})
	}
	if err := os.Mkdir(other, 0o700); err != nil {
		return err
	}
	s := &scene{}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.mkdirCgroup(filepath.Join(cgroups, groupsName), canaryPrefix); err != nil {
		return err
	}
	jail, err := e.createJail(JailSpec{
		Cgroup: s.cgroup, CgroupPath: s.path, flags: uint32(enforcerTfJailFlagTF_JAIL_CANARY),
		Sets: engine.AllowedSets{Workspace: engine.WorkspaceIdentity{CanonicalRoot: last}, Objects: objects},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.dropLocked(jail)) }()
	var failed []error
	for _, step := range []struct {
		program, path string
		end           func() error
	}{
		{"d_delete", removed, func() error { return unix.Rmdir(removed) }},
		{"vfs_rename", overwritten, func() error { return unix.Rename(other, overwritten) }},
		{"sb_delete", last, func() error {
			err := unix.Unmount(dir, 0)
			mounted = err != nil
			return err
		}},
	} {
		if err := e.proveEnd(jail, step.path, step.end); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", step.program, err))
		}
	}
	return errors.Join(failed...)
}

// proveEnd ends a granted object and looks whether its serial number ended with it.
func (e *Enforcer) proveEnd(jail *Jail, path string, end func() error) error {
	i := slices.IndexFunc(jail.Grants, func(g GrantInfo) bool { return g.Path == path })
	if i < 0 {
		return bug("no grant on " + path)
	}
	key := jail.Grants[i].key(0) // as serial numbers are kept, for all jails
	var serial uint32
	if err := e.objects.Lookup(key, &serial); err != nil {
		return fmt.Errorf("look up the serial number of a granted object: %w", err)
	}
	if err := end(); err != nil {
		return err
	}
	if err := e.objects.Lookup(key, &serial); !errors.Is(err, ebpf.ErrKeyNotExist) {
		e.objects.Delete(key)
		return fmt.Errorf("a granted object is gone, and its serial number is there (%v)", err)
	}
	return nil
}
