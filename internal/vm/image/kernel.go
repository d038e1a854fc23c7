//go:build linux

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/debian"
)

// Kernel is an unpacked kernel of the cache; kernel.json in its folder holds
// the same.
type Kernel struct {
	// Series is how it was asked for: "6.12", "7".
	Series string `json:"series"`
	// Release is what uname -r says in the guest.
	Release string `json:"release"`
	// Version is that of the Debian package.
	Version string `json:"version"`
	// Dir is the folder that it was unpacked into. Vmlinuz and Modules (the
	// folder with modules.dep) are relative to it.
	Dir     string `json:"-"`
	Vmlinuz string `json:"vmlinuz"`
	Modules string `json:"modules"`
}

// VmlinuzPath is the kernel image on the host.
func (k Kernel) VmlinuzPath() string { return filepath.Join(k.Dir, k.Vmlinuz) }

// ModulesPath is the folder of modules on the host.
func (k Kernel) ModulesPath() string { return filepath.Join(k.Dir, k.Modules) }

// Cache is the folder of everything that is built or downloaded once.
type Cache struct {
	dir string
	log io.Writer
}

// OpenCache returns the cache in $XDG_CACHE_HOME/thenforce; log gets a line for
// each thing that has to be made.
func OpenCache(log io.Writer) (*Cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache folder: %w", err)
	}
	dir := filepath.Join(base, "thenforce")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &Cache{dir: dir, log: log}, nil
}

// Dir returns the folder.
func (c *Cache) Dir() string { return c.dir }

// lock keeps other processes from building in the cache until the returned
// function is called.
func (c *Cache) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		fmt.Fprintln(c.log, "waiting for another process that is filling the cache")
		for {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
	return func() { f.Close() }, nil
}

// make calls build, with the cache locked, unless name exists.
func (c *Cache) make(name string, build func() error) error {
	exists := func() bool { _, err := os.Stat(name); return err == nil }
	if exists() {
		return nil
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if exists() { // Another process was faster.
		return nil
	}
	return build()
}

// Kernels returns the kernels of the series, fetching those that the cache does
// not have. Names in the archive are resolved when a series is first asked for
// and again with refresh, never otherwise: a run of the tests needs no network.
func (c *Cache) Kernels(ctx context.Context, series []string, refresh bool) ([]Kernel, error) {
	if !refresh {
		out, err := c.currentAll(series)
		if !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
	}
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	byAge := map[bool][]string{}
	for _, s := range series {
		if _, err := c.current(s); err != nil || refresh {
			old := strings.HasPrefix(s, "5.")
			byAge[old] = append(byAge[old], s)
		}
	}
	if err := c.fetchKernels(ctx, "apt", debian.Supported, byAge[false], refresh); err != nil {
		return nil, err
	}
	if err := c.fetchKernels(ctx, "apt-old", debian.Old, byAge[true], refresh); err != nil {
		return nil, err
	}
	if refresh {
		if err := c.removeOldKernels(); err != nil {
			return nil, err
		}
	}
	return c.currentAll(series)
}

func (c *Cache) currentAll(series []string) ([]Kernel, error) {
	var out []Kernel
	for _, s := range series {
		k, err := c.current(s)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// removeOldKernels removes the kernels that no series is resolved to any more.
func (c *Cache) removeOldKernels() error {
	dir := filepath.Join(c.dir, "kernels")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			used[target] = true
		}
	}
	for _, e := range entries {
		if e.IsDir() && !used[e.Name()] {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// apt returns the private apt in the given folder with its indexes downloaded.
func (c *Cache) apt(ctx context.Context, dir string, suites debian.Suites, refresh bool) (*debian.Apt, error) {
	apt, err := debian.Open(ctx, filepath.Join(c.dir, dir), suites)
	if err != nil {
		return nil, err
	}
	if refresh || !apt.HaveIndexes() {
		fmt.Fprintln(c.log, "reading the archive indexes")
		if err := apt.Update(ctx); err != nil {
			return nil, err
		}
	}
	return apt, nil
}

// fetchKernels resolves the series, if any, in the given suites.
func (c *Cache) fetchKernels(ctx context.Context, dir string, suites debian.Suites, series []string, refresh bool) error {
	if len(series) == 0 {
		return nil
	}
	apt, err := c.apt(ctx, dir, suites, refresh)
	if err != nil {
		return err
	}
	packages, err := apt.Packages(ctx, debian.IsKernelPackage)
	if err != nil {
		return err
	}
	for _, s := range series {
		if err := c.fetchKernel(ctx, apt, s, packages); err != nil {
			return err
		}
	}
	return nil
}

// current returns the kernel that the series was last resolved to.
func (c *Cache) current(series string) (Kernel, error) {
	link := filepath.Join(c.dir, "kernels", series)
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return Kernel{}, err
	}
	return readKernel(dir, series)
}

func readKernel(dir, series string) (Kernel, error) {
	text, err := os.ReadFile(filepath.Join(dir, "kernel.json"))
	if err != nil {
		return Kernel{}, err
	}
	var k Kernel
	if err := json.Unmarshal(text, &k); err != nil {
		return Kernel{}, &fs.PathError{Op: "read", Path: filepath.Join(dir, "kernel.json"), Err: err}
	}
	k.Dir, k.Series = dir, series
	return k, nil
}

// fetchKernel resolves a series and makes its link lead to the kernel, which is
// unpacked unless it is there.
func (c *Cache) fetchKernel(ctx context.Context, apt *debian.Apt, series string, all []debian.Package) error {
	parts, err := debian.ResolveKernel(series, all)
	if err != nil {
		return err
	}
	base := filepath.Join(c.dir, "kernels")
	name := parts[0].Name + "_" + strings.ReplaceAll(parts[0].Version, "~", "-")
	_, err = readKernel(filepath.Join(base, name), series)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(c.log, "kernel %s is %s\n", series, parts[0].Version)
		err = c.unpackKernel(ctx, apt, series, parts, filepath.Join(base, name))
	}
	if err != nil {
		return err
	}
	return link(name, filepath.Join(base, series))
}

// link replaces a symbolic link in one step.
func link(target, name string) error {
	tmp := name + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

func (c *Cache) unpackKernel(ctx context.Context, apt *debian.Apt, series string, parts []debian.Package, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	// Unpacked beside its place and renamed when complete: a folder that exists
	// is whole.
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := apt.Unpack(ctx, parts, tmp, c.log); err != nil {
		return err
	}
	k, err := describeKernel(tmp)
	if err != nil {
		return err
	}
	k.Series, k.Version = series, parts[0].Version
	// The package's own scripts would run depmod; nothing was installed.
	// depmod looks for lib/modules below its base.
	base := strings.TrimSuffix(filepath.Join(tmp, k.Modules), "/lib/modules/"+k.Release)
	depmod := exec.CommandContext(ctx, "depmod", "-b", base, k.Release)
	if out, err := depmod.CombinedOutput(); err != nil {
		return fmt.Errorf("index the modules of %s: %w: %s", k.Release, err, out)
	}
	text, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "kernel.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// describeKernel finds the kernel image and the modules of an unpacked kernel.
// Up to trixie they lie in boot and lib/modules, later both in
// usr/lib/modules.
func describeKernel(dir string) (Kernel, error) {
	one := func(patterns ...string) (string, error) {
		for _, p := range patterns {
			found, err := filepath.Glob(filepath.Join(dir, p))
			if err != nil {
				return "", err
			}
			if len(found) == 1 {
				return filepath.Rel(dir, found[0])
			}
			if len(found) > 1 {
				return "", fmt.Errorf("unpack kernel: %d files match %s, want 1", len(found), p)
			}
		}
		return "", fmt.Errorf("unpack kernel: nothing matches %s", strings.Join(patterns, " or "))
	}
	vmlinuz, err := one("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz")
	if err != nil {
		return Kernel{}, err
	}
	modules, err := one("lib/modules/*/kernel", "usr/lib/modules/*/kernel")
	if err != nil {
		return Kernel{}, err
	}
	modules = filepath.Dir(modules)
	return Kernel{Release: filepath.Base(modules), Vmlinuz: vmlinuz, Modules: modules}, nil
}

// Busybox returns a statically linked busybox, fetching it when missing.
func (c *Cache) Busybox(ctx context.Context) (string, error) {
	name := filepath.Join(c.dir, "busybox")
	return name, c.make(name, func() error { return c.fetchBusybox(ctx, name) })
}

func (c *Cache) fetchBusybox(ctx context.Context, name string) error {
	apt, err := c.apt(ctx, "apt", debian.Supported, false)
	if err != nil {
		return err
	}
	found, err := apt.Packages(ctx, func(n string) bool { return n == "busybox-static" })
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return errors.New("find busybox-static: not in the archive")
	}
	newest := slices.MaxFunc(found, func(a, b debian.Package) int { return debian.CompareVersions(a.Version, b.Version) })
	tmp, err := os.MkdirTemp(c.dir, ".busybox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := apt.Unpack(ctx, []debian.Package{newest}, tmp, c.log); err != nil {
		return err
	}
	// usr/bin since trixie.
	err = os.Rename(filepath.Join(tmp, "usr/bin/busybox"), name)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(filepath.Join(tmp, "bin/busybox"), name)
	}
	return err
}

// KeepLog stores the kernel log of a guest that failed and returns its name.
func (c *Cache) KeepLog(name, text string) (string, error) {
	dir := filepath.Join(c.dir, "logs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name+".log")
	return file, os.WriteFile(file, []byte(text), 0o644)
}
