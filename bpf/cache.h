/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The short way to a verdict: what was decided is remembered by directory, so that an open costs the same at every depth.
 *
 * Remembered are the rights that a walk from a directory found, for a cgroup. They hold for what lies in that directory as
 * well, unless an object is itself a grant: then its number is in the filter of granted numbers, and it is looked up by
 * itself. Only what is plainly allowed is remembered, never a denial.
 *
 * What could make a remembered verdict wrong, and what stands against it:
 *
 *  a directory moves          The sequence of rename_lock is part of an entry: all dentries move under that lock, and
 *                             the kernel's own ways up (is_subdir, d_path) rest on it in the same manner.
 *  grants, jails, members     tf_state.epoch is part of an entry. Whoever changes them raises it afterwards.
 *   change
 *  a grant expires            Its instant is in the entry.
 *  rights are for a time      Expansions only add, so what the grant gives without them is remembered.
 *  it is another mount        An entry is for one mount, whose root never changes. Nothing else about mounts matters
 *                             within one; for a jail that follows mounts nothing is remembered.
 *  an inode number is used    The generation is part of an entry. On file systems that have none (overlayfs), or of
 *   again                     which it is not known what theirs are worth, nothing is remembered.
 *  a 32-bit number wraps      No entry lives longer than TF_VERDICT_AGE.
 *  two keys share a place     The whole key is compared.
 *  it is half written         Places are per CPU, and tasks of one CPU that preempt each other see it by the turn.
 *
 * Epoch and sequence are read before the walk and stored with what it found, so an entry that something changed under is
 * born dead.
 */
#ifndef TF_CACHE_H
#define TF_CACHE_H

/* Weak: an old kernel has no such function. */
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/*
 * Nothing that was remembered before is found again. To be called after every change to what a walk rests on, moves
 * aside.
 */
static __always_inline void forget_verdicts(void) { __sync_fetch_and_add(&tf_state.epoch, 1); }

static __always_inline bool has_unique_mounts(void)
{
	return bpf_core_field_exists(struct mount, mnt_id_unique) && bpf_rdonly_cast;
}

/*
 * A number that is another one after every move of a dentry, and odd during one. unique is has_unique_mounts: a constant only
 * once the programs are loaded, so there is code for either, and the verifier removes the other.
 */
static __always_inline __u32 read_moves(bool unique)
{
	const struct seqcount *renames;

	if (!unique)
		return read_all_moves();
	renames = bpf_rdonly_cast(&rename_lock, bpf_core_type_id_kernel(struct seqcount));
	return renames->sequence;
}

static __always_inline __u32 moves_now(void)
{
	return has_unique_mounts() ? read_moves(true) : read_moves(false);
}

/*
 * Tells mounts apart. Since Linux 6.8 each has a number of its own for good. Before that it is the address: whatever is
 * mounted later at the same one has been added under mount_lock, so see read_moves. Of an address the verifier lets nothing
 * but a comparison be made.
 */
static __always_inline __u64 mount_id(bool unique, struct vfsmount *mnt)
{
	const struct mount *mount;

	if (!unique)
		return (__u64)mnt;
	mount = bpf_rdonly_cast((void *)mnt - bpf_core_field_offset(struct mount, mnt), bpf_core_type_id_kernel(struct mount));
	return mount->mnt_id_unique;
}

/* A function of its own for the stack of its callers. */
static __noinline __u64 volume_of(struct dentry *dentry)
{
	__u64 inode = 0;

	bpf_core_read(&inode, sizeof(inode), &dentry->d_inode);
	return volume_at(inode);
}

/* Spreads numbers: 2^32 divided by the golden ratio. */
#define TF_MIX 0x9E3779B9U

/* Whether an object is looked up by itself, and not by its directory. */
static __always_inline bool stands_alone(struct inode *inode)
{
	return (inode->i_mode & S_IFMT) != S_IFREG || tf_state.granted_files[inode->i_ino % TF_GRANTED_CELLS];
}

/* The lower halves of the numbers will do, as all of the key is compared. */
static __always_inline __u32 place_of(__u64 ino, __u64 cgroup)
{
	return ((__u32)ino ^ (__u32)cgroup << 16) * TF_MIX >> (32 - TF_VERDICT_BITS);
}

/* What is remembered of a directory, or of an object that stands alone. */
struct recalled {
	volatile struct tf_verdict *verdict;
	__u64 turn;
};

/*
 * Looks up what is remembered of an object for the tasks of a cgroup. It is written for speed: a load from an object that
 * the verifier does not vouch for is eight instructions, a look-up in a hash two hundred. What is read of an inode that is
 * not there reads as zero, and no inode has that number.
 */
static __always_inline bool recall(struct recalled *known, __u64 cgroup, struct dentry *dentry, struct inode *inode)
{
	volatile struct tf_verdict *v;
	struct dentry *at = dentry;
	__u64 ino, differs;
	__u32 place;

	if (!stands_alone(inode)) {
		at = dentry->d_parent;
		inode = at->d_inode;
	}
	ino = inode->i_ino;
	place = place_of(ino, cgroup);
	v = bpf_map_lookup_elem(&tf_verdicts, &place);
	if (!v)
		return false;
	*known = (struct recalled){ .verdict = v, .turn = v->turn };
	differs = (v->cgroup ^ cgroup) | (v->ino ^ ino) | (v->generation ^ inode->i_generation) | (v->epoch ^ tf_state.epoch);
	if (differs)
		return false;
	return __builtin_expect(!v->volume, true) || v->volume == volume_of(at);
}

static __always_inline bool still_holds(bool unique, struct recalled known, struct vfsmount *mnt, __u32 need)
{
	volatile struct tf_verdict *v = known.verdict;
	__u64 id;

	if (need & ~v->rights) /* before the casts, so that need has not to be kept over them */
		return false;
	id = mount_id(unique, mnt);
	if (v->mount != id || read_moves(unique) != v->moves || bpf_jiffies64() - v->since > TF_VERDICT_AGE)
		return false;
	if (v->expires && bpf_ktime_get_boot_ns() >= v->expires)
		return false;
	return v->turn == known.turn;
}

/* A function of its own for the stack of its callers. */
static __noinline bool still_holds_by_address(volatile struct tf_verdict *verdict, __u64 turn, struct vfsmount *mnt, __u32 need)
{
	return still_holds(false, (struct recalled){ verdict, turn }, mnt, need);
}

/* Whether what was recalled of an object still holds, and says that it may be used with all of need. */
static __always_inline bool allows(struct recalled known, struct vfsmount *mnt, __u32 need)
{
	if (has_unique_mounts())
		return still_holds(true, known, mnt, need);
	return still_holds_by_address(known.verdict, known.turn, mnt, need);
}

/* What is read before a walk, so that what changes during it can be told. */
struct before {
	__u32 epoch;
	__u32 moves;
};

static __always_inline struct before read_before(void)
{
	struct before before = { .epoch = tf_state.epoch, .moves = 1 };

	/* Without the addresses nothing is ever remembered. */
	if (knows_moves())
		before.moves = moves_now();
	return before;
}

/* Remembers what a walk from an object found. */
static __always_inline void remember(struct before before, __u64 cgroup, const struct walk *w, struct dentry *dentry,
				     __u64 mount)
{
	struct inode *inode = dentry->d_inode;
	volatile struct tf_verdict *v;
	struct dentry *at = dentry;
	__u64 turn, ino, volume = 0;
	__u32 place, generation;

	if (stands_alone(inode)) {
		/* A file that is no grant may have other names, in other directories. */
		if (w->steps != 1 && (inode->i_mode & S_IFMT) != S_IFDIR)
			return;
	} else if (w->steps == 1) {
		return; /* it was granted just now */
	} else {
		at = dentry->d_parent;
		inode = at->d_inode;
	}
	generation = inode->i_generation;
	ino = inode->i_ino;
	if (!generation)
		return;
	switch (dentry->d_sb->s_magic) {
	case EXT4_MAGIC:
	case TMPFS_MAGIC:
	case XFS_MAGIC:
		break;
	case BTRFS_MAGIC:
		volume = volume_of(at);
		if (volume == ~0ULL)
			return;
		break;
	default:
		return;
	}
	place = place_of(ino, cgroup);
	v = bpf_map_lookup_elem(&tf_verdicts, &place);
	if (!v)
		return;
	turn = v->turn;
	if (turn & 1 || __sync_val_compare_and_swap(&v->turn, turn, turn + 1) != turn)
		return; /* another task of this CPU is at it */
	v->cgroup = 0; /* no cgroup's: so it is found by nobody until it is whole */
	v->mount = mount;
	v->ino = ino;
	v->volume = volume;
	v->expires = w->expires;
	v->since = bpf_jiffies64();
	v->generation = generation;
	v->epoch = before.epoch;
	v->moves = before.moves;
	v->rights = w->granted;
	v->cgroup = cgroup;
	v->turn = turn + 2;
}

/*
 * Whether the subject's jail allows need by the short way: typed loads, no crossing of mounts, nothing special. Where
 * the answer is the whole cgroup's it is remembered. A function of its own, for the stack of its callers is small.
 */
static __noinline bool is_plainly_allowed(const struct subject *s, struct dentry *dentry, struct vfsmount *mnt,
					       __u32 need)
{
	struct before before = read_before();
	struct inode *inode = dentry->d_inode;
	struct walk w;
	__u16 type;

	if (!s->jail || !inode || s->jail->parent || is_enforcers_own(dentry->d_sb->s_magic))
		return false;
	if (walk(s->jail, dentry, mnt, &w) || (w.rights & need) != need)
		return false;
	/* Something moved meanwhile, on the way perhaps: the long way can tell. */
	if (before.moves & 1 || moves_now() != before.moves)
		return false;
	/* Being inside the workspace is not enough for a device: the node itself must be the grant. */
	type = inode->i_mode & S_IFMT;
	if ((type == S_IFCHR || type == S_IFBLK) && w.steps != 1)
		return false;
	if (!s->outer && !(s->jail->flags & (TF_JAIL_CANARY | TF_JAIL_FOLLOW_MOUNTS)))
		remember(before, s->cgroup, &w, dentry, has_unique_mounts() ? mount_id(true, mnt) : mount_id(false, mnt));
	return true;
}

#endif
