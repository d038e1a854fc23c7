// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempts is how often a table that changes while it is read is read again.
const attempts = 16

// procRoot is the inode number of the root of every procfs (PROC_ROOT_INO).
const procRoot = 1

// Live is the mount table of the namespace that the thread which opened it was
// in. Its methods are safe for use by several goroutines.
type Live struct {
	mu    sync.Mutex
	file  *os.File
	table *Table
}

// OpenLive opens the mount table and keeps it open. The errors are those of
// [Read].
func OpenLive() (*Live, error) {
	file, err := openMountinfo()
	if err != nil {
		return nil, err
	}
	return &Live{file: file}, nil
}

// Close releases the file.
func (l *Live) Close() error { return l.file.Close() }

// Table returns the table as it is now. As long as nothing changes it returns
// the same one again, which costs one poll(2): the kernel reports every change
// since the last one on the open file.
func (l *Live) Table() (*Table, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.table != nil {
		changed, err := changed(l.file, 0)
		if err != nil {
			return nil, err
		}
		if !changed {
			return l.table, nil
		}
	}
	l.table = nil
	for range attempts {
		table, err := read(l.file)
		// One read(2) returns about a page, so a change in between gives a
		// mixture of two tables. Nothing of it counts, the error neither.
		changed, pollErr := changed(l.file, 0)
		if pollErr != nil {
			return nil, pollErr
		}
		if changed {
			continue
		}
		if err != nil {
			return nil, err
		}
		l.table = table
		return table, nil
	}
	return nil, &fs.PathError{Op: "read", Path: l.file.Name(), Err: ErrUnstable}
}

// read reads the table once.
func read(file *os.File) (*Table, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(file); err != nil {
		return nil, err
	}
	table, err := Parse(&text)
	if err != nil {
		return nil, err
	}
	unique, err := uniqueIDs()
	if err != nil || len(unique) == 0 {
		// Without them the table is as good as on an older kernel.
		return table, nil
	}
	mounts := make([]Mount, 0, table.Len())
	for m := range table.All() {
		m.UniqueID = unique[m.ID]
		mounts = append(mounts, m)
	}
	return New(mounts)
}

// openMountinfo opens the mount table of the calling thread, on a procfs that is
// proven to be one: its type and the number of its root say so, and no mount is
// crossed on the way down, so nothing can be laid over the file
// (CVE-2019-16884 and CVE-2025-52881 were made of that).
func openMountinfo() (*os.File, error) {
	const name = "thread-self/mountinfo"
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/proc", Err: err}
	}
	defer unix.Close(proc)
	if err := provenProcfs(proc); err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/proc", Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(proc, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: "/proc", Err: err}
	}
	if st.Ino != procRoot {
		return nil, &fs.PathError{Op: "open", Path: "/proc", Err: ErrUntrusted}
	}

	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(proc, name, &how)
	switch {
	case errors.Is(err, unix.EXDEV):
		return nil, &fs.PathError{Op: "open", Path: "/proc/" + name, Err: ErrUntrusted}
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
		// Before Linux 5.6, or filtered away by seccomp.
		fd, err = openBelow(proc, name)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/proc/" + name, Err: err}
	}
	if err := provenProcfs(fd); err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: "/proc/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), "/proc/"+name), nil
}

func provenProcfs(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return ErrUntrusted
	}
	return nil
}

// openBelow opens name below the directory proc and refuses it where it is on
// another mount.
func openBelow(proc int, name string) (int, error) {
	fd, err := unix.Openat(proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var root, file unix.Statx_t
	err = unix.Statx(proc, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &root)
	if err == nil {
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &file)
	}
	if err == nil && (root.Mask&file.Mask&unix.STATX_MNT_ID == 0 || root.Mnt_id != file.Mnt_id) {
		// Unequal, or a kernel before 5.8 that cannot tell.
		err = ErrUntrusted
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// changed waits for at most timeout milliseconds, -1 being for ever, and reports
// whether the namespace of file changed since it was opened or last asked.
func changed(file *os.File, timeout int) (bool, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return false, err
	}
	var revents int16
	var pollErr error
	err = raw.Control(func(fd uintptr) {
		revents, pollErr = poll(int(fd), -1, timeout)
	})
	if err == nil {
		err = pollErr
	}
	if err != nil {
		return false, &fs.PathError{Op: "poll", Path: file.Name(), Err: err}
	}
	return revents != 0, nil
}

// poll waits for a change of the mount table fd, or for the descriptor stop.
func poll(fd, stop, timeout int) (int16, error) {
	// A change is reported as POLLPRI and POLLERR (mounts_poll in
	// fs/proc_namespace.c); the second is always waited for.
	fds := [...]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}, {Fd: int32(stop), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds[:], timeout)
		if err == unix.EINTR {
			continue
		}
		if err == nil && fds[0].Revents&unix.POLLNVAL != 0 {
			err = fs.ErrClosed
		}
		return fds[0].Revents, err
	}
}

// A Watcher waits for mounts and unmounts.
type Watcher struct {
	file *os.File
}

// NewWatcher returns a watcher of the calling thread's namespace. The errors are
// those of [Read].
func NewWatcher() (*Watcher, error) {
	// A file of its own: the kernel reports a change once on each.
	file, err := openMountinfo()
	if err != nil {
		return nil, err
	}
	return &Watcher{file: file}, nil
}

// Close releases the file. It must not be called during Wait.
func (w *Watcher) Close() error { return w.file.Close() }

// Wait blocks until the mount table has changed since the watcher was made or
// Wait last returned nil, and returns ctx.Err() where ctx ends before. Several
// changes may be reported as one.
func (w *Watcher) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch mounts: eventfd: %w", err)
	}
	woken := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(woken)
		one := uint64(1)
		// An eventfd takes eight bytes in one write, or none.
		_, _ = unix.Write(stop, (*[8]byte)(unsafe.Pointer(&one))[:])
	})
	revents, err := poll(int(w.file.Fd()), stop, -1)
	if !cancel() {
		<-woken
	}
	unix.Close(stop)
	switch {
	case err != nil:
		return &fs.PathError{Op: "poll", Path: w.file.Name(), Err: err}
	case revents != 0:
		return nil
	}
	return ctx.Err()
}

// uniqueIDs returns the unique id of every mount, by its id, as listmount(2) and
// statmount(2) tell them (Linux 6.8). It errors on older kernels and where they
// are filtered away.
func uniqueIDs() (map[uint64]uint64, error) {
	const (
		listRoot = ^uint64(0) // LSMT_ROOT: everything below the root directory
		basic    = 0x2        // STATMOUNT_MNT_BASIC
	)
	// struct mnt_id_req, its first version.
	type request struct {
		size, _   uint32
		id, param uint64
	}
	// struct statmount: 512 bytes, of which these count.
	type mount struct {
		size, _ uint32
		mask    uint64
		_       [3]uint64
		id      uint64
		_       uint64
		idOld   uint32
		_       uint32
		_       [448]byte
	}
	unique := make(map[uint64]uint64)
	var ids [256]uint64
	req := request{id: listRoot}
	req.size = uint32(unsafe.Sizeof(req))
	for {
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
		if errno != 0 {
			return nil, fmt.Errorf("listmount: %w", errno)
		}
		for _, id := range ids[:n] {
			one := request{size: req.size, id: id, param: basic}
			var m mount
			_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&one)),
				uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0, 0, 0)
			if errno == unix.ENOENT {
				continue // gone since
			}
			if errno != 0 {
				return nil, fmt.Errorf("statmount: %w", errno)
			}
			if m.mask&basic != 0 {
				unique[uint64(m.idOld)] = m.id
			}
		}
		if n < uintptr(len(ids)) {
			return unique, nil
		}
		req.param = ids[n-1]
	}
}
