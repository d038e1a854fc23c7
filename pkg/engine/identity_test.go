// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

func TestBind(t *testing.T) {
	var chain strings.Builder
	for i := range 41 {
		// c0 leads to the root by one link, c39 by 40, c40 by 41.
		to := "/srv/repo"
		if i > 0 {
			to = fmt.Sprintf("/links/c%d", i-1)
		}
		fmt.Fprintf(&chain, "link /links/c%d -> %s\n", i, to)
	}
	fsys := linux(t, chain.String()+`
		link  /srv/link -> repo
		link  /srv/dangling -> nothere
		link  /srv/loop -> loop
		link  /srv/file -> repo/f
		link  /srv/slash -> repo/f/
		error /srv/locked err=EACCES
		error /srv/broken err=EIO
		link  /srv/fd -> /proc/1/fd magic
		dir   "/srv/\xff"
	`)
	fsys.Dir = "/srv"

	for root, want := range map[string]string{
		"/srv/repo":         "/srv/repo",
		"/srv/repo/":        "/srv/repo",
		"//srv/./x/../repo": "/srv/repo",
		"repo":              "/srv/repo",
		"./repo/src/..":     "/srv/repo",
		"":                  "/srv",
		".":                 "/srv",
		"..":                "/",
		"/":                 "/",
		"/srv/link":         "/srv/repo",
		"/srv/link/src/..":  "/srv/repo",
		"/links/c39":        "/srv/repo",
		"/srv/\xff":         "/srv/\xff",
	} {
		w := engine.Bind(root, fsys)
		if w.BindingStatus != engine.Bound || w.CanonicalRoot != want || w.BlockedReason != "" || w.Err() != nil {
			t.Errorf("Bind(%q) = %+v, want bound at %q", root, w, want)
			continue
		}
		if w.WorkspaceID != engine.WorkspaceID(want, engine.CaseSensitive) || w.VolumeIdentity == nil || w.VolumeIdentity.Ino == 0 || w.VolumeIdentity.FSType != "ext4" {
			t.Errorf("Bind(%q): id %s, volume %+v", root, w.WorkspaceID, w.VolumeIdentity)
		}
	}
	for root, want := range map[string]struct {
		reason string
		err    error
		path   string
	}{
		"/nothere":       {"missing", fs.ErrNotExist, "/nothere"},
		"/srv/dangling":  {"missing", fs.ErrNotExist, "/srv/dangling"},
		"/srv/repo/f":    {"not a directory", engine.ErrNotDirectory, "/srv/repo/f"},
		"/srv/repo/f/x":  {"not a directory", engine.ErrNotDirectory, "/srv/repo/f/x"},
		"/srv/file":      {"not a directory", engine.ErrNotDirectory, "/srv/repo/f"},
		"/srv/slash":     {"not a directory", engine.ErrNotDirectory, "/srv/slash"},
		"/srv/locked":    {"inaccessible", fs.ErrPermission, "/srv/locked"},
		"/srv/locked/x":  {"inaccessible", fs.ErrPermission, "/srv/locked/x"},
		"/srv/broken":    {"inaccessible", memfs.Errno("EIO"), "/srv/broken"},
		"/srv/loop":      {"40 links", engine.ErrLinkLoop, "/srv/loop"},
		"/links/c40":     {"40 links", engine.ErrLinkLoop, "/links/c40"},
		"/srv/fd":        {"inaccessible", engine.ErrMagicLink, "/srv/fd"},
		"/srv/re\x00po":  {"safe", engine.ErrUnsafePath, "/srv/re\x00po"},
		"relative/there": {"missing", fs.ErrNotExist, "/srv/relative/there"},
	} {
		w := engine.Bind(root, fsys)
		if w.BindingStatus != engine.Blocked || w.VolumeIdentity != nil {
			t.Errorf("Bind(%q) = %+v, want blocked", root, w)
			continue
		}
		if !strings.Contains(w.BlockedReason, want.reason) || !errors.Is(w.Err(), want.err) {
			t.Errorf("Bind(%q): %q, %v; want %q, %v", root, w.BlockedReason, w.Err(), want.reason, want.err)
		}
		if w.CanonicalRoot != want.path || w.WorkspaceID != engine.WorkspaceID(want.path, engine.CaseSensitive) {
			t.Errorf("Bind(%q) is at %q with id %s, want that of %q", root, w.CanonicalRoot, w.WorkspaceID, want.path)
		}
	}
	if w := engine.Bind("/srv/repo", nil); w.BindingStatus != engine.Blocked || len(w.WorkspaceID) != 16 {
		t.Errorf("without a probe: %+v", w)
	}
}

// TestBindChanging replaces the root between the two reads.
func TestBindChanging(t *testing.T) {
	for name, change := range map[string]string{
		"replaced":       "dir /srv/repo ino=9999",
		"made a link":    "link /srv/repo -> /outside",
		"made a file":    "file /srv/repo",
		"moved away":     "",
		"on another dev": "dir /srv/repo dev=43 ino=3",
	} {
		fsys := linux(t, "")
		probes := &changing{FS: fsys, at: "/srv/repo", change: func(f *memfs.FS) {
			if change == "" {
				must(f.Remove("/srv/repo"))
				return
			}
			f.MustBuild(change)
		}}
		if w := engine.Bind("/srv/repo", probes); w.BindingStatus != engine.Blocked || !errors.Is(w.Err(), engine.ErrAmbiguous) {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

func TestBindUnknownIdentity(t *testing.T) {
	w := engine.Bind("/srv/repo", numberless{linux(t, "")})
	if w.BindingStatus != engine.Bound || w.VolumeIdentity != nil {
		t.Errorf("a file system without inode numbers: %+v; want bound without identity", w)
	}
	expect(t, w, "f", followNone, numberless{linux(t, "")}, engine.EnforcementUnverified, engine.CodeInspectFailed, "")
}

// TestBindUnreadable binds a directory that may be looked at and not into.
func TestBindUnreadable(t *testing.T) {
	w := engine.Bind("/srv/repo", unreadable{linux(t, "")})
	if w.BindingStatus != engine.Blocked || !strings.Contains(w.BlockedReason, "inaccessible") || !errors.Is(w.Err(), fs.ErrPermission) {
		t.Errorf("an unreadable root: %+v", w)
	}
	expect(t, w, "f", followNone, unreadable{linux(t, "")}, engine.Denied, engine.CodeBindingBlocked, "")
}

// unreadable is a probe of a user who may read nothing.
type unreadable struct{ *memfs.FS }

func (u unreadable) Access(path string) error {
	return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
}

// numberless is a probe of a file system without inode numbers.
type numberless struct{ *memfs.FS }

func (n numberless) Inspect(path string) (engine.Entry, error) {
	e, err := n.FS.Inspect(path)
	e.Ino = 0
	return e, err
}

func TestBindCasefold(t *testing.T) {
	w := bind(t, "/fold", linux(t, "dir /fold casefold"))
	if len(w.Notices) != 1 || !strings.Contains(w.Notices[0], "casefold") {
		t.Errorf("notices %q", w.Notices)
	}
	if w := bind(t, "/srv/repo", linux(t, "")); len(w.Notices) != 0 {
		t.Errorf("notices %q", w.Notices)
	}
}

func TestPlatformFor(t *testing.T) {
	for goos, want := range map[string]engine.PlatformIdentity{
		"linux":   {Platform: "linux", CasePolicy: engine.CaseSensitive, UnicodePolicy: engine.UnicodeUnknown},
		"darwin":  {Platform: "darwin", CasePolicy: engine.CaseSensitive, UnicodePolicy: engine.UnicodeNFD},
		"windows": {Platform: "windows", CasePolicy: engine.CaseInsensitive, UnicodePolicy: engine.UnicodeNFC},
		"freebsd": {Platform: "freebsd", CasePolicy: engine.CaseSensitive, UnicodePolicy: engine.UnicodeUnknown},
	} {
		if got := engine.PlatformFor(goos); got != want {
			t.Errorf("PlatformFor(%s) = %+v", goos, got)
		}
	}
}

func TestWorkspaceIDFolding(t *testing.T) {
	// Each rune by itself: the dotted capital I becomes i, a final sigma σ.
	if engine.WorkspaceID(`C:\İ`, engine.CaseInsensitive) != engine.WorkspaceID(`c:\i`, engine.CaseInsensitive) {
		t.Error("U+0130 is not lower-cased by itself")
	}
	if engine.WorkspaceID(`C:\ΟΣ`, engine.CaseInsensitive) != engine.WorkspaceID(`c:\οσ`, engine.CaseInsensitive) {
		t.Error("a final sigma is not lower-cased by itself")
	}
	if engine.WorkspaceID("/A", engine.CaseSensitive) == engine.WorkspaceID("/a", engine.CaseSensitive) {
		t.Error("case does not count where it should")
	}
	if engine.WorkspaceID("C:\\\xff", engine.CaseInsensitive) == engine.WorkspaceID("C:\\\xfe", engine.CaseInsensitive) {
		t.Error("bytes that are no UTF-8 were merged")
	}
}

func TestWorkspaceJSON(t *testing.T) {
	fsys := linux(t, "dir /srv/repo ino=4\n"+`dir "/srv/\xff" ino=77`)
	tests := []struct {
		name, want string
		w          engine.WorkspaceIdentity
	}{
		{"bound", `{
			"workspaceId": "203fce37fbfc82f3",
			"platform": {"platform": "linux", "casePolicy": "case-sensitive", "unicodePolicy": "unknown"},
			"canonicalRoot": "/srv/repo",
			"volumeIdentity": {"dev": "42", "ino": "4", "fsType": "ext4"},
			"bindingStatus": "bound",
			"blockedReason": null
		}`, engine.Bind("/srv/repo", fsys)},
		{"blocked", `{
			"workspaceId": "` + engine.WorkspaceID("/nothere", engine.CaseSensitive) + `",
			"platform": {"platform": "linux", "casePolicy": "case-sensitive", "unicodePolicy": "unknown"},
			"canonicalRoot": "/nothere",
			"volumeIdentity": null,
			"bindingStatus": "blocked",
			"blockedReason": "root is missing"
		}`, engine.Bind("/nothere", fsys)},
		{"no UTF-8", `{
			"workspaceId": "` + engine.WorkspaceID("/srv/\xff", engine.CaseSensitive) + `",
			"platform": {"platform": "linux", "casePolicy": "case-sensitive", "unicodePolicy": "unknown"},
			"canonicalRoot": "/srv/\ufffd",
			"canonicalRootBytes": "L3Nydi//",
			"volumeIdentity": {"dev": "42", "ino": "77", "fsType": "ext4"},
			"bindingStatus": "bound",
			"blockedReason": null
		}`, engine.Bind("/srv/\xff", fsys)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sameJSON(t, tt.w, tt.want)
			data, err := json.Marshal(tt.w)
			if err != nil {
				t.Fatal(err)
			}
			var back engine.WorkspaceIdentity
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			if back.CanonicalRoot != tt.w.CanonicalRoot || back.BlockedReason != tt.w.BlockedReason ||
				cmp.Diff(tt.w.VolumeIdentity, back.VolumeIdentity) != "" || back.Platform != tt.w.Platform {
				t.Errorf("read back as %+v, want %+v", back, tt.w)
			}
			// A binding that went over the wire works as before.
			a, b := engine.CheckContainment(tt.w, "new", followNone, fsys), engine.CheckContainment(back, "new", followNone, fsys)
			if a != b {
				t.Errorf("checked with the binding %+v, with the copy %+v", a, b)
			}
		})
	}
}

// sameJSON compares what a value is written as with a JSON text, keys and all.
func sameJSON(t *testing.T, value any, want string) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var got, wanted any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatalf("the wanted text: %v", err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("JSON differs (-want +got):\n%s", diff)
	}
}

func TestDecisionJSON(t *testing.T) {
	sameJSON(t, engine.ContainmentDecision{Outcome: engine.Denied, Code: engine.CodeOutside, Reason: "why"},
		`{"outcome": "denied", "code": "outside", "reason": "why", "resolvedPath": null}`)
	sameJSON(t, engine.ContainmentDecision{Outcome: engine.Allowed, Code: engine.CodeWithin, Reason: "why", ResolvedPath: "/a"},
		`{"outcome": "allowed", "code": "within", "reason": "why", "resolvedPath": "/a"}`)
	d := engine.ContainmentDecision{Outcome: engine.Conflict, Code: engine.CodeDeviceChanged, Reason: "why", ResolvedPath: "/\xff"}
	sameJSON(t, d, `{"outcome": "conflict", "code": "device-changed", "reason": "why", "resolvedPath": "/\ufffd", "resolvedPathBytes": "L/8="}`)
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back engine.ContainmentDecision
	if err := json.Unmarshal(data, &back); err != nil || back != d {
		t.Errorf("read back as %+v, %v", back, err)
	}
}
