// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"testing"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/pkg/engine/memfs"
)

// windows returns a tree of Windows, whatever the tests run on.
func windows(t testing.TB, more string) *memfs.FS {
	t.Helper()
	fsys := memfs.New(engine.PlatformFor("windows"))
	if err := fsys.Build(`
		dir  C:\Work\Repo
		file C:\Work\Repo\f.txt
		dir  C:\Work\Repo\Src
		file C:\Work\Repo\Src\Main.go
		dir  "C:\\Work\\Repo\\Long Directory" short=LONGDI~1
		file "C:\\Work\\Repo\\Long Directory\\x"
		dir  C:\Windows
		file D:\other
	` + more); err != nil {
		t.Fatal(err)
	}
	return fsys
}

func TestWalkWindows(t *testing.T) {
	const (
		symlinks  = 1
		junctions = 2
		mounts    = 4
		reparse   = 8
		all       = 15
	)
	const (
		cloud     = "tag=9000001a" // IO_REPARSE_TAG_CLOUD: the object itself
		surrogate = "tag=a000001d" // IO_REPARSE_TAG_LX_SYMLINK: another name
	)
	tests := []struct {
		name, tree, target string
		follow             int
		outcome            engine.Outcome
		code               engine.Code
		resolved           string
	}{
		{"file", "", `Src\Main.go`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Src\Main.go`},
		{"slashes", "", `Src/Main.go`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Src\Main.go`},
		{"other case keeps its spelling", "", `SRC\main.GO`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\SRC\main.GO`},
		{"root in other case", "", `c:\WORK\repo\f.txt`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"root-relative", "", `\work\repo\f.txt`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"new file", "", `Src\new`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Src\new`},
		{"below what is missing", "", `no\new`, 0, engine.EnforcementUnverified, engine.CodeMissingComponent, ""},
		{"below a file", "", `f.txt\x`, 0, engine.Denied, engine.CodeNotDirectory, ""},
		{"outside", "", `..\x`, 0, engine.Denied, engine.CodeOutside, ""},
		{"other drive", "", `D:\other`, all, engine.Denied, engine.CodeOutside, ""},
		{"share", "", `\\server\share\x`, all, engine.Denied, engine.CodeOutside, ""},

		{"device name", "", `NUL`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"device name with extension, below", "", `Src\aux.txt`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"stream", "", `f.txt:s`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"verbatim", "", `\\?\C:\Work\Repo\f.txt`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"device path", "", `\\.\C:\Work\Repo\f.txt`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"trailing dot", "", `f.txt.`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"trailing space", "", `f.txt `, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"drive-relative", "", `C:f.txt`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"NUL byte", "", "f\x00", all, engine.Denied, engine.CodeNULInPath, ""},

		{"short name", "", `LONGDI~1\x`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Long Directory\x`},
		{"short name, new file", "", `longdi~1\new`, 0, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Long Directory\new`},

		{"symlink", `link C:\Work\Repo\l -> f.txt`, `l`, all &^ symlinks, engine.Denied, engine.CodeSymlink, ""},
		{"symlink followed", `link C:\Work\Repo\l -> f.txt`, `l`, symlinks, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"symlink with slashes", `link C:\Work\Repo\l -> ./Src/../f.txt`, `l`, symlinks, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"symlink outside", `link C:\Work\Repo\l -> ..\..\Windows`, `l`, symlinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"symlink out and in, in other case", `link C:\Work\Repo\l -> ..\..\WORK\REPO\f.txt`, `l`, symlinks, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"symlink from the drive's root", `link C:\Work\Repo\l -> \work\repo\f.txt`, `l`, symlinks, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\f.txt`},
		{"symlink from the drive's root, outside", `link C:\Work\Repo\l -> \Windows`, `l`, symlinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"symlink to another drive", `link C:\Work\Repo\l -> D:\other`, `l`, symlinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"symlink to the same path on another drive", `link C:\Work\Repo\l -> D:\Work\Repo\f.txt`, `l`, symlinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"symlink to a share", `link C:\Work\Repo\l -> \\server\share\x`, `l`, symlinks, engine.Denied, engine.CodeLinkEscape, ""},
		{"symlink relative to a drive", `link C:\Work\Repo\l -> C:f.txt`, `l`, symlinks, engine.Denied, engine.CodeUnsafePath, ""},
		{"symlink to a device", `link C:\Work\Repo\l -> Src\NUL`, `l`, symlinks, engine.Denied, engine.CodeUnsafePath, ""},
		{"symlink to a stream", `link C:\Work\Repo\l -> f.txt:s`, `l`, symlinks, engine.Denied, engine.CodeUnsafePath, ""},

		{"junction", `junction C:\Work\Repo\j -> \??\C:\Work\Repo\Src`, `j\Main.go`, all &^ junctions, engine.Denied, engine.CodeJunction, ""},
		{"junction followed", `junction C:\Work\Repo\j -> \??\C:\Work\Repo\Src`, `j\Main.go`, junctions, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Src\Main.go`},
		{"junction outside", `junction C:\Work\Repo\j -> \??\C:\Windows`, `j`, junctions, engine.Denied, engine.CodeLinkEscape, ""},
		{"junction to a volume", `junction C:\Work\Repo\j -> \??\Volume{1-2-3}\`, `j`, all, engine.Denied, engine.CodeUnsafePath, ""},
		{"junction to itself", `junction C:\Work\Repo\j -> \??\C:\Work\Repo\j`, `j`, junctions, engine.Denied, engine.CodeLinkLoop, ""},
		{"symlink to a junction that is not followed", `junction C:\Work\Repo\j -> C:\Work\Repo\Src` + "\n" + `link C:\Work\Repo\l -> j`, `l`, symlinks, engine.Denied, engine.CodeJunction, ""},

		{"cloud file", `reparse C:\Work\Repo\r ` + cloud, `r`, all &^ reparse, engine.Denied, engine.CodeReparsePoint, ""},
		{"cloud file followed", `reparse C:\Work\Repo\r ` + cloud, `r`, reparse, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\r`},
		{"below a cloud file", `reparse C:\Work\Repo\r ` + cloud, `r\x`, reparse, engine.Denied, engine.CodeNotDirectory, ""},
		{"below a cloud directory", `reparse C:\Work\Repo\r dirreparse ` + cloud, `r\x`, reparse, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\r\x`},
		{"surrogate", `reparse C:\Work\Repo\r -> Src ` + surrogate, `r`, all &^ reparse, engine.Denied, engine.CodeReparsePoint, ""},
		{"surrogate followed", `reparse C:\Work\Repo\r -> Src ` + surrogate, `r\Main.go`, reparse, engine.Allowed, engine.CodeWithin, `C:\Work\Repo\Src\Main.go`},
		{"surrogate outside", `reparse C:\Work\Repo\r -> ..\x ` + surrogate, `r`, reparse, engine.Denied, engine.CodeLinkEscape, ""},
		{"surrogate without a target", `reparse C:\Work\Repo\r ` + surrogate, `r`, reparse, engine.EnforcementUnverified, engine.CodeInspectFailed, ""},

		{"mounted volume", `dir C:\Work\Repo\m dev=77 mountroot`, `m`, all &^ mounts, engine.Denied, engine.CodeMountPoint, ""},
		{"mounted volume followed, which no table confirms", `dir C:\Work\Repo\m dev=77 mountroot`, `m\x`, mounts, engine.Conflict, engine.CodeMountDeviceMismatch, `C:\Work\Repo\m\x`},
		{"other volume where nothing is mounted", `dir C:\Work\Repo\m dev=77`, `m`, all, engine.Conflict, engine.CodeDeviceChanged, `C:\Work\Repo\m`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := windows(t, tt.tree)
			w := bind(t, `C:\Work\Repo`, fsys)
			opts := engine.ContainmentOptions{
				FollowSymlinks:      tt.follow&symlinks != 0,
				FollowJunctions:     tt.follow&junctions != 0,
				FollowMountPoints:   tt.follow&mounts != 0,
				FollowReparsePoints: tt.follow&reparse != 0,
			}
			expect(t, w, tt.target, opts, fsys, tt.outcome, tt.code, tt.resolved)
		})
	}
}

// TestWindowsShortRoot reaches the root by its short name.
func TestWindowsShortRoot(t *testing.T) {
	fsys := windows(t, `
		dir  "C:\\Program Files\\App" short=APP~1
		dir  "C:\\Program Files" short=PROGRA~1
		file "C:\\Program Files\\App\\f"
	`)
	w := bind(t, `c:\progra~1\APP`, fsys)
	if w.CanonicalRoot != `C:\Program Files\App` {
		t.Fatalf("root is %q", w.CanonicalRoot)
	}
	expect(t, w, `C:\PROGRA~1\app\f`, followNone, fsys, engine.Allowed, engine.CodeWithin, `C:\Program Files\App\f`)
	expect(t, w, `C:\PROGRA~2\app\f`, followNone, fsys, engine.Denied, engine.CodeOutside, "")
	expect(t, w, `f~1`, followNone, fsys, engine.Allowed, engine.CodeWithin, `C:\Program Files\App\f~1`)
}

func TestWindowsBind(t *testing.T) {
	fsys := windows(t, `
		link C:\link -> C:\Work\Repo
		junction C:\junction -> \??\C:\Work\Repo
		junction C:\far -> \??\D:\
	`)
	for root, want := range map[string]string{
		`c:\work\REPO`:       `C:\Work\Repo`,
		`C:/Work/Repo/`:      `C:\Work\Repo`,
		`C:\link`:            `C:\Work\Repo`,
		`C:\junction\Src\..`: `C:\Work\Repo`,
		`C:\far`:             `D:\`,
		`C:\`:                `C:\`,
		`Work\Repo`:          `C:\Work\Repo`,
		`\Work\Repo`:         `C:\Work\Repo`,
	} {
		w := bind(t, root, fsys)
		if w.CanonicalRoot != want {
			t.Errorf("Bind(%q) is %q, want %q", root, w.CanonicalRoot, want)
		}
		if lower := engine.WorkspaceID(want, engine.CaseInsensitive); w.WorkspaceID != lower {
			t.Errorf("Bind(%q) has id %s, want %s", root, w.WorkspaceID, lower)
		}
	}
	for _, root := range []string{`C:\Work\NUL`, `\\?\C:\Work\Repo`, `C:Work`, `D:Work`, `C:\Work.\Repo`, `C:\nothere`, `C:\Work\Repo\f.txt`} {
		if w := engine.Bind(root, fsys); w.BindingStatus != engine.Blocked || w.BlockedReason == "" || len(w.WorkspaceID) != 16 || w.VolumeIdentity != nil {
			t.Errorf("Bind(%q) = %+v, want blocked", root, w)
		}
	}
	// A directory that was filled while case counted.
	if err := fsys.AddTwin(`C:\Work\repo`, memfs.Node{Kind: engine.KindDir}); err != nil {
		t.Fatal(err)
	}
	if w := engine.Bind(`C:\Work\Repo`, fsys); w.BindingStatus != engine.Blocked {
		t.Errorf("of two names that match one was bound: %+v", w)
	}
}

// TestWalkDarwin compares names by their normal form and not by their case.
func TestWalkDarwin(t *testing.T) {
	fsys := memfs.New(engine.PlatformFor("darwin"))
	fsys.MustBuild("dir /Users/é/repo\nfile /Users/é/repo/f\ndir /Users/é/repo/vol dev=77\ndir /Users/é/repo/mnt mountroot\nlink /Users/é/repo/l -> \"/Users/e\u0301/repo/f\"")
	w := bind(t, "/Users/é/repo", fsys)
	expect(t, w, "f", followNone, fsys, engine.Allowed, engine.CodeWithin, "/Users/é/repo/f")
	expect(t, w, "/Users/e\u0301/repo/f", followNone, fsys, engine.Allowed, engine.CodeWithin, "/Users/é/repo/f")
	expect(t, w, "l", followLinks, fsys, engine.Allowed, engine.CodeWithin, "/Users/é/repo/f")
	expect(t, w, "/users/é/repo/f", followNone, fsys, engine.Denied, engine.CodeOutside, "")
	expect(t, w, "vol", followMounts, fsys, engine.Conflict, engine.CodeDeviceChanged, "/Users/é/repo/vol")
	expect(t, w, "mnt", followNone, fsys, engine.Denied, engine.CodeMountPoint, "")
	// There is no mount table on macOS, and none is needed.
	if _, err := fsys.Mounts(); err == nil {
		t.Fatal("the fixture has a mount table")
	}
}
