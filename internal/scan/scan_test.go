// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/fallback"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir is t.TempDir without links.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

func newScan(t testing.TB, root string, report func(Finding) error) *Scan {
	t.Helper()
	probes, err := fallback.NewProbes()
	must(t, err)
	t.Cleanup(func() { probes.Close() })
	return New(engine.Bind(root, probes), probes, report)
}

// scan returns what a scan of root finds, sorted, as lines of code and path, and how far it got.
func scan(t testing.TB, root string, parts ...string) ([]string, Progress) {
	t.Helper()
	var found []string
	s := newScan(t, root, func(f Finding) error {
		if f.Reason == "" {
			t.Errorf("no reason: %+v", f)
		}
		line := string(f.Code) + " " + filepath.ToSlash(f.Path)
		for _, name := range f.Others {
			line += " " + name
		}
		if f.Links != 0 {
			line += fmt.Sprintf(" %d/%d", f.Seen, f.Links)
		}
		found = append(found, line)
		return nil
	})
	if len(parts) == 0 {
		parts = []string{"."}
	}
	must(t, s.Run(parts...))
	slices.Sort(found)
	p := s.Progress()
	if p.Done < 1-1e-9 {
		t.Errorf("a scan that ended is done to %v", p.Done)
	}
	if p.Findings+p.Trouble != int64(len(found)) {
		t.Errorf("%d findings are counted, %d were reported", p.Findings+p.Trouble, len(found))
	}
	return found, p
}

func write(t testing.TB, dir string, paths ...string) {
	t.Helper()
	for _, path := range paths {
		path = filepath.Join(dir, path)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, nil, 0o644))
	}
}

func TestHardLinks(t *testing.T) {
	dir := tempDir(t)
	write(t, dir, "ws/one", "ws/a/two", "ws/b/three", "ws/b/four", "out/four")
	for name, file := range map[string]string{
		"ws/c": "ws/a/two", "ws/b/five": "ws/b/three", "ws/six": "ws/b/three", "out/three": "ws/b/three", "ws/four": "out/four",
	} {
		must(t, os.Link(filepath.Join(dir, file), filepath.Join(dir, name)))
	}
	got, p := scan(t, filepath.Join(dir, "ws"))
	want := []string{
		"hard-link a/two 2/2",          // both here
		"hard-link-outside b/five 3/4", // the least of those here
		"hard-link-outside four 1/2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if p.Entries != 11 || p.Directories != 3 {
		t.Errorf("progress: %+v, want 11 entries in 3 directories", p)
	}
	// In a part, what is in the rest is elsewhere.
	got, _ = scan(t, filepath.Join(dir, "ws"), "a")
	if diff := cmp.Diff([]string{"hard-link-outside a/two 1/2"}, got); diff != "" {
		t.Errorf("a part (-want +got):\n%s", diff)
	}
	got, _ = scan(t, filepath.Join(dir, "ws"), "a", "b")
	if diff := cmp.Diff([]string{"hard-link-outside a/two 1/2", "hard-link-outside b/five 2/4"}, got); diff != "" {
		t.Errorf("two parts (-want +got):\n%s", diff)
	}
}

// Directories are read in batches, and what is found does not depend on where a batch ends.
func TestManyEntries(t *testing.T) {
	dir := tempDir(t)
	const files, dirs = 2*batchSize + 7, batchSize + 3
	for i := range files {
		write(t, dir, fmt.Sprintf("file%05d", i))
	}
	for i := range dirs {
		write(t, dir, fmt.Sprintf("dir%05d/f", i))
	}
	got, p := scan(t, dir)
	if len(got) != 0 {
		t.Errorf("findings: %v", got)
	}
	if want := int64(1 + files + 2*dirs); p.Entries != want || p.Directories != 1+dirs {
		t.Errorf("progress: %+v, want %d entries in %d directories", p, want, 1+dirs)
	}
}

// Few directories wait at any time, however many there are.
func TestPendingIsBounded(t *testing.T) {
	dir := tempDir(t)
	const wide = 3 * batchSize
	for i := range wide {
		must(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("dir%05d", i)), 0o755))
	}
	s := newScan(t, dir, func(Finding) error { return nil })
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	s.root = root
	s.base, err = s.look(".")
	must(t, err)
	s.stack = []*directory{{rel: ".", seen: s.base, weight: 1}}
	s.active = 1
	most, w := 0, newWorker(s)
	for {
		d := s.next()
		if d == nil {
			break
		}
		w.batch(d)
		most = max(most, len(s.stack))
	}
	if most > batchSize+1 {
		t.Errorf("%d directories waited, want at most %d", most, batchSize+1)
	}
	if p := s.Progress(); p.Directories != wide {
		t.Errorf("%d directories, want %d", p.Directories, wide)
	}
}

func TestDeepTree(t *testing.T) {
	dir := tempDir(t)
	deep := strings.Repeat("d/", 60)
	write(t, dir, deep+"f")
	must(t, os.Link(filepath.Join(dir, deep, "f"), filepath.Join(dir, "g")))
	got, p := scan(t, dir)
	if diff := cmp.Diff([]string{"hard-link " + deep + "f 2/2"}, got); diff != "" || p.Directories != 61 {
		t.Errorf("findings (-want +got):\n%s%+v", diff, p)
	}
}

func TestReportEndsTheScan(t *testing.T) {
	dir := tempDir(t)
	for i := range 100 {
		write(t, dir, fmt.Sprintf("a%d/f", i))
		must(t, os.Link(filepath.Join(dir, fmt.Sprintf("a%d/f", i)), filepath.Join(dir, fmt.Sprintf("a%d/g", i))))
	}
	full := errors.New("disk full")
	calls := 0
	s := newScan(t, dir, func(Finding) error { calls++; return full })
	if err := s.Run("."); !errors.Is(err, full) || calls != 1 {
		t.Errorf("after %d reports: %v", calls, err)
	}
}

func TestWhatCannotBeScanned(t *testing.T) {
	dir := tempDir(t)
	write(t, dir, "file")
	none := func(f Finding) error { t.Errorf("finding %+v", f); return nil }
	if err := newScan(t, filepath.Join(dir, "nothing"), none).Run("."); err == nil {
		t.Error("a workspace that is not there is scanned")
	}
	for _, part := range []string{"nothing", "file", ".."} {
		if err := newScan(t, dir, none).Run(part); err == nil {
			t.Errorf("the part %q is scanned", part)
		}
	}
}

func TestDeceptive(t *testing.T) {
	for name, want := range map[string]Code{
		"plain": "", "a b": "", "é": "", "名": "", "a\u200db": "", // a joiner is part of honest names
		"a\nb": NameControl, "a\x7f": NameControl, "a\u0085b": NameControl, "a\u202eb": NameControl, "a\u2028b": NameControl, "\xff": NameNotUTF8,
	} {
		if got, reason := deceptive(name); got != want || (reason == "") != (want == "") {
			t.Errorf("deceptive(%+q) = %q, %q; want %q", name, got, reason, want)
		}
	}
}

func TestFold(t *testing.T) {
	f := newFolder()
	for _, same := range [][2]string{{"a", "A"}, {"é", "e\u0301"}, {"É", "e\u0301"}, {"ß", "SS"}, {"σ", "ς"}, {"K", "\u212a"}} {
		if f.key(same[0]) != f.key(same[1]) || f.hash(same[0]) != f.hash(same[1]) {
			t.Errorf("%+q and %+q are two names", same[0], same[1])
		}
	}
	for _, other := range [][2]string{{"a", "b"}, {"e", "é"}, {"\xff", "\xfe"}, {"\xff", "\ufffd"}} {
		if f.key(other[0]) == f.key(other[1]) {
			t.Errorf("%+q and %+q are one name", other[0], other[1])
		}
	}
}

func TestRepeated(t *testing.T) {
	for _, test := range []struct{ list, want []uint64 }{
		{nil, nil}, {[]uint64{1}, nil}, {[]uint64{2, 1, 2}, []uint64{2}}, {[]uint64{3, 3, 3, 1, 1, 0}, []uint64{1, 3}},
	} {
		if got := repeated(slices.Clone(test.list)); !slices.Equal(got, test.want) {
			t.Errorf("repeated(%v) = %v, want %v", test.list, got, test.want)
		}
	}
}

func BenchmarkScan(b *testing.B) {
	dir := tempDir(b)
	const files = 20_000
	for i := range files {
		path := filepath.Join(dir, fmt.Sprintf("a%d/b%d/c%d/file%d.go", i%7, i%50, i%1000, i))
		if i < 1000 {
			must(b, os.MkdirAll(filepath.Dir(path), 0o755))
		}
		write(b, filepath.Dir(path), filepath.Base(path))
	}
	for b.Loop() {
		if _, p := scan(b, dir); p.Trouble != 0 {
			b.Fatal(p)
		}
	}
	b.ReportMetric(files*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}
