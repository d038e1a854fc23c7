//go:build linux

package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cavaliergopher/cpio"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"
)

// entry is a cpio member.
type entry struct {
	Name, Body string
	Mode       cpio.FileMode
}

func readArchive(t *testing.T, r io.Reader) []entry {
	t.Helper()
	var out []entry
	for a := cpio.NewReader(r); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Guid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Guid)
		}
		body, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{h.Name, string(body) + h.Linkname, h.Mode})
	}
}

func TestInitramfs(t *testing.T) {
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "d"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "d", "f"), []byte("copied"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d/f", filepath.Join(host, "l")); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	a := NewInitramfs(&buf)
	a.File("/a/b/odd", 0o755, []byte("abc"))
	a.File("/a/empty", 0o600, nil)
	a.Dir("/a/b", 0o700) // made above
	a.Symlink("/bin", "usr/bin")
	a.Copy("/payload", host)
	a.File("../../outside", 0o644, []byte("stays below the root"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	const dir, file, link = cpio.TypeDir, cpio.TypeReg, cpio.TypeSymlink
	want := []entry{
		{"a", "", dir | 0o755}, {"a/b", "", dir | 0o755}, {"a/b/odd", "abc", file | 0o755}, {"a/empty", "", file | 0o600},
		{"bin", "usr/bin", link | 0o777},
		{"payload", "", dir | 0o755}, {"payload/d", "", dir | 0o750}, {"payload/d/f", "copied", file | 0o640}, {"payload/l", "d/f", link | 0o777},
		{"outside", "stays below the root", file | 0o644},
	}
	info, err := os.Stat(host)
	if err != nil {
		t.Fatal(err)
	}
	want[5].Mode = dir | cpio.FileMode(info.Mode().Perm())
	if diff := gocmp.Diff(want, readArchive(t, &buf)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestInitramfsErrorsStick(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, copyFrom := range map[string]string{"a missing file": fifo + ".not", "a FIFO": fifo} {
		var buf bytes.Buffer
		a := NewInitramfs(&buf)
		a.Copy("/x", copyFrom)
		a.File("/y", 0o644, []byte("y"))
		err := a.Close()
		var pe *fs.PathError
		if !errors.As(err, &pe) || pe.Path != copyFrom {
			t.Errorf("%s: error %v, want one with its path", what, err)
		}
		if strings.Contains(buf.String(), "TRAILER!!!") {
			t.Errorf("%s: the archive was ended as if complete", what)
		}
	}
}

func TestModuleClosure(t *testing.T) {
	const dep = `kernel/crypto/crc32c_generic.ko.xz:
kernel/fs/mbcache.ko.xz:
kernel/fs/jbd2/jbd2.ko.xz:
kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz kernel/fs/jbd2/jbd2.ko.xz
kernel/lib/crc16.ko.xz:
kernel/drivers/nvme/host/nvme.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz kernel/drivers/nvme/common/nvme-common.ko.xz
kernel/drivers/nvme/host/nvme-core.ko.xz: kernel/drivers/nvme/common/nvme-common.ko.xz
kernel/drivers/nvme/common/nvme-common.ko.xz:
kernel/fs/x/btree-x.ko: kernel/fs/jbd2/jbd2.ko.xz
`
	got := moduleClosure(dep, []string{"nvme", "crc32c_generic", "built_in", "ext4", "btree-x", "ext4"})
	want := []string{
		"kernel/drivers/nvme/common/nvme-common.ko.xz", "kernel/drivers/nvme/host/nvme-core.ko.xz", "kernel/drivers/nvme/host/nvme.ko.xz",
		"kernel/crypto/crc32c_generic.ko.xz",
		"kernel/fs/jbd2/jbd2.ko.xz", "kernel/fs/mbcache.ko.xz", "kernel/lib/crc16.ko.xz", "kernel/fs/ext4/ext4.ko.xz",
		"kernel/fs/x/btree-x.ko",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReadModule(t *testing.T) {
	dir := t.TempDir()
	var x, z bytes.Buffer
	xw, err := xz.NewWriter(&x)
	if err != nil {
		t.Fatal(err)
	}
	zw, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{xw, zw} {
		if _, err := io.WriteString(w, "\x7fELF"); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{"m.ko": []byte("\x7fELF"), "m.ko.xz": x.Bytes(), "m.ko.zst": z.Bytes()} {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := readModule(name); err != nil || string(got) != "\x7fELF" {
			t.Errorf("%s: %q, %v", filepath.Base(name), got, err)
		}
	}
	for _, name := range []string{"bad.ko.xz", "bad.ko.zst"} {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte("neither"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := readModule(name); err == nil {
			t.Errorf("%s: no error, %q", filepath.Base(name), got)
		}
	}
}

func TestDescribeKernel(t *testing.T) {
	for what, c := range map[string]struct {
		files []string
		want  Kernel
	}{
		"as packaged up to trixie": {
			[]string{"boot/vmlinuz-6.1.0-57-cloud-amd64", "boot/config-6.1.0-57-cloud-amd64", "lib/modules/6.1.0-57-cloud-amd64/kernel/fs/x.ko"},
			Kernel{Release: "6.1.0-57-cloud-amd64", Vmlinuz: "boot/vmlinuz-6.1.0-57-cloud-amd64", Modules: "lib/modules/6.1.0-57-cloud-amd64"},
		},
		"in three packages": {
			[]string{"usr/lib/modules/7.3.4-cloud-amd64/vmlinuz", "usr/lib/modules/7.3.4-cloud-amd64/kernel/fs/x.ko"},
			Kernel{Release: "7.3.4-cloud-amd64", Vmlinuz: "usr/lib/modules/7.3.4-cloud-amd64/vmlinuz", Modules: "usr/lib/modules/7.3.4-cloud-amd64"},
		},
	} {
		got, err := describeKernel(tree(t, c.files...))
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if diff := gocmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", what, diff)
		}
	}
	for what, files := range map[string][]string{
		"no kernel":   {"lib/modules/6.1/kernel/x.ko"},
		"no modules":  {"boot/vmlinuz-6.1"},
		"two kernels": {"boot/vmlinuz-6.1", "boot/vmlinuz-6.2", "lib/modules/6.1/kernel/x.ko"},
	} {
		if got, err := describeKernel(tree(t, files...)); err == nil {
			t.Errorf("%s: no error, %+v", what, got)
		}
	}
}

func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		f = filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A kernel that was resolved before is used without a network or an archive,
// whatever its name has become since.
func TestKernelsFromCache(t *testing.T) {
	cacheHome := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cacheHome)
	// Whoever asked the archive would fail here.
	t.Setenv("PATH", "")
	c, err := OpenCache(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(cacheHome, "thenforce", "kernels")
	dir := filepath.Join(base, "linux-image-6.12.1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(Kernel{Series: "6.12", Release: "6.12.1-cloud", Version: "6.12.1-1", Vmlinuz: "boot/vmlinuz", Modules: "lib/modules/x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, series := range []string{"6.12", "6"} {
		if err := link("linux-image-6.12.1", filepath.Join(base, series)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Kernels(t.Context(), []string{"6.12", "6"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Series != "6.12" || got[1].Series != "6" || got[0].Release != "6.12.1-cloud" {
		t.Errorf("got %+v", got)
	}
	if want := filepath.Join(dir, "boot/vmlinuz"); got[0].VmlinuzPath() != want {
		t.Errorf("kernel image %s, want %s", got[0].VmlinuzPath(), want)
	}
	if got, err := c.Kernels(t.Context(), []string{"6.1"}, false); err == nil {
		t.Errorf("a kernel that is not in the cache: %+v, no error", got)
	}
	unused := filepath.Join(base, "linux-image-6.12.0")
	if err := os.Mkdir(unused, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.removeOldKernels(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unused); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a kernel of no series is still there: %v", err)
	}
	if _, err := c.current("6"); err != nil {
		t.Errorf("a kernel in use was removed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Kernels(t.Context(), []string{"6.12"}, false); err == nil {
		t.Errorf("a damaged record: %+v, no error", got)
	}
}

func TestMakeOnce(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, err := OpenCache(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Dir(), "thing")
	var made atomic.Int32
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			err := c.make(name, func() error {
				made.Add(1)
				return os.WriteFile(name, nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
	why := errors.New("why")
	if err := c.make(name+".other", func() error { return why }); !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
}
