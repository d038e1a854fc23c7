package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
	"golang.org/x/sys/unix"
)

// Identity is an inode as the kernel itself names it.
type Identity struct {
	Device     mountmap.KernelDev
	Volume     uint64 // btrfs: the root id of the subvolume; overlayfs: 0 for directories, 1 for others; else 0
	Inode      uint64
	Generation uint32
	Mode       uint32 // as st_mode
	Rdev       mountmap.KernelDev
	Magic      uint64 // of the file system, as in statfs(2)
	Removed    bool   // it has no name any more, and its number may soon be another's
	Ambiguous  bool   // others may have all of that too: a file of an overlay whose layers are on several file systems
}

// same reports whether both have one inode's number. Generations do not count: one of the two may be a serial number.
func (id Identity) same(other Identity) bool { return id.key(0) == other.key(0) }

func (id Identity) key(policy uint32) enforcerTfGrantKey {
	return enforcerTfGrantKey{Ino: id.Inode, Volume: id.Volume, Dev: uint32(id.Device), Policy: policy}
}

// ask runs the learning program on this very thread: it looks into the thread's own descriptor table.
func (e *Enforcer) ask(fd int32) (enforcerTfLearning, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	answer := enforcerTfLearning{Fd: fd}
	err := runProgram(e.learnProgram, &answer)
	return answer, err
}

// insideJail reports whether this process is itself in a jail.
func (e *Enforcer) insideJail() (bool, error) {
	answer, err := e.ask(-1)
	return answer.Inside != 0, err
}

// Learn asks the kernel for the identity behind an open descriptor; O_PATH will do. Where the kernel does not tell,
// the error wraps [engine.UnverifiedError] with device-unobserved or device-ambiguous.
func (e *Enforcer) Learn(f *os.File) (Identity, error) {
	fd := int32(f.Fd())
	if fd < 0 { // closed; the program takes it for a question about the caller alone
		return Identity{}, unobserved(engine.DeviceUnobserved, f.Name(), unix.EBADF)
	}
	answer, err := e.ask(fd)
	if err == nil && answer.Err == -int32(unix.EOPNOTSUPP) {
		// btrfs, and its structures are not known yet: the module may have come after the programs.
		if err = e.learnBtrfs(); err == nil {
			answer, err = e.ask(fd)
		}
	}
	switch {
	case err != nil:
		return Identity{}, unobserved(engine.DeviceUnobserved, f.Name(), err)
	case answer.Err == -int32(unix.EOPNOTSUPP):
		return Identity{}, unobserved(engine.DeviceAmbiguous, f.Name(), errors.New("the subvolume cannot be read"))
	case answer.Err != 0:
		return Identity{}, unobserved(engine.DeviceUnobserved, f.Name(), unix.Errno(-answer.Err))
	}
	found := answer.Found
	id := Identity{
		Device: mountmap.KernelDev(found.Dev), Volume: found.Volume, Inode: found.Ino, Generation: found.Generation,
		Mode: found.Mode, Rdev: mountmap.KernelDev(found.Rdev), Magic: found.Magic, Removed: answer.Removed != 0,
	}
	id.Ambiguous, err = hasLayersNumber(f, id)
	if err != nil {
		return Identity{}, unobserved(engine.DeviceUnobserved, f.Name(), err)
	}
	return id, nil
}

// hasLayersNumber reports whether an overlay's file has the number that it has in its layer, and another of another layer
// may have too. stat(2) tells: only then it has a device that is not the overlay's, one for each layer
// (Documentation/filesystems/overlayfs.rst, "Inode properties").
func hasLayersNumber(f *os.File, id Identity) (bool, error) {
	if int64(id.Magic) != unix.OVERLAYFS_SUPER_MAGIC || id.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	return mountmap.StatDev(st.Dev) != id.Device.Stat(), nil
}

// refuseAmbiguous says that rights on one object would be others' as well.
func refuseAmbiguous(path string) error {
	return unobserved(engine.DeviceAmbiguous, path,
		errors.New("files of several layers of this overlay may have its number; grant the directory that it is in"))
}

// errRemoved: the object has been removed, and nothing would tell it from the next one with its inode number.
var errRemoved = errors.New("it was removed, and its file system has no inode generations")

// identify is Learn for an object that is to be granted. Where its inode has no generation, as on overlayfs, it gets a
// serial number instead, which the kernel programs take back when the inode is removed: a grant holds for this inode
// and not for whoever inherits its number.
func (e *Enforcer) identify(f *os.File) (Identity, error) {
	id, err := e.Learn(f)
	if err != nil || id.Generation != 0 {
		return id, err
	}
	if id.Removed {
		return Identity{}, errRemoved
	}
	// Who has an open descriptor keeps the number from being given to another. So a serial number that is there is this
	// inode's, and it goes when the inode does.
	var serial uint32
	switch err := e.objects.Lookup(id.key(0), &serial); {
	case err == nil:
		id.Generation = serial
		return id, nil
	case !errors.Is(err, ebpf.ErrKeyNotExist):
		return Identity{}, fmt.Errorf("look up the serial number of %s: %w", f.Name(), err)
	}
	next := atomic.AddUint32(&e.state.NextSerial, 1)
	if err := e.objects.Update(id.key(0), next, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return Identity{}, full("remember "+f.Name(), err)
	}
	// It may have been removed before its number was remembered. From here on removing it is seen.
	if again, err := e.Learn(f); err != nil {
		return Identity{}, err
	} else if again.Removed {
		return Identity{}, errRemoved
	}
	if err := e.objects.Lookup(id.key(0), &serial); err != nil {
		return Identity{}, fmt.Errorf("%w (%v)", errRemoved, err)
	}
	id.Generation = serial
	return id, nil
}

func unobserved(code engine.EnforcementCode, path string, err error) error {
	reason := engine.NewReason(code, fmt.Sprintf("%s: %v", path, err))
	return &engine.UnverifiedError{Reasons: []engine.EnforcementReason{reason}}
}

// learnBtrfs tells the programs where struct btrfs_inode keeps what they need, from the module's own BTF.
func (e *Enforcer) learnBtrfs() error {
	spec, err := btf.LoadKernelModuleSpec("btrfs")
	if errors.Is(err, fs.ErrNotExist) {
		spec, err = btf.LoadKernelSpec() // built in
	}
	if err != nil {
		return fmt.Errorf("read type information of btrfs: %w", err)
	}
	inode, err := offsetOf(spec, "btrfs_inode", "vfs_inode")
	if err != nil {
		return err
	}
	root, err := offsetOf(spec, "btrfs_inode", "root")
	if err != nil {
		return err
	}
	key, err := offsetOf(spec, "btrfs_root", "root_key")
	if err != nil {
		return err
	}
	object, err := offsetOf(spec, "btrfs_key", "objectid")
	if err != nil {
		return err
	}
	e.state.BtrfsInode, e.state.BtrfsRoot, e.state.BtrfsId = inode, root, key+object
	atomic.StoreUint32(&e.state.BtrfsReady, 1)
	return nil
}

func offsetOf(spec *btf.Spec, structure, member string) (uint32, error) {
	var s *btf.Struct
	if err := spec.TypeByName(structure, &s); err != nil {
		return 0, fmt.Errorf("find struct %s: %w", structure, err)
	}
	for _, m := range s.Members {
		if m.Name == member {
			return m.Offset.Bytes(), nil
		}
	}
	return 0, fmt.Errorf("struct %s has no member %s", structure, member)
}

// open opens an object of a policy for learning, below a root directory where one is given. The path is canonical, so a
// symbolic link on it means that somebody changed it since, and nothing is followed.
func open(root *os.File, path string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	dir := unix.AT_FDCWD
	if root != nil {
		dir = int(root.Fd())
		how.Resolve |= unix.RESOLVE_IN_ROOT
	}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}
