// SPDX-License-Identifier: Apache-2.0

// Package fallback is what works without the kernel's help: live probes of file
// systems, and operations on files that cannot be led out of a workspace, on
// Linux, macOS and Windows.
//
//	probes, err := fallback.NewProbes()
//	if err != nil { ... } // a system this package does not know
//	defer probes.Close()
//	workspace := engine.Bind("/srv/repo", probes)
//	guard := fallback.Guard{Workspace: workspace, Probes: probes}
//	content, err := guard.ReadFile("src/main.go")
//
// # Who is held, and who is not
//
// A [Guard] holds the program that uses it, against paths from outside and
// against links, renames and mounts that somebody makes meanwhile. It does not
// hold a program that does not use it; only the kernel can, so [Status] is never
// verified.
//
// # The probes
//
// [Probes] are what engine.Bind, engine.CheckContainment and engine.Compile look
// at the running system with. [Probes.Inspect] describes the object at a path
// and never follows a link in its last place; the engine inspects every component
// from the root down, so it meets every link before anything is looked up through
// it. What cannot be looked at (EACCES, EIO, ELOOP, a path longer than the
// system takes) is an error and no guess: the engine answers
// enforcement-unverified.
//
//   - Linux: one statx(2) for each component. The id of the mount that an object
//     was reached on decides where mounts begin: the unique one where the kernel
//     and the mount table both have it (Linux 6.8), else the one that is used
//     again after an unmount (5.8); before that there are device numbers only.
//     The mount table is kept as long as poll(2) on it reports no change. A path
//     without links and mounts is not walked at all but swept: one openat2(2)
//     with RESOLVE_NO_SYMLINKS, six system calls for a check of any depth. The
//     root has a generation too, from name_to_handle_at(2), since its inode number
//     may be given to the next directory; overlayfs has none.
//   - macOS: lstat(2), and statfs(2) for a directory, which tells whether that is
//     a mount point.
//   - Windows: a handle on the object itself, whatever reparse point that is,
//     gives volume and file id; the directory gives the long name. Symbolic links,
//     junctions and mounted volumes are told apart by tag and target; what a link
//     leads to is its substitute name, never the print name. Wine follows the
//     links of the system below it, shows those to directories only, and is
//     os-unsupported: Inspect errors where it sees one.
//
// # The guard
//
// Every operation walks as engine.CheckContainment does, and does nothing unless
// that allows it. Then it takes a handle of the root, compares it with the root
// that the walk saw, goes down the resolved path from there, and compares what it
// gets with the object that the walk saw. If something differs it walks again, 8
// times at most; then that is a conflict.
//
//   - Linux: openat2(2) with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS,
//     RESOLVE_NO_MAGICLINKS, and RESOLVE_NO_XDEV unless mounts are followed.
//     Where the kernel has no openat2 (before 5.6) or a seccomp filter refuses it,
//     component by component with O_NOFOLLOW, with the same answers.
//   - macOS and Windows: os.Root. It may follow a link that stays below the root;
//     then the comparison fails.
//
// A file is created with O_EXCL in a directory that was compared, and looked up
// again from the root: if the directory was moved away in between, the file is
// removed. A file is emptied only after it was compared. Device nodes, FIFOs and
// sockets are not opened.
//
// Not promised:
//
//   - That an object stays where it is. Whoever moves an opened file, or the
//     directory it lies in, out of the workspace takes the handle's object along.
//   - For [Guard.Remove] and [Guard.Rename], which object a name stands for in
//     the moment of the call, and that the directory was not moved out of the
//     workspace between its comparison and the call.
//   - Anything about further names of a file (hard links). A file that has one
//     outside is one file.
//   - That a path longer than the system takes (PATH_MAX, 4096 bytes on Linux)
//     can be opened, though it exists.
//
// # Many paths
//
// [Guard.CheckAll] checks many targets in one workspace. What they share is
// remembered for a batch of 64 and looked at again before the answers are given
// out: the mount table, the root, and each directory. After any difference the
// whole batch is checked target by target.
//
// # Errors
//
// They are *fs.PathError. Where the walk refuses, they hold a [*RefusedError]
// with the engine's decision; it says for which sentinels errors.Is holds. A
// path that leads out answers to engine.ErrEscape and fs.ErrPermission.
package fallback
