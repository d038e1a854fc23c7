/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Attributes, ioctls and watches. */
#ifndef TF_OBJECTS_H
#define TF_OBJECTS_H

/*
 * The credentials that a worker of io_uring was given for what it does: its submitter's. NULL where they cannot be found,
 * as in the thread that polls a ring.
 */
static __always_inline const struct cred *creds_of_work(struct task_struct *task)
{
	struct io_worker *worker = task->worker_private;
	struct io_wq_work *work;
	struct io_kiocb *request;

	if (!worker || !bpf_core_type_exists(struct io_kiocb))
		return NULL;
	work = BPF_CORE_READ(worker, cur_work);
	if (!work)
		return NULL;
	request = (void *)work - bpf_core_field_offset(struct io_kiocb, work);
	return BPF_CORE_READ(request, creds);
}

/*
 * Times, extended attributes and ACLs have hooks without a mount, and overlayfs calls them on its layers' dentries as
 * the jailed task when it copies up. It does so with its mounter's credentials, and a task in a jail cannot override
 * its own, so overridden credentials are overlayfs's. Two things of io_uring's would look the same: personalities, which
 * uring_override_creds refuses, and its workers, which take their submitter's credentials. Those are judged: only what
 * a worker does with a third party's is overlayfs's.
 */
static __always_inline bool is_kernels_own_call(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct cred *given;

	if (task->cred == task->real_cred)
		return false;
	if (!(task->flags & PF_IO_WORKER))
		return true;
	given = creds_of_work(task);
	return given && task->cred != given;
}

static __always_inline int judge_attribute(enum tf_hook hook, struct dentry *dentry)
{
	struct subject s;

	if (!find_subject(&s))
		return 0;
	if (is_kernels_own_call())
		return 0;

	struct request r = { .dentry = (__u64)dentry, .cgroup = s.cgroup, .slot = s.slot, .hook = hook,
			     .op = TF_OP_ATTRIBUTES, .error = -EACCES };

	ask_every_jail(&s, &r, check_object(j, r.dentry, 0, TF_WRITE));
	return settle(&r, EACCES);
}

/* Mode, owner and size have hooks of their own, with a mount; here it is about times that somebody asked for. */
static __always_inline bool sets_times(const struct iattr *attr)
{
	return attr->ia_valid & (ATTR_ATIME_SET | ATTR_MTIME_SET | ATTR_TOUCH | ATTR_TIMES_SET);
}

SEC("lsm/inode_setattr")
int tf_inode_setattr(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return sets_times((void *)ctx[2]) ? judge_attribute(TF_HOOK_INODE_SETATTR, (void *)ctx[1]) : 0;
}

/* Before 6.3 (commit c1632a0f1120) without the idmap. */
SEC("lsm/inode_setattr")
int tf_inode_setattr_old(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return sets_times((void *)ctx[1]) ? judge_attribute(TF_HOOK_INODE_SETATTR, (void *)ctx[0]) : 0;
}

SEC("lsm/inode_setxattr")
int tf_inode_setxattr(unsigned long long *ctx)
{
	if (earlier(ctx, 6))
		return earlier(ctx, 6);
	return judge_attribute(TF_HOOK_INODE_SETXATTR, (void *)ctx[1]);
}

SEC("lsm/inode_removexattr")
int tf_inode_removexattr(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_attribute(TF_HOOK_INODE_REMOVEXATTR, (void *)ctx[1]);
}

SEC("lsm/inode_set_acl")
int tf_inode_set_acl(unsigned long long *ctx)
{
	if (earlier(ctx, 4))
		return earlier(ctx, 4);
	return judge_attribute(TF_HOOK_INODE_SET_ACL, (void *)ctx[1]);
}

SEC("lsm/inode_remove_acl")
int tf_inode_remove_acl(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_attribute(TF_HOOK_INODE_REMOVE_ACL, (void *)ctx[1]);
}

SEC("lsm/inode_file_setattr")
int tf_inode_file_setattr(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return judge_attribute(TF_HOOK_INODE_FILE_SETATTR, (void *)ctx[0]);
}

/*
 * Ioctls on files and directories act on whatever the file system pleases, often on all of it: only those known to
 * stay with the file are allowed. The rights they take, or ~0 for the others. Sizes in the numbers make the 32-bit ones
 * differ; linux/fs.h, linux/fiemap.h, asm-generic/ioctls.h.
 */
static __always_inline __u32 rights_of_ioctl(__u32 cmd)
{
	/* Terminal ioctls, which shells and isatty(3) ask of anything: no file system knows them. FIOCLEX and its kin. */
	if ((cmd & 0xff00) == 0x5400)
		return 0;
	switch (cmd) {
	case 0x0002: /* FIGETBSZ */
	case 0x80086601: /* FS_IOC_GETFLAGS */
	case 0x80046601: /* FS_IOC32_GETFLAGS */
	case 0x80087601: /* FS_IOC_GETVERSION */
	case 0x80047601: /* FS_IOC32_GETVERSION */
	case 0x801c581f: /* FS_IOC_FSGETXATTR */
	case 0xc020660b: /* FS_IOC_FIEMAP */
	case 0x81009431: /* FS_IOC_GETFSLABEL */
	case 0x80111500: /* FS_IOC_GETFSUUID */
	case 0x80811501: /* FS_IOC_GETFSSYSFSPATH */
	case 0x40049409: /* FICLONE: both files were opened */
	case 0x4020940d: /* FICLONERANGE */
	case 0xc0189436: /* FIDEDUPERANGE */
		return 0;
	case 0x40086602: /* FS_IOC_SETFLAGS */
	case 0x40046602: /* FS_IOC32_SETFLAGS */
	case 0x401c5820: /* FS_IOC_FSSETXATTR */
	case 0x40305828: /* FS_IOC_RESVSP, preallocation as old programs do it */
	case 0x4030582a: /* FS_IOC_RESVSP64 */
		return TF_WRITE;
	default:
		return ~0U;
	}
}

/*
 * On a terminal: no typing for others to read. On anything: no owner for signals; that is F_SETOWN's, which says whose
 * it is by value (file_fcntl).
 */
static __always_inline bool is_forbidden_ioctl(__u32 cmd)
{
	switch (cmd) {
	case 0x5412: /* TIOCSTI */
	case 0x541c: /* TIOCLINUX */
	case 0x541d: /* TIOCCONS */
	case 0x8901: /* FIOSETOWN */
	case 0x8902: /* SIOCSPGRP */
		return true;
	default:
		return false;
	}
}

#define TIOCSPTLCK 0x40045431

/* A master can be opened by anybody; its slave only once it is unlocked. So who unlocks it owns the pair. */
static __always_inline void own_pty(const struct tf_jail *jail, struct file *master)
{
	struct tty_file_private *private = master->private_data;
	struct dentry *dentry = (void *)BPF_CORE_READ(private, tty, link, driver_data);
	struct inode *slave = BPF_CORE_READ(dentry, d_inode);
	struct tf_pty_key key = {};
	__u64 id = jail->id;

	if (!slave || BPF_CORE_READ(slave, i_sb, s_magic) != DEVPTS_MAGIC)
		return;
	key.ino = BPF_CORE_READ(slave, i_ino);
	key.dev = BPF_CORE_READ(slave, i_sb, s_dev);
	bpf_map_update_elem(&tf_ptys, &key, &id, BPF_NOEXIST);
}

static __always_inline enum tf_code check_ioctl(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u16 type,
						__u32 cmd)
{
	__u32 need;

	if (is_forbidden_ioctl(cmd))
		return TF_IOCTL;
	if (type != S_IFREG && type != S_IFDIR)
		return TF_OK;
	need = rights_of_ioctl(cmd);
	if (need == ~0U)
		return TF_IOCTL;
	/* What an open file may be read by was judged when it was opened. */
	return need ? check_file(jail, dentry, mnt, need) : TF_OK;
}

static __always_inline int judge_ioctl(enum tf_hook hook, struct file *file, __u32 cmd)
{
	struct vfsmount *mnt = file->f_path.mnt;
	__u16 type = file->f_inode->i_mode & S_IFMT;
	struct subject s;

	if (!find_subject(&s))
		return 0;
	if (is_overlay_layer(mnt))
		return 0; /* overlayfs passes on what was asked of its own file */

	struct request r = { .dentry = (__u64)file->f_path.dentry, .mnt = (__u64)mnt, .cgroup = s.cgroup,
			     .slot = s.slot, .hook = hook, .op = TF_OP_IOCTL, .error = -EPERM, .arg = cmd };

	ask_every_jail(&s, &r, check_ioctl(j, r.dentry, r.mnt, type, cmd));
	if (!r.code && cmd == TIOCSPTLCK && type == S_IFCHR && s.jail)
		own_pty(s.jail, file);
	return settle(&r, EPERM);
}

SEC("lsm/file_ioctl")
int tf_file_ioctl(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_ioctl(TF_HOOK_FILE_IOCTL, (void *)ctx[0], ctx[1]);
}

/* From 32-bit programs. */
SEC("lsm/file_ioctl_compat")
int tf_file_ioctl_compat(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_ioctl(TF_HOOK_FILE_IOCTL_COMPAT, (void *)ctx[0], ctx[1]);
}

/* The pair is gone, and its number free for somebody else's. */
SEC("fentry/devpts_pty_kill")
int tf_devpts_pty_kill(unsigned long long *ctx)
{
	struct dentry *dentry = (void *)ctx[0];
	struct inode *inode = dentry->d_inode;
	struct tf_pty_key key = {};

	if (!inode)
		return 0;
	key.ino = inode->i_ino;
	key.dev = inode->i_sb->s_dev;
	bpf_map_delete_elem(&tf_ptys, &key);
	return 0;
}

/* The number of a struct pid as the current task's pid namespace has it; 0: none. */
static __always_inline __s32 number_of(struct pid *pid)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 level = BPF_CORE_READ(task, thread_pid, level);
	__s32 number = 0;

	if (!pid || BPF_CORE_READ(pid, level) < level)
		return 0;
	bpf_probe_read_kernel(&number, sizeof(number),
			      (void *)pid + bpf_core_field_offset(struct pid, numbers) +
				      level * bpf_core_type_size(struct upid) + bpf_core_field_offset(struct upid, nr));
	return number;
}

/*
 * The owner of a file gets its SIGIO, or whatever F_SETSIG names, from the kernel and without task_kill. Within a jail
 * a file's owner is the process itself. Not its group: outsiders may be in that from before.
 */
static __always_inline bool is_own_number(__s32 number)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return number > 0 && number == number_of(BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID]));
}

SEC("lsm/file_fcntl")
int tf_file_fcntl(unsigned long long *ctx)
{
	struct file *file = (void *)ctx[0];
	__u32 cmd = ctx[1];
	__s32 number = ctx[2];
	struct subject s;
	bool own;

	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	if (cmd != F_SETOWN && cmd != F_SETOWN_EX && cmd != F_SETLEASE)
		return 0;
	if (!find_subject(&s))
		return 0;

	struct request r = { .dentry = (__u64)file->f_path.dentry, .mnt = (__u64)file->f_path.mnt, .cgroup = s.cgroup,
			     .slot = s.slot, .hook = TF_HOOK_FILE_FCNTL, .op = TF_OP_SIGNAL, .error = -EPERM,
			     .arg = cmd };

	/* A lease makes every other opener wait, writers at least: it takes the right to write. */
	if (cmd == F_SETLEASE) {
		r.op = TF_OP_WRITE;
		ask_every_jail(&s, &r, check_file(j, r.dentry, r.mnt, TF_WRITE));
		return settle(&r, EPERM);
	}
	/* F_SETOWN_EX points to its number, and what it points to can change after it was looked at. */
	own = cmd == F_SETOWN && (!number || is_own_number(number));
	ask_every_jail(&s, &r, own ? TF_OK : TF_FORBIDDEN_OPERATION);
	return settle(&r, EPERM);
}

/* Watching tells of every access: it takes the right to read, and never more than one object at a time. */
SEC("lsm/path_notify")
int tf_path_notify(unsigned long long *ctx)
{
	const struct path *path = (void *)ctx[0];
	__u32 kind = ctx[2];
	struct subject s;

	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	if (!find_subject(&s))
		return 0;

	struct request r = { .dentry = (__u64)path->dentry, .mnt = (__u64)path->mnt, .cgroup = s.cgroup,
			     .slot = s.slot, .hook = TF_HOOK_PATH_NOTIFY, .op = TF_OP_WATCH, .error = -EACCES };

	if (kind) /* a whole mount, file system or namespace */
		ask_every_jail(&s, &r, TF_FORBIDDEN_OPERATION);
	else
		ask_every_jail(&s, &r, check_file(j, r.dentry, r.mnt, TF_READ));
	return settle(&r, EACCES);
}

#endif
