// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// journalOf writes a journal with two grants, the first revoked, and returns its
// path and text.
func journalOf(t testing.TB) (path string, text []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "expansions.journal")
	r, recovery, err := OpenRegistry(path, Activation{"boot", "jail"})
	if err != nil || recovery != (Recovery{}) {
		t.Fatalf("a new journal: %+v, %v", recovery, err)
	}
	var ids []string
	for _, resource := range []string{"/w/a", "/w/\xff"} {
		x, err := r.Grant(ExpansionRequest{ResourceIdentity: resource, WorkspaceID: "w", ActionClasses: []string{ActionReadFile}, ExpiresAt: time.Unix(1<<33, 0)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, x.ExpansionID)
	}
	if ok, err := r.Revoke(ids[0]); !ok || err != nil {
		t.Fatalf("Revoke = %v, %v", ok, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// TestListOrder grants while the clock stands still, as it does for a while on
// some systems.
func TestListOrder(t *testing.T) {
	r := NewRegistry(Activation{"boot", "jail"})
	now := time.Now()
	r.now = func() time.Time { return now }
	var want, got []string
	for range 20 {
		x, err := r.Grant(ExpansionRequest{ResourceIdentity: "/w/a", WorkspaceID: "w"})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, x.ExpansionID)
	}
	for _, x := range r.List() {
		got = append(got, x.ExpansionID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("they are listed as %v, and were granted as %v", got, want)
	}
}

func TestJournalReopen(t *testing.T) {
	path, text := journalOf(t)
	r, recovery, err := OpenRegistry(path, Activation{"boot", "jail"})
	if err != nil || recovery != (Recovery{Records: 3}) {
		t.Fatalf("OpenRegistry = %+v, %v", recovery, err)
	}
	defer r.Close()
	list := r.List()
	if len(list) != 2 || !list[0].Revoked || list[1].Revoked || list[1].ResourceIdentity != "/w/\xff" {
		t.Errorf("List = %+v", list)
	}
	if read, err := ReadExpansions(path); err != nil || len(read) != 2 || !read[0].Revoked {
		t.Errorf("ReadExpansions beside the writer = %+v, %v", read, err)
	}
	if _, err := r.Grant(ExpansionRequest{ResourceIdentity: "/w/c", WorkspaceID: "w"}); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(after, text) || bytes.Count(after, []byte("\n")) != 4 {
		t.Errorf("the journal was not appended to: %v\n%s", err, after)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("the journal's mode: %v, %v", info.Mode(), err)
	}
}

func TestJournalOneWriter(t *testing.T) {
	path, _ := journalOf(t)
	r, _, err := OpenRegistry(path, Activation{})
	if err != nil {
		t.Fatal(err)
	}
	if second, _, err := OpenRegistry(path, Activation{}); !errors.Is(err, ErrJournalLocked) {
		second.Close()
		t.Errorf("a second writer: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := r.Grant(ExpansionRequest{ResourceIdentity: "/a", WorkspaceID: "w"}); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Grant after Close: %v", err)
	}
	r, _, err = OpenRegistry(path, Activation{})
	if err != nil {
		t.Fatalf("after the first one closed: %v", err)
	}
	r.Close()
}

// TestJournalCut cuts the journal after every byte, as a crash does to the last
// record: what is whole counts, the rest is dropped and reported, and the next
// record follows cleanly.
func TestJournalCut(t *testing.T) {
	_, text := journalOf(t)
	path := filepath.Join(t.TempDir(), "cut")
	for n := range len(text) + 1 {
		if err := os.WriteFile(path, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		whole := bytes.LastIndexByte(text[:n], '\n') + 1
		records := bytes.Count(text[:n], []byte("\n"))
		r, recovery, err := OpenRegistry(path, Activation{"boot", "jail"})
		if err != nil || recovery != (Recovery{Records: records, Dropped: n - whole}) {
			t.Fatalf("cut at %d: %+v, %v; want %d records, %d bytes dropped", n, recovery, err, records, n-whole)
		}
		if _, err := r.Grant(ExpansionRequest{ResourceIdentity: "/next", WorkspaceID: "w"}); err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		r.Close()
		if list, err := ReadExpansions(path); err != nil || !slices.ContainsFunc(list, func(x BoundaryExpansion) bool { return x.ResourceIdentity == "/next" }) {
			t.Fatalf("cut at %d, appended and read: %+v, %v", n, list, err)
		}
	}
	// A file system that grew the file and lost the data leaves zeros.
	if err := os.WriteFile(path, append(slices.Clone(text), make([]byte, 300)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{300, 0} {
		r, recovery, err := OpenRegistry(path, Activation{})
		if err != nil || recovery.Dropped != want {
			t.Fatalf("zeros at the end: %+v, %v; want %d dropped", recovery, err, want)
		}
		r.Close()
	}
	// What was cut short is longer than what follows.
	if err := os.WriteFile(path, append(slices.Clone(text), bytes.Repeat([]byte("x"), 5000)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{5000, 0} {
		r, recovery, err := OpenRegistry(path, Activation{})
		if err != nil || recovery.Dropped != want {
			t.Fatalf("a long record cut short: %+v, %v; want %d dropped", recovery, err, want)
		}
		if _, err := r.Grant(ExpansionRequest{ResourceIdentity: "/next", WorkspaceID: "w"}); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
}

// TestJournalDamaged changes every byte of every record but the last newline:
// nothing of such a journal is used.
func TestJournalDamaged(t *testing.T) {
	_, text := journalOf(t)
	path := filepath.Join(t.TempDir(), "damaged")
	for i := range len(text) - 1 {
		for _, c := range []byte{text[i] ^ 1, text[i] ^ 0x20, '\n', 0} {
			if c == text[i] {
				continue
			}
			damaged := slices.Clone(text)
			damaged[i] = c
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			r, _, err := OpenRegistry(path, Activation{"boot", "jail"})
			// The case of the checksum's digits is no damage.
			if sum := i - (bytes.LastIndexByte(text[:i], '\n') + 1); sum < 8 && c == text[i]^0x20 && 'a' <= text[i] && text[i] <= 'f' {
				if err != nil {
					t.Fatalf("byte %d in upper case: %v", i, err)
				}
				r.Close()
				continue
			}
			if !errors.Is(err, ErrJournalDamaged) {
				t.Fatalf("byte %d changed from %q to %q: %v, %v", i, text[i], c, r, err)
			}
			if _, err := ReadExpansions(path); !errors.Is(err, ErrJournalDamaged) {
				t.Fatalf("byte %d changed: ReadExpansions = %v", i, err)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, damaged) {
				t.Fatalf("a damaged journal was written to: %v", err)
			}
		}
	}
}

// seal makes a line of a record's JSON.
func seal(body string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), castagnoli()), body)
}

func TestJournalOutOfPlace(t *testing.T) {
	const (
		grant1  = `{"seq":1,"grant":{"expansionId":"a","resourceIdentity":"/a","workspaceId":"w","actionClasses":[],"reason":"","createdAt":"2026-07-17T09:00:00Z","expiresAt":null,"revoked":false,"revokedAt":null,"activation":{"bootId":"","scope":""}}}`
		revoke2 = `{"seq":2,"revoke":{"expansionId":"a","revokedAt":"2026-07-17T09:00:00Z"}}`
	)
	if records, _, err := parseJournal([]byte(seal(grant1) + seal(revoke2))); err != nil || len(records) != 2 {
		t.Fatalf("the good journal: %v, %v", records, err)
	}
	replace := func(s, old, new string) string {
		out := string(bytes.ReplaceAll([]byte(s), []byte(old), []byte(new)))
		if out == s {
			t.Fatalf("%q is not in %q", old, s)
		}
		return out
	}
	for name, text := range map[string]string{
		"a record missing at the start":      seal(revoke2),
		"a record missing in the middle":     seal(grant1) + seal(replace(revoke2, `"seq":2`, `"seq":3`)),
		"a record twice":                     seal(grant1) + seal(grant1),
		"a grant twice":                      seal(grant1) + seal(replace(grant1, `"seq":1`, `"seq":2`)),
		"a revocation twice":                 seal(grant1) + seal(revoke2) + seal(replace(revoke2, `"seq":2`, `"seq":3`)),
		"a revocation of nothing":            seal(grant1) + seal(replace(revoke2, `"a"`, `"b"`)),
		"a grant that is revoked":            seal(replace(grant1, `"revoked":false`, `"revoked":true`)),
		"a grant without id":                 seal(replace(grant1, `"expansionId":"a"`, `"expansionId":""`)),
		"neither":                            seal(`{"seq":1}`),
		"both":                               seal(replace(grant1, `{"seq":1,`, `{"seq":1,"revoke":{"expansionId":"a","revokedAt":"2026-07-17T09:00:00Z"},`)),
		"an unknown field":                   seal(replace(grant1, `{"seq":1,`, `{"seq":1,"x":1,`)),
		"two values":                         seal(grant1 + grant1),
		"no JSON":                            seal("hello"),
		"no checksum":                        grant1 + "\n",
		"an empty line":                      seal(grant1) + "\n",
		"another checksum":                   "00000000 " + grant1 + "\n",
		"a long checksum":                    "0" + seal(grant1),
		"bytes without end":                  string(bytes.Repeat([]byte("x"), maxRecord+1)),
		"a line that is too long":            string(bytes.Repeat([]byte("x"), maxRecord+1)) + "\n",
		"damage before a record cut short":   "x\n" + seal(grant1)[:20],
		"zeros before a record":              "\x00\x00\x00\n" + seal(grant1),
		"a newline in what a crash may have": seal(grant1) + "\x00\x00\n",
	} {
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, _, err := OpenRegistry(path, Activation{}); !errors.Is(err, ErrJournalDamaged) {
			t.Errorf("%s: %v", name, err)
			r.Close()
		}
	}
}

// TestJournalFull has a disk that takes no more.
func TestJournalFull(t *testing.T) {
	path, text := journalOf(t)
	r, _, err := OpenRegistry(path, Activation{"boot", "jail"})
	if err != nil {
		t.Fatal(err)
	}
	var live string
	for _, x := range r.List() {
		if !x.Revoked {
			live = x.ExpansionID
		}
	}
	// A file opened for reading takes no writes, like a full disk.
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r.journal.file.Close()
	r.journal.file = readOnly
	defer r.Close()

	if x, err := r.Grant(ExpansionRequest{ResourceIdentity: "/more", WorkspaceID: "w", ActionClasses: []string{ActionReadFile}}); err == nil {
		t.Errorf("granted without a record: %+v", x)
	}
	if n := len(r.List()); n != 2 {
		t.Errorf("a grant that was refused is listed: %d", n)
	}
	ok, err := r.Revoke(live)
	if !ok || err == nil {
		t.Errorf("Revoke = %v, %v; want it done here and an error", ok, err)
	}
	if r.IsActive(live, "/w/\xff", "w", ActionReadFile, time.Now()) {
		t.Error("still active after a revocation that could not be written")
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, text) {
		t.Errorf("the journal changed: %v", err)
	}
}

func TestJournalCannotOpen(t *testing.T) {
	dir := t.TempDir()
	if r, _, err := OpenRegistry(filepath.Join(dir, "no", "journal"), Activation{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is missing: %v, %v", r, err)
	}
	if r, _, err := OpenRegistry(dir, Activation{}); err == nil {
		r.Close()
		t.Error("a directory as journal")
	}
	if openNoFollow != 0 {
		path, _ := journalOf(t)
		link := filepath.Join(dir, "link")
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		if r, _, err := OpenRegistry(link, Activation{}); err == nil {
			r.Close()
			t.Error("a link in the place of a journal was followed")
		}
	}
}

func FuzzJournal(f *testing.F) {
	_, text := journalOf(f)
	f.Add(text)
	f.Add(text[:len(text)-3])
	f.Add([]byte(seal(`{"seq":1}`)))
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, size, err := parseJournal(data)
		if err != nil {
			if !errors.Is(err, ErrJournalDamaged) || records != nil {
				t.Fatalf("%v beside %d records", err, len(records))
			}
		} else if size > len(data) || bytes.IndexByte(data[size:], '\n') >= 0 {
			t.Fatalf("%d of %d bytes are whole", size, len(data))
		}
		// The checksum keeps the fuzzer out; so also give it what is inside.
		for i, line := range bytes.Split(data, []byte("\n")) {
			sealed := seal(string(line))
			rec, err := parseRecord([]byte(sealed[:len(sealed)-1]), uint64(i+1))
			if err != nil {
				continue
			}
			r := NewRegistry(Activation{})
			if err := r.replay([]record{rec}); err == nil {
				for _, x := range r.List() {
					r.IsActive(x.ExpansionID, x.ResourceIdentity, x.WorkspaceID, "read_file", time.Now())
				}
			}
		}
	})
}
