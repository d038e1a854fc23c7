//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/guest"
)

// newRoot is where the root file system of the guest is put together.
const newRoot = "/newroot"

// mount is one line of a table of file systems.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return &fs.PathError{Op: "mount " + m.kind, Path: m.target, Err: err}
	}
	return nil
}

func mountAll(table []mount) error {
	for _, m := range table {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

const quiet = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

func mountFirst() error {
	return mountAll([]mount{
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"proc", "/proc", "proc", quiet, ""},
		{"sysfs", "/sys", "sysfs", quiet, ""},
	})
}

func mountRest() error {
	// As udev makes them; scripts rely on them.
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, "/dev/"+name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return mountAll([]mount{
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", "/dev/mqueue", "mqueue", quiet, ""},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"securityfs", "/sys/kernel/security", "securityfs", quiet, ""},
		{"tracefs", "/sys/kernel/tracing", "tracefs", quiet, ""},
		{"bpf", "/sys/fs/bpf", "bpf", quiet, "mode=0700"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, "nsdelegate"},
	})
}

// loadModules loads modules in order; one that is there already is fine.
func loadModules(paths []string) error {
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &fs.PathError{Op: "load module", Path: p, Err: err}
		}
	}
	return nil
}

// switchRoot makes a proper root file system, puts the payload of the initramfs
// into it and moves there. A guest that stayed on the initramfs would have a
// root that cannot be pivoted and a mount table unlike any real system's.
func switchRoot(full bool) error {
	if err := os.Mkdir(newRoot, 0o755); err != nil {
		return err
	}
	if full {
		if err := mountLabel(guest.RootLabel, newRoot, 0); err != nil {
			return err
		}
		for label, dir := range map[string]string{guest.ModulesLabel: "/usr/lib/modules", guest.GoLabel: "/usr/local/go"} {
			if err := mountLabel(label, newRoot+dir, unix.MS_RDONLY); err != nil {
				return err
			}
		}
	} else if err := (mount{"tmpfs", newRoot, "tmpfs", 0, "mode=0755"}).do(); err != nil {
		return err
	}
	if err := moveTree("/payload", newRoot); err != nil {
		return err
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := os.MkdirAll(newRoot+dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return &fs.PathError{Op: "move mount", Path: dir, Err: err}
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return &fs.PathError{Op: "move mount", Path: newRoot, Err: err}
	}
	if err := unix.Chroot("."); err != nil {
		return &fs.PathError{Op: "chroot", Path: newRoot, Err: err}
	}
	// The root of a booted system is shared; systemd makes it so.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return &fs.PathError{Op: "share mounts", Path: "/", Err: err}
	}
	return os.Chdir("/")
}

// moveTree copies a tree to another file system and removes each file as it
// goes: both lie in memory.
func moveTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			if err := os.Mkdir(target, info.Mode().Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			return nil
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(p)
			if err != nil {
				return err
			}
			if err := os.Symlink(link, target); err != nil {
				return err
			}
		default:
			if err := copyFile(p, target, info.Mode().Perm()); err != nil {
				return err
			}
		}
		return os.Remove(p)
	})
}

func copyFile(from, to string, perm fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// What the root image has in the place is replaced, links included.
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// settle does what is left before programs run.
func settle(full bool) error {
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := mountLabel(guest.ScratchLabel, "/mnt/ext4", 0); err != nil {
		return err
	}
	if full {
		return nil
	}
	// All that the initramfs holds belongs to root.
	if err := os.Chown("/home/dev", 1000, 1000); err != nil {
		return err
	}
	if err := os.Chmod("/var/tmp", 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if out, err := exec.Command("/usr/bin/busybox", "--install", "-s", "/usr/bin").CombinedOutput(); err != nil {
		return fmt.Errorf("install busybox: %w: %s", err, out)
	}
	return nil
}

// loopbackUp switches the network interface lo on, as every system does.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("switch lo on: %w", os.NewSyscallError("ioctl", err))
	}
	return nil
}

// mountLabel mounts the ext4 file system with the given label. The drive may
// still be on its way when its driver has just been loaded: it is waited for.
func mountLabel(label, target string, flags uintptr) error {
	const wait = 30 * time.Second
	for deadline := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		device, err := findLabel(label)
		if err != nil {
			return err
		}
		if device != "" {
			return mount{device, target, "ext4", flags, ""}.do()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("find the disk %s: none of that label after %s", label, wait)
		}
	}
}

// findLabel returns the block device with the ext4 file system of that label,
// empty when there is none.
func findLabel(label string) (string, error) {
	entries, err := os.ReadDir("/sys/class/block")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		name := "/dev/" + e.Name()
		if readLabel(name) == label {
			return name, nil
		}
	}
	return "", nil
}

// readLabel returns the label of an ext4 file system, empty for anything else.
// Offsets are those of struct ext4_super_block (fs/ext4/ext4.h), which begins
// at byte 1024 of the disk.
func readLabel(device string) string {
	f, err := os.Open(device)
	if err != nil {
		return ""
	}
	defer f.Close()
	sb := make([]byte, 256)
	if _, err := f.ReadAt(sb, 1024); err != nil || binary.LittleEndian.Uint16(sb[0x38:]) != 0xef53 {
		return ""
	}
	name, _, _ := bytes.Cut(sb[0x78:0x88], []byte{0})
	return string(name)
}
