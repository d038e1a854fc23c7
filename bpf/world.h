/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is not a file: mounts, other processes, sockets, the kernel and the enforcer itself. */
#ifndef TF_WORLD_H
#define TF_WORLD_H

/* ---- what no jail may do ---- */

static __always_inline int judge_forbidden(enum tf_hook hook, enum tf_op_id op, __u32 arg, bool silent)
{
	struct subject s;

	if (!find_subject(&s))
		return 0;

	struct request r = { .cgroup = s.cgroup, .slot = s.slot, .hook = hook, .op = op, .error = -EPERM, .arg = arg,
			     .silent = silent };

	ask_every_jail(&s, &r, TF_FORBIDDEN_OPERATION);
	return settle(&r, EPERM);
}

/* args is how many arguments the hook has: the earlier verdict follows them. */
#define FORBID(name, section, hook, op, args)                                                               \
	SEC("lsm/" section)                                                                                 \
	int name(unsigned long long *ctx)                                                                   \
	{                                                                                                   \
		if (earlier(ctx, args)) \
			return earlier(ctx, args); \
		return judge_forbidden(hook, op, 0, false); \
	}

FORBID(tf_sb_mount, "sb_mount", TF_HOOK_SB_MOUNT, TF_OP_MOUNT, 5)
FORBID(tf_sb_remount, "sb_remount", TF_HOOK_SB_REMOUNT, TF_OP_MOUNT, 2)
FORBID(tf_sb_umount, "sb_umount", TF_HOOK_SB_UMOUNT, TF_OP_MOUNT, 2)
FORBID(tf_sb_pivotroot, "sb_pivotroot", TF_HOOK_SB_PIVOTROOT, TF_OP_MOUNT, 2)
FORBID(tf_move_mount, "move_mount", TF_HOOK_MOVE_MOUNT, TF_OP_MOUNT, 2)
/* A file system made with fsopen(2): overlayfs changes its working folder as soon as it has one. */
FORBID(tf_fs_context_parse_param, "fs_context_parse_param", TF_HOOK_FS_CONTEXT_PARSE_PARAM, TF_OP_MOUNT, 2)
FORBID(tf_sb_kern_mount, "sb_kern_mount", TF_HOOK_SB_KERN_MOUNT, TF_OP_MOUNT, 1)
FORBID(tf_path_chroot, "path_chroot", TF_HOOK_PATH_CHROOT, TF_OP_MOUNT, 1)

FORBID(tf_bpf, "bpf", TF_HOOK_BPF, TF_OP_KERNEL, 3)
FORBID(tf_bpf_kernel_arg, "bpf", TF_HOOK_BPF, TF_OP_KERNEL, 4) /* since 6.15: bool kernel */
FORBID(tf_perf_event_open, "perf_event_open", TF_HOOK_PERF_EVENT_OPEN, TF_OP_KERNEL, 1)
FORBID(tf_perf_event_open_old, "perf_event_open", TF_HOOK_PERF_EVENT_OPEN, TF_OP_KERNEL, 2) /* with its attr */
FORBID(tf_kernel_module_request, "kernel_module_request", TF_HOOK_KERNEL_MODULE_REQUEST, TF_OP_KERNEL, 1)
FORBID(tf_uring_override_creds, "uring_override_creds", TF_HOOK_URING_OVERRIDE_CREDS, TF_OP_KERNEL, 1)

/*
 * perf_event_open and bpf have hooks of their own. What is left is mm_access: since Linux 6.13 it gives whoever has this
 * what ptrace_access_check has just denied, for process_madvise. (The event is that hook's.)
 */
#define CAP_PERFMON 38

/*
 * Privileges over the machine that have no hook of their own, or are asked for before it: loading and removing
 * modules, kexec, reboot, swapon, quotactl, sethostname, settimeofday, iopl. Files and processes have hooks, bpf and
 * perf_event_open too, so what is left of root in a jail is being root among its own.
 */
static __always_inline bool is_over_the_machine(__u32 cap)
{
	switch (cap) {
	case 16: /* CAP_SYS_MODULE */
	case 17: /* CAP_SYS_RAWIO */
	case 20: /* CAP_SYS_PACCT */
	case 21: /* CAP_SYS_ADMIN */
	case 22: /* CAP_SYS_BOOT */
	case 25: /* CAP_SYS_TIME */
	case 26: /* CAP_SYS_TTY_CONFIG: vhangup of the starter's terminal */
	case 30: /* CAP_AUDIT_CONTROL */
	case 32: /* CAP_MAC_OVERRIDE */
	case 33: /* CAP_MAC_ADMIN */
	case 34: /* CAP_SYSLOG */
	case 37: /* CAP_AUDIT_READ */
	case CAP_PERFMON:
		return true;
	default:
		return false;
	}
}

#define CAP_OPT_NOAUDIT 2

/*
 * Whether a verification wants to see what a hook says that is asked only after the kernel's own check for privileges:
 * perf_event_open at sysctl level 3 of Debian's and Ubuntu's kernels, io_uring where kernel.io_uring_disabled is 1.
 */
static __always_inline bool is_privileged_canary(void)
{
	const __u32 both = TF_JAIL_CANARY | TF_JAIL_PRIVILEGED;
	struct subject s;

	return find_subject(&s) && s.jail && (s.jail->flags & both) == both;
}

SEC("lsm/capable")
int tf_capable(unsigned long long *ctx)
{
	struct user_namespace *ns = (void *)ctx[1];
	__u32 cap = ctx[2];
	bool asks = ctx[3] & CAP_OPT_NOAUDIT; /* the kernel asks by the way and goes on without */

	if (earlier(ctx, 4))
		return earlier(ctx, 4);
	if (!is_over_the_machine(cap))
		return 0;
	if (ns->level != 0) /* a user namespace's own root has no power over the machine */
		return 0;
	if (is_kernels_own_call() || is_privileged_canary())
		return 0;
	return judge_forbidden(TF_HOOK_CAPABLE, TF_OP_KERNEL, cap, asks || cap == CAP_PERFMON);
}

/* clone3 can start a process in any cgroup that there is a descriptor of, and O_PATH descriptors are not judged. */
SEC("lsm/task_alloc")
int tf_task_alloc(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	if (ctx[1] & CLONE_INTO_CGROUP && judge_forbidden(TF_HOOK_TASK_ALLOC, TF_OP_CGROUP, 0, false))
		return -EPERM;
	return inherit_arms(ctx[0]);
}

/* ---- other processes ---- */

static __always_inline int judge_task(enum tf_hook hook, enum tf_op_id op, struct task_struct *task, __u32 arg)
{
	struct subject s;
	bool pending;
	__u64 cgroup;

	if (!find_subject(&s))
		return 0;
	cgroup = cgroup_of(task);
	pending = is_pending(cgroup, task);

	struct request r = { .cgroup = s.cgroup, .slot = s.slot, .hook = hook, .op = op, .error = -EPERM,
			     .pid = task->tgid, .arg = arg };

	ask_every_jail(&s, &r, !pending && (cgroup == s.cgroup || is_in_jail(j, cgroup)) ? TF_OK : TF_OTHER_JAIL);
	return settle(&r, EPERM);
}

SEC("lsm/ptrace_access_check")
int tf_ptrace_access_check(unsigned long long *ctx)
{
	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	return judge_task(TF_HOOK_PTRACE_ACCESS_CHECK, TF_OP_TRACE, (void *)ctx[0], ctx[1]);
}

/* The tracer is told everything and may change everything, so it must not be somebody outside either. */
SEC("lsm/ptrace_traceme")
int tf_ptrace_traceme(unsigned long long *ctx)
{
	if (earlier(ctx, 1))
		return earlier(ctx, 1);
	return judge_task(TF_HOOK_PTRACE_TRACEME, TF_OP_TRACE, (void *)ctx[0], 0);
}

SEC("lsm/task_kill")
int tf_task_kill(unsigned long long *ctx)
{
	if (earlier(ctx, 4))
		return earlier(ctx, 4);
	return judge_task(TF_HOOK_TASK_KILL, TF_OP_SIGNAL, (void *)ctx[0], ctx[2]);
}

SEC("lsm/file_send_sigiotask")
int tf_file_send_sigiotask(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_task(TF_HOOK_FILE_SEND_SIGIOTASK, TF_OP_SIGNAL, (void *)ctx[0], ctx[2]);
}

SEC("lsm/task_setrlimit")
int tf_task_setrlimit(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_task(TF_HOOK_TASK_SETRLIMIT, TF_OP_PRIORITY, (void *)ctx[0], ctx[1]);
}

#define JUDGE_TASK(name, section, hook, op, args)                                                           \
	SEC("lsm/" section)                                                                                 \
	int name(unsigned long long *ctx)                                                                   \
	{                                                                                                   \
		if (earlier(ctx, args)) \
			return earlier(ctx, args); \
		return judge_task(hook, op, (void *)ctx[0], 0); \
	}

JUDGE_TASK(tf_task_setnice, "task_setnice", TF_HOOK_TASK_SETNICE, TF_OP_PRIORITY, 2)
JUDGE_TASK(tf_task_setscheduler, "task_setscheduler", TF_HOOK_TASK_SETSCHEDULER, TF_OP_PRIORITY, 1)
JUDGE_TASK(tf_task_setioprio, "task_setioprio", TF_HOOK_TASK_SETIOPRIO, TF_OP_PRIORITY, 2)

/*
 * Whoever is in a process group gets the signals that terminals send to it, so a process in a jail may found a group or
 * join one of its jail's: its own, its parent's, one that a child of its parent leads. Shells need no more.
 */
struct group_question {
	__u64 task;
	__u64 jail; /* id */
	__s32 number;
	__u32 found;
	__u64 head; /* of the parent's children */
	__u64 at;
};

static __always_inline bool belongs_to(__u64 task, __u64 jail)
{
	__u64 cgroup = BPF_CORE_READ((struct task_struct *)task, cgroups, dfl_cgrp, kn, id);
	struct tf_member *member = bpf_map_lookup_elem(&tf_members, &cgroup);

	return member && member->jail == jail && !is_pending(cgroup, (void *)task);
}

static __always_inline bool leads(__u64 task, __s32 number)
{
	return number_of(BPF_CORE_READ((struct task_struct *)task, thread_pid)) == number;
}

static long look_at_sibling(__u32 step __attribute__((unused)), struct group_question *q)
{
	struct list_head *at = (void *)q->at;
	__u64 task;

	if (!at || q->at == q->head)
		return 1;
	task = q->at - bpf_core_field_offset(struct task_struct, sibling);
	if (leads(task, q->number) && belongs_to(task, q->jail)) {
		q->found = 1;
		return 1;
	}
	q->at = (__u64)BPF_CORE_READ(at, next);
	return 0;
}

__noinline int tf_may_join(struct group_question *q)
{
	struct task_struct *task, *parent;
	struct group_question walk = {};
	__u32 found = 0;

	if (!q)
		return 0;
	task = (void *)q->task;
	if (leads(q->task, q->number) || number_of(BPF_CORE_READ(task, signal, pids[PIDTYPE_PGID])) == q->number)
		return 1;
	parent = BPF_CORE_READ(task, real_parent);
	if (belongs_to((__u64)parent, q->jail) &&
	    (leads((__u64)parent, q->number) ||
	     number_of(BPF_CORE_READ(parent, signal, pids[PIDTYPE_PGID])) == q->number))
		return 1;
	walk.jail = q->jail;
	walk.number = q->number;
	walk.head = (__u64)parent + bpf_core_field_offset(struct task_struct, children);
	walk.at = (__u64)BPF_CORE_READ(parent, children.next);
	bpf_loop(TF_MAX_SIBLINGS, look_at_sibling, &walk, 0);
	bpf_probe_read_kernel(&found, sizeof(found), &walk.found); /* see tf_find */
	return found != 0;
}

SEC("lsm/task_setpgid")
int tf_task_setpgid(unsigned long long *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct group_question q = { .task = ctx[0], .number = ctx[1] };
	struct subject s;
	bool joins;

	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	if (!find_subject(&s))
		return 0;
	if (s.jail)
		q.jail = s.jail->id;
	joins = tf_may_join(&q);

	struct request r = { .cgroup = s.cgroup, .slot = s.slot, .hook = TF_HOOK_TASK_SETPGID, .op = TF_OP_SIGNAL,
			     .error = -EPERM, .pid = task->tgid, .arg = q.number };

	ask_every_jail(&s, &r, joins ? TF_OK : TF_OTHER_JAIL);
	return settle(&r, EPERM);
}

/* ---- unix sockets ---- */

/*
 * A socket with a path is an object like any other, and takes the right u. One with an abstract name has none: its
 * owner has to be in the jail. One without a name is an end of a pair that the task holds already.
 */
static __always_inline enum tf_code check_peer(const struct tf_jail *jail, __u64 dentry, __u64 mnt, bool named,
					       __u64 cgroup)
{
	if (!dentry)
		return !named || is_in_jail(jail, cgroup) ? TF_OK : TF_OTHER_JAIL;
	return check_object(jail, dentry, mnt, TF_CONNECT);
}

static __always_inline int judge_peer(enum tf_hook hook, struct sock *peer)
{
	struct unix_sock *u = (void *)peer;
	struct subject s;
	bool named;
	__u64 cgroup;

	if (!find_subject(&s))
		return 0;
	named = BPF_CORE_READ(u, addr);
	cgroup = BPF_CORE_READ(peer, sk_cgrp_data.cgroup, kn, id);

	struct request r = { .dentry = (__u64)BPF_CORE_READ(u, path.dentry), .mnt = (__u64)BPF_CORE_READ(u, path.mnt),
			     .cgroup = s.cgroup, .slot = s.slot, .hook = hook, .op = TF_OP_CONNECT, .error = -EACCES };

	ask_every_jail(&s, &r, check_peer(j, r.dentry, r.mnt, named, cgroup));
	return settle(&r, EACCES);
}

SEC("lsm/unix_stream_connect")
int tf_unix_stream_connect(unsigned long long *ctx)
{
	if (earlier(ctx, 3))
		return earlier(ctx, 3);
	return judge_peer(TF_HOOK_UNIX_STREAM_CONNECT, (void *)ctx[1]);
}

SEC("lsm/unix_may_send")
int tf_unix_may_send(unsigned long long *ctx)
{
	struct socket *other = (void *)ctx[1];
	struct sock *peer;

	if (earlier(ctx, 2))
		return earlier(ctx, 2);
	peer = other->sk;
	if (!peer) /* never seen; nothing to judge by */
		return judge_forbidden(TF_HOOK_UNIX_MAY_SEND, TF_OP_CONNECT, 0, false);
	return judge_peer(TF_HOOK_UNIX_MAY_SEND, peer);
}

#endif
