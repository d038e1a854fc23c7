// SPDX-License-Identifier: Apache-2.0

package mountmap

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// table makes a table of lines "ID PARENT POINT".
func table(t testing.TB, lines ...string) *Table {
	t.Helper()
	var mounts []Mount
	for _, line := range lines {
		var m Mount
		if _, err := fmt.Sscan(line, &m.ID, &m.ParentID, &m.Point); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, m)
	}
	table, err := New(mounts)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func ids(mounts []Mount) []uint64 {
	var ids []uint64
	for _, m := range mounts {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestTable(t *testing.T) {
	tests := []struct {
		name  string
		lines []string
		path  string
		on    uint64 // Lookup; 0 is none
		at    uint64 // At; 0 is none
		stack []uint64
	}{
		{"the root", []string{"1 0 /"}, "/", 1, 1, []uint64{1}},
		{"below the root", []string{"1 0 /"}, "/a/b", 1, 0, nil},
		{"mount point", []string{"1 0 /", "2 1 /a"}, "/a", 2, 2, []uint64{2}},
		{"below a mount point", []string{"1 0 /", "2 1 /a"}, "/a/b/c", 2, 0, nil},
		{"above a mount point", []string{"1 0 /", "2 1 /a/b"}, "/a", 1, 0, nil},
		{"sibling with the same prefix", []string{"1 0 /", "2 1 /srv"}, "/srv-evil", 1, 0, nil},
		{"sibling with the same prefix, below", []string{"1 0 /", "2 1 /srv"}, "/srv-evil/x", 1, 0, nil},
		{"mount point below one with the same prefix", []string{"1 0 /", "2 1 /srv", "3 1 /srv-evil"}, "/srv-evil/x", 3, 0, nil},
		{"stacked: the one that was mounted on the other", []string{"1 0 /", "2 1 /a", "3 2 /a"}, "/a", 3, 3, []uint64{2, 3}},
		{"stacked, listed the other way round", []string{"1 0 /", "3 2 /a", "2 1 /a"}, "/a", 3, 3, []uint64{2, 3}},
		{"stacked thrice, below", []string{"1 0 /", "2 1 /a", "3 2 /a", "4 3 /a"}, "/a/x", 4, 0, nil},
		{"mount on a mount", []string{"1 0 /", "2 1 /a", "3 2 /a/b"}, "/a/b/c", 3, 0, nil},
		{"hidden by a mount above it", []string{"1 0 /", "2 1 /a/b", "3 1 /a"}, "/a/b", 3, 0, nil},
		{"hidden, and mounted again on top", []string{"1 0 /", "2 1 /a/b", "3 1 /a", "4 3 /a/b"}, "/a/b", 4, 4, []uint64{4}},
		{"stacked root", []string{"1 0 /", "2 1 /"}, "/a", 2, 0, nil},
		{"stacked root itself", []string{"1 0 /", "2 1 /"}, "/", 2, 2, []uint64{1, 2}},
		{"hidden by a stacked root", []string{"1 0 /", "3 1 /a", "2 1 /"}, "/a", 2, 0, nil},
		{"no root in the table (chroot)", []string{"2 1 /a"}, "/a/b", 2, 0, nil},
		{"no root in the table, beside", []string{"2 1 /a"}, "/b", 0, 0, nil},
		{"parent not in the table", []string{"1 0 /", "3 99 /a"}, "/a", 3, 3, []uint64{3}},
		{"its own parent", []string{"1 1 /"}, "/a", 1, 0, nil},
		{"parents in a circle", []string{"1 0 /", "5 6 /a", "6 5 /a"}, "/a", 1, 0, nil},
		{"name that ends in a separator's neighbour", []string{"1 0 /", "2 1 /a/b"}, "/a/b/", 2, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			table := table(t, tt.lines...)
			on, ok := table.Lookup(tt.path)
			if on.ID != tt.on || ok != (tt.on != 0) {
				t.Errorf("Lookup(%q) = mount %d, %v; want %d", tt.path, on.ID, ok, tt.on)
			}
			at, ok := table.At(tt.path)
			if at.ID != tt.at || ok != (tt.at != 0) {
				t.Errorf("At(%q) = mount %d, %v; want %d", tt.path, at.ID, ok, tt.at)
			}
			if got := ids(table.Stack(tt.path)); !slices.Equal(got, tt.stack) {
				t.Errorf("Stack(%q) = %v, want %v", tt.path, got, tt.stack)
			}
		})
	}
}

func TestBelow(t *testing.T) {
	table := table(t, "1 0 /", "2 1 /srv", "3 2 /srv/b", "4 2 /srv/a", "5 4 /srv/a", "6 1 /srv-evil", "7 2 /srv/c/d", "8 2 /srv/c")
	if got, want := ids(table.Below("/srv")), []uint64{5, 3, 8}; !slices.Equal(got, want) {
		t.Errorf("Below(/srv) = %v, want %v: the top ones, sorted, without hidden ones and siblings", got, want)
	}
	if got, want := ids(table.Below("/")), []uint64{2, 6, 5, 3, 8}; !slices.Equal(got, want) {
		t.Errorf("Below(/) = %v, want %v", got, want)
	}
}

func TestByID(t *testing.T) {
	table, err := New([]Mount{{ID: 1, Point: "/"}, {ID: 2, ParentID: 1, Point: "/a", UniqueID: 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := table.ByID(2); !ok || m.Point != "/a" {
		t.Errorf("ByID(2) = %+v, %v", m, ok)
	}
	if m, ok := table.ByID(3); ok {
		t.Errorf("ByID(3) = %+v", m)
	}
	if m, ok := table.ByUniqueID(1 << 40); !ok || m.ID != 2 {
		t.Errorf("ByUniqueID = %+v, %v", m, ok)
	}
	if m, ok := table.ByUniqueID(0); ok {
		t.Errorf("ByUniqueID(0), which is not known, = %+v", m)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, mounts := range map[string][]Mount{
		"nothing":         nil,
		"id twice":        {{ID: 1, Point: "/"}, {ID: 1, Point: "/a"}},
		"unique id twice": {{ID: 1, Point: "/", UniqueID: 9}, {ID: 2, Point: "/a", UniqueID: 9}},
		"relative":        {{ID: 1, Point: "a"}},
		"no mount point":  {{ID: 1}},
	} {
		if table, err := New(mounts); err == nil {
			t.Errorf("%s: New = %v", name, table)
		}
	}
}

func TestNilTable(t *testing.T) {
	var table *Table
	if _, ok := table.Lookup("/"); ok {
		t.Error("Lookup found something")
	}
	if _, ok := table.At("/"); ok {
		t.Error("At found something")
	}
	if _, ok := table.ByID(0); ok {
		t.Error("ByID found something")
	}
	if _, ok := table.ByUniqueID(1); ok {
		t.Error("ByUniqueID found something")
	}
	if table.Len() != 0 || len(table.Stack("/")) != 0 || len(table.Below("/")) != 0 || len(slices.Collect(table.All())) != 0 {
		t.Error("the nil table has mounts")
	}
}

func TestPropagationString(t *testing.T) {
	for want, p := range map[string]Propagation{
		"private":          {},
		"shared":           {Shared: 1},
		"slave":            {Master: 1},
		"slave and shared": {Shared: 1, Master: 2},
		"unbindable":       {Unbindable: true},
	} {
		if p.String() != want {
			t.Errorf("%+v = %s, want %s", p, p, want)
		}
	}
}

// TestMountSequence mounts at random places, each time on what is on top there,
// and compares with the rule that this comes down to: of the mounts at or above
// a path the last one counts.
func TestMountSequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "b", "ab", "a b"})
		path := rapid.Custom(func(t *rapid.T) string {
			return "/" + strings.Join(rapid.SliceOfN(name, 0, 3).Draw(t, "names"), "/")
		})
		points := append([]string{"/"}, rapid.SliceOfN(path, 0, 8).Draw(t, "points")...)
		last := func(path string, n int) int {
			for i := n - 1; i >= 0; i-- {
				if p := points[i]; p == "/" || path == p || strings.HasPrefix(path, p+"/") {
					return i
				}
			}
			return -1
		}
		var mounts []Mount
		for i, p := range points {
			m := Mount{ID: uint64(10 + i), Point: p}
			if below := last(p, i); below >= 0 {
				m.ParentID = mounts[below].ID
			}
			mounts = append(mounts, m)
		}
		// The order of the list is the kernel's business and carries nothing.
		table, err := New(rapid.Permutation(mounts).Draw(t, "order"))
		if err != nil {
			t.Fatal(err)
		}
		asked := path.Draw(t, "asked")
		want := mounts[last(asked, len(points))]
		if got, ok := table.Lookup(asked); !ok || got.ID != want.ID {
			t.Fatalf("Lookup(%q) = %d, %v; want %d of %v", asked, got.ID, ok, want.ID, points)
		}
		if got, ok := table.At(asked); ok != (want.Point == asked) || ok && got.ID != want.ID {
			t.Fatalf("At(%q) = %d, %v; want %d of %v", asked, got.ID, ok, want.ID, points)
		}
	})
}

func BenchmarkAt(b *testing.B) {
	lines := []string{"1 0 /"}
	for i := range 200 {
		lines = append(lines, fmt.Sprintf("%d 1 /run/user/%d", i+2, i))
	}
	table := table(b, lines...)
	b.Run("no mount point", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table.At("/srv/repo/a/b/c/d/e/f")
		}
	})
	b.Run("mount point", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table.At("/run/user/77")
		}
	})
}
