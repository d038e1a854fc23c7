package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// shared gives the maps that jails, and what they have done, lie in, by their names in the object file. The others are a
// build's own: what it has counted, proven and remembered.
func (e *Enforcer) shared() map[string]*ebpf.Map {
	if e == nil {
		return nil
	}
	shared := map[string]*ebpf.Map{}
	for name, place := range e.maps() {
		switch *place {
		case e.canary, e.runs, e.proof, e.verdicts:
		default:
			shared[nameInObject(name)] = *place
		}
	}
	return shared
}

// upgrade replaces the programs of another build by this build's, and gives those. The caller holds the lock. On an error
// everything is as it was.
//
// Live jails are judged all the time: the new programs are attached beside the old ones before those go, and while there
// are both, what either denies is denied. (A jail that only monitors tells of an operation twice then.)
func (e *Enforcer) upgrade(cgroups string) (*Enforcer, error) {
	live := e
	if len(e.liveSlots()) == 0 {
		live = nil // and fresh maps
	} else if err := rehearse(e.opts, cgroups); err != nil {
		return nil, err
	}
	next, err := loadStaged(e.opts, live)
	if err != nil {
		return nil, err
	}
	// The BPF file system learned this for just that: commit 3871cb8cf741, older than any kernel that is supported.
	if err := unix.Renameat2(unix.AT_FDCWD, e.opts.staging(), unix.AT_FDCWD, e.opts.pins(), unix.RENAME_EXCHANGE); err != nil {
		next.Close()
		return nil, errors.Join(fmt.Errorf("exchange pins: %w", err), removePins(e.opts.staging()))
	}
	next.endUpgrade()
	return next, nil
}

// rehearse proves this build's programs before they replace others: with maps of their own, in which there are no jails
// but the canaries'. The programs in force know nothing of those. (Were the maps shared, they would count and deny as
// well, and nothing could be told of the new ones.)
func rehearse(opts Options, cgroups string) error {
	e, err := loadStaged(opts, nil)
	if err != nil {
		return err
	}
	_, err = e.prove(cgroups)
	if err != nil {
		err = &reasonError{engine.CanaryFailed, fmt.Errorf("the programs of another build stay in force, as this build's fail: %w", err)}
	}
	return errors.Join(err, e.Close(), removePins(opts.staging()))
}

// endUpgrade removes what is in the staging folder. The caller holds the lock, so whoever made it is done or was killed:
// these are programs that were replaced, or ones that were not to come into force.
func (e *Enforcer) endUpgrade() {
	if _, err := os.Lstat(e.opts.staging()); errors.Is(err, fs.ErrNotExist) {
		return
	}
	e.state.Attached = attachedIn(e.opts.pins())
	if chosen, err := choosePrograms(); err == nil && e.isThisBuild() {
		for i, program := range chosen { // also one that has lost its link since
			if program != "" {
				e.state.Attached[i/64] |= 1 << (i % 64)
			}
		}
	}
	e.collectRecords()
	removePins(e.opts.staging())
}

// attachedIn gives which programs a folder has links of, as in tf_global.attached.
func attachedIn(dir string) (bits [2]uint64) {
	for i, a := range attachments {
		if _, err := os.Lstat(filepath.Join(dir, linkPin(a))); err == nil {
			bits[i/64] |= 1 << (i % 64)
		}
	}
	return bits
}
