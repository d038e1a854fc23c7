/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * When the tasks of a container begin to be judged. A runtime prepares a container in the container's own cgroup:
 * it pivots the root, mounts, executes hooks of the host, and later joins the same cgroup for an exec. So a jail for a
 * container is made pending: a task in it is judged from its own exec on that it makes with the container's root as
 * its root, and so are the tasks it starts. Runtimes execute themselves anew before they have that root (runc seals
 * its own binary), and never after.
 *
 * A mark in tf_armed says that a task is armed. It takes an allocation, so both programs that set it refuse the exec
 * or the fork where that fails: no task goes on unjudged for want of memory.
 */
#ifndef TF_ARMING_H
#define TF_ARMING_H

/* Whether the task's root directory is the one that the jail waits for. */
static __always_inline bool has_root(struct task_struct *task, const struct tf_root *want)
{
	struct fs_struct *fs = task->fs;
	struct tf_grant_key key = {};
	struct dentry *dentry;
	struct inode *inode;
	__u64 magic;

	if (!fs)
		return false;
	dentry = BPF_CORE_READ(fs, root.dentry);
	inode = BPF_CORE_READ(dentry, d_inode);
	if (!inode)
		return false;
	key.ino = BPF_CORE_READ(inode, i_ino);
	magic = BPF_CORE_READ(inode, i_sb, s_magic);
	if (is_special(magic))
		identify((__u64)inode, magic, &key);
	return key.ino == want->ino && key.volume == want->volume && BPF_CORE_READ(inode, i_sb, s_dev) == want->dev &&
	       BPF_CORE_READ(inode, i_generation) == want->generation;
}

/*
 * Whether an exec by the current task arms it: it is pending, and has the root that its jail waits for. The subject is
 * then its jail.
 */
static __always_inline bool arms(struct subject *s, struct tf_root **root)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!find_member(s, task) || !s->jail || !(s->jail->flags & TF_JAIL_PENDING) || is_armed(task))
		return false;
	*root = bpf_map_lookup_elem(&tf_roots, &s->slot);
	return *root && has_root(task, *root);
}

/* After the last check that this kernel makes of the file, and before the first instruction of what is executed. */
SEC("lsm/bprm_check_security")
int tf_bprm_check_security(unsigned long long *ctx)
{
	__u64 task = bpf_get_current_task();
	struct tf_root *root;
	struct subject s;
	__u32 mark = 1;

	if (earlier(ctx, 1))
		return earlier(ctx, 1);
	if (!arms(&s, &root))
		return 0;
	if (bpf_map_update_elem(&tf_armed, &task, &mark, BPF_ANY))
		return -ENOMEM;
	root->armed = 1;
	return 0;
}

/*
 * A new task is armed if its starter is; 0, or the errno to refuse it with. Its address may have been another's, of
 * which no mark may be left.
 */
static __always_inline int inherit_arms(__u64 child)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 mark = 1;

	if (!tf_state.arming)
		return 0;
	if (!is_armed(task)) {
		bpf_map_delete_elem(&tf_armed, &child);
		return 0;
	}
	return bpf_map_update_elem(&tf_armed, &child, &mark, BPF_ANY) ? -ENOMEM : 0;
}

SEC("tp_btf/sched_process_free")
int tf_sched_process_free(unsigned long long *ctx)
{
	__u64 task = ctx[0];

	if (tf_state.arming && !bpf_map_delete_elem(&tf_armed, &task))
		__sync_fetch_and_add(&tf_state.disarmed, 1);
	return 0;
}

#endif
