/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The record of a verdict that denied. */
#ifndef TF_EVENT_H
#define TF_EVENT_H

/*
 * What a hook was asked, and the answer. It lies on the hook's stack and is given by pointer to functions that the
 * verifier checks once and by themselves; so kernel objects are in it as numbers.
 */
struct request {
	__u64 dentry; /* the object, or the name that was to be made; 0 where the operation has none */
	__u64 mnt;    /* struct vfsmount; 0 where the hook has none: the path begins at the file system's root then */
	__u64 cgroup; /* of the task */
	__u32 slot;   /* of the jail that the answer is about; ~0: a member whose jail is not there */
	__u32 hook;   /* enum tf_hook */
	__u32 op;     /* enum tf_op_id */
	__u32 code;   /* enum tf_code: the answer */
	__s32 error;
	__u32 pid; /* of the process that was the object, else 0 */
	__u32 arg; /* a number that says more: an ioctl's command, a signal */
	__u32 silent; /* the kernel only wanted to know: no record */
};

/* The way from an object up to the root of its mount namespace, for people to read: no verdict rests on it. */
struct ascent {
	__u64 dentry; /* numbers, not typed pointers: all reads are probes */
	__u64 mount;  /* struct mount; 0: none */
	/*
	 * The record, followed by room for the path and one name more, so that no name is cut to fit. Its path_len counts
	 * along: the verifier follows a number in memory of the ring no further, where one on the stack would make it
	 * walk through every iteration.
	 */
	struct tf_event *out;
	__u32 flags; /* enum tf_event_flag */
	__u32 full;  /* the path did not fit */
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

	if (mount)
		bpf_core_read(&root, sizeof(root), &mount->mnt.mnt_root);
	if (mount && dentry == root) {
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
		up->flags = mount ? TF_EVENT_UNREACHABLE : TF_EVENT_NO_MOUNT;
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

static __always_inline void fill_event(struct tf_event *e, const struct request *r, __u64 jail, __u32 flags)
{
	struct dentry *dentry = (void *)r->dentry;
	__u64 id = bpf_get_current_pid_tgid();
	struct inode *inode;

	e->dev = 0;
	e->ino = r->pid;
	if (dentry) {
		inode = BPF_CORE_READ(dentry, d_inode);
		e->dev = BPF_CORE_READ(dentry, d_sb, s_dev);
		e->ino = inode ? BPF_CORE_READ(inode, i_ino) : 0;
	}
	e->time = bpf_ktime_get_boot_ns();
	e->jail = jail;
	e->cgroup = r->cgroup;
	e->pid = id >> 32;
	e->tid = (__u32)id;
	e->uid = (__u32)bpf_get_current_uid_gid();
	e->error = r->error;
	e->hook = r->hook;
	e->op = r->op;
	e->code = r->code;
	e->flags = flags;
	e->path_len = 0;
	e->arg = r->arg;
	e->pad = 0;
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
				.dentry = r->dentry,                                                        \
				.mount = r->mnt ? r->mnt - bpf_core_field_offset(struct mount, mnt) : 0,    \
				.out = &rec->head,                                                          \
				.flags = TF_EVENT_CUT,                                                      \
			};                                                                                  \
			fill_event(&rec->head, r, jail, flags);                                             \
			if (r->dentry)                                                                      \
				bpf_loop(TF_PATH_DEPTH, step, &up, 0);                                      \
			else                                                                                \
				up.flags = r->pid ? TF_EVENT_PROCESS : TF_EVENT_NO_OBJECT;                  \
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

/* Whether there was room for it. */
static __always_inline bool emit(const struct request *r, __u64 jail, __u32 flags)
{
	long err = emit_as(event_short, ascend_short, false);

	if (err == -ENAMETOOLONG)
		err = emit_as(event_long, ascend_long, true);
	return err != -ENOSPC;
}

#endif
