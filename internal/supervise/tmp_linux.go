package supervise

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPrivateTmp gives the calling thread, which nothing else may run on, a mount namespace with a fresh tmpfs on /tmp,
// and returns where that is; see [Command.PrivateTmp] and [Command.Expose]. Mounts of the host still come in later, none
// go out.
func mountPrivateTmp(expose []string) (string, error) {
	tmp, err := filepath.EvalSymlinks("/tmp")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	expose, err = below(tmp, expose)
	if err != nil || slices.Contains(expose, tmp) {
		return "", err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return "", os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return "", pathError("make mounts private", "/", err)
	}
	trees := make([]int, 0, len(expose))
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	for _, path := range expose {
		fd, err := cloneTree(path)
		if err != nil {
			return "", err
		}
		trees = append(trees, fd)
	}
	if err := unix.Mount("tmpfs", tmp, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return "", pathError("mount tmpfs", tmp, err)
	}
	for i, path := range expose {
		if err := attachTree(trees[i], path); err != nil {
			return "", err
		}
	}
	return tmp, nil
}

// mountPrivateShm does the same for shared memory, in the mount namespace that the thread has by then.
func mountPrivateShm() (string, error) {
	const shm = "/dev/shm"
	fi, err := os.Lstat(shm)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir() {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return "", pathError("mount tmpfs", shm, err)
	}
	return shm, nil
}

// below returns the cleaned paths that are dir or below it, without those below another one of them.
func below(dir string, paths []string) ([]string, error) {
	var in []string
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			return nil, pathError("expose", path, unix.EINVAL)
		}
		if path = filepath.Clean(path); contains(dir, path) {
			in = append(in, path)
		}
	}
	slices.Sort(in)
	var tops []string
	for _, path := range in {
		if !slices.ContainsFunc(tops, func(top string) bool { return contains(top, path) }) {
			tops = append(tops, path)
		}
	}
	return tops, nil
}

func contains(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// cloneTree returns a detached copy of what is mounted at and below path (open_tree(2), Linux 5.2). Symbolic links are
// refused: in a /tmp that all may write to, anyone could have put one there since the path was resolved.
func cloneTree(path string) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, pathError("open", path, err)
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, pathError("open_tree", path, err)
	}
	return fd, nil
}

// attachTree makes the place for a tree in the fresh tmpfs and mounts it there.
func attachTree(tree int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return pathError("fstat", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return pathError("move_mount", path, err)
	}
	return nil
}
