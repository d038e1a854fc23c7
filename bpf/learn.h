/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Identities for the loader. */
#ifndef TF_LEARN_H
#define TF_LEARN_H

static __always_inline int learn(struct file *file, struct tf_learning *answer)
{
	struct tf_identity *found = &answer->found;
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct inode *inode = BPF_CORE_READ(dentry, d_inode);

	if (!inode)
		return -ENOENT;
	answer->removed = !BPF_CORE_READ(inode, i_nlink);
	found->ino = BPF_CORE_READ(inode, i_ino);
	found->generation = BPF_CORE_READ(inode, i_generation);
	found->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	found->magic = BPF_CORE_READ(inode, i_sb, s_magic);
	found->mode = BPF_CORE_READ(inode, i_mode);
	found->rdev = BPF_CORE_READ(inode, i_rdev);
	found->volume = 0;
	if (is_special(found->magic)) {
		struct tf_grant_key key = { .ino = found->ino };

		identify((__u64)inode, found->magic, &key);
		if (key.volume == ~0ULL)
			return -EOPNOTSUPP;
		found->ino = key.ino;
		found->volume = key.volume;
	}
	return 0;
}

/* What is behind a descriptor of the calling thread, or NULL. */
static __always_inline struct file *file_behind(__s32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL, **table;

	if (fd < 0 || (__u32)fd >= BPF_CORE_READ(fdt, max_fds))
		return NULL;
	table = BPF_CORE_READ(fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), table + fd);
	return file;
}

/*
 * Tells the kernel's identity of a descriptor that the calling thread holds, O_PATH included. It reads the thread's
 * own descriptor table, so nothing is opened, nobody else's call is seen and no hook has to be attached for it.
 */
SEC("syscall")
int tf_learn(struct tf_learning *ctx)
{
	struct file *file;
	struct subject s;

	ctx->err = 0;
	ctx->inside = find_subject(&s);
	if (ctx->fd < 0)
		return 0;
	file = file_behind(ctx->fd);
	ctx->err = file ? learn(file, ctx) : -EBADF;
	return 0;
}

/* Whoever an open entry of /proc is about, 0 where it is about nobody. */
static __always_inline __u64 task_behind(__s32 fd)
{
	struct file *file = file_behind(fd);
	struct inode *inode;

	if (!file)
		return 0;
	inode = BPF_CORE_READ(file, f_path.dentry, d_inode);
	if (BPF_CORE_READ(inode, i_sb, s_magic) != PROC_MAGIC)
		return 0;
	return (__u64)task_of_proc(inode);
}

static __always_inline int judge(struct tf_judging *ctx)
{
	__u32 slot = ctx->slot, need = ctx->need, rights = 0, code;
	struct tf_jail *jail = bpf_map_lookup_elem(&tf_jails, &slot);
	struct file *file = file_behind(ctx->fd);
	__u64 dentry, mnt, found;
	struct passes end;
	struct question q;

	if (!file)
		return -EBADF;
	if (!jail || !(jail->flags & TF_JAIL_LIVE))
		return -ENOENT;
	dentry = (__u64)BPF_CORE_READ(file, f_path.dentry);
	mnt = (__u64)BPF_CORE_READ(file, f_path.mnt);
	if (ctx->as == TF_JUDGE_FILE)
		code = check_file_by(task_behind(ctx->task), jail, dentry, mnt, need);
	else if (ctx->as == TF_JUDGE_OBJECT)
		code = check_object(jail, dentry, mnt, need);
	else if (ctx->as == TF_JUDGE_LINK)
		code = check_follow(jail, dentry);
	else
		code = check_name(jail, dentry, mnt, &rights);
	ctx->code = code;
	found = find(jail, dentry, mnt);
	ctx->rights = FOUND_CODE(found) ? 0 : FOUND_RIGHTS(found);
	q = ask_about(jail, dentry, mnt, 0);
	if (!walk_long(&q, &end))
		return -EFAULT;
	/* These three end the walk at a grant; all others without one. */
	code = end.w.found.code;
	ctx->found = code == TF_OK || code == TF_GENERATION || code == TF_EXPIRED;
	ctx->key = end.w.key;
	return 0;
}

/*
 * Answers for one jail what its tasks may do with an open object, by the very functions that the hooks ask, and names
 * the grant that decided. Nothing is counted or recorded.
 */
SEC("syscall")
int tf_judge(struct tf_judging *ctx)
{
	ctx->err = judge(ctx);
	return 0;
}

#endif
