package cgroup

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

var (
	// ErrV2Missing says that no cgroup v2 hierarchy is mounted where this process can see it (status code
	// cgroup-v2-missing).
	ErrV2Missing = errors.New("no cgroup v2 hierarchy is mounted")

	// ErrUnresolvable says that something that should be a cgroup v2 directory is not one, or that its identity
	// cannot be read (status code cgroup-unresolvable).
	ErrUnresolvable = errors.New("not a resolvable cgroup v2 directory")
)

// Mount is one mounted cgroup v2 hierarchy.
type Mount struct {
	// Path is the mount point.
	Path string
	// Root is the cgroup that shows at Path, as seen from this process's cgroup namespace: "/" nearly always,
	// "/.." and the like when the mount was made outside the namespace.
	Root string
}

// FindMount returns the cgroup v2 mount to use: the first one that is not hidden by another mount, shows the root of
// the cgroup namespace and is writable, else the first one that is not hidden. It returns an error that is
// [ErrV2Missing] when there is none, and the reading error when the mount table cannot be read.
func FindMount() (Mount, error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return Mount{}, fmt.Errorf("read the mount table: %w", err)
	}
	var found []Mount
	for _, info := range infos {
		if !visible(info) {
			continue
		}
		m := Mount{Path: info.Mountpoint, Root: info.Root}
		if info.Root == "/" && unix.Access(info.Mountpoint, unix.W_OK) == nil {
			return m, nil
		}
		found = append(found, m)
	}
	if len(found) == 0 {
		return Mount{}, ErrV2Missing
	}
	return found[0], nil
}

// visible reports whether the mount's path leads to it, and not to something mounted over it. cgroup2 is one of the
// file systems whose st_dev is the device of mountinfo, so that comparing the two is sound here.
func visible(info *mountinfo.Info) bool {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	return unix.Statfs(info.Mountpoint, &sfs) == nil && isCgroup2(&sfs) &&
		unix.Stat(info.Mountpoint, &st) == nil &&
		int(unix.Major(st.Dev)) == info.Major && int(unix.Minor(st.Dev)) == info.Minor
}

func isCgroup2(sfs *unix.Statfs_t) bool {
	return int64(sfs.Type) == unix.CGROUP2_SUPER_MAGIC
}

func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: err}
}
