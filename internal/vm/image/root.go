//go:build linux

package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/thenforce/thenforce/internal/vm/debian"
	"github.com/thenforce/thenforce/internal/vm/guest"
)

// rootSuite is the Debian release of the full guest.
const rootSuite = "trixie"

// rootPackages is what the full guest has beyond the base system: what people
// run inside a jail, what makes containers, what makes file systems, and what a
// person looks around with.
var rootPackages = []string{
	// Work.
	"bash", "binutils", "ca-certificates", "curl", "diffutils", "file", "gcc", "git", "jq", "less", "libc6-dev", "make",
	"nodejs", "npm", "patch", "python3", "python3-pip", "python3-venv", "rsync", "sqlite3", "vim-tiny", "xz-utils", "zstd",
	"chromium-headless-shell", "fonts-dejavu-core",
	// Containers and other ways to confine.
	"bubblewrap", "busybox-static", "catatonit", "conmon", "crun", "docker-cli", "docker.io", "fuse-overlayfs",
	"netavark", "nftables", "podman", "runc", "uidmap",
	// File systems.
	"acl", "attr", "btrfs-progs", "e2fsprogs", "erofs-utils", "fuse3", "squashfs-tools", "xfsprogs",
	// The system.
	"dbus", "inotify-tools", "iproute2", "kmod", "libcap2-bin", "lsof", "openssh-client", "procps", "psmisc", "socat", "strace",
	"sudo", "systemd", "systemd-sysv", "util-linux",
}

// rootScript runs as root in the new root, with the packages as arguments.
const rootScript = `set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get -q update
apt-get -q install --yes --no-install-recommends "$@"
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
groupadd --gid 2000 extra
useradd --create-home --uid 1000 --groups disk,extra --shell /bin/sh dev
echo guest >/etc/hostname
printf '127.0.0.1 localhost guest\n::1 localhost\n' >/etc/hosts
systemctl disable e2scrub_reap.service docker.service docker.socket containerd.service
touch /etc/.updated /var/.updated
`

// dpkgConfig keeps documentation and translations out, and dpkg from waiting
// for the disk at each file.
const dpkgConfig = `force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
`

// Root returns the image of the full guest's root, making it when missing: by
// debootstrap, as root of the host, in one to two minutes. Its name has a hash of
// all that goes into it, so a changed list of packages makes a new one; refresh
// makes it anew for newer packages.
func (c *Cache) Root(ctx context.Context, refresh bool) (string, error) {
	sum := sha256.Sum256([]byte(rootSuite + "\n" + rootScript + dpkgConfig + strings.Join(rootPackages, " ")))
	name := filepath.Join(c.dir, "root", hex.EncodeToString(sum[:6])+".ext4")
	if refresh {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return name, c.make(name, func() error { return c.makeRoot(ctx, name) })
}

func (c *Cache) makeRoot(ctx context.Context, name string) error {
	fmt.Fprintln(c.log, "making the root of the full guest; takes two minutes, once")
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, ".root-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	tree := filepath.Join(tmp, "tree")
	if err := c.bootstrap(ctx, tree, rootPackages, rootScript); err != nil {
		return err
	}
	size, err := treeSize(tree)
	if err != nil {
		return err
	}
	img := filepath.Join(tmp, "image")
	// Two gigabytes to work in; the file has holes in their place.
	if err := ext4(ctx, img, guest.RootLabel, size*5/4+2<<30, tree); err != nil {
		return err
	}
	if err := os.Rename(img, name); err != nil {
		return err
	}
	return removeOthers(dir, name)
}

// bootstrap makes a tree of Debian by debootstrap and runs script in it, as root
// and with the packages as arguments.
func (c *Cache) bootstrap(ctx context.Context, tree string, packages []string, script string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("make %s: %w: debootstrap must run as root", tree, fs.ErrPermission)
	}
	mirrors, err := debian.FindMirrors("/etc/apt")
	if err != nil {
		return err
	}
	fmt.Fprintln(c.log, "  base system")
	err = logged(exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--keyring="+debian.Keyring, "--arch=amd64", rootSuite, tree, mirrors.Archive))
	if err != nil {
		return err
	}
	sources := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", debian.Keyring, mirrors.Archive, rootSuite)
	if mirrors.Security != "" {
		sources += fmt.Sprintf("deb [signed-by=%s] %s %s-security main\n", debian.Keyring, mirrors.Security, rootSuite)
	}
	machine, err := debian.MachineSettings(ctx)
	if err != nil {
		return err
	}
	const aptConf = "etc/apt/apt.conf.d/50machine"
	for name, text := range map[string]string{
		"etc/apt/sources.list":           sources,
		"etc/dpkg/dpkg.cfg.d/50vm":       dpkgConfig,
		aptConf:                          machine,
		"etc/apt/apt.conf.d/50languages": "Acquire::Languages \"none\";\n",
	} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.log, "  %s\n", strings.Join(packages, " "))
	// Namespaces of its own, so that nothing stays mounted or running whatever
	// happens.
	const enter = `set -e; root=$1; shift; mount --make-rprivate /; mount -t proc proc "$root/proc"; exec chroot "$root" sh -c "$@"`
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", enter, "sh", tree, script, "sh"}, packages...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	if err := logged(cmd); err != nil {
		return err
	}
	// Nothing in there needs a network; how this machine reaches it is nobody's business.
	for _, name := range []string{"etc/apt/sources.list", aptConf, "etc/resolv.conf"} {
		if err := os.Remove(filepath.Join(tree, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// logged runs a command and, when it fails, returns the end of what it said.
func logged(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := bytes.TrimSpace(out.Bytes())
		if len(text) > 4000 {
			text = text[len(text)-4000:]
		}
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, text)
	}
	return nil
}

// removeOthers deletes the images beside keep: each is gigabytes of what nobody
// will ask for again.
func removeOthers(dir, keep string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*.ext4"))
	if err != nil {
		return err
	}
	for _, f := range found {
		if f != keep {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// ModulesDisk returns the image with all modules of a kernel, to be mounted at
// /usr/lib/modules, making it when missing.
func (c *Cache) ModulesDisk(ctx context.Context, k Kernel) (string, error) {
	return c.treeDisk(ctx, filepath.Join(k.Dir, "modules.ext4"), guest.ModulesLabel, filepath.Dir(k.ModulesPath()))
}

// GoDisk returns the image with the Go toolchain that runs the harness, to be
// mounted at /usr/local/go, making it when missing.
func (c *Cache) GoDisk(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION", "GOHOSTARCH").Output()
	if err != nil {
		return "", fmt.Errorf("find the Go toolchain: %w", err)
	}
	f := strings.Fields(string(out))
	if len(f) != 3 || f[2] != "amd64" {
		return "", fmt.Errorf("find the Go toolchain: go env says %q", f)
	}
	dir := filepath.Join(c.dir, "go")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return c.treeDisk(ctx, filepath.Join(dir, f[1]+".ext4"), guest.GoLabel, f[0])
}

// treeDisk returns the image name, made from a tree when missing.
func (c *Cache) treeDisk(ctx context.Context, name, label, tree string) (string, error) {
	return name, c.make(name, func() error {
		fmt.Fprintf(c.log, "making the disk %s\n", label)
		size, err := treeSize(tree)
		if err != nil {
			return err
		}
		tmp := name + ".new"
		if err := ext4(ctx, tmp, label, size*5/4+64<<20, tree); err != nil {
			return err
		}
		return os.Rename(tmp, name)
	})
}

// treeSize is the room that the files of a tree take, by blocks of 4 KiB.
func treeSize(dir string) (int64, error) {
	var size int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += (info.Size() + 4095) &^ 4095
		return nil
	})
	return size, err
}
