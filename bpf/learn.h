/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Identities for the loader. */
#ifndef TF_LEARN_H
#define TF_LEARN_H

static __always_inline int learn(struct file *file, struct tf_identity *found)
{
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct inode *inode = BPF_CORE_READ(dentry, d_inode);

	if (!inode)
		return -ENOENT;
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

/*
 * Tells the kernel's identity of a descriptor that the calling thread holds, O_PATH included. It reads the thread's
 * own descriptor table, so nothing is opened, nobody else's call is seen and no hook has to be attached for it.
 */
SEC("syscall")
int tf_learn(struct tf_learning *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct file *file = NULL;
	struct fdtable *fdt;
	struct file **table;
	__u32 fd = ctx->fd;
	struct subject s;

	ctx->err = 0;
	ctx->inside = find_subject(&s);
	if (ctx->fd < 0)
		return 0;
	fdt = BPF_CORE_READ(task, files, fdt);
	if (fd >= BPF_CORE_READ(fdt, max_fds)) {
		ctx->err = -EBADF;
		return 0;
	}
	table = BPF_CORE_READ(fdt, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), table + fd) || !file) {
		ctx->err = -EBADF;
		return 0;
	}
	ctx->err = learn(file, &ctx->found);
	return 0;
}

#endif
