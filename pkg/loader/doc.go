// Package loader puts the engine's decisions into the Linux kernel.
//
// [Open] gives an [Enforcer]: it adopts the programs that an earlier process pinned below the BPF file system, or
// loads, attaches, proves and pins them. The proof is a canary: in a cgroup and jail of its own a child process tries,
// for every hook, one operation that must be denied and one that must work, and the kernel's own counters must have
// moved by exactly that. Open's status says what was found; "loaded" alone is never "enforcing", because a program
// attaches without error to a kernel whose BPF LSM is not active and then never runs.
//
//	e, status, err := loader.Open(loader.Options{})
//	if err != nil { ... }
//	defer e.Close()
//	if err := status.Err(); err != nil { ... } // unverified: do not start what must be confined
//	jail, err := e.CreateJail(loader.JailSpec{Cgroup: dir, Sets: sets})
//
// A jail is one policy on one cgroup v2 subtree. From the moment CreateJail returns, every task in it is judged, also
// in child cgroups made later; a process born into the cgroup (clone3 with CLONE_INTO_CGROUP, in Go
// syscall.SysProcAttr.UseCgroupFD) is judged from its first instruction. Jails, programs and maps are pinned: they
// outlive every thenforce process and end with [Enforcer.DeleteJail], with their cgroup, or with the kernel.
//
// Grants are inodes, not names. Each object of a policy is opened with O_PATH and the kernel itself is asked for the
// identity behind that descriptor (device as in super_block.s_dev, inode number, generation, and on btrfs the
// subvolume), because stat(2) reports other devices on btrfs and overlayfs.
//
// # What an error means
//
// Nothing was changed, or it was changed back. Errors wrap [engine.UnverifiedError] where enforcement is missing,
// [fs.PathError] where a path is at fault, and the sentinels of this package.
//
// # Requirements
//
// Linux 6.1 or newer on a 64-bit little-endian machine, CONFIG_BPF_LSM and CONFIG_SECURITY_PATH, "bpf" in the list of
// active security modules, BTF, cgroup v2, a BPF file system at /sys/fs/bpf, and root in the initial user namespace.
package loader
