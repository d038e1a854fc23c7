// SPDX-License-Identifier: Apache-2.0

// Package scan looks through a workspace for what deserves a look before the workspace is trusted: ways out of it,
// objects that are more than files, names that deceive.
//
// A scan reads directories and the metadata of what is in them. It opens no file, follows no link and crosses no mount:
// directories are opened below a handle of the workspace ([os.Root]), and one that is not the directory that was seen
// before is not read but reported. What disappears meanwhile is only counted. A scan is about a tree at rest; who can
// change the tree during a scan can hide from it.
package scan

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/mountmap"
)

// Code says what was found, as a stable token. The set only grows. Where the engine has a word for the same thing it is
// that word.
type Code string

const (
	LinkEscape   Code = "link-escape"       // a link, junction or reparse point that leads out of the workspace
	MagicLink    Code = "magic-link"        // a link of procfs that leads to an object and not to a path
	LinkLoop     Code = "link-loop"         // a link through more than 40 links
	HardLink     Code = "hard-link"         // a file with several names, all of which were seen
	HardLinkOut  Code = "hard-link-outside" // a file with names that were not seen: they lie elsewhere
	MountPoint   Code = "mount-point"       // something is mounted here; it was not entered
	DeviceChange Code = "device-changed"    // another device and no mount: a subvolume; it was not entered
	DeviceNode   Code = "device-node"       // a character or block device
	FIFO         Code = "fifo"              // a named pipe
	Socket       Code = "socket"            // a unix socket
	SetID        Code = "set-id"            // an executable that runs as another user or group
	NameClash    Code = "name-clash"        // names that are one where case or normal form does not count
	NameNotUTF8  Code = "name-not-utf8"     // a name that is not UTF-8
	NameControl  Code = "name-control"      // a name with control characters or changes of direction
	Unreadable   Code = "unreadable"        // trouble: it could not be looked at
	Changed      Code = "changed"           // trouble: it was replaced while the scan went on
)

// Trouble reports whether the code says that something was not looked at.
func (c Code) Trouble() bool { return c == Unreadable || c == Changed }

// A Finding is one thing that was found.
type Finding struct {
	// Path is relative to the workspace.
	Path   string      `json:"path"`
	Kind   engine.Kind `json:"kind"`
	Code   Code        `json:"code"`
	Reason string      `json:"reason"`
	// Target is what a link holds.
	Target string `json:"target,omitempty"`
	// Links is how many names a file has, and Seen how many of them the scan met.
	Links uint64 `json:"links,omitempty"`
	Seen  uint64 `json:"seen,omitempty"`
	// Others are the names in the same directory that clash with the last one of Path.
	Others []string `json:"others,omitempty"`
	// PathBytes holds Path where it is not UTF-8, TargetBytes Target.
	PathBytes   []byte `json:"pathBytes,omitempty"`
	TargetBytes []byte `json:"targetBytes,omitempty"`
}

// Progress is how far a scan got.
type Progress struct {
	Entries     int64 `json:"entries"`
	Directories int64 `json:"directories"` // of the entries
	Findings    int64 `json:"findings"`
	Trouble     int64 `json:"trouble"`
	Vanished    int64 `json:"vanished"` // entries that were gone before they were looked at
	// Done goes from 0 to 1. It only grows, but not evenly: how much is left nobody knows.
	Done float64 `json:"-"`
}

// A Scan is one look through a workspace, or a part of one.
type Scan struct {
	workspace engine.WorkspaceIdentity
	probes    engine.Probes
	report    func(Finding) error

	root   *os.Root
	base   object          // the workspace's own directory
	mounts *mountmap.Table // asked where an object does not tell its mount

	entries, directories, findings, trouble, vanished atomic.Int64

	mu      sync.Mutex
	wake    *sync.Cond // something was put on the stack, or the last worker is done
	stack   []*directory
	active  int // workers that may still put something on the stack
	done    float64
	failed  error // of report
	several map[inode]*file
}

// directory is one that is to be read, or read on.
type directory struct {
	rel    string
	seen   object
	handle *os.File // open between two batches
	hashes []uint64 // of the names so far
	weight float64  // its share of the whole
}

type inode struct{ dev, ino uint64 }

// file is one with several names.
type file struct {
	path  string // the least of those seen, so that one tree gives one report
	kind  engine.Kind
	links uint64
	seen  uint64
}

// object is what the system says of an entry.
type object struct {
	kind       engine.Kind
	inode      inode
	links      uint64
	mount      uint64 // 0 where not known
	mountRoot  bool
	setID      bool
	sharedDevs bool // one mount shows several devices (overlayfs)
}

// New makes a scan of the workspace. Findings are given to report, one at a time and in no order; an error of it ends
// the scan.
func New(workspace engine.WorkspaceIdentity, probes engine.Probes, report func(Finding) error) *Scan {
	s := &Scan{workspace: workspace, probes: probes, report: report, several: map[inode]*file{}}
	s.wake = sync.NewCond(&s.mu)
	return s
}

// Run scans the directories parts, given relative to the workspace, or "." for all of it. It errors where one of them
// cannot be scanned at all, and with what report returned; trouble below is reported.
func (s *Scan) Run(parts ...string) error {
	if err := s.workspace.Err(); err != nil {
		return err
	}
	root, err := os.OpenRoot(s.workspace.CanonicalRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	s.root = root
	if s.base, err = s.look("."); err != nil {
		return err
	}
	if s.mounts, err = s.probes.Mounts(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	for _, part := range parts {
		o, err := s.look(part)
		if err != nil {
			return err
		}
		if code, reason := s.boundary(part, &o); code != "" {
			return &fs.PathError{Op: "scan", Path: part, Err: errors.New(reason)}
		}
		s.entries.Add(1)
		s.directories.Add(1)
		s.stack = append(s.stack, &directory{rel: part, seen: o, weight: 1 / float64(len(parts))})
	}
	workers := max(4, 2*runtime.GOMAXPROCS(0))
	s.active = workers
	var group sync.WaitGroup
	for range workers {
		group.Go(s.work)
	}
	group.Wait()
	s.closeAll()
	s.reportSeveral()
	return s.failed
}

// look describes a directory that the scan starts at.
func (s *Scan) look(rel string) (object, error) {
	handle, err := openDir(s.root, rel)
	if err != nil {
		return object{}, err
	}
	defer handle.Close()
	o, err := s.inspectHandle(handle, rel)
	if err == nil && o.kind != engine.KindDir { // not every system can be told to open nothing else
		err = &fs.PathError{Op: "scan", Path: rel, Err: syscall.ENOTDIR}
	}
	return o, err
}

// Progress says how far the scan is; it may be asked at any time.
func (s *Scan) Progress() Progress {
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	return Progress{s.entries.Load(), s.directories.Load(), s.findings.Load(), s.trouble.Load(), s.vanished.Load(), min(done, 1)}
}

func (s *Scan) work() {
	w := newWorker(s)
	for {
		d := s.next()
		if d == nil {
			return
		}
		w.batch(d)
	}
}

// next takes a directory from the top of the stack, so that few are waiting at any time. It returns nil when nothing is
// left and nothing can come.
func (s *Scan) next() *directory {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	for len(s.stack) == 0 && s.active > 0 && s.failed == nil {
		s.wake.Wait()
	}
	if len(s.stack) == 0 || s.failed != nil {
		s.wake.Broadcast()
		return nil
	}
	d := s.stack[len(s.stack)-1]
	s.stack = s.stack[:len(s.stack)-1]
	s.active++
	return d
}

// finish puts what a batch led to on the stack, and counts what of the whole is done.
func (s *Scan) finish(found []*directory, done float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stack = append(s.stack, found...)
	s.done += done
	if len(found) > 0 {
		s.wake.Broadcast()
	}
}

// found reports a finding.
func (s *Scan) found(f Finding) {
	if !utf8.ValidString(f.Path) {
		f.PathBytes = []byte(f.Path)
	}
	if !utf8.ValidString(f.Target) {
		f.TargetBytes = []byte(f.Target)
	}
	if f.Code.Trouble() {
		s.trouble.Add(1)
	} else {
		s.findings.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = s.report(f)
	}
}

// troubled reports what could not be looked at, and only counts what is not there any more.
func (s *Scan) troubled(path string, kind engine.Kind, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		s.vanished.Add(1)
		return
	}
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		err = pathErr.Err // the finding has the path
	}
	s.found(Finding{Path: path, Kind: kind, Code: Unreadable, Reason: "it cannot be looked at: " + err.Error()})
}

// count notes a name of a file that has several. When the last one is seen nothing of it is kept.
func (s *Scan) count(path string, o *object) {
	s.mu.Lock()
	f := s.several[o.inode]
	if f == nil {
		f = &file{path: path, kind: o.kind}
		s.several[o.inode] = f
	}
	f.path = min(f.path, path)
	f.links = o.links
	f.seen++
	all := f.seen >= f.links
	if all {
		delete(s.several, o.inode)
	}
	s.mu.Unlock()
	if all {
		s.found(Finding{
			Path: f.path, Kind: f.kind, Code: HardLink, Links: f.links, Seen: f.seen,
			Reason: fmt.Sprintf("the file has %d names, all of them here", f.links),
		})
	}
}

// reportSeveral reports files of which names are missing.
func (s *Scan) reportSeveral() {
	for _, f := range s.several {
		s.found(Finding{
			Path: f.path, Kind: f.kind, Code: HardLinkOut, Links: f.links, Seen: f.seen,
			Reason: fmt.Sprintf("%d of its %d names are elsewhere: what is written here changes there", f.links-f.seen, f.links),
		})
	}
}

func (s *Scan) closeAll() {
	for _, d := range s.stack {
		if d.handle != nil {
			d.handle.Close()
		}
	}
}

// batchSize is how many names are read before what they lead to is scanned; it bounds what a scan keeps in memory.
const batchSize = 1024

// worker has what goroutines cannot share.
type worker struct {
	scan *Scan
	fold folder
}

func newWorker(s *Scan) *worker { return &worker{scan: s, fold: newFolder()} }

// batch reads some names of a directory. Directories among them are scanned before the next batch of the same one.
func (w *worker) batch(d *directory) {
	s := w.scan
	if d.handle == nil && !w.open(d) {
		s.finish(nil, d.weight)
		return
	}
	names, err := d.handle.Readdirnames(batchSize)
	if err == nil && len(names) < batchSize {
		// Most likely the end. To know spares an open handle until all below is done.
		var rest []string
		rest, err = d.handle.Readdirnames(batchSize)
		names = append(names, rest...)
	}
	weight := d.weight
	more := err == nil
	if more {
		weight /= 2 // nobody knows how much more
	}
	var below []*directory
	for _, name := range names {
		if sub := w.entry(d, name); sub != nil {
			below = append(below, sub)
		}
	}
	share := weight / float64(len(below)+1)
	for _, sub := range below {
		sub.weight = share
	}
	if more {
		d.weight -= weight
		// Under the others: they are taken first.
		below = append([]*directory{d}, below...)
	} else {
		if err != io.EOF {
			s.troubled(d.rel, engine.KindDir, err)
		}
		w.clashes(d)
		d.handle.Close()
	}
	s.finish(below, share)
}

// open opens a directory and makes sure that it is the one that was seen.
func (w *worker) open(d *directory) bool {
	s := w.scan
	handle, err := openDir(s.root, d.rel)
	if err == nil {
		var o object
		if o, err = s.inspectHandle(handle, d.rel); err == nil && o.inode == d.seen.inode && o.mount == d.seen.mount {
			d.handle = handle
			return true
		}
		handle.Close()
		if err == nil {
			err = errReplaced
		}
	}
	if errors.Is(err, errReplaced) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		s.found(Finding{Path: d.rel, Kind: engine.KindDir, Code: Changed, Reason: "it was replaced during the scan, and not looked at: scan again"})
	} else {
		s.troubled(d.rel, engine.KindDir, err)
	}
	return false
}

var errReplaced = errors.New("another object has its place")

// entry looks at one name in a directory. A directory that is to be scanned is returned.
func (w *worker) entry(d *directory, name string) *directory {
	s := w.scan
	s.entries.Add(1)
	path := name
	if d.rel != "." {
		path = d.rel + string(filepath.Separator) + name
	}
	d.hashes = append(d.hashes, w.fold.hash(name))
	o, err := s.inspect(d.handle, name, path)
	if err != nil {
		s.troubled(path, engine.KindUnknown, err)
		return nil
	}
	if code, reason := deceptive(name); code != "" {
		s.found(Finding{Path: path, Kind: o.kind, Code: code, Reason: reason})
	}
	if code, reason := s.boundary(path, &o); code != "" {
		s.found(Finding{Path: path, Kind: o.kind, Code: code, Reason: reason})
		return nil
	}
	if o.links > 1 && o.kind != engine.KindDir {
		s.count(path, &o)
	}
	switch o.kind {
	case engine.KindDir:
		s.directories.Add(1)
		return &directory{rel: path, seen: o}
	case engine.KindSymlink, engine.KindJunction, engine.KindReparse:
		s.link(path, o.kind)
	case engine.KindCharDevice, engine.KindBlockDevice:
		s.found(Finding{Path: path, Kind: o.kind, Code: DeviceNode, Reason: "a device node leads to the device, wherever it lies"})
	case engine.KindFIFO:
		s.found(Finding{Path: path, Kind: o.kind, Code: FIFO, Reason: "whoever opens a named pipe waits for somebody at the other end"})
	case engine.KindSocket:
		s.found(Finding{Path: path, Kind: o.kind, Code: Socket, Reason: "a socket leads to whatever process listens"})
	case engine.KindFile:
		if o.setID {
			s.found(Finding{Path: path, Kind: o.kind, Code: SetID, Reason: "a set-user-ID or set-group-ID file runs with its owner's rights"})
		}
	}
	return nil
}

// boundary says whether an entry is where the workspace's mount or device ends.
func (s *Scan) boundary(path string, o *object) (Code, string) {
	mounted := o.mountRoot || o.mount != s.base.mount
	if s.base.mount == 0 && !mounted {
		_, mounted = s.mounts.At(s.join(path))
	}
	if mounted {
		return MountPoint, "something is mounted here; it was not entered"
	}
	if o.inode.dev != s.base.inode.dev && (o.kind == engine.KindDir || !s.base.sharedDevs) {
		return DeviceChange, "another device begins here without a mount, such as a subvolume; it was not entered"
	}
	return "", ""
}

// link asks the engine where a link leads. It follows links within the workspace only.
func (s *Scan) link(path string, kind engine.Kind) {
	all := engine.ContainmentOptions{FollowSymlinks: true, FollowJunctions: true, FollowMountPoints: true, FollowReparsePoints: true}
	d := engine.CheckContainment(s.workspace, filepath.Join(s.workspace.CanonicalRoot, path), all, s.probes)
	f := Finding{Path: path, Kind: kind, Reason: d.Reason}
	switch d.Code {
	case engine.CodeLinkEscape:
		f.Code, f.Reason = LinkEscape, "a link leads out of the workspace"
	case engine.CodeMagicLink:
		f.Code = MagicLink
	case engine.CodeLinkLoop:
		f.Code = LinkLoop
	case engine.CodeInspectFailed, engine.CodeRootChanged, engine.CodeMountTable, engine.CodeUnsafePath:
		f.Code = Unreadable
	default:
		return
	}
	if target, err := s.root.Readlink(path); err == nil {
		f.Target = target
	}
	s.found(f)
}

// openDir opens a directory below the root, and nothing that is no directory: the open of a FIFO would wait.
func openDir(root *os.Root, rel string) (*os.File, error) {
	return root.OpenFile(rel, os.O_RDONLY|directoryFlags, 0)
}

// join makes the path of an entry for the system.
func (s *Scan) join(rel string) string {
	if rel == "." {
		return s.workspace.CanonicalRoot
	}
	return strings.TrimRight(s.workspace.CanonicalRoot, string(filepath.Separator)) + string(filepath.Separator) + rel
}
