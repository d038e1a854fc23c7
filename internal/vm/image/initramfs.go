// Package image makes what a guest boots from: kernels, the initramfs, disks.
// Everything that takes time is cached below one folder.
package image

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// Initramfs writes a cpio archive of the "newc" form that the kernel unpacks as
// its first root, uncompressed: under emulation the guest takes longer to
// decompress it than QEMU to hand it over. All files belong to root.
//
// The first error sticks and is returned by Close.
type Initramfs struct {
	w    *cpio.Writer
	dirs map[string]bool
	err  error
}

// NewInitramfs begins an archive.
func NewInitramfs(w io.Writer) *Initramfs {
	return &Initramfs{w: cpio.NewWriter(w), dirs: map[string]bool{"": true}}
}

// Dir adds a directory and those above it. A second call with the same name
// changes nothing.
func (i *Initramfs) Dir(name string, perm fs.FileMode) {
	name = clean(name)
	if i.dirs[name] {
		return
	}
	if parent := path.Dir(name); !i.dirs[parent] {
		i.Dir(parent, 0o755)
	}
	i.dirs[name] = true
	i.header(&cpio.Header{Name: name, Mode: cpio.TypeDir | mode(perm), Links: 2})
}

// File adds a regular file.
func (i *Initramfs) File(name string, perm fs.FileMode, data []byte) {
	name = clean(name)
	i.Dir(path.Dir(name), 0o755)
	i.header(&cpio.Header{Name: name, Mode: cpio.TypeReg | mode(perm), Size: int64(len(data)), Links: 1})
	if i.err == nil {
		_, i.err = i.w.Write(data)
	}
}

// Symlink adds a symbolic link.
func (i *Initramfs) Symlink(name, target string) {
	name = clean(name)
	i.Dir(path.Dir(name), 0o755)
	i.header(&cpio.Header{Name: name, Mode: cpio.TypeSymlink | 0o777, Size: int64(len(target)), Links: 1})
	if i.err == nil {
		_, i.err = io.WriteString(i.w, target)
	}
}

// Copy adds a file or tree of the host. Symbolic links stay links; devices,
// sockets and FIFOs are an error.
func (i *Initramfs) Copy(name, host string) {
	if i.err != nil {
		return
	}
	err := filepath.WalkDir(host, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(host, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		to := path.Join(name, filepath.ToSlash(rel))
		switch {
		case info.IsDir():
			i.Dir(to, info.Mode().Perm())
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			i.File(to, info.Mode().Perm(), data)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			i.Symlink(to, target)
		default:
			return &fs.PathError{Op: "copy into the guest", Path: p, Err: fmt.Errorf("%s: not a file, directory or link", info.Mode())}
		}
		return i.err
	})
	if i.err == nil {
		i.err = err
	}
}

// Close ends the archive and returns the first error of all.
func (i *Initramfs) Close() error {
	if i.err != nil {
		return i.err
	}
	return i.w.Close()
}

func (i *Initramfs) header(h *cpio.Header) {
	if i.err == nil {
		i.err = i.w.WriteHeader(h)
	}
}

func mode(perm fs.FileMode) cpio.FileMode {
	return cpio.FileMode(perm.Perm())
}

// clean makes a guest path relative: the kernel unpacks below its root.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}
