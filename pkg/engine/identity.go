// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/thenforce/thenforce/pkg/mountmap"
)

// CasePolicy says whether names that differ only in case are one name.
type CasePolicy string

const (
	CaseSensitive   CasePolicy = "case-sensitive"
	CaseInsensitive CasePolicy = "case-insensitive"
)

// UnicodePolicy is the normal form in which names are compared.
type UnicodePolicy string

const (
	UnicodeUnknown UnicodePolicy = "unknown" // byte by byte
	UnicodeNFC     UnicodePolicy = "nfc"
	UnicodeNFD     UnicodePolicy = "nfd"
)

// PlatformIdentity is how a system compares names.
type PlatformIdentity struct {
	Platform      string        `json:"platform"` // "linux", "darwin", "windows"
	CasePolicy    CasePolicy    `json:"casePolicy"`
	UnicodePolicy UnicodePolicy `json:"unicodePolicy"`
}

// PlatformFor returns the policies of a system by its GOOS name. macOS counts as
// case-sensitive although APFS folds case by default: to take two spellings for
// two names is the strict reading. Systems it does not know get Linux's.
func PlatformFor(goos string) PlatformIdentity {
	switch goos {
	case "windows":
		return PlatformIdentity{goos, CaseInsensitive, UnicodeNFC}
	case "darwin":
		return PlatformIdentity{goos, CaseSensitive, UnicodeNFD}
	}
	return PlatformIdentity{goos, CaseSensitive, UnicodeUnknown}
}

// VolumeIdentity is which directory a root was when it was bound.
type VolumeIdentity struct {
	Dev mountmap.StatDev
	Ino uint64
	// InoHigh is the upper half of a 128-bit file id (ReFS).
	InoHigh uint64
	FSType  string
}

// BindingStatus says whether a root could be bound.
type BindingStatus string

const (
	Bound   BindingStatus = "bound"
	Blocked BindingStatus = "blocked"
)

// WorkspaceIdentity is a root as it was when it was bound. It is immutable.
type WorkspaceIdentity struct {
	// WorkspaceID is the first 16 hexadecimal digits of the SHA-256 of
	// CanonicalRoot; see [WorkspaceID].
	WorkspaceID string
	Platform    PlatformIdentity
	// CanonicalRoot is the absolute path of the root with every link resolved;
	// that of a blocked binding is only made absolute and clean.
	CanonicalRoot string
	// VolumeIdentity is nil where the root's identity is not known.
	VolumeIdentity *VolumeIdentity
	BindingStatus  BindingStatus
	// BlockedReason is a sentence for a blocked binding and "" otherwise.
	BlockedReason string
	// Notices are sentences about the root that a user should know.
	Notices []string

	entry Entry // what was bound; zero for a binding that Bind did not make
	err   error
}

// Err returns nil for a bound workspace. For a blocked one it returns why, as
// an error that errors.Is can look into.
func (w *WorkspaceIdentity) Err() error {
	switch {
	case w.BindingStatus == Bound:
		return nil
	case w.err != nil:
		return w.err
	}
	return errors.New(w.BlockedReason)
}

// is reports whether e is the object that was bound.
func (w *WorkspaceIdentity) is(e *Entry) bool {
	v := w.VolumeIdentity
	if v == nil || v.Dev != e.Dev || v.Ino != e.Ino || v.InoHigh != e.InoHigh {
		return false
	}
	return !w.entry.HasGeneration || !e.HasGeneration || w.entry.Generation == e.Generation
}

// math returns the path math for the workspace: the shape of its root with the
// policies of its platform.
func (w *WorkspaceIdentity) math() pathMath {
	return pathMath{
		shape: shapeOf(w.CanonicalRoot),
		fold:  w.Platform.CasePolicy == CaseInsensitive,
		form:  w.Platform.UnicodePolicy,
	}
}

// WorkspaceID returns the first 16 hexadecimal digits of the SHA-256 of a
// canonical root, of its bytes as they are. Where names are case-insensitive it
// is lower-cased before, each rune by itself: for U+0130, and for a sigma at the
// end of a word, the reference product lower-cases otherwise and gets another id.
func WorkspaceID(canonicalRoot string, policy CasePolicy) string {
	if policy == CaseInsensitive {
		canonicalRoot = lowerRunes(canonicalRoot)
	}
	sum := sha256.Sum256([]byte(canonicalRoot))
	return hex.EncodeToString(sum[:8])
}

// Bind records which directory root is. Links in root are resolved; a relative
// root starts from the working directory.
//
// The result is blocked, with a reason, where the root is missing, cannot be
// read, is no directory, or is ambiguous: it changed between two reads, more
// than 40 links lead to it, or its name matches two entries of a directory in
// which case does not count. A blocked binding has an id too, from its lexical
// path.
func Bind(root string, probes Probes) WorkspaceIdentity {
	w := bindObject(root, probes)
	if w.BindingStatus != Bound {
		return w
	}
	if !w.entry.directory() {
		return block(w, &fs.PathError{Op: "bind", Path: w.CanonicalRoot, Err: ErrNotDirectory}, "root is not a directory")
	}
	if accesser, ok := probes.(Accesser); ok {
		if err := accesser.Access(w.CanonicalRoot); err != nil {
			return block(w, err, blockedReason(err))
		}
	}
	return w
}

// bindObject is Bind for any kind of object.
func bindObject(root string, probes Probes) WorkspaceIdentity {
	if probes == nil {
		w := WorkspaceIdentity{CanonicalRoot: root}
		return block(w, &fs.PathError{Op: "bind", Path: root, Err: ErrNotSupported}, "no file-system probe")
	}
	w := WorkspaceIdentity{Platform: probes.Platform(), CanonicalRoot: root}
	path, err := absolute(root, "", probes)
	if err != nil {
		return block(w, err, blockedReason(err))
	}
	w.CanonicalRoot = path

	r := resolver{probes: probes, math: w.math(), unique: w.Platform.CasePolicy == CaseInsensitive}
	read := func() (string, Entry, error) {
		canonical, entry, err := r.realpath(path)
		if err == nil {
			err = identify(probes, canonical, &entry)
		}
		return canonical, entry, err
	}
	canonical, entry, err := read()
	if err != nil {
		return block(w, err, blockedReason(err))
	}
	// Read twice: a root that is being exchanged has no identity to record.
	again, second, err := read()
	if err != nil || again != canonical || second.Kind != entry.Kind || second.ID() != entry.ID() {
		return block(w, &fs.PathError{Op: "bind", Path: path, Err: ErrAmbiguous}, "root is ambiguous: it changed while it was read")
	}
	w.CanonicalRoot = canonical
	w.WorkspaceID = WorkspaceID(canonical, w.Platform.CasePolicy)
	w.BindingStatus = Bound
	w.entry = entry
	if entry.ID().Known() {
		w.VolumeIdentity = &VolumeIdentity{Dev: entry.Dev, Ino: entry.Ino, InoHigh: entry.InoHigh, FSType: entry.FSType}
		if entry.FSType == "" {
			if table, err := probes.Mounts(); err == nil {
				mount, _ := mountOf(table, &entry, canonical)
				w.VolumeIdentity.FSType = mount.FSType
			}
		}
	}
	if folder, ok := probes.(CaseFolder); ok && entry.Kind == KindDir {
		if fold, err := folder.FoldsCase(canonical); err == nil && fold {
			w.Notices = append(w.Notices, fmt.Sprintf("names in %s match whatever their case (casefold)", canonical))
		}
	}
	return w
}

// block returns w as a blocked binding.
func block(w WorkspaceIdentity, err error, reason string) WorkspaceIdentity {
	w.WorkspaceID = WorkspaceID(w.CanonicalRoot, w.Platform.CasePolicy)
	w.VolumeIdentity = nil
	w.BindingStatus = Blocked
	w.BlockedReason = reason
	w.err = err
	return w
}

// blockedReason puts an error of realpath into the seed's words.
func blockedReason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "root is missing"
	case errors.Is(err, ErrNotDirectory):
		return "root is not a directory"
	case errors.Is(err, ErrLinkLoop):
		return "root is ambiguous: more than 40 links"
	case errors.Is(err, ErrAmbiguous):
		return "root is ambiguous: two names match"
	case errors.Is(err, ErrUnsafePath):
		return "root is not a safe path"
	}
	return "root is inaccessible: " + err.Error()
}

// absolute returns path clean and absolute: starting from base, an absolute
// path whose shape then decides, or from the working directory where base is "".
func absolute(path, base string, probes Probes) (string, error) {
	unsafe := &fs.PathError{Op: "resolve", Path: path, Err: ErrUnsafePath}
	if base == "" {
		if base = path; shapeOf(path) == shapeNone {
			dir, err := probes.WorkingDir()
			if err != nil {
				return "", fmt.Errorf("find the working directory: %w", err)
			}
			base = dir
		}
	}
	m := mathFor(base)
	from, ok := m.clean(base)
	if !ok || safe(m, path) != nil {
		return "", unsafe
	}
	if clean, ok := m.clean(path); ok {
		return clean, nil
	}
	resolved, _, _ := m.resolve(from, path)
	if resolved == "" {
		return "", unsafe // relative to another drive's working directory
	}
	return resolved, nil
}
