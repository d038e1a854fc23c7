package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/thenforce/thenforce/pkg/engine"
)

// inode_follow_link is called for every symbolic link that any process follows, so its program is attached only while a
// jail wants none followed. It is loaded and pinned with the others.

const noSymlinks = uint32(enforcerTfJailFlagTF_JAIL_NO_SYMLINKS)

func followLinkIndex() int {
	return slices.IndexFunc(attachments, func(a attachment) bool { return a.name == followLink })
}

// wantsFollowLink reports whether a live jail needs the hook. Canaries do not count.
func (e *Enforcer) wantsFollowLink() bool {
	for _, slot := range e.liveSlots() {
		flags := atomic.LoadUint32(&e.jailSlots[slot].Flags)
		if flags&noSymlinks != 0 && flags&uint32(enforcerTfJailFlagTF_JAIL_CANARY) == 0 {
			return true
		}
	}
	return false
}

// attachFollowLink attaches the hook if it is not, and proves it together with all others. The caller holds the lock.
func (e *Enforcer) attachFollowLink() (err error) {
	i := followLinkIndex()
	if e.expected(i) {
		return nil
	}
	path := filepath.Join(e.opts.pins(), linkPin(attachments[i]))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of somebody killed right here
		return err
	}
	l, err := attach(attachments[i], e.followProgram)
	if err != nil {
		return fmt.Errorf("attach %s: %w", followLink, err)
	}
	defer l.Close()
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("pin link of %s: %w", followLink, err)
	}
	e.state.Attached[i/64] |= 1 << (i % 64)
	if status := e.proveAndReport(); status.State != engine.Verified {
		return errors.Join(&engine.UnverifiedError{Reasons: status.Reasons}, e.detachFollowLink())
	}
	return nil
}

// detachFollowLink detaches the hook. What was proven of the others stays proven.
func (e *Enforcer) detachFollowLink() error {
	i := followLinkIndex()
	if !e.expected(i) {
		return nil
	}
	before, _, _ := e.attached()
	proof, proven := e.validProof(before)
	e.state.Attached[i/64] &^= 1 << (i % 64)
	if err := os.Remove(filepath.Join(e.opts.pins(), linkPin(attachments[i]))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("detach %s: %w", followLink, err)
	}
	if !proven {
		return nil
	}
	before[i] = enforcerTfProofEntry{}
	return e.writeProof(before, absence(proof.Absent))
}
