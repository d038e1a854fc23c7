/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Objects that no grant can name. */
#ifndef TF_SPECIAL_H
#define TF_SPECIAL_H

/*
 * overlayfs opens its layers by itself, as the task. Such an open goes through a private clone of the layer's mount,
 * which belongs to no namespace (ERR_PTR(-EINVAL), not NULL: that is a mount on its way out) and is no kernel-internal
 * mount. The task's own open, of the overlay's file, has been judged.
 */
static __always_inline bool is_overlay_layer(struct vfsmount *mnt)
{
	struct mount *m = (void *)mnt - bpf_core_field_offset(struct mount, mnt);
	struct mnt_namespace *ns = NULL;

	if (mnt->mnt_flags & MNT_INTERNAL || mnt->mnt_sb->s_flags & SB_KERNMOUNT)
		return false;
	if (bpf_core_read(&ns, sizeof(ns), &m->mnt_ns))
		return false;
	return (long)ns == -EINVAL;
}

/* File systems that only the kernel mounts: pipes, sockets, memfd and the like, reopened through /proc/self/fd. */
static __always_inline bool is_kernel_mount(__u64 mnt)
{
	struct vfsmount *m = (void *)mnt;

	return BPF_CORE_READ(m, mnt_flags) & MNT_INTERNAL && BPF_CORE_READ(m, mnt_sb, s_flags) & SB_KERNMOUNT;
}

static __always_inline enum tf_code check_kernel_file(const struct tf_jail *jail, __u64 magic, __u32 need)
{
	switch (magic) {
	case PIPEFS_MAGIC:
	case SOCKFS_MAGIC:
	case ANON_INODE_MAGIC:
	case PIDFS_MAGIC:
		return need & TF_EXEC ? TF_RIGHTS : TF_OK;
	case TMPFS_MAGIC: /* memfd, shared anonymous memory, System V segments */
	case HUGETLBFS_MAGIC:
	case SECRETMEM_MAGIC:
		return need & TF_EXEC && !(jail->rights & TF_EXEC) ? TF_RIGHTS : TF_OK;
	case NSFS_MAGIC:
		return need & ~TF_READ ? TF_RIGHTS : TF_OK;
	default:
		return TF_NO_GRANT;
	}
}

/* The task that a proc inode is about, or NULL. */
static __always_inline struct task_struct *task_of_proc(struct inode *inode)
{
	struct proc_inode *pi = (void *)inode - bpf_core_field_offset(struct proc_inode, vfs_inode);
	struct pid *pid = NULL;
	struct hlist_node *first = NULL;

	if (bpf_core_read(&pid, sizeof(pid), &pi->pid) || !pid)
		return NULL;
	if (bpf_core_read(&first, sizeof(first), &pid->tasks[PIDTYPE_PID].first) || !first)
		return NULL;
	return (void *)first - bpf_core_field_offset(struct task_struct, pid_links[PIDTYPE_PID]);
}

/* Whether a proc inode belongs to a task of the jail: /proc/self, /proc/PID and all below them. */
static __always_inline bool is_own_proc(const struct tf_jail *jail, struct inode *inode)
{
	struct task_struct *task = task_of_proc(inode);
	__u64 cgroup;

	if (!task)
		return false;
	cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	return is_in_jail(jail, cgroup) && !is_pending(cgroup, task);
}

/* The terminal that controls the task: reachable by /dev/tty anyway, so its own name may be used too. */
static __always_inline bool is_own_terminal(struct task_struct *task, struct inode *inode)
{
	struct tty_struct *tty = BPF_CORE_READ(task, signal, tty);
	__u32 rdev;

	if (!tty)
		return false;
	/* Numbers of pseudo terminals are per devpts instance: the inode has to be of the same one. */
	if (BPF_CORE_READ(inode, i_sb, s_magic) == DEVPTS_MAGIC) {
		struct dentry *dentry = (void *)BPF_CORE_READ(tty, driver_data);

		return inode == BPF_CORE_READ(dentry, d_inode);
	}
	rdev = BPF_CORE_READ(tty, driver, major) << 20 |
	       (BPF_CORE_READ(tty, driver, minor_start) + BPF_CORE_READ(tty, index));
	return BPF_CORE_READ(inode, i_rdev) == rdev;
}

/* A pseudo terminal whose master was unlocked in this jail (see file_ioctl). */
static __always_inline bool is_jails_pty(const struct tf_jail *jail, struct inode *inode)
{
	struct tf_pty_key key = {};
	__u64 *owner;

	if (BPF_CORE_READ(inode, i_sb, s_magic) != DEVPTS_MAGIC)
		return false;
	key.ino = BPF_CORE_READ(inode, i_ino);
	key.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	owner = bpf_map_lookup_elem(&tf_ptys, &key);
	return owner && *owner == jail->id;
}

/* /proc/PID/autogroup sets the priority of the whole session, which may reach beyond the jail. */
static __always_inline bool is_autogroup(__u64 dentry)
{
	char name[12] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ((struct dentry *)dentry, d_name.name));
	return !__builtin_memcmp(name, "autogroup", 10);
}

#define UNDECIDED 0xff /* no enum tf_code: the grants have to tell */

/* The objects that rules decide about. Functions of their own, for the stack of their callers is small. */
static __noinline __u32 check_special(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u32 need)
{
	struct inode *inode = BPF_CORE_READ((struct dentry *)dentry, d_inode);
	__u64 magic = BPF_CORE_READ((struct dentry *)dentry, d_sb, s_magic);

	if (!inode)
		return TF_NO_DATA;
	if (is_kernel_mount(mnt))
		return check_kernel_file(jail, magic, need);
	if (magic != PROC_MAGIC)
		return UNDECIDED;
	if (is_own_proc(jail, inode))
		return need & TF_WRITE && is_autogroup(dentry) ? TF_RIGHTS : TF_OK;
	/* The list of processes, for ps and pgrep to find their own in; what is in it is judged one by one. */
	if (need == TF_READ && (__u64)BPF_CORE_READ((struct dentry *)dentry, d_parent) == dentry)
		return TF_OK;
	return UNDECIDED;
}

/* task is a struct task_struct; 0: nobody. */
static __noinline bool is_usable_terminal(const struct tf_jail *jail, __u64 dentry, __u64 task)
{
	struct inode *inode = BPF_CORE_READ((struct dentry *)dentry, d_inode);

	return (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFCHR &&
	       ((task && is_own_terminal((void *)task, inode)) || is_jails_pty(jail, inode));
}

/*
 * Whether a file may be used with all of need by a task of the jail. This is the whole question for an open file, whatever
 * it is: the named objects by their grants, the others by the rules above.
 */
static __always_inline enum tf_code check_file_by(__u64 task, const struct tf_jail *jail, __u64 dentry, __u64 mnt,
						  __u32 need)
{
	__u32 code = check_special(jail, dentry, mnt, need);

	if (code != UNDECIDED)
		return code;
	code = check_object(jail, dentry, mnt, need);
	if (code && code != TF_RIGHTS && !(need & TF_EXEC) && is_usable_terminal(jail, dentry, task))
		return TF_OK;
	return code;
}

/* The same for the current task. */
static __always_inline enum tf_code check_file(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u32 need)
{
	return check_file_by(bpf_get_current_task(), jail, dentry, mnt, need);
}

#endif
