// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
)

// TestResolveVariants holds what the conformance vectors do not.
func TestResolveVariants(t *testing.T) {
	const escapes = "\x00"
	tests := []struct{ root, candidate, want string }{
		{"/srv/repo", "../repo", "/srv/repo"},
		{"/srv/repo", "/srv/repo/", "/srv/repo"},
		{"/srv/repo", "/srv/repo//", "/srv/repo"},
		{"/srv/repo", "..", escapes},
		{"/srv/repo", "../repo2", escapes},
		{"/srv/repo", "\xff\xfe", "/srv/repo/\xff\xfe"},
		{"/srv/repo\xff", "x", "/srv/repo\xff/x"},
		{"/srv/repo\xff", "/srv/repo\xfe/x", escapes},
		{"/é", "/e\u0301/x", escapes}, // byte by byte
		{`C:\`, `C:`, `C:\`},
		{`C:\w`, `C:`, `C:\w`},
		{`C:\w`, `c:..\W\x`, `c:\W\x`},
		{`C:\w`, `D:\w\x`, escapes},
		{`C:\w`, `\\?\C:\w\x`, escapes},
		{`C:\w`, `//?/C:/w/x`, escapes},
		{`C:\É`, `c:\é\x`, `c:\é\x`},
		{`C:\É`, "c:\\e\u0301\\x", "c:\\e\u0301\\x"}, // NFC on Windows
		{`C:\ß`, `C:\SS\x`, escapes},                 // no full case folding
		{`C:\ſ`, `C:\S\x`, escapes},                  // EqualFold would say yes
		{`C:\K`, "C:\\\u212a\\x", "C:\\\u212a\\x"},   // the Kelvin sign is lower-cased to k
		{"C:\\w\xff", "C:\\W\xfe\\x", escapes},       // bytes that are no UTF-8 stay apart
		{"C:\\w\xff", "C:\\W\xff\\x", "C:\\W\xff\\x"},
		{`\\srv\share`, `\\SRV\Share\x`, `\\SRV\Share\x`},
		{`\\srv\share`, `..\..\x`, `\\srv\share\x`},
		{`\\srv\share\ws`, `//srv/share/ws/x`, `\\srv\share\ws\x`},
		{`\\srv\share\ws`, `/share/ws`, escapes},
		{`\\srv\share\ws`, `\ws\x`, `\\srv\share\ws\x`},
		{`c:/w`, `/W/x`, `c:\W\x`},
	}
	for _, tt := range tests {
		got, err := Resolve(tt.root, tt.candidate)
		switch {
		case tt.want == escapes:
			if !errors.Is(err, ErrEscape) || !errors.Is(err, fs.ErrPermission) {
				t.Errorf("Resolve(%q, %q) = %q, %v; want ErrEscape", tt.root, tt.candidate, got, err)
			}
		case err != nil || got != tt.want:
			t.Errorf("Resolve(%q, %q) = %q, %v; want %q", tt.root, tt.candidate, got, err, tt.want)
		}
	}
	for _, root := range []string{"", ".", "srv/repo", `\srv`, "C:", "C:x", `\\srv`, `\\`, "~/x"} {
		if got, err := Resolve(root, "x"); !errors.Is(err, ErrUnsafePath) {
			t.Errorf("Resolve(%q, x) = %q, %v; want ErrUnsafePath", root, got, err)
		}
	}
}

func TestBelowNormalForm(t *testing.T) {
	darwin := pathMath{shape: shapePOSIX, form: UnicodeNFD}
	tests := []struct {
		root, path, rel string
		ok              bool
	}{
		{"/tmp/é", "/tmp/e\u0301/x", "x", true},
		{"/tmp/e\u0301", "/tmp/é", "", true},
		{"/tmp/é", "/tmp/e/x", "", false},
		{"/tmp/é", "/tmp", "", false},
		{"/tmp/é/b", "/tmp/e\u0301", "", false},
		{"/tmp/é", "/tmp/e\u0301x/y", "", false},
		{"/", "/e\u0301", "e\u0301", true},
		{"/tmp/É", "/tmp/é/x", "", false},
	}
	for _, tt := range tests {
		rel, ok := darwin.below(tt.root, tt.path)
		if rel != tt.rel || ok != tt.ok {
			t.Errorf("below(%q, %q) = %q, %v; want %q, %v", tt.root, tt.path, rel, ok, tt.rel, tt.ok)
		}
	}
}

func TestUnsafeWindows(t *testing.T) {
	for _, p := range []string{
		"NUL", "nul", "NUL.txt", "NUL .txt", "nul.tar.gz", `a\NUL`, `NUL\..\x`, "con", "PRN", "aux.c", "COM1", "com9.log", "LPT1", "COM¹", "lpt³.x",
		"CONIN$", "conout$", "COM0",
		"f:stream", "f::$DATA", `d:x\f`, "a/b:c", ":x",
		`\\?\C:\w\x`, `\\.\C:\w`, `//?/C:/w`, `\/?\C:\w`, `\\.\PhysicalDrive0`, `\??\C:\w`, `/??/C:/w`, `\\?`, `\\.`,
		"x.", "x ", "dir./x", `dir \x`, "...", ". .", "x..", "C:x", "C:", "c:..\\x", "D:",
		"a*b", "a?b", "<x", "x>", `a"b`, "a|b", "a\x01b", "a\x1f", "tab\tname",
	} {
		if !unsafeWindows(p) {
			t.Errorf("%q is taken for safe", p)
		}
	}
	for _, p := range []string{
		"", ".", "..", `..\x`, "a/b", `a\b`, "NULL", "XNUL", "COM10", "COM", "LPT", "CONSOLE", "config", "a.b.c", "..hidden", ".git", "a b", " leading",
		`C:\w\x`, "c:/w/x", `\w\x`, `\\server\share\x`, "é", "\xff", "COM1x", "my.con", "x\u00a0", "a~1",
	} {
		if unsafeWindows(p) {
			t.Errorf("%q is taken for unsafe", p)
		}
	}
}

func TestParent(t *testing.T) {
	posix, windows := pathMath{shape: shapePOSIX}, pathMath{shape: shapeWindows}
	for p, want := range map[string]string{"/": "/", "/a": "/", "/a/b": "/a"} {
		if got := posix.parent(p); got != want {
			t.Errorf("parent(%q) = %q, want %q", p, got, want)
		}
	}
	for p, want := range map[string]string{
		`C:\`: `C:\`, `C:\a`: `C:\`, `C:\a\b`: `C:\a`, `\\s\h`: `\\s\h\`, `\\s\h\a`: `\\s\h\`, `\\s\h\a\b`: `\\s\h\a`,
	} {
		if got := windows.parent(p); got != want {
			t.Errorf("parent(%q) = %q, want %q", p, got, want)
		}
	}
}

func TestLinkTarget(t *testing.T) {
	windows := pathMath{shape: shapeWindows}
	for target, want := range map[string]string{
		`\??\C:\x\y`:           `C:\x\y`,
		`\\?\C:\x`:             `C:\x`,
		`\??\UNC\srv\share\x`:  `\\srv\share\x`,
		`\\?\unc\srv\share\x`:  `\\srv\share\x`,
		`..\x`:                 `..\x`,
		`\x`:                   `\x`,
		`C:\x`:                 `C:\x`,
		`\??\Volume{1-2}\x`:    "",
		`\\?\GLOBALROOT\x`:     "",
		`\??\C:x`:              "",
		`\??\\\?\C:\x`:         "",
		`C:x`:                  "",
		`\??\C:\x\NUL`:         "",
		"a\x00b":               "",
		"":                     "",
		`\??\PhysicalDrive0\x`: "",
	} {
		got, err := windows.linkTarget(target)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("linkTarget(%q) = %q, %v; want %q", target, got, err, want)
		}
	}
}

// inside is a second opinion on whether a POSIX path lies at or below another.
func inside(root, p string) bool {
	return root == "/" || p == root || strings.HasPrefix(p, root+"/")
}

func FuzzResolvePOSIX(f *testing.F) {
	for _, seed := range []string{"", ".", "..", "a/../..", "/etc/passwd", "//x//", "a/./b/../c/", "..hidden", "C:\\x", "\xff/\x00"} {
		f.Add("/srv/repo", seed)
	}
	f.Add("/", "../x")
	f.Add("/a/../b//", "/b/c")
	f.Add("relative", "x")
	f.Fuzz(func(t *testing.T, root, candidate string) {
		got, err := Resolve(root, candidate)
		if !strings.HasPrefix(root, "/") {
			if shapeOf(root) == shapeNone && !errors.Is(err, ErrUnsafePath) {
				t.Fatalf("a root that is not absolute gives %q, %v", got, err)
			}
			return
		}
		// The oracle: the standard library's lexical rules.
		full := path.Clean(candidate)
		if !path.IsAbs(candidate) {
			full = path.Join(path.Clean(root), candidate)
		}
		if !inside(path.Clean(root), full) {
			if !errors.Is(err, ErrEscape) {
				t.Fatalf("Resolve(%q, %q) = %q, %v; want ErrEscape", root, candidate, got, err)
			}
			return
		}
		if err != nil || got != full {
			t.Fatalf("Resolve(%q, %q) = %q, %v; want %q", root, candidate, got, err, full)
		}
		if again, err := Resolve(root, got); err != nil || again != got {
			t.Fatalf("Resolve(%q, %q) = %q, %v: not the same again", root, got, again, err)
		}
	})
}

func FuzzResolveWindows(f *testing.F) {
	for _, seed := range []string{"", ".", `..\x`, `c:\WORK\repo\x`, `C:x`, `D:x`, `\work`, `\\s\h\x`, `\\?\C:\x`, "a/b\\c", "NUL.txt", "x:y", "é", "\xff"} {
		f.Add(`C:\Work\Repo`, seed)
		f.Add(`\\Server\Share\Ws`, seed)
	}
	f.Add(`C:\`, `..\..`)
	f.Fuzz(func(t *testing.T, root, candidate string) {
		unsafeWindows(candidate)
		m := mathFor(root)
		if m.shape != shapeWindows {
			return
		}
		got, err := Resolve(root, candidate)
		if err != nil {
			if !errors.Is(err, ErrEscape) {
				t.Fatalf("Resolve(%q, %q): %v", root, candidate, err)
			}
			return
		}
		clean, ok := m.clean(root)
		if !ok {
			t.Fatalf("root %q resolved %q and is not absolute", root, got)
		}
		device, rooted, rest := m.volume(got)
		rootDevice, _, rootRest := m.volume(clean)
		if !rooted || !m.equal(device, rootDevice) {
			t.Fatalf("Resolve(%q, %q) = %q is not on the root's device", root, candidate, got)
		}
		names := strings.FieldsFunc(rest, func(r rune) bool { return r == '\\' || r == '/' })
		want := strings.FieldsFunc(rootRest, func(r rune) bool { return r == '\\' || r == '/' })
		for _, name := range names {
			if name == "." || name == ".." {
				t.Fatalf("Resolve(%q, %q) = %q keeps %q", root, candidate, got, name)
			}
		}
		if len(names) < len(want) {
			t.Fatalf("Resolve(%q, %q) = %q is above the root", root, candidate, got)
		}
		for i, name := range want {
			if !m.equal(name, names[i]) {
				t.Fatalf("Resolve(%q, %q) = %q leaves the root at %q", root, candidate, got, names[i])
			}
		}
		if again, err := Resolve(root, got); err != nil || again != got {
			t.Fatalf("Resolve(%q, %q) = %q, %v: not the same again", root, got, again, err)
		}
	})
}
