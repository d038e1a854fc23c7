/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Opening, executing, mapping and receiving files. */
#ifndef TF_OPEN_H
#define TF_OPEN_H

/* By arithmetic: with each branch here the verifier would look at all that follows once more. */
static __always_inline __u32 rights_of_open(__u32 flags)
{
	__u32 mode = flags & O_ACCMODE;
	__u32 need;

	if (!(flags & (O_ACCMODE | O_TRUNC | O_TMPFILE_BIT | FMODE_EXEC)))
		return TF_READ; /* nearly all */
	asm volatile("" : "+r"(mode)); /* else what follows is computed for those as well */
	_Static_assert(O_RDWR == 2 && TF_READ == 1 && TF_WRITE == 2, "mode + 1");
	if (flags & FMODE_EXEC)
		return TF_EXEC;
	need = mode + 1 - (mode == O_ACCMODE); /* O_RDWR, and 3, which ioctl-only openers use: both */
	need |= flags / (O_TRUNC / TF_WRITE) & TF_WRITE;
	need |= flags / (O_TMPFILE_BIT / TF_CREATE) & TF_CREATE;
	return need;
}

static __always_inline enum tf_op_id op_of(__u32 need)
{
	return need & TF_EXEC ? TF_OP_EXEC : need & TF_WRITE ? TF_OP_WRITE : TF_OP_READ;
}

/*
 * Judges an open that nothing remembered allows. A function of its own, so that one that is remembered puts fewer registers
 * away and has a small stack.
 */
static __noinline int judge_open(struct file *file)
{
	struct vfsmount *mnt = file->f_path.mnt;
	struct dentry *dentry = file->f_path.dentry;
	__u32 need = rights_of_open(file->f_flags);
	struct tf_root *root;
	struct subject s;

	/* Of the exec that arms a container's task, already what is executed is judged. */
	if (!find_subject(&s) && !(file->f_flags & FMODE_EXEC && arms(&s, &root)))
		return 0;
	if (is_overlay_layer(mnt))
		return 0;
	/* 6.1 opens a regular file of an overlay a second time, with the overlay's path and the layer's inode. */
	if (mnt->mnt_sb->s_magic == OVERLAYFS_MAGIC && file->f_inode != dentry->d_inode)
		return 0;
	if (is_plainly_allowed(&s, dentry, mnt, need)) {
		count_verdict(s.jail, TF_HOOK_FILE_OPEN, false);
		return 0;
	}

	struct request r = { .dentry = (__u64)dentry, .mnt = (__u64)mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = TF_HOOK_FILE_OPEN, .op = op_of(need), .error = -EACCES };

	ask_every_jail(&s, &r, check_file(j, r.dentry, r.mnt, need));
	return settle(&r, EACCES);
}

SEC("lsm/file_open")
int tf_file_open(unsigned long long *ctx)
{
	struct file *file = (void *)ctx[0];
	struct recalled known;
	__u64 cgroup;
	int allowed = 0;

	if (earlier(ctx, 1))
		return earlier(ctx, 1);
	cgroup = cgroup_of(bpf_get_current_task_btf());
	if (!may_be_judged(cgroup))
		return 0;
	if (!recall(&known, cgroup, file->f_path.dentry, file->f_inode) ||
	    !allows(known, file->f_path.mnt, rights_of_open(file->f_flags)))
		return judge_open(file);
	known.verdict->opens++;
	asm volatile("" : "+r"(allowed)); /* else a register is put away for the 0 of all returns */
	return allowed;
}

/* Anonymous inodes that may come from outside: they can do nothing but wait, count and tell. */
static __always_inline bool is_harmless_anonymous(__u64 dentry)
{
	char name[16] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ((struct dentry *)dentry, d_name.name));
	return !__builtin_memcmp(name, "[eventfd]", 10) || !__builtin_memcmp(name, "[eventpoll]", 12) ||
	       !__builtin_memcmp(name, "[timerfd]", 10) || !__builtin_memcmp(name, "[signalfd]", 11) ||
	       !__builtin_memcmp(name, "[pidfd]", 8);
}

/*
 * A descriptor that comes over a socket, from another process or into a ring is judged like an open with its mode. An
 * io_uring, a BPF object, a userfaultfd or the like would let somebody outside act through it: refused.
 */
static __always_inline enum tf_code check_received(const struct tf_jail *jail, __u32 mode, __u64 dentry, __u64 mnt)
{
	__u32 need = TF_READ; /* also for O_PATH */

	if (mode & FMODE_WRITE)
		need = mode & FMODE_READ ? TF_READ | TF_WRITE : TF_WRITE;
	if (is_kernel_mount(mnt) && BPF_CORE_READ((struct dentry *)dentry, d_sb, s_magic) == ANON_INODE_MAGIC)
		return is_harmless_anonymous(dentry) ? TF_OK : TF_FORBIDDEN_OPERATION;
	return check_file(jail, dentry, mnt, need);
}

SEC("lsm/file_receive")
int tf_file_receive(unsigned long long *ctx)
{
	struct file *file = (void *)ctx[0];
	struct subject s;
	__u32 mode;

	if (earlier(ctx, 1))
		return earlier(ctx, 1);
	if (!find_subject(&s))
		return 0;
	mode = file->f_mode;

	struct request r = { .dentry = (__u64)file->f_path.dentry, .mnt = (__u64)file->f_path.mnt, .cgroup = s.cgroup,
			     .slot = s.slot, .hook = TF_HOOK_FILE_RECEIVE, .op = TF_OP_RECEIVE, .error = -EACCES };

	ask_every_jail(&s, &r, check_received(j, mode, r.dentry, r.mnt));
	return settle(&r, EACCES);
}

/*
 * An executable mapping of a file. A mapping of an overlay's file is seen with the overlay's file by mmap, and by
 * mprotect with the layer's: that one remembers by which path it was asked for (struct backing_file, Linux 6.5; 6.1
 * shows the overlay's path itself). Where it does not, executing takes the workspace's right.
 */
static __always_inline int judge_mapping(enum tf_hook hook, struct file *file)
{
	struct dentry *dentry = file->f_path.dentry;
	struct vfsmount *mnt = file->f_path.mnt;
	struct recalled known;
	struct subject s;
	bool layer;
	__u64 cgroup = cgroup_of(bpf_get_current_task_btf());

	if (!may_be_judged(cgroup))
		return 0;
	layer = is_overlay_layer(mnt);
	if (!layer && recall(&known, cgroup, dentry, dentry->d_inode) && allows(known, mnt, TF_EXEC)) {
		count_verdict(NULL, hook, false);
		return 0;
	}
	if (!find_subject(&s))
		return 0;
	if (!layer && is_plainly_allowed(&s, dentry, mnt, TF_EXEC)) {
		count_verdict(s.jail, hook, false);
		return 0;
	}

	struct request r = { .dentry = (__u64)dentry, .mnt = (__u64)mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = hook, .op = TF_OP_EXEC, .error = -EACCES };

	if (layer && bpf_core_field_exists(struct backing_file, user_path)) {
		struct backing_file *backing = (void *)file;

		r.dentry = (__u64)BPF_CORE_READ(backing, user_path.dentry);
		r.mnt = (__u64)BPF_CORE_READ(backing, user_path.mnt);
		layer = !r.dentry || !r.mnt;
	}
	if (layer)
		ask_every_jail(&s, &r, j->rights & TF_EXEC ? TF_OK : TF_RIGHTS);
	else
		ask_every_jail(&s, &r, check_file(j, r.dentry, r.mnt, TF_EXEC));
	return settle(&r, EACCES);
}

SEC("lsm/mmap_file")
int tf_mmap_file(unsigned long long *ctx)
{
	struct file *file = (void *)ctx[0];

	if (earlier(ctx, 4))
		return earlier(ctx, 4);
	/* prot, not reqprot: the kernel adds PROT_EXEC for programs with an executable stack. */
	if (!(ctx[2] & PROT_EXEC) || !file)
		return 0;
	return judge_mapping(TF_HOOK_MMAP_FILE, file);
}

SEC("lsm/file_mprotect")
int tf_file_mprotect(unsigned long long *ctx)
{
	struct vm_area_struct *vma = (void *)ctx[0];
	struct file *file;

	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	if (!(ctx[2] & PROT_EXEC) || vma->vm_flags & VM_EXEC)
		return 0;
	file = vma->vm_file;
	if (!file)
		return 0;
	return judge_mapping(TF_HOOK_FILE_MPROTECT, file);
}

#endif
