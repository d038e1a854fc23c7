// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * thenforce's kernel programs.
 *
 * A task is judged when its own cgroup is a member of a jail. For an operation on an object the programs walk from
 * the object's dentry to the root of its mount; the nearest one that is a grant of the jail's policy decides. No
 * grant on the way: denied. Missing data inside a jail means deny, outside every jail it means allow.
 *
 * hook            duty                                                            errno
 * file_open       open, exec, open by handle, io_uring; O_TMPFILE                 EACCES
 * path_mknod      create a file (also open with O_CREAT), FIFO or socket;         EACCES
 *                 a block or character node never
 * path_mkdir      create a directory                                              EACCES
 * path_symlink    create a symbolic link                                          EACCES
 * path_unlink     remove a name                                                   EACCES
 * path_rmdir      remove a directory                                              EACCES
 * path_link       link: read the source, create the target; no right gained       EACCES, EXDEV (rights-gain)
 * path_rename     rename: delete the source and what it overwrites, create the    EACCES, EXDEV (rights-gain)
 *                 target; no right gained; an exchange is judged both ways
 * path_truncate   truncate by path                                                EACCES
 * path_chmod      change the mode                                                 EACCES
 * path_chown      change the owner                                                EACCES
 *
 * cgroup_mkdir    (tracepoint) a cgroup made inside a jail is a member before any task can enter it
 * cgroup_rmdir    (tracepoint) a removed cgroup is forgotten
 * tf_learn        (run by the loader) tells the identity of an open descriptor
 *
 * The path_ hooks need CONFIG_SECURITY_PATH; the loader finds their absence in the kernel's BTF.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "abi.h"
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The enums that Go needs though no map holds them. */
const enum tf_limit *unused_limit __attribute__((unused));
const enum tf_right *unused_right __attribute__((unused));
const enum tf_code *unused_code __attribute__((unused));
const enum tf_hook *unused_hook __attribute__((unused));
const enum tf_op_id *unused_op __attribute__((unused));
const enum tf_jail_flag *unused_jail_flag __attribute__((unused));
const enum tf_event_flag *unused_event_flag __attribute__((unused));
const struct tf_event *unused_event __attribute__((unused));
const struct tf_learning *unused_learn __attribute__((unused));

struct tf_global tf_state SEC(".data.global");

/* The maps and all they hold; names are cut to 15 characters by the kernel. */

/* slot -> jail. Writer: loader; counters: programs. Mapped by the loader for atomic stores. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TF_MAX_JAILS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct tf_jail);
} tf_jails SEC(".maps");

/* cgroup id -> jail. Writers: loader for cgroups that exist, cgroup_mkdir for later ones. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_CGROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct tf_member);
} tf_members SEC(".maps");

/* (policy, inode) -> grant. Writer: loader, under a policy number that no jail uses yet. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_GRANTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tf_grant_key);
	__type(value, struct tf_grant);
} tf_grants SEC(".maps");

/* tf_event records, each cut to its path. Writer: programs. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TF_EVENT_BYTES);
} tf_events SEC(".maps");

/* hook -> verdicts of canary jails. Writer: programs; the loader reads differences. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TF_HOOKS);
	__type(key, __u32);
	__type(value, struct tf_canary_count);
} tf_canary SEC(".maps");

/* What was loaded, and what has been proven of it. Writer: loader. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tf_proof);
} tf_proofs SEC(".maps");

/* hook -> verdicts made for jailed tasks. Writer: programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TF_HOOKS);
	__type(key, __u32);
	__type(value, __u64);
} tf_runs SEC(".maps");

/* ---- subject ---- */

struct subject {
	struct tf_jail *jail; /* NULL: a member whose jail is not there, to be denied */
	__u64 cgroup;
};

static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

static __always_inline bool may_be_member(__u64 cgroup)
{
	return tf_state.members[(cgroup / 64) % (TF_MEMBER_BITS / 64)] >> (cgroup % 64) & 1;
}

/* tf_members was full when some cgroup was made: ask for the ancestors too. Slow and rare, but never a way out. */
static __noinline struct tf_member *member_by_ancestor(void)
{
	struct tf_member *member;
	__u64 id;

	for (int level = 0; level < TF_MAX_NESTING; level++) {
		id = bpf_get_current_ancestor_cgroup_id(TF_MAX_NESTING - 1 - level);
		if (!id)
			continue;
		member = bpf_map_lookup_elem(&tf_members, &id);
		if (member)
			return member;
	}
	return NULL;
}

static __always_inline struct tf_jail *jail_of(const struct tf_member *member)
{
	__u32 slot = member->slot;
	struct tf_jail *jail = bpf_map_lookup_elem(&tf_jails, &slot);

	if (!jail || jail->id != member->jail || !(jail->flags & TF_JAIL_LIVE))
		return NULL;
	return jail;
}

/* Whether the current task is in a jail, and in which. */
static __always_inline bool find_subject(struct subject *s)
{
	struct tf_member *member;

	s->cgroup = cgroup_of(bpf_get_current_task_btf());
	if (!may_be_member(s->cgroup) && !tf_state.overflow)
		return false;
	member = bpf_map_lookup_elem(&tf_members, &s->cgroup);
	if (!member && tf_state.overflow)
		member = member_by_ancestor();
	if (!member)
		return false;
	s->jail = jail_of(member);
	return true;
}

/* ---- events ---- */

/* What a hook was asked, for the record. dentry is the object, or the name that was to be made. */
struct attempt {
	enum tf_hook hook;
	enum tf_op_id op;
	struct dentry *dentry;
	struct vfsmount *mnt;
};

/* The way from an object up to the root of its mount namespace, for people to read: no verdict rests on it. */
struct ascent {
	__u64 dentry; /* numbers, not typed pointers: all reads are probes */
	__u64 mount;  /* struct mount */
	/*
	 * The record, followed by room for the path and one name more, so that no name is cut to fit. Its path_len counts
	 * along: the verifier follows a number in memory of the ring no further, where one on the stack would make it
	 * walk through every iteration.
	 */
	struct tf_event *out;
	__u32 flags;  /* enum tf_event_flag */
	__u32 full;   /* the path did not fit */
};

/* One step: a name, or the crossing from a mount to the one below it. room is a constant for the verifier's sake. */
static __always_inline long ascend(struct ascent *up, const __u64 room)
{
	struct dentry *dentry = (void *)up->dentry, *parent = NULL, *root = NULL;
	struct mount *mount = (void *)up->mount, *above = NULL;
	const unsigned char *name = NULL;
	char *out;
	__u64 len = up->out->path_len, n;
	__u32 size = 0;

	bpf_core_read(&root, sizeof(root), &mount->mnt.mnt_root);
	if (dentry == root) {
		bpf_core_read(&above, sizeof(above), &mount->mnt_parent);
		if (!above || above == mount) {
			up->flags = 0;
			return 1;
		}
		bpf_core_read(&dentry, sizeof(dentry), &mount->mnt_mountpoint);
		up->dentry = (__u64)dentry;
		up->mount = (__u64)above;
		return 0;
	}
	bpf_core_read(&parent, sizeof(parent), &dentry->d_parent);
	if (!parent || parent == dentry) {
		up->flags = TF_EVENT_UNREACHABLE;
		return 1;
	}
	bpf_core_read(&name, sizeof(name), &dentry->d_name.name);
	bpf_core_read(&size, sizeof(size), &dentry->d_name.len);
	n = size;
	asm volatile("" : "+r"(n)); /* else the compiler reads size from the stack again, where no bound is known */
	if (n > TF_NAME_BYTES - 1)
		n = TF_NAME_BYTES - 1;
	if (len >= room || len + n + 1 > room) {
		up->full = 1;
		return 1;
	}
	out = (char *)(up->out + 1);
	bpf_probe_read_kernel(out + len, n, name);
	len += n;
	out[len] = 0;
	up->out->path_len = len + 1;
	up->dentry = (__u64)parent;
	return 0;
}

static long ascend_short(__u32 step __attribute__((unused)), struct ascent *up)
{
	return ascend(up, TF_PATH_SHORT);
}

static long ascend_long(__u32 step __attribute__((unused)), struct ascent *up)
{
	return ascend(up, TF_PATH_LONG);
}

static __always_inline void fill_event(struct tf_event *e, const struct subject *s, const struct attempt *a,
				       enum tf_code code, int error, __u32 flags)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct inode *inode = a->dentry->d_inode;

	e->time = bpf_ktime_get_boot_ns();
	e->jail = s->jail ? s->jail->id : 0;
	e->cgroup = s->cgroup;
	e->ino = inode ? inode->i_ino : 0;
	e->dev = a->dentry->d_sb->s_dev;
	e->pid = id >> 32;
	e->tid = (__u32)id;
	e->uid = (__u32)bpf_get_current_uid_gid();
	e->error = error;
	e->hook = a->hook;
	e->op = a->op;
	e->code = code;
	e->flags = flags;
	e->path_len = 0;
	bpf_get_current_comm(e->comm, sizeof(e->comm));
}

struct event_short {
	struct tf_event head;
	char path[TF_PATH_SHORT + TF_NAME_BYTES];
};

struct event_long {
	struct tf_event head;
	char path[TF_PATH_LONG + TF_NAME_BYTES];
};

/*
 * Records are taken from the ring itself, not from a per-CPU buffer: programs of one CPU can preempt each other.
 * Gives -ENAMETOOLONG where a larger record is wanted.
 */
#define emit_as(type, step, last)                                                                           \
	({                                                                                                  \
		struct type *rec = bpf_ringbuf_reserve(&tf_events, sizeof(struct type), 0);                 \
		long err = 0;                                                                               \
		if (!rec) {                                                                                 \
			err = -ENOSPC;                                                                      \
		} else {                                                                                    \
			struct ascent up = {                                                                \
				.dentry = (__u64)a->dentry,                                                 \
				.mount = (__u64)a->mnt - bpf_core_field_offset(struct mount, mnt),          \
				.out = &rec->head,                                                          \
				.flags = TF_EVENT_CUT,                                                      \
			};                                                                                  \
			fill_event(&rec->head, s, a, code, error, flags);                                   \
			bpf_loop(TF_PATH_DEPTH, step, &up, 0);                                              \
			rec->head.flags |= up.flags;                                                        \
			if (up.full && !(last)) {                                                           \
				bpf_ringbuf_discard(rec, 0);                                                \
				err = -ENAMETOOLONG;                                                        \
			} else {                                                                            \
				bpf_ringbuf_submit(rec, 0);                                                 \
			}                                                                                   \
		}                                                                                           \
		err;                                                                                        \
	})

static __always_inline void emit(const struct subject *s, const struct attempt *a, enum tf_code code, int error,
				 __u32 flags)
{
	long err = emit_as(event_short, ascend_short, false);

	if (err == -ENAMETOOLONG)
		err = emit_as(event_long, ascend_long, true);
	if (err == -ENOSPC && s->jail)
		__sync_fetch_and_add(&s->jail->lost, 1);
}

/* ---- verdict ---- */

/* Turns a code into the hook's return value: counts, records, and lets a monitored jail pass. */
static __always_inline int verdict(const struct subject *s, const struct attempt *a, enum tf_code code, int error)
{
	__u32 hook = a->hook;
	__u64 *runs = bpf_map_lookup_elem(&tf_runs, &hook);
	struct tf_jail *jail = s->jail;

	if (runs)
		(*runs)++;
	if (jail && jail->flags & TF_JAIL_CANARY) {
		struct tf_canary_count *count = bpf_map_lookup_elem(&tf_canary, &hook);

		if (count)
			__sync_fetch_and_add(code ? &count->denied : &count->allowed, 1);
	}
	if (!code)
		return 0;
	if (!jail) {
		emit(s, a, code, error, 0);
		return error;
	}
	__sync_fetch_and_add(&jail->denials, 1);
	if (jail->flags & TF_JAIL_CANARY)
		return error; /* counted above; nobody wants to read about it */
	if (jail->flags & TF_JAIL_MONITOR) {
		emit(s, a, code, error, TF_EVENT_MONITOR);
		return 0;
	}
	emit(s, a, code, error, 0);
	return error;
}

/* ---- walk ---- */

struct walk {
	struct dentry *at;
	struct dentry *top; /* the mount's root: the last dentry that counts */
	struct tf_grant_key key;
	__u32 btrfs;
	__u32 rights; /* of the deciding grant */
	__u32 code;
	__u32 steps;
};

/*
 * On btrfs device, number and generation are not an identity: subvolumes share them, snapshots repeat them. The
 * subvolume's root id tells them apart. ~0 is no subvolume's id, so where it cannot be read nothing matches.
 */
static __always_inline __u64 volume_at(__u64 inode)
{
	__u64 id = ~0ULL, root = 0;

	if (!tf_state.btrfs_ready)
		return ~0ULL;
	if (bpf_probe_read_kernel(&root, sizeof(root), (void *)(inode - tf_state.btrfs_inode + tf_state.btrfs_root)))
		return ~0ULL;
	if (bpf_probe_read_kernel(&id, sizeof(id), (void *)(root + tf_state.btrfs_id)))
		return ~0ULL;
	return id;
}

static __always_inline __u64 volume_of(struct dentry *dentry)
{
	__u64 inode = 0;

	/* Read as a number: the verifier does not let a typed pointer move by an offset it does not know. */
	if (bpf_core_read(&inode, sizeof(inode), &dentry->d_inode))
		return ~0ULL;
	return volume_at(inode);
}

static __always_inline enum tf_code check_grant(const struct tf_grant *grant, struct inode *inode)
{
	/* A stranger may have inherited the number: that is a denial, never "no grant here". */
	if (grant->generation != inode->i_generation)
		return TF_GENERATION;
	if (grant->expires && bpf_ktime_get_boot_ns() >= grant->expires)
		return TF_EXPIRED;
	return TF_OK;
}

static long walk_step(__u32 step, struct walk *w)
{
	struct dentry *at = w->at, *parent;
	struct inode *inode = at->d_inode;
	struct tf_grant *grant;

	w->steps = step + 1;
	if (!inode) {
		w->code = TF_NO_DATA;
		return 1;
	}
	w->key.ino = inode->i_ino;
	if (w->btrfs)
		w->key.volume = volume_of(at);
	grant = bpf_map_lookup_elem(&tf_grants, &w->key);
	if (grant) {
		w->code = check_grant(grant, inode);
		w->rights = grant->rights;
		return 1;
	}
	if (at == w->top) {
		w->code = TF_NO_GRANT;
		return 1;
	}
	parent = at->d_parent;
	if (parent == at) {
		w->code = TF_DISCONNECTED;
		return 1;
	}
	w->at = parent;
	return 0;
}

/*
 * Finds the grant that decides for an object. The object is named by its dentry and the mount it was reached by, both
 * of one struct path. It returns TF_OK and the grant's rights, or why there are none.
 */
static __always_inline enum tf_code walk(const struct subject *s, struct dentry *dentry, struct vfsmount *mnt,
					 struct walk *w)
{
	struct super_block *sb = dentry->d_sb;

	__builtin_memset(w, 0, sizeof(*w));
	w->at = dentry;
	w->top = mnt->mnt_root;
	w->key.dev = sb->s_dev;
	w->key.policy = s->jail->policy;
	w->btrfs = sb->s_magic == BTRFS_MAGIC;
	w->code = TF_TOO_DEEP; /* stands when the loop ends without an answer */
	bpf_loop(TF_MAX_DEPTH, walk_step, w, 0);
	return w->code;
}

static __always_inline bool is_device(struct inode *inode)
{
	__u16 type = inode->i_mode & S_IFMT;

	return type == S_IFCHR || type == S_IFBLK;
}

/* Whether an object may be used with all of need. */
static __always_inline enum tf_code check_object(const struct subject *s, struct dentry *dentry, struct vfsmount *mnt,
						 __u32 need)
{
	struct inode *inode = dentry->d_inode;
	enum tf_code code;
	struct walk w;

	if (!inode)
		return TF_NO_DATA;
	code = walk(s, dentry, mnt, &w);
	if (code)
		return code;
	/* Being inside the workspace is not enough for a device: the node itself must be the grant. */
	if (is_device(inode) && w.steps != 1)
		return TF_DEVICE_NODE;
	return (w.rights & need) == need ? TF_OK : TF_RIGHTS;
}

/*
 * Whether a name may be removed, and the rights of what it names. Removing changes the directory, so where the object
 * is itself a grant the directory's own rights count as well: nobody in a jail removes the workspace.
 */
static __always_inline enum tf_code check_name(const struct subject *s, struct dentry *dentry, struct vfsmount *mnt,
					       __u32 need, __u32 *rights)
{
	enum tf_code code;
	struct walk w;

	code = walk(s, dentry, mnt, &w);
	if (code)
		return code;
	*rights = w.rights;
	if ((w.rights & need) != need)
		return TF_RIGHTS;
	if (w.steps != 1)
		return TF_OK;
	if (dentry == mnt->mnt_root)
		return TF_MOUNT_BOUNDARY;
	code = walk(s, dentry->d_parent, mnt, &w);
	if (code)
		return code;
	return (w.rights & need) == need ? TF_OK : TF_RIGHTS;
}

/* ---- objects that no grant can name ---- */

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
static __always_inline bool is_kernel_mount(struct vfsmount *mnt)
{
	return mnt->mnt_flags & MNT_INTERNAL && mnt->mnt_sb->s_flags & SB_KERNMOUNT;
}

static __always_inline enum tf_code check_kernel_file(struct vfsmount *mnt, __u32 need)
{
	switch (mnt->mnt_sb->s_magic) {
	case PIPEFS_MAGIC:
	case SOCKFS_MAGIC:
	case ANON_INODE_MAGIC:
	case TMPFS_MAGIC:
	case HUGETLBFS_MAGIC:
	case SECRETMEM_MAGIC:
	case PIDFS_MAGIC:
		return need & TF_EXEC ? TF_RIGHTS : TF_OK;
	case NSFS_MAGIC:
		return need & ~TF_READ ? TF_RIGHTS : TF_OK;
	default:
		return TF_NO_GRANT;
	}
}

/* Whether a proc inode belongs to a task of the subject's jail: /proc/self, /proc/PID and all below them. */
static __always_inline bool is_own_proc(const struct subject *s, struct inode *inode)
{
	struct proc_inode *pi = (void *)inode - bpf_core_field_offset(struct proc_inode, vfs_inode);
	struct pid *pid = NULL;
	struct hlist_node *first = NULL;
	struct task_struct *task;
	struct tf_member *member;
	__u64 cgroup;

	if (bpf_core_read(&pid, sizeof(pid), &pi->pid) || !pid)
		return false;
	if (bpf_core_read(&first, sizeof(first), &pid->tasks[PIDTYPE_PID].first) || !first)
		return false;
	task = (void *)first - bpf_core_field_offset(struct task_struct, pid_links[PIDTYPE_PID]);
	cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	member = bpf_map_lookup_elem(&tf_members, &cgroup);
	return member && member->jail == s->jail->id;
}

/* ---- hooks ---- */

static __always_inline __u32 rights_of_open(__u32 flags)
{
	__u32 need;

	if (flags & FMODE_EXEC)
		return TF_EXEC;
	switch (flags & O_ACCMODE) {
	case 0:
		need = TF_READ;
		break;
	case O_WRONLY:
		need = TF_WRITE;
		break;
	default: /* O_RDWR, and 3, which ioctl-only openers use */
		need = TF_READ | TF_WRITE;
	}
	if (flags & O_TRUNC)
		need |= TF_WRITE;
	if (flags & O_TMPFILE_BIT)
		need |= TF_CREATE;
	return need;
}

SEC("lsm/file_open")
int tf_file_open(unsigned long long *ctx)
{
	struct file *file = (void *)ctx[0];
	int ret = (int)ctx[1];
	struct subject s;
	struct dentry *dentry;
	struct vfsmount *mnt;
	struct inode *inode;
	enum tf_code code;
	__u32 need;

	if (ret)
		return ret;
	if (!find_subject(&s))
		return 0;
	mnt = file->f_path.mnt;
	dentry = file->f_path.dentry;
	inode = dentry->d_inode;
	if (is_overlay_layer(mnt))
		return 0;
	/* 6.1 opens a regular file of an overlay a second time, with the overlay's path and the layer's inode. */
	if (mnt->mnt_sb->s_magic == OVERLAYFS_MAGIC && file->f_inode != inode)
		return 0;

	need = rights_of_open(file->f_flags);
	if (!s.jail || !inode)
		code = TF_NO_DATA;
	else if (is_kernel_mount(mnt))
		code = check_kernel_file(mnt, need);
	else if (mnt->mnt_sb->s_magic == PROC_MAGIC && is_own_proc(&s, inode))
		code = TF_OK;
	else
		code = check_object(&s, dentry, mnt, need);

	struct attempt a = {
		.hook = TF_HOOK_FILE_OPEN,
		.op = need & TF_EXEC ? TF_OP_EXEC : need & TF_WRITE ? TF_OP_WRITE : TF_OP_READ,
		.dentry = dentry,
		.mnt = mnt,
	};
	return verdict(&s, &a, code, -EACCES);
}

/* An operation on the object that path names. */
static __always_inline int judge_object(enum tf_hook hook, enum tf_op_id op, const struct path *path, __u32 need)
{
	struct subject s;

	if (!find_subject(&s))
		return 0;

	struct attempt a = { .hook = hook, .op = op, .dentry = path->dentry, .mnt = path->mnt };

	return verdict(&s, &a, s.jail ? check_object(&s, path->dentry, path->mnt, need) : TF_NO_DATA, -EACCES);
}

/* A new name in a directory. */
static __always_inline int judge_create(enum tf_hook hook, const struct path *dir, struct dentry *name, bool device)
{
	struct subject s;
	enum tf_code code;

	if (!find_subject(&s))
		return 0;
	if (!s.jail)
		code = TF_NO_DATA;
	else if (device)
		code = TF_DEVICE_NODE;
	else
		code = check_object(&s, dir->dentry, dir->mnt, TF_CREATE);

	struct attempt a = { .hook = hook, .op = TF_OP_CREATE, .dentry = name, .mnt = dir->mnt };

	return verdict(&s, &a, code, -EACCES);
}

/* A name taken away. */
static __always_inline int judge_delete(enum tf_hook hook, const struct path *dir, struct dentry *name)
{
	struct subject s;
	__u32 rights;

	if (!find_subject(&s))
		return 0;

	struct attempt a = { .hook = hook, .op = TF_OP_DELETE, .dentry = name, .mnt = dir->mnt };

	return verdict(&s, &a, s.jail ? check_name(&s, name, dir->mnt, TF_DELETE, &rights) : TF_NO_DATA, -EACCES);
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

	if ((int)ctx[4])
		return (int)ctx[4];
	if (!can_create(dir))
		return 0;
	return judge_create(TF_HOOK_PATH_MKNOD, dir, (void *)ctx[1], type == S_IFCHR || type == S_IFBLK);
}

SEC("lsm/path_mkdir")
int tf_path_mkdir(unsigned long long *ctx)
{
	if ((int)ctx[3])
		return (int)ctx[3];
	return judge_create(TF_HOOK_PATH_MKDIR, (void *)ctx[0], (void *)ctx[1], false);
}

SEC("lsm/path_symlink")
int tf_path_symlink(unsigned long long *ctx)
{
	if ((int)ctx[3])
		return (int)ctx[3];
	return judge_create(TF_HOOK_PATH_SYMLINK, (void *)ctx[0], (void *)ctx[1], false);
}

SEC("lsm/path_unlink")
int tf_path_unlink(unsigned long long *ctx)
{
	if ((int)ctx[2])
		return (int)ctx[2];
	return judge_delete(TF_HOOK_PATH_UNLINK, (void *)ctx[0], (void *)ctx[1]);
}

SEC("lsm/path_rmdir")
int tf_path_rmdir(unsigned long long *ctx)
{
	if ((int)ctx[2])
		return (int)ctx[2];
	return judge_delete(TF_HOOK_PATH_RMDIR, (void *)ctx[0], (void *)ctx[1]);
}

/*
 * What an object brings to a directory: the right to make a name there, and none that the object did not have before
 * (else a link or rename would be the way around a narrower grant).
 */
static __always_inline enum tf_code check_target(const struct subject *s, struct dentry *dir, struct vfsmount *mnt,
						 __u32 brought)
{
	struct walk w;
	enum tf_code code = walk(s, dir, mnt, &w);

	if (code)
		return code;
	if (!(w.rights & TF_CREATE))
		return TF_RIGHTS;
	return w.rights & ~brought ? TF_RIGHTS_GAIN : TF_OK;
}

static __always_inline int errno_of(enum tf_code code)
{
	/* EXDEV makes tools copy instead: the copy has the target's rights by right. */
	return code == TF_RIGHTS_GAIN ? -EXDEV : -EACCES;
}

SEC("lsm/path_link")
int tf_path_link(unsigned long long *ctx)
{
	struct dentry *source = (void *)ctx[0];
	const struct path *dir = (void *)ctx[1];
	struct dentry *name = (void *)ctx[2];
	struct subject s;
	enum tf_code code;
	struct walk w;

	if ((int)ctx[3])
		return (int)ctx[3];
	if (!find_subject(&s))
		return 0;

	struct attempt a = { .hook = TF_HOOK_PATH_LINK, .op = TF_OP_LINK, .dentry = source, .mnt = dir->mnt };

	if (!s.jail)
		return verdict(&s, &a, TF_NO_DATA, -EACCES);
	/* linkat has checked that the source lies on the target's mount. */
	code = walk(&s, source, dir->mnt, &w);
	if (!code && !(w.rights & TF_READ))
		code = TF_RIGHTS;
	if (!code) {
		a.dentry = name;
		code = check_target(&s, dir->dentry, dir->mnt, w.rights);
	}
	return verdict(&s, &a, code, errno_of(code));
}

/* Whether an object may leave its name; the event names it where not. */
static __always_inline enum tf_code check_leaves(const struct subject *s, struct attempt *a, struct dentry *name,
						 __u32 *rights)
{
	a->dentry = name;
	return check_name(s, name, a->mnt, TF_DELETE, rights);
}

/* Whether an object with these rights may take a name; the event names that where not. */
static __always_inline enum tf_code check_arrives(const struct subject *s, struct attempt *a, struct dentry *name,
						  struct dentry *dir, __u32 brought)
{
	a->dentry = name;
	return check_target(s, dir, a->mnt, brought);
}

SEC("lsm/path_rename")
int tf_path_rename(unsigned long long *ctx)
{
	const struct path *old_dir = (void *)ctx[0];
	struct dentry *old = (void *)ctx[1];
	const struct path *new_dir = (void *)ctx[2];
	struct dentry *new = (void *)ctx[3];
	bool exchange = ctx[4] & RENAME_EXCHANGE;
	struct subject s;
	enum tf_code code;
	__u32 old_rights = 0, new_rights = 0;

	if ((int)ctx[5])
		return (int)ctx[5];
	if (!find_subject(&s))
		return 0;

	/* A rename stays on one mount, so either directory's mount is both's. */
	struct attempt a = { .hook = TF_HOOK_PATH_RENAME, .op = TF_OP_RENAME, .dentry = old, .mnt = old_dir->mnt };

	if (!s.jail)
		return verdict(&s, &a, TF_NO_DATA, -EACCES);
	code = check_leaves(&s, &a, old, &old_rights);
	if (!code)
		code = check_arrives(&s, &a, new, new_dir->dentry, old_rights);
	if (!code && new->d_inode)
		code = check_leaves(&s, &a, new, &new_rights);
	if (!code && exchange)
		code = check_arrives(&s, &a, old, old_dir->dentry, new_rights);
	return verdict(&s, &a, code, errno_of(code));
}

SEC("lsm/path_truncate")
int tf_path_truncate(unsigned long long *ctx)
{
	if ((int)ctx[1])
		return (int)ctx[1];
	return judge_object(TF_HOOK_PATH_TRUNCATE, TF_OP_WRITE, (void *)ctx[0], TF_WRITE);
}

SEC("lsm/path_chmod")
int tf_path_chmod(unsigned long long *ctx)
{
	if ((int)ctx[2])
		return (int)ctx[2];
	return judge_object(TF_HOOK_PATH_CHMOD, TF_OP_ATTRIBUTES, (void *)ctx[0], TF_WRITE);
}

SEC("lsm/path_chown")
int tf_path_chown(unsigned long long *ctx)
{
	if ((int)ctx[3])
		return (int)ctx[3];
	return judge_object(TF_HOOK_PATH_CHOWN, TF_OP_ATTRIBUTES, (void *)ctx[0], TF_WRITE);
}

/* ---- cgroups ---- */

static __always_inline __u64 parent_id(struct cgroup *cgrp)
{
	struct cgroup_subsys_state *css = cgrp->self.parent;
	struct cgroup *parent = (void *)css - bpf_core_field_offset(struct cgroup, self);

	return css ? BPF_CORE_READ(parent, kn, id) : 0;
}

/*
 * Runs under cgroup_mutex before the new cgroup can be seen, so no task gets in before it is a member. Ids of a v1
 * hierarchy may equal ids of the v2 one, which alone has hierarchy id 0.
 */
SEC("tp_btf/cgroup_mkdir")
int tf_cgroup_mkdir(unsigned long long *ctx)
{
	struct cgroup *cgrp = (void *)ctx[0];
	struct tf_member *parent;
	struct tf_member child;
	__u64 id, up;

	if (cgrp->root->hierarchy_id != 0)
		return 0;
	up = parent_id(cgrp);
	parent = bpf_map_lookup_elem(&tf_members, &up);
	if (!parent) {
		/* With a full map the parent may be an unrecorded member; then its children are found by ancestor too. */
		return 0;
	}
	id = cgrp->kn->id;
	child = *parent;
	if (bpf_map_update_elem(&tf_members, &id, &child, BPF_ANY)) {
		tf_state.overflow = 1;
		return 0;
	}
	__sync_fetch_and_or(&tf_state.members[(id / 64) % (TF_MEMBER_BITS / 64)], 1ULL << (id % 64));
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int tf_cgroup_rmdir(unsigned long long *ctx)
{
	struct cgroup *cgrp = (void *)ctx[0];
	__u64 id;

	if (cgrp->root->hierarchy_id != 0)
		return 0;
	id = cgrp->kn->id;
	bpf_map_delete_elem(&tf_members, &id);
	return 0;
}

/* ---- learning ---- */

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
	if (found->magic == BTRFS_MAGIC) {
		found->volume = volume_at((__u64)inode);
		if (found->volume == ~0ULL)
			return -EOPNOTSUPP;
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
