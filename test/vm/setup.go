//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/thenforce/thenforce/internal/vm/debian"
)

// tool is something of the host that the harness calls.
type tool struct {
	path    string // a command, or a file when it begins with a slash
	pkg     string // the Debian package that has it
	purpose string
	full    bool // needed for the full guest only
}

var tools = []tool{
	{"qemu-system-x86_64", "qemu-system-x86", "runs the guests", false},
	{"mke2fs", "e2fsprogs", "makes their disks", false},
	{"depmod", "kmod", "indexes kernel modules", false},
	{"dpkg-deb", "dpkg", "unpacks kernels", false},
	{"apt-get", "apt", "downloads kernels", false},
	{debian.Keyring, "debian-archive-keyring", "verifies them", false},
	{"debootstrap", "debootstrap", "makes the root of the full guest", true},
}

func (t tool) missing() bool {
	if strings.HasPrefix(t.path, "/") {
		_, err := os.Stat(t.path)
		return err != nil
	}
	_, err := exec.LookPath(t.path)
	return err != nil
}

func missingTools(full bool) []tool {
	var out []tool
	for _, t := range tools {
		if (!t.full || full) && t.missing() {
			out = append(out, t)
		}
	}
	return out
}

// needTools errors when something is missing, with the command that gets it.
func needTools(full bool) error {
	missing := missingTools(full)
	if len(missing) == 0 {
		return nil
	}
	var b strings.Builder
	for _, t := range missing {
		fmt.Fprintf(&b, "\n  %s (package %s) %s", t.path, t.pkg, t.purpose)
	}
	return fmt.Errorf("missing on this machine:%s\nrun: go run ./test/vm setup", b.String())
}

func setup(ctx context.Context, args []string) error {
	f := newFlags("setup", "")
	kernels := f.String("kernels", defaultKernels, "kernel `series`, separated by commas")
	full := f.Bool("full", false, "also build the images of the full guest")
	refresh := f.Bool("refresh", false, "ask the archive again for the newest kernels, and with --full rebuild the root")
	if err := f.Parse(args); err != nil {
		return flagError(err)
	}
	if err := installTools(ctx); err != nil {
		return err
	}
	cache, found, err := openKernels(ctx, *kernels, *refresh)
	if err != nil {
		return err
	}
	if _, err := cache.Busybox(ctx); err != nil {
		return err
	}
	if *full {
		if _, err := cache.Root(ctx, *refresh); err != nil {
			return err
		}
		if _, err := cache.GoDisk(ctx); err != nil {
			return err
		}
	}
	for _, k := range found {
		if *full {
			if _, err := cache.ModulesDisk(ctx, k); err != nil {
				return err
			}
		}
		fmt.Printf("kernel %-5s %s (%s)\n", k.Series, k.Release, k.Version)
	}
	return nil
}

// installTools installs what is missing, naming each package and why.
func installTools(ctx context.Context) error {
	missing := missingTools(true)
	if len(missing) == 0 {
		return nil
	}
	install := []string{"apt-get", "install", "--yes", "--no-install-recommends"}
	fmt.Println("installing with apt-get:")
	for _, t := range missing {
		fmt.Printf("  %-24s %s\n", t.pkg, t.purpose)
		install = append(install, t.pkg)
	}
	update := []string{"apt-get", "update", "--quiet=2"}
	if os.Geteuid() != 0 {
		install = append([]string{"sudo", "--non-interactive"}, install...)
		update = append([]string{"sudo", "--non-interactive"}, update...)
	}
	for _, args := range [][]string{update, install} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w; install them by hand, as root: apt-get install %s",
				strings.Join(args, " "), err, strings.Join(install[len(install)-len(missing):], " "))
		}
	}
	return nil
}
