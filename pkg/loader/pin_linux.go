package loader

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What is attached is asked for at every start, for each of some fifty links, and every object of a policy is learnt.
// cilium/ebpf's LoadPinnedLink and Program.Info ask for much more than is needed here (types, map ids, instructions), and
// its Program.Run loads programs to see whether it may; that came to half of what a start costs. So these bpf(2) commands
// are called directly. See bpf(2) and linux/bpf.h for the layouts. Addresses in them are pointers, not numbers: what they
// lead to may lie on a goroutine's stack, and where that moves the runtime changes pointers only.

// pinned is what a pinned link runs.
type pinned struct {
	link, program uint32
	tag           uint64
	misses        uint64 // times that the kernel skipped the program; see attached
}

// readPin asks for the link at a path below a BPF file system. A missing one is fs.ErrNotExist.
func readPin(path string) (pinned, error) {
	var p pinned
	fd, err := openPin(path)
	if err != nil {
		return p, err
	}
	defer unix.Close(fd)
	var link [16]byte // struct bpf_link_info: type, id, prog_id
	if err := objectInfo(fd, link[:]); err != nil {
		return p, err
	}
	p.link, p.program = binary.NativeEndian.Uint32(link[4:]), binary.NativeEndian.Uint32(link[8:])
	if p.program == 0 {
		return p, errors.New("it was detached")
	}
	prog, err := programByID(p.program)
	if err != nil {
		return p, err
	}
	defer unix.Close(prog)
	const tag, misses = 8, 208 // in struct bpf_prog_info
	var info [misses + 8]byte
	if err := objectInfo(prog, info[:]); err != nil {
		return p, err
	}
	p.tag, p.misses = binary.BigEndian.Uint64(info[tag:]), binary.NativeEndian.Uint64(info[misses:])
	return p, nil
}

// isLink reports whether what is pinned at a path is a link and not a program or a map: bpf_link_show_fdinfo gives an id.
func isLink(path string) (bool, error) {
	fd, err := openPin(path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	return strings.Contains(string(text), "\nlink_id:"), err
}

// mapID tells a map from every other one.
func mapID(fd int) (uint32, error) {
	var info [8]byte // struct bpf_map_info: type, id
	err := objectInfo(fd, info[:])
	return binary.NativeEndian.Uint32(info[4:]), err
}

// pinnedMapID is mapID of what is pinned at a path. A missing pin is fs.ErrNotExist.
func pinnedMapID(path string) (uint32, error) {
	fd, err := openPin(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return mapID(fd)
}

func openPin(path string) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := struct {
		path  unsafe.Pointer
		fd    uint32
		flags uint32
	}{path: unsafe.Pointer(name)}
	fd, err := bpf(unix.BPF_OBJ_GET, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(name)
	return fd, err
}

// mayListPrograms is nil where this process has what every question about attached programs takes: CAP_SYS_ADMIN in the
// initial user namespace (bpf_prog_get_next_id). Without it each link would look lost. Nothing is made or opened.
func mayListPrograms() error {
	attr := struct{ start, next, flags uint32 }{}
	_, err := bpf(unix.BPF_PROG_GET_NEXT_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if errors.Is(err, unix.EPERM) {
		return err
	}
	return nil // there are some, or none; what else is wrong shows where it matters
}

func programByID(id uint32) (int, error) { return byID(unix.BPF_PROG_GET_FD_BY_ID, id) }

// byID opens a program or a link.
func byID(cmd uintptr, id uint32) (int, error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	return bpf(cmd, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// replacements looks through all links for those that put another function in the place of one of a program's own, and
// gives the programs: BPF_PROG_TYPE_EXT, see bpf_tracing_prog_attach in the kernel's kernel/bpf/syscall.c. Nothing about
// the program itself tells. own are the links that need no look, the programs' own ones.
func replacements(own map[uint32]bool) (programs []uint32, err error) {
	attr := struct{ start, next, flags uint32 }{}
	for {
		_, err := bpf(unix.BPF_LINK_GET_NEXT_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		if errors.Is(err, unix.ENOENT) {
			return programs, nil
		}
		if err != nil {
			return nil, err
		}
		attr.start = attr.next
		if own[attr.next] {
			continue
		}
		target, err := replacedBy(attr.next)
		if err != nil && !errors.Is(err, unix.ENOENT) { // else it ended meanwhile
			return nil, err
		}
		if target != 0 {
			programs = append(programs, target)
		}
	}
}

// replacedBy gives the program of which a link replaces a function; 0: the link is of another kind.
func replacedBy(id uint32) (program uint32, err error) {
	fd, err := byID(unix.BPF_LINK_GET_FD_BY_ID, id)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var link [32]byte // struct bpf_link_info: type, id, prog_id, and of a tracing one at 16: attach_type, target_obj_id
	if err := objectInfo(fd, link[:]); err != nil {
		return 0, err
	}
	if binary.NativeEndian.Uint32(link[:]) != unix.BPF_LINK_TYPE_TRACING {
		return 0, nil
	}
	prog, err := programByID(binary.NativeEndian.Uint32(link[8:]))
	if err != nil {
		return 0, err
	}
	defer unix.Close(prog)
	var info [4]byte // struct bpf_prog_info: type
	if err := objectInfo(prog, info[:]); err != nil {
		return 0, err
	}
	if binary.NativeEndian.Uint32(info[:]) != unix.BPF_PROG_TYPE_EXT {
		return 0, nil
	}
	return binary.NativeEndian.Uint32(link[20:]), nil
}

// runProgram runs a program of type BPF_PROG_TYPE_SYSCALL on the calling thread. It reads and writes its context in place.
func runProgram[T any](program *ebpf.Program, context *T) error {
	attr := struct {
		fd, retval, sizeIn, sizeOut uint32
		in, out                     uint64
		repeat, duration            uint32
		contextSize, contextOutSize uint32
		context, contextOut         unsafe.Pointer
		flags, cpu, batch, pad      uint32
	}{fd: uint32(program.FD()), contextSize: uint32(unsafe.Sizeof(*context)), context: unsafe.Pointer(context)}
	_, err := bpf(unix.BPF_PROG_TEST_RUN, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(context)
	return err
}

func objectInfo(fd int, info []byte) error {
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{fd: uint32(fd), size: uint32(len(info)), info: unsafe.Pointer(&info[0])}
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(info)
	return err
}

func bpf(cmd uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return -1, errno
		}
	}
}
