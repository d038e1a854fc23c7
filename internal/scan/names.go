// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"hash/maphash"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// deceptive says whether a name does not look like what it is.
func deceptive(name string) (Code, string) {
	if !utf8.ValidString(name) {
		return NameNotUTF8, "the name is not UTF-8: programs disagree on what it is"
	}
	for _, r := range name {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return NameControl, "the name holds control characters: it is not what a terminal shows"
		}
	}
	return "", ""
}

// folder compares names as a file system does that is indifferent to case and normal form. It is not for several
// goroutines.
type folder struct{ caser cases.Caser }

func newFolder() folder { return folder{cases.Fold()} }

var seed = maphash.MakeSeed()

// key is the same text for names that differ in case or normal form only. Names that are not UTF-8 are only like
// themselves.
func (f *folder) key(name string) string {
	ascii := true
	for i := range len(name) {
		ascii = ascii && name[i] < utf8.RuneSelf
	}
	switch {
	case ascii:
		return strings.ToLower(name)
	case !utf8.ValidString(name):
		return name
	}
	return norm.NFD.String(f.caser.String(norm.NFD.String(name)))
}

func (f *folder) hash(name string) uint64 { return maphash.String(seed, f.key(name)) }

// clashes reports names of a directory that clash. Of the names only hashes were kept; where two are the same the
// directory is read once more.
func (w *worker) clashes(d *directory) {
	twice := repeated(d.hashes)
	d.hashes = nil
	if len(twice) == 0 {
		return
	}
	if _, err := d.handle.Seek(0, io.SeekStart); err != nil {
		w.scan.troubled(d.rel, engine.KindDir, err)
		return
	}
	groups := map[string][]string{}
	for {
		names, err := d.handle.Readdirnames(batchSize)
		for _, name := range names {
			key := w.fold.key(name)
			if _, ok := slices.BinarySearch(twice, maphash.String(seed, key)); ok {
				groups[key] = append(groups[key], name)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			w.scan.troubled(d.rel, engine.KindDir, err)
			break
		}
	}
	for _, names := range groups {
		if len(names) < 2 {
			continue // one of them is gone, or the hashes of different names were the same
		}
		slices.SortFunc(names, cmp.Compare[string])
		path := names[0]
		if d.rel != "." {
			path = d.rel + string(filepath.Separator) + path
		}
		w.scan.found(Finding{
			Path: path, Kind: engine.KindUnknown, Code: NameClash, Others: names[1:],
			Reason: "names in one directory differ in " + difference(names) + " only: where that does not count they are one",
		})
	}
}

// repeated returns what is in a list more than once, sorted. It changes the list.
func repeated(list []uint64) []uint64 {
	slices.Sort(list)
	var twice []uint64
	for i := 1; i < len(list); i++ {
		if list[i] == list[i-1] && (len(twice) == 0 || twice[len(twice)-1] != list[i]) {
			twice = append(twice, list[i])
		}
	}
	return twice
}

func difference(names []string) string {
	forms, folds := true, true
	for _, name := range names[1:] {
		forms = forms && norm.NFC.String(name) == norm.NFC.String(names[0])
		folds = folds && cases.Fold().String(name) == cases.Fold().String(names[0])
	}
	switch {
	case forms:
		return "normal form"
	case folds:
		return "case"
	}
	return "case and normal form"
}
