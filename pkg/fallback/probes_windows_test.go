// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/thenforce/thenforce/pkg/engine"
	"github.com/thenforce/thenforce/test/needs"
)

func TestInspect(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "dir d\nfile Name.txt content\nhard h -> Name.txt")
	inspect := func(name string) engine.Entry {
		t.Helper()
		e, err := p.Inspect(filepath.Join(dir, name))
		must(t, err)
		return e
	}
	d, f, h, other := inspect("d"), inspect("Name.txt"), inspect("h"), inspect("NAME.TXT")
	if d.Kind != engine.KindDir || f.Kind != engine.KindFile || d.Ino == 0 || f.Ino == 0 || d.Dev != f.Dev {
		t.Errorf("the directory is %+v, the file %+v", d, f)
	}
	if !f.SameObject(&h) || !f.SameObject(&other) || f.SameObject(&d) {
		t.Errorf("the file is %+v, its hard link %+v, by another case %+v", f, h, other)
	}
	if f.Name != "Name.txt" || other.Name != "Name.txt" || h.Name != "h" {
		t.Errorf("the names are %q, %q and %q", f.Name, other.Name, h.Name)
	}
	file, err := os.Open(filepath.Join(dir, "Name.txt"))
	must(t, err)
	defer file.Close()
	if opened, err := p.entryOf(file); err != nil || !opened.SameObject(&f) || opened.Kind != f.Kind {
		t.Errorf("by its handle the file is %+v, %v", opened, err)
	}
	root, err := p.Inspect(filepath.VolumeName(dir) + `\`)
	if err != nil || root.Kind != engine.KindDir || root.Name != "" {
		t.Errorf("the root of the volume is %+v, %v", root, err)
	}
	for _, missing := range []string{"n", `n\n`} {
		if _, err := p.Inspect(filepath.Join(dir, missing)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is %v, want ErrNotExist", missing, err)
		}
	}
	if _, err := p.Inspect(dir + "\\a\x00b"); err == nil {
		t.Error("a NUL is part of a name")
	}
}

// TestSpellings opens one file by every name it has, and none that means
// something else than it shows.
func TestSpellings(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "file ws/Folder/Name.txt content\noutside out/secret")
	root := filepath.Join(dir, "ws")
	g := &Guard{Workspace: bind(t, root, p), Probes: p}
	for _, target := range []string{`Folder\Name.txt`, `folder/NAME.TXT`, strings.ToUpper(root) + `\folder\name.txt`} {
		if content, err := g.ReadFile(target); err != nil || string(content) != "content" {
			t.Errorf("%s reads %q, %v", target, content, err)
		}
	}
	for _, target := range []string{
		`Folder\Name.txt.`, `Folder\Name.txt `, `Folder\Name.txt::$DATA`, `Folder\Name.txt:s`, "NUL", `Folder\nul.txt`,
		"COM1", `\\.\C:`, `\\?\` + root + `\Folder\Name.txt`, `C:Folder\Name.txt`, `Folder\*`, "CONOUT$",
	} {
		if f, err := g.Open(target); !errors.Is(err, engine.ErrUnsafePath) {
			t.Errorf("%s is %v, want ErrUnsafePath", target, err)
			f.Close()
		}
		if err := g.WriteFile(target, []byte("x"), 0o600); !errors.Is(err, engine.ErrUnsafePath) {
			t.Errorf("writing %s is %v, want ErrUnsafePath", target, err)
		}
	}
	other := "D:"
	if strings.EqualFold(filepath.VolumeName(dir), other) {
		other = "C:"
	}
	for _, target := range []string{`..\out\secret`, `Folder/../../out/secret`, other + `\x`, `\\server\share\x`, `\x`} {
		if _, err := g.Open(target); !errors.Is(err, engine.ErrEscape) {
			t.Errorf("%s is %v, want ErrEscape", target, err)
		}
	}
}

// TestNotUnicode asks for names that are not UTF-8, which the system reads as names
// with U+FFFD in them.
func TestNotUnicode(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "file ws/a\ufffd content\nfile d\ufffd/f content")
	g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p}
	if content, err := g.ReadFile("a\ufffd"); err != nil || string(content) != "content" {
		t.Errorf("by its own name it reads %q, %v", content, err)
	}
	for _, op := range []string{"read a\xff", "write a\xff x", "write n\xff x", "mkdir n\xff", "remove a\xff", "rename a\xff b", "rename a\ufffd n\xff"} {
		if got, err := perform(g, "", op); !errors.Is(err, ErrUnverified) {
			t.Errorf("%q is %q, %v; want ErrUnverified", op, got, err)
		}
	}
	if got, want := listing(t, filepath.Join(dir, "ws")), "a\ufffd content"; got != want {
		t.Errorf("the workspace holds %q, want %q", got, want)
	}
	if w := engine.Bind(filepath.Join(dir, "d\xff"), p); w.BindingStatus != engine.Blocked {
		t.Errorf("a root is bound as %+v", w)
	}
}

func TestLongPath(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, `file LongFolderName/LongFileName.text`)
	long := filepath.Join(dir, "LongFolderName", "LongFileName.text")
	name, err := windows.UTF16PtrFromString(long)
	must(t, err)
	var buffer [windows.MAX_PATH]uint16
	n, err := windows.GetShortPathName(name, &buffer[0], uint32(len(buffer)))
	must(t, err)
	short := windows.UTF16ToString(buffer[:n])
	t.Logf("the short name is %s", short)
	for given, want := range map[string]string{
		long:                       long,
		short:                      long,
		filepath.Join(dir, "n"):    filepath.Join(dir, "n"),
		short + `\n\m`:             long + `\n\m`,
		filepath.Dir(short):        filepath.Dir(long),
		filepath.Dir(short) + `\n`: filepath.Dir(long) + `\n`,
	} {
		if got, err := p.LongPath(given); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", given, got, err, want)
		}
	}
	g := &Guard{Workspace: bind(t, filepath.Dir(long), p), Probes: p}
	if _, err := g.ReadFile(short); err != nil {
		t.Errorf("by its short name: %v", err)
	}
}

// TestFollowedBySystem looks at a link of the system below wine, which wine
// follows for everybody. Windows itself has nothing of the kind.
func TestFollowedBySystem(t *testing.T) {
	if !needs.Wine() {
		return
	}
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "dir ws/d\noutside out/secret")
	link := filepath.Join(dir, "ws", "link")
	hostLink(t, hostPath(t, filepath.Join(dir, "out")), hostPath(t, filepath.Join(dir, "ws"))+"/link")
	if content, err := os.ReadFile(filepath.Join(link, "secret")); err != nil || string(content) != marker {
		t.Fatalf("the link does not lead out: %q, %v", content, err)
	}
	if e, err := p.Inspect(link); !errors.Is(err, errFollowed) {
		t.Errorf("the link is %+v, %v; want errFollowed", e, err)
	}
	g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p, Options: engine.ContainmentOptions{
		FollowSymlinks: true, FollowJunctions: true, FollowMountPoints: true, FollowReparsePoints: true,
	}}
	for _, op := range []string{`read link\secret`, `list link`, `write link\new x`, `mkdir link\new`, `remove link\secret`, `rename link\secret new`} {
		if got, err := perform(g, "", op); !errors.Is(err, ErrUnverified) {
			t.Errorf("%s is %q, %v; want ErrUnverified", op, got, err)
		}
	}
	if got, want := listing(t, filepath.Join(dir, "out")), "secret "+marker; got != want {
		t.Errorf("outside is %q, want %q", got, want)
	}
}

// hostPath returns what the system below wine calls a file.
func hostPath(t *testing.T, path string) string {
	t.Helper()
	name, err := windows.UTF16PtrFromString(path)
	must(t, err)
	text, _, err := windows.NewLazySystemDLL("kernel32.dll").NewProc("wine_get_unix_file_name").Call(uintptr(unsafe.Pointer(name)))
	if text == 0 {
		t.Fatal(err)
	}
	return windows.BytePtrToString(*(**byte)(unsafe.Pointer(&text)))
}

// hostLink makes a symbolic link of the system below wine.
func hostLink(t *testing.T, target, path string) {
	t.Helper()
	exists := func() bool {
		_, err := os.Stat(`Z:` + filepath.FromSlash(path))
		return err == nil
	}
	// Wine starts programs of the system below, and cannot wait for them.
	start := func(done func() bool, args ...string) {
		t.Helper()
		_, err := os.StartProcess(`Z:\usr\bin\`+args[0], args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
		must(t, err)
		for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
			if done() {
				return
			}
		}
		t.Fatalf("%v did nothing", args)
	}
	start(exists, "ln", "-s", target, path)
	t.Cleanup(func() { start(func() bool { return !exists() }, "rm", path) })
}

// TestJunction makes a junction that leads out, where the system can.
func TestJunction(t *testing.T) {
	p := newProbes(t)
	dir := realTempDir(t)
	tree(t, dir, "dir ws/junction\noutside out/secret")
	junction := filepath.Join(dir, "ws", "junction")
	target := `\??\` + filepath.Join(dir, "out")
	if err := setReparsePoint(junction, reparsePoint(tagMountPoint, target, "lie")); err != nil {
		needs.Missing(t, "junctions", err)
	}
	e, err := p.Inspect(junction)
	if err != nil || e.Kind != engine.KindJunction || !e.DirReparse || e.MountRoot {
		t.Errorf("the junction is %+v, %v", e, err)
	}
	if got, err := p.ReadLink(junction); err != nil || got != target {
		t.Errorf("the junction leads to %q, %v; want %q", got, err, target)
	}
	g := &Guard{Workspace: bind(t, filepath.Join(dir, "ws"), p), Probes: p}
	for _, g.Options.FollowJunctions = range []bool{false, true} {
		for _, op := range []string{`read junction\secret`, `write junction\new x`, `remove junction\secret`} {
			if _, err := perform(g, dir, op); !errors.Is(err, engine.ErrEscape) {
				t.Errorf("%s is %v, want ErrEscape", op, err)
			}
		}
	}
}

func setReparsePoint(path string, buffer []byte) error {
	handle, err := openObject(path, windows.GENERIC_WRITE)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(handle)
	const fsctlSetReparsePoint = 0x000900A4
	var n uint32
	return windows.DeviceIoControl(handle, fsctlSetReparsePoint, &buffer[0], uint32(len(buffer)), nil, 0, &n, nil)
}
