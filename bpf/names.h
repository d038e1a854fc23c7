/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Making, removing and moving names; size, mode and owner by path. */
#ifndef TF_NAMES_H
#define TF_NAMES_H

/* An operation on the object that path names. */
static __always_inline int judge_object(enum tf_hook hook, enum tf_op_id op, const struct path *path, __u32 need)
{
	struct subject s;

	if (!find_subject(&s))
		return 0;

	struct request r = { .dentry = (__u64)path->dentry, .mnt = (__u64)path->mnt, .cgroup = s.cgroup,
			     .slot = s.slot, .hook = hook, .op = op, .error = -EACCES };

	ask_every_jail(&s, &r, check_object(j, r.dentry, r.mnt, need));
	return settle(&r, EACCES);
}

/*
 * Whether a name may be made in a directory. On the way to a denied name only an empty directory may: anything else could
 * bring the denied one along, or lead elsewhere.
 */
static __always_inline enum tf_code check_create(const struct tf_jail *jail, __u64 dir, __u64 mnt, __u64 name,
						 bool empty_dir)
{
	__u64 found = find_name(jail, dir, mnt, name);

	if (FOUND_CODE(found))
		return FOUND_CODE(found);
	if (found & FOUND_ABOVE_DENIED && !empty_dir)
		return TF_DENIED_NAME;
	return FOUND_RIGHTS(found) & TF_CREATE ? TF_OK : TF_RIGHTS;
}

/* A new name in a directory. */
static __always_inline int judge_create(enum tf_hook hook, const struct path *dir, struct dentry *name, bool device)
{
	struct dentry *parent = dir->dentry;
	struct vfsmount *mnt = dir->mnt;
	struct recalled known;
	struct subject s;
	__u64 cgroup = cgroup_of(bpf_get_current_task_btf());

	if (!may_be_judged(cgroup))
		return 0;
	if (!device && recall(&known, cgroup, parent, parent->d_inode) && allows(known, mnt, TF_CREATE)) {
		count_verdict(NULL, hook, false);
		return 0;
	}
	if (!find_subject(&s))
		return 0;
	if (!device && is_plainly_allowed(&s, parent, mnt, TF_CREATE)) {
		count_verdict(s.jail, hook, false);
		return 0;
	}

	struct request r = { .dentry = (__u64)name, .mnt = (__u64)mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = hook, .op = TF_OP_CREATE, .error = -EACCES };

	if (device)
		ask_every_jail(&s, &r, TF_DEVICE_NODE);
	else
		ask_every_jail(&s, &r, check_create(j, (__u64)parent, r.mnt, r.dentry, hook == TF_HOOK_PATH_MKDIR));
	return settle(&r, EACCES);
}

/* A name taken away. */
static __always_inline int judge_delete(enum tf_hook hook, const struct path *dir, struct dentry *name)
{
	struct subject s;
	__u32 rights;

	if (!find_subject(&s))
		return 0;

	struct request r = { .dentry = (__u64)name, .mnt = (__u64)dir->mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = hook, .op = TF_OP_DELETE, .error = -EACCES };

	ask_every_jail(&s, &r, check_name(j, r.dentry, r.mnt, &rights));
	return settle(&r, EACCES);
}

/*
 * open(2) with O_CREAT asks before it has looked the name up, and forgets the answer where the name is there. On a file
 * system that cannot create at all (procfs: >/dev/stdout comes here) the question means nothing.
 */
static __always_inline bool can_create(const struct path *dir)
{
	struct inode *inode = dir->dentry->d_inode;

	return !inode || inode->i_op->create;
}

SEC("lsm/path_mknod")
int tf_path_mknod(unsigned long long *ctx)
{
	const struct path *dir = (void *)ctx[0];
	__u16 type = (__u16)ctx[2] & S_IFMT;

	if (earlier(ctx, 4))
		return earlier(ctx, 4);
	if (!can_create(dir))
		return 0;
	return judge_create(TF_HOOK_PATH_MKNOD, dir, (void *)ctx[1], type == S_IFCHR || type == S_IFBLK);
}

SEC("lsm/path_mkdir")
int tf_path_mkdir(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_create(TF_HOOK_PATH_MKDIR, (void *)ctx[0], (void *)ctx[1], false);
}

SEC("lsm/path_symlink")
int tf_path_symlink(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_create(TF_HOOK_PATH_SYMLINK, (void *)ctx[0], (void *)ctx[1], false);
}

SEC("lsm/path_unlink")
int tf_path_unlink(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return judge_delete(TF_HOOK_PATH_UNLINK, (void *)ctx[0], (void *)ctx[1]);
}

SEC("lsm/path_rmdir")
int tf_path_rmdir(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return judge_delete(TF_HOOK_PATH_RMDIR, (void *)ctx[0], (void *)ctx[1]);
}

/*
 * What an object brings to a directory: the right to make a name there, and none that the object did not have before
 * (else a link or rename would be the way around a narrower grant).
 */
static __always_inline enum tf_code check_target(const struct tf_jail *jail, __u64 dir, __u64 mnt, __u64 name,
						 __u32 brought)
{
	__u64 found = find_name(jail, dir, mnt, name);

	if (FOUND_CODE(found))
		return FOUND_CODE(found);
	if (found & FOUND_ABOVE_DENIED)
		return TF_DENIED_NAME;
	if (!(FOUND_RIGHTS(found) & TF_CREATE))
		return TF_RIGHTS;
	return FOUND_RIGHTS(found) & ~brought ? TF_RIGHTS_GAIN : TF_OK;
}

/* EXDEV makes tools copy instead: the copy has the target's rights by right. */
static __always_inline int settle_move(struct request *r)
{
	bool gain = r->code == TF_RIGHTS_GAIN;

	r->error = gain ? -EXDEV : -EACCES;
	if (!denies(r))
		return 0;
	return gain ? -EXDEV : -EACCES;
}

static __always_inline enum tf_code check_link(const struct tf_jail *jail, struct request *r, __u64 source, __u64 name,
					       __u64 dir)
{
	__u64 found;

	/* linkat has checked that the source lies on the target's mount. */
	r->dentry = source;
	found = find(jail, source, r->mnt);
	if (FOUND_CODE(found))
		return FOUND_CODE(found);
	if (!(FOUND_RIGHTS(found) & TF_READ))
		return TF_RIGHTS;
	r->dentry = name;
	return check_target(jail, dir, r->mnt, name, FOUND_RIGHTS(found));
}

SEC("lsm/path_link")
int tf_path_link(unsigned long long *ctx)
{
	const struct path *path = (void *)ctx[1];
	__u64 source = ctx[0], name = ctx[2], dir = (__u64)path->dentry;
	struct subject s;

	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	if (!find_subject(&s))
		return 0;

	struct request r = { .dentry = source, .mnt = (__u64)path->mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = TF_HOOK_PATH_LINK, .op = TF_OP_LINK };

	ask_every_jail(&s, &r, check_link(j, &r, source, name, dir));
	return settle_move(&r);
}

/* Whether an object may leave its name; the event names it where not. */
static __always_inline enum tf_code check_leaves(const struct tf_jail *jail, struct request *r, __u64 name,
						 __u32 *rights)
{
	r->dentry = name;
	return check_name(jail, name, r->mnt, rights);
}

/* Whether an object with these rights may take a name; the event names that where not. */
static __always_inline enum tf_code check_arrives(const struct tf_jail *jail, struct request *r, __u64 name, __u64 dir,
						  __u32 brought)
{
	r->dentry = name;
	return check_target(jail, dir, r->mnt, name, brought);
}

struct rename {
	__u64 old, new, old_dir, new_dir;
	bool exchange, overwrites;
};

static __always_inline enum tf_code check_rename(const struct tf_jail *jail, struct request *r, const struct rename *m)
{
	__u32 old_rights = 0, new_rights = 0;
	enum tf_code code = check_leaves(jail, r, m->old, &old_rights);

	if (!code)
		code = check_arrives(jail, r, m->new, m->new_dir, old_rights);
	if (!code && m->overwrites)
		code = check_leaves(jail, r, m->new, &new_rights);
	if (!code && m->exchange)
		code = check_arrives(jail, r, m->old, m->old_dir, new_rights);
	return code;
}

SEC("lsm/path_rename")
int tf_path_rename(unsigned long long *ctx)
{
	const struct path *old_path = (void *)ctx[0];
	const struct path *new_path = (void *)ctx[2];
	struct dentry *target = (void *)ctx[3];
	struct rename m = {
		.old = ctx[1],
		.new = ctx[3],
		.old_dir = (__u64)old_path->dentry,
		.new_dir = (__u64)new_path->dentry,
		.exchange = ctx[4] & RENAME_EXCHANGE,
		.overwrites = target->d_inode,
	};
	struct subject s;

	if (earlier(ctx, 5))
		return earlier(ctx, 5);
	if (!find_subject(&s))
		return 0;

	/* A rename stays on one mount, so either directory's mount is both's. */
	struct request r = { .dentry = m.old, .mnt = (__u64)old_path->mnt, .cgroup = s.cgroup, .slot = s.slot,
			     .hook = TF_HOOK_PATH_RENAME, .op = TF_OP_RENAME };

	ask_every_jail(&s, &r, check_rename(j, &r, &m));
	return settle_move(&r);
}

SEC("lsm/path_truncate")
int tf_path_truncate(unsigned long long *ctx)
{
	if (earlier(ctx, 1))
		return earlier(ctx, 1);
	return judge_object(TF_HOOK_PATH_TRUNCATE, TF_OP_WRITE, (void *)ctx[0], TF_WRITE);
}

SEC("lsm/path_chmod")
int tf_path_chmod(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return judge_object(TF_HOOK_PATH_CHMOD, TF_OP_ATTRIBUTES, (void *)ctx[0], TF_WRITE);
}

SEC("lsm/path_chown")
int tf_path_chown(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_object(TF_HOOK_PATH_CHOWN, TF_OP_ATTRIBUTES, (void *)ctx[0], TF_WRITE);
}

#endif
