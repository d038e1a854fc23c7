package loader

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/thenforce/thenforce/pkg/mountmap"
	"golang.org/x/sys/unix"
)

// ErrClosed is what EventReader.Read returns once Close was called.
var ErrClosed = ringbuf.ErrClosed

// EventReader takes events out of the kernel's ring. What one reader takes no other sees: keep to one at a time.
type EventReader struct {
	ring   *ringbuf.Reader
	maps   []*ebpf.Map
	slots  []enforcerTfJail // mapped: the kernel's own memory
	unmap  func()
	record ringbuf.Record
}

// OpenEvents opens the pinned ring. It errors with fs.ErrNotExist where the programs are not loaded.
func OpenEvents(opts Options) (_ *EventReader, err error) {
	r := &EventReader{unmap: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open events: %w", err), r.closeMaps())
		}
	}()
	for _, name := range []string{enforcerMapTfEvents, enforcerMapTfJails} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(opts.withDefaults().pins(), name), nil)
		if err != nil {
			return nil, err
		}
		r.maps = append(r.maps, m)
	}
	mem, unmap, err := mapWhole(r.maps[1], jailsSize, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	r.slots, r.unmap = slotsIn(mem), unmap
	r.ring, err = ringbuf.NewReader(r.maps[0])
	return r, err
}

// Losses gives, for each jail that lost any, how many events found the ring full since it was made.
func (r *EventReader) Losses() map[string]uint64 {
	losses := map[string]uint64{}
	for i := range r.slots {
		id, lost := atomic.LoadUint64(&r.slots[i].Id), atomic.LoadUint64(&r.slots[i].Lost)
		if id != 0 && lost != 0 {
			losses[formatID(id)] = lost
		}
	}
	return losses
}

// Read waits for the next event until the deadline; then the error is os.ErrDeadlineExceeded. A deadline that has
// passed takes what is there without waiting. A zero deadline waits for ever.
func (r *EventReader) Read(deadline time.Time) (Event, error) {
	r.ring.SetDeadline(deadline)
	if err := r.ring.ReadInto(&r.record); err != nil {
		return Event{}, err
	}
	return parseEvent(r.record.RawSample, time.Now(), bootTime())
}

// Close wakes a Read that waits.
func (r *EventReader) Close() error { return errors.Join(r.ring.Close(), r.closeMaps()) }

func (r *EventReader) closeMaps() error {
	r.unmap()
	var errs []error
	for _, m := range r.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

const eventHead = int(unsafe.Sizeof(enforcerTfEvent{}))

var errShortEvent = errors.New("event record is cut short")

// parseEvent decodes one record. Both clocks read at one moment turn its boot time into a wall-clock time.
func parseEvent(raw []byte, now time.Time, boot uint64) (Event, error) {
	if len(raw) < eventHead {
		return Event{}, errShortEvent
	}
	var head enforcerTfEvent
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&head)), eventHead), raw)
	rest := raw[eventHead:]
	if uint64(head.PathLen) > uint64(len(rest)) {
		return Event{}, errShortEvent
	}
	e := Event{
		Time:   now.Add(-time.Duration(boot - head.Time)).UTC(),
		Jail:   formatID(head.Jail),
		Cgroup: head.Cgroup,
		PID:    head.Pid,
		TID:    head.Tid,
		UID:    head.Uid,
		Comm:   cString(head.Comm[:]),
		Hook:   nameIn(hookNames[:], int(head.Hook)),
		Op:     nameIn(opNames[:], int(head.Op)),
		Path:   joinPath(rest[:head.PathLen], uint32(head.Flags)),
		Device: mountmap.KernelDev(head.Dev).String(),
		Inode:  head.Ino,
		Errno:  errnoName(unix.Errno(-head.Error)),
		Code:   nameIn(codeNames[:], int(head.Code)),
		Mode:   "enforce",
		Count:  1,
	}
	switch flags := enforcerTfEventFlag(head.Flags); {
	case flags&enforcerTfEventFlagTF_EVENT_PROCESS != 0:
		e.Path = fmt.Sprintf("/proc/%d", head.Ino)
	case flags&enforcerTfEventFlagTF_EVENT_NO_OBJECT != 0:
		e.Path = ""
	case flags&enforcerTfEventFlagTF_EVENT_NO_MOUNT != 0:
		e.Path = "(" + e.Device + ")" + e.Path
	}
	if head.Flags&uint16(enforcerTfEventFlagTF_EVENT_MONITOR) != 0 {
		e.Mode = "monitor"
	}
	return e, nil
}

// joinPath turns names, each with a zero byte and the last one first, into a path. As in proc_pid_fd(5) and d_path a
// path that leads to no root says "(unreachable)"; one that was too long for its record begins with "...".
func joinPath(names []byte, flags uint32) string {
	var b strings.Builder
	switch {
	case flags&uint32(enforcerTfEventFlagTF_EVENT_UNREACHABLE) != 0:
		b.WriteString("(unreachable)")
	case flags&uint32(enforcerTfEventFlagTF_EVENT_CUT) != 0:
		b.WriteString("...")
	}
	parts := strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00")
	for _, part := range slices.Backward(parts) {
		b.WriteString("/" + part)
	}
	return b.String()
}

// cString is the text up to the first zero byte.
func cString(chars []int8) string {
	b := make([]byte, 0, len(chars))
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
