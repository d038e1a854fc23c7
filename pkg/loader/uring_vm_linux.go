//go:build vm

package loader

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is an io_uring, used through the system calls and the shared memory themselves: one entry at a time is submitted
// and waited for. See io_uring(7), io_uring_setup(2), io_uring_enter(2).
type ring struct {
	fd      int
	polled  bool
	params  uringParams
	rings   []byte // both rings: IORING_FEAT_SINGLE_MMAP, Linux 5.4
	entries []byte
}

// uringParams is struct io_uring_params, linux/io_uring.h.
type uringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq                                                                 struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// entry is struct io_uring_sqe.
type entry struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	addr2         uint64 // or off
	addr          uint64
	len           uint32
	opFlags       uint32
	userData      uint64
	_             uint32
	fileIndex     uint32
	addr3         uint64
	_             uint64
}

const (
	setupPolled = 1 << 1 // IORING_SETUP_SQPOLL: a thread of the kernel takes the entries
	entryAsync  = 1 << 4 // IOSQE_ASYNC: a worker does it
	needWakeup  = 1
	enterEvents = 1
	enterWakeup = 2
	atCwd       = -100
)

func newRing(polled bool) (*ring, error) {
	r := &ring{polled: polled}
	if polled {
		r.params.flags, r.params.threadIdle = setupPolled, 1000
	}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&r.params)), 0)
	if errno != 0 {
		return nil, errno
	}
	r.fd = int(fd)
	if err := r.mapMemory(); err != nil {
		unix.Close(r.fd)
		return nil, err
	}
	return r, nil
}

func (r *ring) mapMemory() (err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := max(r.params.sq.array+r.params.sqEntries*4, r.params.cq.cqes+r.params.cqEntries*16)
	if r.rings, err = unix.Mmap(r.fd, 0, int(size), prot, flags); err != nil {
		return err
	}
	r.entries, err = unix.Mmap(r.fd, 0x10000000, int(r.params.sqEntries)*64, prot, flags)
	return err
}

func (r *ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }

// submit has the kernel do one entry and gives its result, negative for an error.
func (r *ring) submit(e entry) (int32, error) {
	tail := r.word(r.params.sq.tail)
	slot := *tail & *r.word(r.params.sq.mask)
	*(*entry)(unsafe.Pointer(&r.entries[slot*64])) = e
	*r.word(r.params.sq.array + slot*4) = slot
	atomic.AddUint32(tail, 1)
	submit, flags := uintptr(1), uintptr(enterEvents)
	if r.polled {
		submit = 0
		if atomic.LoadUint32(r.word(r.params.sq.flags))&needWakeup != 0 {
			flags |= enterWakeup
		}
	}
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), submit, 1, flags, 0, 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINTR {
			return 0, errno
		}
		submit = 0
	}
	head := r.word(r.params.cq.head)
	for deadline := time.Now().Add(30 * time.Second); *head == atomic.LoadUint32(r.word(r.params.cq.tail)); {
		if time.Now().After(deadline) {
			return 0, unix.ETIMEDOUT
		}
		time.Sleep(time.Millisecond)
	}
	at := r.params.cq.cqes + (*head&*r.word(r.params.cq.mask))*16
	result := int32(binary.NativeEndian.Uint32(r.rings[at+8:]))
	atomic.AddUint32(head, 1)
	return result, nil
}

// uringEntries are the operations on names that io_uring has; linux/io_uring.h.
var uringEntries = map[string]func(a []*byte) entry{
	"openat": func(a []*byte) entry { return entry{opcode: 18, fd: atCwd, addr: address(a[0])} },
	"openat-write": func(a []*byte) entry {
		return entry{opcode: 18, fd: atCwd, addr: address(a[0]), opFlags: unix.O_WRONLY | unix.O_TRUNC}
	},
	"openat-create": func(a []*byte) entry {
		return entry{opcode: 18, fd: atCwd, addr: address(a[0]), opFlags: unix.O_WRONLY | unix.O_CREAT, len: 0o600}
	},
	"openat2": func(a []*byte) entry {
		return entry{opcode: 28, fd: atCwd, addr: address(a[0]), addr2: address(&emptyHow[0]), len: uint32(len(emptyHow))}
	},
	"renameat": func(a []*byte) entry {
		return entry{opcode: 35, fd: atCwd, addr: address(a[0]), addr2: address(a[1]), len: uint32(0xffffffff + atCwd + 1)}
	},
	"unlinkat": func(a []*byte) entry { return entry{opcode: 36, fd: atCwd, addr: address(a[0])} },
	"rmdirat": func(a []*byte) entry {
		return entry{opcode: 36, fd: atCwd, addr: address(a[0]), opFlags: unix.AT_REMOVEDIR}
	},
	"mkdirat": func(a []*byte) entry { return entry{opcode: 37, fd: atCwd, addr: address(a[0]), len: 0o700} },
	"symlinkat": func(a []*byte) entry {
		return entry{opcode: 38, fd: atCwd, addr: address(a[0]), addr2: address(a[1])}
	},
	"linkat": func(a []*byte) entry {
		return entry{opcode: 39, fd: atCwd, addr: address(a[0]), addr2: address(a[1]), len: uint32(0xffffffff + atCwd + 1)}
	},
	"setxattr": func(a []*byte) entry {
		return entry{opcode: 42, addr: address(&xattrName[0]), addr2: address(&xattrName[0]), addr3: address(a[0]), len: 1}
	},
}

// What entries point to must not be on a stack, which may move.
var (
	emptyHow  [24]byte // struct open_how
	xattrName = append([]byte(userXattr), 0)
)

func address(p *byte) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// uring does an operation by an io_uring: plain, by one of its workers, by a thread of the kernel that looks for work by
// itself, or by a worker whose credentials its submitter has not any more.
func uring(mode, operation string, args []string) error {
	r, err := ringFor(mode)
	if err != nil {
		return err
	}
	var names []*byte
	for _, a := range args {
		name, err := unix.BytePtrFromString(a)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	make, ok := uringEntries[operation]
	if !ok {
		return fmt.Errorf("no entry %q", operation)
	}
	e := make(names)
	if mode == "worker" || mode == "changed" {
		e.flags |= entryAsync
	}
	if mode == "changed" {
		if err := outgrowWorker(r); err != nil {
			return err
		}
	}
	result, err := r.submit(e)
	runtime.KeepAlive(names)
	switch {
	case err != nil:
		return err
	case result < 0:
		return unix.Errno(-result)
	case result > 0: // an open's descriptor
		return unix.Close(int(result))
	}
	return nil
}

// outgrowWorker has a worker made, and then takes other credentials, with the same rights: what is submitted next the
// worker does with credentials that are not its own, as things look that overlayfs does.
func outgrowWorker(r *ring) error {
	if _, err := r.submit(entry{flags: entryAsync}); err != nil { // IORING_OP_NOP
		return err
	}
	keep, err := unix.PrctlRetInt(unix.PR_GET_KEEPCAPS, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_KEEPCAPS, uintptr(1-keep), 0, 0, 0)
}

// A ring serves for all rows of its mode: to make one takes the kernel a while.
var ownRings = map[string]*ring{}

func ringFor(mode string) (*ring, error) {
	if r, ok := ownRings[mode]; ok {
		return r, nil
	}
	var r *ring
	var err error
	switch mode {
	case "plain", "worker", "changed":
		r, err = newRing(false)
	case "polled":
		r, err = newRing(true)
	default:
		return nil, fmt.Errorf("no mode %q", mode)
	}
	if err == nil {
		ownRings[mode] = r
	}
	return r, err
}
