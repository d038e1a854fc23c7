package loader

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDenyTree(t *testing.T) {
	tree, err := newDenyTree([]string{"/w/.git/hooks", "/w/.env", "/w/.git/hooks/pre-commit", "/w/.git/config"})
	if err != nil {
		t.Fatal(err)
	}
	type edge struct{ From, Name, To string }
	names := map[uint16]string{0: "denied"}
	for dir, node := range tree.nodes {
		names[node] = dir
	}
	var got []edge
	for _, e := range tree.edges {
		got = append(got, edge{names[e.from], e.name, names[e.to]})
	}
	want := []edge{
		{"/", "w", "/w"},
		{"/w", ".env", "denied"},
		{"/w", ".git", "/w/.git"},
		{"/w/.git", "config", "denied"},
		{"/w/.git", "hooks", "denied"}, // what is denied below it adds nothing
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, denied := range map[string]bool{
		"/w/.git/hooks": true, "/w/.git/hooks/pre-commit": true, "/w/.git/hooks/x/y": true, "/w/.env": true,
		"/w": false, "/w/.git": false, "/w/.git/hook": false, "/w/.env2": false, "/": false, "/w/x/.env": false,
	} {
		if tree.isDenied(name) != denied {
			t.Errorf("isDenied(%q) = %v", name, !denied)
		}
	}
}

func TestDenyTreePlacesGrants(t *testing.T) {
	tree, err := newDenyTree([]string{"/w/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	grants := []GrantInfo{{Path: "/w", Rights: "rwx"}, {Path: "/w/a", Rights: "ro"}, {Path: "/w/a/b/c", Rights: "rwx"}, {Path: "/usr", Rights: "rx"}}
	if err := tree.place(grants); err != nil {
		t.Fatal(err)
	}
	if grants[0].node == 0 || grants[1].node == 0 || grants[0].node == grants[1].node || grants[3].node != 0 {
		t.Errorf("nodes: %+v", grants)
	}
	if !grants[2].denied || grants[2].Rights != "none" {
		t.Errorf("a grant below a denied name brings it back: %+v", grants[2])
	}
}

// The kernel programs look at so many names and no more: what they could not compare must not be accepted.
func TestDenyTreeTooDeep(t *testing.T) {
	for depth, fine := range map[int]bool{int(enforcerTfLimitTF_DENY_DEPTH): true, int(enforcerTfLimitTF_DENY_DEPTH) + 1: false} {
		tree, err := newDenyTree([]string{"/w" + strings.Repeat("/d", depth)})
		if err != nil {
			t.Fatal(err)
		}
		if err := tree.place([]GrantInfo{{Path: "/w"}}); (err == nil) != fine {
			t.Errorf("%d levels: %v", depth, err)
		}
	}
}

func TestDenyTreeTooLarge(t *testing.T) {
	var denied []string
	for i := range 1 << 16 {
		denied = append(denied, fmt.Sprintf("/w/%d/x", i))
	}
	if _, err := newDenyTree(denied); err == nil {
		t.Error("more nodes than have numbers, and no error")
	}
}

func TestNameHashTellsNamesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(1, 255, 255)
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if (a == b) != (nameHash(a) == nameHash(b)) {
			t.Fatalf("%q and %q: %x and %x", a, b, nameHash(a), nameHash(b))
		}
	})
	// Zero bytes fill the last word; the length tells such names apart.
	if nameHash("a") == nameHash("a\x00") {
		t.Error("padding counts as a name")
	}
}
