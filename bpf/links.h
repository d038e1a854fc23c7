/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Following symbolic links. Attached only while some jail has TF_JAIL_NO_SYMLINKS: every link of every process passes. */
#ifndef TF_LINKS_H
#define TF_LINKS_H

/*
 * Links of the host lead where the host wants (/lib64, /proc/self, what a preset grants), and programs do not start
 * without them. It is the links of the jail's own trees that are refused, whoever made them.
 */
static __always_inline enum tf_code check_follow(const struct tf_jail *jail, __u64 link)
{
	__u64 found;

	if (!(jail->flags & TF_JAIL_NO_SYMLINKS))
		return TF_OK;
	found = find(jail, link, 0);
	if (FOUND_CODE(found) == TF_NO_GRANT || (!FOUND_CODE(found) && found & FOUND_HOSTS_OWN))
		return TF_OK;
	return FOUND_CODE(found) ? FOUND_CODE(found) : TF_FORBIDDEN_OPERATION;
}

SEC("lsm/inode_follow_link")
int tf_inode_follow_link(unsigned long long *ctx)
{
	struct subject s;

	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	if (!find_subject(&s))
		return 0;

	/* No mount here: the path in the event begins at the file system's root. */
	struct request r = { .dentry = ctx[0], .cgroup = s.cgroup, .slot = s.slot, .hook = TF_HOOK_INODE_FOLLOW_LINK,
			     .op = TF_OP_FOLLOW, .error = -EACCES };

	ask_every_jail(&s, &r, check_follow(j, r.dentry));
	return settle(&r, EACCES);
}

#endif
