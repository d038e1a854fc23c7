// SPDX-License-Identifier: Apache-2.0

// Package memfs is a file system that exists only in memory, for tests of what
// looks at file systems through [engine.Probes]. It can present trees of Linux,
// macOS and Windows on any of them, with what is hard to come by in a test:
// mounts, junctions, reparse points, volumes that disagree with the mount table,
// objects that cannot be inspected, and changes between two looks.
//
//	fsys := memfs.New(engine.PlatformFor("linux"))
//	fsys.MustBuild(`
//		dir  /srv/repo
//		file /srv/repo/main.go
//		link /srv/repo/out -> /etc
//		dir  /srv/repo/mnt dev=77
//	`)
//	fsys.MustMount(memfs.Mount{Point: "/srv/repo/mnt", Dev: 77})
//
// Unlike a kernel it follows no link in the middle of a path: the engine never
// asks for that, and a probe that did it silently would hide that it does.
package memfs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// A Node is one object of the tree. The zero value of each field but Kind is
// filled in: the device of the parent, a new inode number.
type Node struct {
	Kind       engine.Kind
	Target     string // of a link
	Dev        mountmap.StatDev
	Ino        uint64
	Generation uint64 // known where not 0
	Changed    time.Time
	FSType     string
	Magic      bool
	ReparseTag uint32
	DirReparse bool
	MountRoot  bool   // for systems without a mount table
	Short      string // the 8.3 alias
	FoldsCase  bool   // names in this directory match whatever their case
	Err        error  // what inspecting it gives
}

// A Mount is a line of the mount table. It is mounted on what is on top at
// Point at that moment.
type Mount struct {
	Point  string
	Dev    mountmap.KernelDev
	Root   string // default "/"
	FSType string // default "ext4"
}

// FS is the file system. Its methods are safe for use by several goroutines.
type FS struct {
	// Dir is what WorkingDir returns; set it before use.
	Dir string
	// MountIDs makes Inspect tell mount ids and roots of mounts, as Linux does
	// since 5.8; UniqueIDs those that are never used again. Without them the
	// device numbers have to do.
	MountIDs, UniqueIDs bool
	// MountErr is what Mounts returns instead of a table.
	MountErr error

	platform engine.PlatformIdentity
	fold     bool

	mu       sync.RWMutex
	roots    map[string]*node // by device, "" for POSIX
	mounts   []mountmap.Mount
	table    *mountmap.Table
	lastIno  uint64
	inspects atomic.Int64
}

type node struct {
	Node
	name     string
	children []*node
}

// New returns an empty file system of the given platform. A POSIX one has its
// root directory on device 42 and that in its mount table.
func New(platform engine.PlatformIdentity) *FS {
	f := &FS{
		platform: platform,
		fold:     platform.CasePolicy == engine.CaseInsensitive,
		roots:    make(map[string]*node),
		lastIno:  1,
	}
	if platform.Platform == "windows" {
		f.Dir = `C:\`
		return f
	}
	f.Dir = "/"
	if platform.Platform == "linux" {
		f.MustMount(Mount{Point: "/", Dev: 42})
	}
	return f
}

// Mount adds a line to the mount table.
func (f *FS) Mount(m Mount) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := mountmap.Mount{
		ID:       uint64(len(f.mounts) + 21),
		UniqueID: uint64(len(f.mounts)) + 1<<32,
		ParentID: 1,
		Dev:      m.Dev,
		Root:     m.Root,
		Point:    m.Point,
		Options:  "rw",
		FSType:   m.FSType,
		Source:   "memfs",
	}
	if line.Root == "" {
		line.Root = "/"
	}
	if line.FSType == "" {
		line.FSType = "ext4"
	}
	if below, ok := f.table.Lookup(m.Point); ok {
		line.ParentID = below.ID
	}
	table, err := mountmap.New(append(slices.Clone(f.mounts), line))
	if err != nil {
		return err
	}
	f.mounts = append(f.mounts, line)
	f.table = table
	return nil
}

// MustMount is Mount for fixtures: it panics where that errors.
func (f *FS) MustMount(m Mount) {
	if err := f.Mount(m); err != nil {
		panic(err)
	}
}

// ClearMounts empties the mount table. Until the next Mount, Mounts errors.
func (f *FS) ClearMounts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounts, f.table = nil, nil
}

// Add puts an object at path, with its parents as directories where they are
// missing, and replaces what was there.
func (f *FS) Add(path string, n Node) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	device, names, err := f.split(path)
	if err != nil {
		return err
	}
	at := f.roots[device]
	if at == nil {
		at = &node{Node: Node{Kind: engine.KindDir, Dev: 42, Ino: f.newIno()}}
		f.roots[device] = at
	}
	for i, name := range names {
		next := f.lookup(at, name)
		if next == nil {
			next = &node{Node: Node{Kind: engine.KindDir, Dev: at.Dev, Ino: f.newIno()}, name: name}
			at.children = append(at.children, next)
		}
		if i < len(names)-1 && next.Kind != engine.KindDir && !next.DirReparse && next.Err == nil {
			return &fs.PathError{Op: "add", Path: path, Err: syscall.ENOTDIR}
		}
		at = next
	}
	if n.Dev == 0 {
		n.Dev = at.Dev
	}
	if n.Ino == 0 {
		n.Ino = f.newIno()
	}
	at.Node = n
	if n.Kind != engine.KindDir && !n.DirReparse && n.Err == nil {
		at.children = nil
	}
	return nil
}

// AddTwin puts an object beside another whose name matches its own, as a
// directory can hold that was filled while case counted.
func (f *FS) AddTwin(path string, n Node) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	device, names, err := f.split(path)
	if err != nil {
		return err
	}
	dir, err := f.walk(path, device, names[:len(names)-1])
	if err != nil {
		return err
	}
	if n.Dev == 0 {
		n.Dev = dir.Dev
	}
	if n.Ino == 0 {
		n.Ino = f.newIno()
	}
	dir.children = append(dir.children, &node{Node: n, name: names[len(names)-1]})
	return nil
}

// Remove takes away what is at path, with everything below it.
func (f *FS) Remove(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	device, names, err := f.split(path)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		delete(f.roots, device)
		return nil
	}
	dir, err := f.walk(path, device, names[:len(names)-1])
	if err != nil {
		return err
	}
	child := f.lookup(dir, names[len(names)-1])
	if child == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	dir.children = slices.DeleteFunc(dir.children, func(n *node) bool { return n == child })
	return nil
}

// Rename moves what is at from to the name to, replacing what is there.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	device, names, err := f.split(from)
	if err == nil && len(names) == 0 {
		err = &fs.PathError{Op: "rename", Path: from, Err: fs.ErrInvalid}
	}
	var moved *node
	if err == nil {
		moved, err = f.walk(from, device, names)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.Remove(from); err != nil {
		return err
	}
	if err := f.Add(to, moved.Node); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	device, names, err = f.split(to)
	if err != nil {
		return err
	}
	there, err := f.walk(to, device, names)
	if err != nil {
		return err
	}
	there.children = moved.children
	return nil
}

// Inspections returns how often Inspect was called.
func (f *FS) Inspections() int { return int(f.inspects.Load()) }

func (f *FS) newIno() uint64 {
	f.lastIno++
	return f.lastIno
}

// split takes a path apart into its device and its names.
func (f *FS) split(path string) (device string, names []string, err error) {
	seps := "/"
	if f.platform.Platform == "windows" {
		seps = `\/`
		switch {
		case len(path) >= 3 && path[1] == ':' && strings.IndexByte(seps, path[2]) >= 0:
			device, path = strings.ToUpper(path[:2]), path[2:]
		case strings.HasPrefix(path, `\\`):
			parts := strings.SplitN(path[2:], `\`, 3)
			if len(parts) < 2 {
				return "", nil, &fs.PathError{Op: "split", Path: path, Err: fs.ErrInvalid}
			}
			device = strings.ToUpper(`\\` + parts[0] + `\` + parts[1])
			path = strings.Join(parts[2:], "")
		default:
			return "", nil, &fs.PathError{Op: "split", Path: path, Err: fs.ErrInvalid}
		}
	} else if !strings.HasPrefix(path, "/") {
		return "", nil, &fs.PathError{Op: "split", Path: path, Err: fs.ErrInvalid}
	}
	return device, strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(seps, r) }), nil
}

// lookup finds a name in a directory: the exact one first.
func (f *FS) lookup(dir *node, name string) *node {
	for _, c := range dir.children {
		if c.name == name {
			return c
		}
	}
	for _, c := range dir.children {
		if (f.fold || dir.FoldsCase) && lower(c.name) == lower(name) || c.Short != "" && lower(c.Short) == lower(name) {
			return c
		}
	}
	return nil
}

func lower(s string) string { return strings.Map(unicode.ToLower, s) }

// walk finds the node below names, following nothing.
func (f *FS) walk(path, device string, names []string) (*node, error) {
	at := f.roots[device]
	if at == nil {
		return nil, &fs.PathError{Op: "inspect", Path: path, Err: syscall.ENOENT}
	}
	for i, name := range names {
		at = f.lookup(at, name)
		if at == nil {
			return nil, &fs.PathError{Op: "inspect", Path: path, Err: syscall.ENOENT}
		}
		if i == len(names)-1 {
			break
		}
		switch {
		case at.Err != nil:
			return nil, &fs.PathError{Op: "inspect", Path: path, Err: at.Err}
		case at.Kind == engine.KindDir, at.DirReparse:
		case at.Kind == engine.KindSymlink, at.Kind == engine.KindJunction:
			return nil, &fs.PathError{Op: "inspect", Path: path, Err: errThroughLink}
		default:
			return nil, &fs.PathError{Op: "inspect", Path: path, Err: syscall.ENOTDIR}
		}
	}
	return at, nil
}

var errThroughLink = errors.New("memfs: a link in the middle of the path")

// find is walk for a path.
func (f *FS) find(path string) (*node, error) {
	device, names, err := f.split(path)
	if err != nil {
		return nil, err
	}
	return f.walk(path, device, names)
}

// Inspect implements [engine.Probes].
func (f *FS) Inspect(path string) (engine.Entry, error) {
	f.inspects.Add(1)
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.find(path)
	if err != nil {
		return engine.Entry{}, err
	}
	if n.Err != nil {
		return engine.Entry{}, &fs.PathError{Op: "inspect", Path: path, Err: n.Err}
	}
	e := engine.Entry{
		Kind:          n.Kind,
		Dev:           n.Dev,
		Ino:           n.Ino,
		Generation:    n.Generation,
		HasGeneration: n.Generation != 0,
		ChangeTime:    n.Changed,
		FSType:        n.FSType,
		Magic:         n.Magic,
		ReparseTag:    n.ReparseTag,
		DirReparse:    n.DirReparse,
		MountRoot:     n.MountRoot,
	}
	if f.fold {
		e.Name = n.name
	}
	if f.MountIDs {
		if m, ok := f.table.Lookup(path); ok {
			e.MountID, e.UniqueMountID = m.ID, false
			if f.UniqueIDs {
				e.MountID, e.UniqueMountID = m.UniqueID, true
			}
		}
		_, e.MountRoot = f.table.At(path)
	}
	return e, nil
}

// ReadLink implements [engine.Probes].
func (f *FS) ReadLink(path string) (string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.find(path)
	if err != nil {
		return "", err
	}
	switch n.Kind {
	case engine.KindSymlink, engine.KindJunction, engine.KindReparse:
		return n.Target, nil
	}
	return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.EINVAL}
}

// ReadDir implements [engine.Probes].
func (f *FS) ReadDir(path string) ([]string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if n.Err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: path, Err: n.Err}
	}
	var names []string
	for _, c := range n.children {
		names = append(names, c.name)
	}
	return names, nil
}

// FoldsCase implements [engine.CaseFolder].
func (f *FS) FoldsCase(path string) (bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.find(path)
	if err != nil {
		return false, err
	}
	return n.FoldsCase, nil
}

// LongPath implements [engine.LongNamer].
func (f *FS) LongPath(path string) (string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	device, names, err := f.split(path)
	if err != nil {
		return "", err
	}
	at := f.roots[device]
	for i, name := range names {
		if at != nil {
			at = f.lookup(at, name)
		}
		if at != nil && strings.EqualFold(at.Short, name) {
			names[i] = at.name
		}
	}
	return device + `\` + strings.Join(names, `\`), nil
}

// Mounts implements [engine.Probes].
func (f *FS) Mounts() (*mountmap.Table, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.MountErr != nil:
		return nil, f.MountErr
	case f.platform.Platform != "linux":
		return nil, engine.ErrNotSupported
	case f.table == nil:
		return nil, errors.New("memfs: no mounts")
	}
	return f.table, nil
}

// WorkingDir implements [engine.Probes].
func (f *FS) WorkingDir() (string, error) { return f.Dir, nil }

// Platform implements [engine.Probes].
func (f *FS) Platform() engine.PlatformIdentity { return f.platform }

// kinds are the words that Build knows.
var kinds = map[string]engine.Kind{
	"file": engine.KindFile, "dir": engine.KindDir, "link": engine.KindSymlink,
	"junction": engine.KindJunction, "reparse": engine.KindReparse,
	"fifo": engine.KindFIFO, "socket": engine.KindSocket,
	"char": engine.KindCharDevice, "block": engine.KindBlockDevice,
}

// Build adds objects as a text describes them, one a line:
//
//	KIND PATH [-> TARGET] [KEY=VALUE ...]
//
// KIND is file, dir, link, junction, reparse, fifo, socket, char, block, or
// error; a path or target with spaces is quoted as in Go. The keys are dev, ino,
// gen, fs, short, tag (hexadecimal) and err (EACCES, EIO ...), and the flags
// magic, dirreparse, mountroot and casefold without a value.
func (f *FS) Build(text string) error {
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := f.buildLine(line); err != nil {
			return fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
	}
	return nil
}

// MustBuild is Build for fixtures: it panics where that errors.
func (f *FS) MustBuild(text string) {
	if err := f.Build(text); err != nil {
		panic(err)
	}
}

func (f *FS) buildLine(line string) error {
	word := func() (string, error) {
		line = strings.TrimLeft(line, " \t")
		if strings.HasPrefix(line, `"`) {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return "", err
			}
			line = line[len(quoted):]
			return strconv.Unquote(quoted)
		}
		end := strings.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		w := line[:end]
		line = line[end:]
		return w, nil
	}
	kind, err := word()
	if err != nil {
		return err
	}
	path, err := word()
	if err != nil {
		return err
	}
	n := Node{Kind: kinds[kind]}
	if n.Kind == engine.KindUnknown && kind != "error" {
		return fmt.Errorf("unknown kind %q", kind)
	}
	for strings.TrimSpace(line) != "" {
		w, err := word()
		if err != nil {
			return err
		}
		if w == "->" {
			if n.Target, err = word(); err != nil {
				return err
			}
			continue
		}
		if err := n.set(w); err != nil {
			return err
		}
	}
	if kind == "error" && n.Err == nil {
		return errors.New("error without err=")
	}
	return f.Add(path, n)
}

// set reads one KEY=VALUE or flag.
func (n *Node) set(word string) error {
	key, value, _ := strings.Cut(word, "=")
	base := 10
	if key == "tag" {
		base = 16
	}
	number, numberErr := strconv.ParseUint(value, base, 64)
	switch key {
	case "dev":
		n.Dev = mountmap.StatDev(number)
	case "ino":
		n.Ino = number
	case "gen":
		n.Generation = number
	case "tag":
		n.ReparseTag = uint32(number)
	case "fs":
		n.FSType, numberErr = value, nil
	case "short":
		n.Short, numberErr = value, nil
	case "err":
		n.Err, numberErr = Errno(value), nil
	case "magic":
		n.Magic, numberErr = true, nil
	case "dirreparse":
		n.DirReparse, numberErr = true, nil
	case "mountroot":
		n.MountRoot, numberErr = true, nil
	case "casefold":
		n.FoldsCase, numberErr = true, nil
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return numberErr
}

// Errno returns the error with the name that errno.h gives it, and a plain
// error of that name where it is not one of those a probe meets.
func Errno(name string) error {
	switch name {
	case "ENOENT":
		return syscall.ENOENT
	case "EACCES":
		return syscall.EACCES
	case "EPERM":
		return syscall.EPERM
	case "EIO":
		return syscall.EIO
	case "ELOOP":
		return syscall.ELOOP
	case "ENOTDIR":
		return syscall.ENOTDIR
	case "ENAMETOOLONG":
		return syscall.ENAMETOOLONG
	case "ESTALE":
		return syscall.ESTALE
	}
	return errors.New(name)
}
