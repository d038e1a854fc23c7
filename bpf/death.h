/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The end of granted objects: their serial numbers end with them, whoever removes them. Only what the kernel removes by
 * name is seen here; a server or a lower layer that changes by itself is not.
 */
#ifndef TF_DEATH_H
#define TF_DEATH_H

static __always_inline void bury(struct dentry *dentry)
{
	struct tf_grant_key key = {};
	struct inode *inode = NULL;
	__u64 magic;

	if (!tf_state.next_serial)
		return;
	/* A probe read, for the verifier does not let a typed pointer move by an offset that it does not know. */
	bpf_core_read(&inode, sizeof(inode), &dentry->d_inode);
	if (!inode || BPF_CORE_READ(inode, i_generation) || BPF_CORE_READ(inode, i_nlink))
		return;
	key.ino = BPF_CORE_READ(inode, i_ino);
	key.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	magic = BPF_CORE_READ(inode, i_sb, s_magic);
	if (is_special(magic))
		identify((__u64)inode, magic, &key);
	bpf_map_delete_elem(&tf_objects, &key);
}

/* After a successful rmdir(2) or unlink(2), and before the inode is let go. */
SEC("fentry/d_delete")
int tf_d_delete(unsigned long long *ctx)
{
	bury((void *)ctx[0]);
	return 0;
}

/* What a rename has overwritten. */
SEC("fexit/vfs_rename")
int tf_vfs_rename(unsigned long long *ctx)
{
	struct renamedata *rename = (void *)ctx[0];

	if ((int)ctx[1] || rename->flags & RENAME_EXCHANGE)
		return 0;
	bury(rename->new_dentry);
	return 0;
}

static long bury_object(void *map, const struct tf_grant_key *key, __u32 *serial __attribute__((unused)), __u32 *dev)
{
	if (key->dev == *dev)
		bpf_map_delete_elem(map, key);
	return 0;
}

static long bury_grant(void *map __attribute__((unused)), const struct tf_grant_key *key, struct tf_grant *grant,
		       __u32 *dev)
{
	if (key->dev == *dev)
		grant->expires = TF_GONE;
	return 0;
}

static long bury_expansions(void *map __attribute__((unused)), const struct tf_grant_key *key,
			    struct tf_expanded *object, __u32 *dev)
{
	for (int i = 0; i < TF_MAX_EXPANSIONS && key->dev == *dev; i++)
		object->each[i].rights = 0;
	return 0;
}

/*
 * The file system is gone. The next one may get its device number: a disk with the same inodes (a clone has the same
 * generations as well), or an overlay, whose numbers are taken from a common pool. A hook and not the function that calls
 * it (generic_shutdown_super), for a kernel that preempts skips a program of a function which is already at work on that
 * CPU, and this one takes long.
 */
SEC("lsm/sb_delete")
int tf_sb_delete(unsigned long long *ctx)
{
	struct super_block *sb = (void *)ctx[0];
	__u32 dev = sb->s_dev;

	if (!tf_state.next_policy)
		return 0;
	bpf_for_each_map_elem(&tf_objects, bury_object, &dev, 0);
	bpf_for_each_map_elem(&tf_grants, bury_grant, &dev, 0);
	bpf_for_each_map_elem(&tf_expansions, bury_expansions, &dev, 0);
	forget_verdicts();
	return 0;
}

#endif
