//go:build vm

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thenforce/thenforce/pkg/engine"
	"golang.org/x/sys/unix"
)

// An overlay's file comes from a layer until it is changed, and then it is copied up: by the kernel, as the task that
// changes it. The programs must see none of that, and all of what the task itself does.
//
// %IN is a workspace whose files all come from the lower layer, %OUT is the same outside, %RO one to be read. An allowed
// row leaves no event, a denied one one and no copy: looking at the upper layer tells.
var onLayers = []row{
	// Reading comes from the layer.
	{operation: "open %IN/file"},
	{operation: "mapexec %IN/file"},
	{operation: "protect %IN/file"},
	{operation: "exec %IN/program"},
	{operation: "open %IN"},
	{operation: "open %IN/dir"},
	{operation: "open %RO/file"},
	{"openw %RO/file", eacces, "rights", ""},
	{"exec %RO/program", eacces, "rights", ""},
	{"protect %RO/file", eacces, "rights", ""},
	{"open %OUT/file", eacces, "no-grant", ""},
	{"openw %OUT/file", eacces, "no-grant", ""},
	{"opentrunc %OUT/file", eacces, "no-grant", ""},
	{"truncate %OUT/file", eacces, "no-grant", ""},
	{"chmod %OUT/file", eacces, "no-grant", ""},
	{"utimes %OUT/file", eacces, "no-grant", "(fs)"},
	{"setxattr %OUT/file", eacces, "no-grant", "(fs)"},
	{"unlink %OUT/file", eacces, "no-grant", ""},
	{"rmdir %OUT/dir", eacces, "no-grant", ""},
	{"link %OUT/file %IN/new", eacces, "no-grant", "%OUT/file"},
	{"rename %OUT/file %IN/new", eacces, "no-grant", "%OUT/file"},
	// Each of these copies something up: contents, or a directory and those above it.
	{operation: "openw %IN/a"},
	{operation: "opentrunc %IN/b"},
	{operation: "append %IN/deep/er/a"},
	{operation: "truncate %IN/c"},
	{operation: "chmod %IN/d"},
	{operation: "chown %IN/e"},
	{operation: "utimes %IN/f"},
	{operation: "touch %IN/g"},
	{operation: "setxattr %IN/h"},
	{operation: "setacl %IN/i"},
	{operation: "link %IN/j %IN/j2"},
	{operation: "rename %IN/k %IN/k2"},
	{operation: "rename %IN/l %IN/m"}, // onto another
	{operation: "exchange %IN/n %IN/o"},
	{operation: "mkdir %IN/dir/new"},
	{operation: "chmod %IN/deep"},
	{operation: "uring plain openat-write %IN/p"},
	{operation: "uring worker openat-write %IN/q"},
	{operation: "uring worker unlinkat %IN/r"},
	// Whiteouts, and what is made in their place.
	{operation: "unlink %IN/s"},
	{operation: "mknod %IN/s"},
	{operation: "unlink %IN/t"},
	{operation: "symlink %IN/t"},
	{operation: "rmdir %IN/empty"},
	{operation: "mkdir %IN/empty"}, // an opaque directory
	{operation: "mknod %IN/empty/new"},
	{operation: "rmdir %IN/empty2"},
	{operation: "uring worker mkdirat %IN/empty2"},
	{operation: "mknod %IN/empty2/new"},
	{"rename %IN/deep %IN/moved", unix.EXDEV, "", ""}, // the kernel's answer for a directory of the lower layer: tools copy
	// Copied up, it is what it was before.
	{operation: "open %IN/a"},
	{operation: "exec %IN/copied-program"},
	{operation: "openw %IN/a"},
	{operation: "mapexec %IN/a"},
	{"link %RO/file %IN/l2", unix.EXDEV, "rights-gain", "%IN/l2"},
}

// lowers are the file systems that lower layers are on.
var lowers = []place{
	{"tmpfs", tmpfsIn, map[uint32]bool{0: true}},
	{"ext4", func(*testing.T) string { return "/mnt/ext4" }, map[uint32]bool{1000: true}},
}

func TestOverlayLayers(t *testing.T) {
	e := openVerified(t)
	for _, lower := range lowers {
		for _, user := range []uint32{0, 1000} {
			if inFull() || lower.briefly[user] {
				t.Run(lower.name+"/"+userName(user), func(t *testing.T) {
					dir, err := os.MkdirTemp(lower.make(t), "lower-")
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { os.RemoveAll(dir) })
					furnishLayer(t, dir, user)
					testLayers(t, e, dir, user)
				})
			}
		}
	}
}

// On an overlay of two file systems a directory and a file, or a file of each layer, may have one number. The device that
// stat(2) tells is the overlay's, or not: that is how the loader knows.
func TestOverlayNumbersTwice(t *testing.T) {
	e := openVerified(t)
	lower := tmpfsIn(t)
	const dirs = 40
	for i := range dirs {
		if err := os.Mkdir(fmt.Sprintf("%s/dir%d", lower, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged, _ := overlayOver(t, lower, tmpfsIn(t))
	learn := func(path string) Identity {
		f, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, err := e.Learn(f)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	numbered := map[uint64]string{}
	for i := range dirs {
		name := fmt.Sprintf("%s/dir%d", merged, i)
		numbered[learn(name).Inode] = name
	}
	granted, twin := "", ""
	for i := 0; granted == "" && i < 1000; i++ {
		twin = fmt.Sprintf("%s/file%d", merged, i)
		if err := os.WriteFile(twin, []byte(canaryText), 0o644); err != nil {
			t.Fatal(err)
		}
		granted = numbered[learn(twin).Inode]
	}
	if granted == "" {
		t.Fatal("no file has a directory's number: the test shows nothing")
	}
	p := &stage{e: e, base: merged}
	if err := p.scene.makeCgroup("/sys/fs/cgroup", "twins-"); err != nil {
		t.Fatal(err)
	}
	sets := engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: granted},
		Objects:   []engine.Object{{Path: granted, Rights: engine.AllRights, Source: engine.SourceWorkspace}},
	}
	p.jail = p.newJail(t, &p.scene, sets)
	p.scene.child = p.start(t, p.scene.cgroup)
	p.replace = strings.NewReplacer("%TWIN", twin, "%GRANTED", granted)
	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	p.take(t, events)
	p.try(t, events, row{operation: "mknod %GRANTED/new"})
	p.try(t, events, row{"open %TWIN", eacces, "no-grant", ""})
	p.try(t, events, row{"openw %TWIN", eacces, "no-grant", ""})

	// A single file is not granted there, only its directory.
	sets.Objects = append(sets.Objects, engine.Object{Path: twin, Rights: engine.Read, Source: engine.SourcePolicy})
	other := &scene{}
	if err := other.mkdirCgroup(filepath.Dir(p.scene.path), "twins-"); err != nil {
		t.Fatal(err)
	}
	defer other.close()
	_, err = e.CreateJail(JailSpec{Cgroup: other.cgroup, CgroupPath: other.path, Sets: sets})
	var unverified *engine.UnverifiedError
	if !errors.As(err, &unverified) || unverified.Reasons[0].Code != engine.DeviceAmbiguous {
		t.Errorf("a grant of one file of two layers: %v", err)
	}
}

// furnishLayer makes in a folder what the rows need.
func furnishLayer(t *testing.T, dir string, user uint32) {
	t.Helper()
	for _, name := range []string{"in", "out", "ro"} {
		at := filepath.Join(dir, name)
		var errs []error
		for _, sub := range []string{"dir", "deep/er", "empty", "empty2"} {
			errs = append(errs, os.MkdirAll(filepath.Join(at, sub), 0o755))
		}
		files := []string{"file", "deep/er/a"}
		for c := 'a'; c <= 't'; c++ {
			files = append(files, string(c))
		}
		for _, file := range files {
			errs = append(errs, os.WriteFile(filepath.Join(at, file), []byte(canaryText), 0o644))
		}
		errs = append(errs, writeTinyProgram(at+"/program"), writeTinyProgram(at+"/copied-program"))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(user), int(user)))
	})
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
}

// testLayers mounts an overlay with a fresh upper layer over lower, and does the rows in a jail on it.
func testLayers(t *testing.T, e *Enforcer, lower string, user uint32) {
	merged, upper := overlayOver(t, lower, tmpfsIn(t))
	p := &stage{e: e, user: user, base: upper}
	if err := p.scene.makeCgroup("/sys/fs/cgroup", "layers-"); err != nil {
		t.Fatal(err)
	}
	in, ro := filepath.Join(merged, "in"), filepath.Join(merged, "ro")
	p.jail = p.newJail(t, &p.scene, engine.AllowedSets{
		Workspace: engine.WorkspaceIdentity{CanonicalRoot: in},
		Objects: []engine.Object{
			{Path: in, Rights: engine.AllRights, Source: engine.SourceWorkspace},
			{Path: ro, Rights: engine.Read, Source: engine.SourcePolicy},
		},
	})
	p.scene.child = p.start(t, p.scene.cgroup)
	p.replace = strings.NewReplacer("%IN", in, "%RO", ro, "%OUT", filepath.Join(merged, "out"))

	events, err := OpenEvents(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	p.take(t, events)
	for _, row := range onLayers {
		p.try(t, events, row)
	}
	// What was copied up has its contents, and nothing of the others was.
	for name, want := range map[string]string{"a": canaryText, "b": "", "d": canaryText, "f": canaryText, "j2": canaryText, "p": ""} {
		if text, err := os.ReadFile(filepath.Join(upper, "in", name)); err != nil || string(text) != want {
			t.Errorf("%s in the upper layer: %q, %v; want %q", name, text, err, want)
		}
	}
	if fi, err := os.Stat(in + "/f"); err != nil || !fi.ModTime().Equal(time.Unix(1, 0)) {
		t.Errorf("the times of f: %v, %v", fi, err)
	}
	for _, name := range []string{"out", "ro"} {
		if _, err := os.Lstat(filepath.Join(upper, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was copied up: %v", name, err)
		}
	}
	for _, name := range []string{"empty", "empty2"} {
		var opaque [1]byte
		if _, err := unix.Lgetxattr(filepath.Join(upper, "in", name), "trusted.overlay.opaque", opaque[:]); err != nil || opaque[0] != 'y' {
			t.Errorf("%s is not opaque: %q %v", name, opaque, err)
		}
	}
}

// overlayOver mounts an overlay below base, with the upper layer there too, and gives its root and that layer.
func overlayOver(t *testing.T, lower, base string) (merged, upper string) {
	t.Helper()
	upper, merged = filepath.Join(base, "upper"), filepath.Join(base, "merged")
	for _, dir := range []string{upper, merged, filepath.Join(base, "work")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+base+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	return merged, upper
}
