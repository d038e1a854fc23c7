/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From an object to the grant that decides. */
#ifndef TF_WALK_H
#define TF_WALK_H

struct walk {
	struct dentry *at;
	struct dentry *top; /* the mount's root: the last dentry that counts. NULL: the file system's root */
	struct tf_grant_key key;
	__u32 special; /* is_special: an identity takes more than the inode number */
	__u32 added;   /* rights that expansions met so far add */
	__u32 rights;  /* of the deciding grant, with what expansions add */
	__u32 code;
	__u32 steps;
	__u32 granted; /* the deciding grant's rights alone, */
	__u64 expires; /* and when it ends, as in tf_grant */
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

/*
 * In /proc/sys an inode gets a new number each time it is read in. What stays is the table entry it stands for, by its
 * address; volume 1 keeps such keys apart from inode numbers.
 */
static __always_inline void identify_sysctl(__u64 inode, struct tf_grant_key *key)
{
	struct proc_inode *pi = (void *)(inode - bpf_core_field_offset(struct proc_inode, vfs_inode));
	__u64 entry = 0, header = 0;

	key->volume = 0;
	bpf_core_read(&header, sizeof(header), &pi->sysctl);
	bpf_core_read(&entry, sizeof(entry), &pi->sysctl_entry);
	if (header) {
		key->ino = entry;
		key->volume = 1;
	}
}

/*
 * Where the layers of an overlay are on several file systems, its files have their layer's numbers and its directories
 * numbers counted by itself, from 1 (ovl_map_ino; without xino, which tmpfs and xfs do not allow). So a file may have the
 * number of a granted directory. Files of two layers may have one as well: the loader grants no single file there.
 */
static __always_inline __u64 kind_at(__u64 inode)
{
	struct inode *i = (void *)inode;

	return (BPF_CORE_READ(i, i_mode) & S_IFMT) != S_IFDIR;
}

/* Completes a key on the file systems where the number is not enough. inode is an address. */
static __always_inline void identify(__u64 inode, __u64 magic, struct tf_grant_key *key)
{
	if (magic == BTRFS_MAGIC)
		key->volume = volume_at(inode);
	else if (magic == OVERLAYFS_MAGIC)
		key->volume = kind_at(inode);
	else if (magic == PROC_MAGIC)
		identify_sysctl(inode, key);
}

static __always_inline bool is_special(__u64 magic)
{
	return magic == BTRFS_MAGIC || magic == OVERLAYFS_MAGIC || magic == PROC_MAGIC;
}

/* Whether some policy may have a grant of an inode with that number: none is missed, now and then one is made up. */
static __always_inline bool may_be_granted(__u64 ino)
{
	return tf_state.granted[ino % TF_GRANTED_CELLS];
}

/* What tells an object from another that had its number before or will have it: overlayfs has no generations. */
static __always_inline __u32 generation_of(__u32 generation, struct tf_grant_key *key)
{
	__u32 policy = key->policy, *serial;

	if (generation)
		return generation;
	key->policy = 0;
	serial = bpf_map_lookup_elem(&tf_objects, key);
	key->policy = policy;
	return serial ? *serial : 0;
}

/* Whether a grant still is the object's; generation is from generation_of. */
static __always_inline enum tf_code check_grant(const struct tf_grant *grant, __u32 generation)
{
	/* A stranger may have inherited the number: that is a denial, never "no grant here". */
	if (grant->generation != generation)
		return TF_GENERATION;
	if (grant->expires && bpf_ktime_get_boot_ns() >= grant->expires)
		return grant->expires == TF_GONE ? TF_GENERATION : TF_EXPIRED;
	return TF_OK;
}

/*
 * The rights that the expansions of one object add. One that has expired adds nothing, nor does one whose object is
 * gone, so that its number is a stranger's. Checked by itself, like tf_find.
 */
__noinline __u32 tf_added(struct tf_grant_key *of, __u32 generation)
{
	__u64 now, before, same, added = 0;
	struct tf_expanded *object;
	struct tf_grant_key key;

	if (!of)
		return 0;
	key = *of; /* Linux 6.1 takes no key from memory that a function was given */
	object = bpf_map_lookup_elem(&tf_expansions, &key);
	if (!object)
		return 0;
	now = bpf_ktime_get_boot_ns();
#pragma unroll
	for (int i = 0; i < TF_MAX_EXPANSIONS; i++) {
		const struct tf_expansion *x = &object->each[i];

		/* By arithmetic, since BPF compares only by branching: 1 where now is less, both being below 1 << 63. */
		before = (now - x->expires) >> 63;
		same = ((__u64)(x->generation ^ generation) - 1) >> 63;
		added |= x->rights & -(before & same);
	}
	return added;
}

/*
 * What a grant gives together with the expansions below it: none stays none. By arithmetic too: a branch here is one
 * after which everything is verified twice.
 */
static __always_inline __u32 rights_with(__u32 granted, __u32 added)
{
	__u64 rights = granted & TF_ALL_RIGHTS, some = (0 - rights) >> 63;

	return rights | (added & -some);
}

static long walk_step(__u32 step, struct walk *w)
{
	struct dentry *at = w->at, *parent;
	struct inode *inode = at->d_inode;
	struct tf_grant *grant = NULL;

	w->steps = step + 1;
	if (!inode) {
		w->code = TF_NO_DATA;
		return 1;
	}
	w->key.ino = inode->i_ino;
	if (w->special) {
		__u64 address = 0;

		/* Read as a number: the verifier does not let a typed pointer move by an offset it does not know. */
		bpf_core_read(&address, sizeof(address), &at->d_inode);
		identify(address, inode->i_sb->s_magic, &w->key);
	}
	if (may_be_granted(w->key.ino)) /* a look-up is most of what a step costs */
		grant = bpf_map_lookup_elem(&tf_grants, &w->key);
	if (grant) {
		__u32 generation = generation_of(inode->i_generation, &w->key);

		if (grant->rights & TF_EXPANDED)
			w->added |= tf_added(&w->key, generation);
		if (!(grant->rights & TF_ADDS_ONLY)) {
			/* With denied names below the grant it takes the long way. */
			w->code = grant->node ? TF_DENIED_NAME : check_grant(grant, generation);
			w->rights = rights_with(grant->rights, w->added);
			w->granted = grant->rights & TF_ALL_RIGHTS;
			w->expires = grant->expires;
			return 1;
		}
	}
	if (at == w->top) {
		w->code = TF_NO_GRANT;
		return 1;
	}
	parent = at->d_parent;
	if (parent == at) {
		w->code = w->top ? TF_DISCONNECTED : TF_NO_GRANT;
		return 1;
	}
	w->at = parent;
	return 0;
}

/*
 * Finds the grant that decides for an object within its mount. The object is named by its dentry and the mount it was
 * reached by, both of one struct path; mnt is NULL for the hooks that have none. It returns TF_OK and the grant's
 * rights, or why there are none.
 */
static __always_inline enum tf_code walk(const struct tf_jail *jail, struct dentry *dentry, struct vfsmount *mnt,
					 struct walk *w)
{
	struct super_block *sb = dentry->d_sb;

	__builtin_memset(w, 0, sizeof(*w));
	w->at = dentry;
	if (mnt)
		w->top = mnt->mnt_root;
	w->key.dev = sb->s_dev;
	w->key.policy = jail->policy;
	w->special = is_special(sb->s_magic);
	w->code = TF_TOO_DEEP; /* stands when the loop ends without an answer */
	bpf_loop(TF_MAX_DEPTH, walk_step, w, 0);
	return w->code;
}

/*
 * Where cgroups and pinned BPF objects live: whoever writes there can leave every jail. No grant gives more than reading,
 * whatever it says and however wide it is.
 */
static __always_inline bool is_enforcers_own(__u64 magic)
{
	return magic == CGROUP2_MAGIC || magic == CGROUP_MAGIC || magic == BPF_FS_MAGIC;
}

/* The result of a long walk in one number, for a function that is checked by itself can only return such. */
#define FOUND_CODE(found) ((found) & 0xff)
#define FOUND_RIGHTS(found) ((found) >> 8 & 0xff)
#define FOUND_FIRST 0x10000 /* the object itself is the grant */
#define FOUND_ABOVE_DENIED 0x20000 /* a denied name lies below: the object stays where it is */
#define FOUND_HOSTS_OWN 0x40000 /* the grant is a preset's */
#define FOUND_WAY(found) ((found) & 0xffffffff00000000ULL) /* the upper half of the hash of the way, with WAY_MOVES */
#define FOUND_CROSSED 0x80000 /* a mount was left behind */
#define FOUND_RESTED_ON 0x100000 /* the way passed a file system that jails rest on */

/*
 * The same by numbers instead of typed pointers, and on across mounts. Slower, and for everything that the short way
 * does not allow: it finds the reason as well.
 */
struct long_walk {
	__u64 at;
	__u64 mount; /* struct mount; 0: within the file system */
	__u64 way;   /* a hash of the way, and of when each dentry on it moved last */
	struct tf_grant_key key;
	struct found {
		__u32 rights;
		__u32 code;
		__u32 node;	/* of the grant */
		__u32 names;	/* passed from the object up to the grant */
		__u64 last;	/* the dentry that the last of them belongs to */
		__u32 marks;	/* FOUND_FIRST and those after it */
		__u32 added;	/* rights that expansions met so far add */
	} found;
};

/* What is read goes where it is wanted at once: all frames of a call together have 512 bytes. */
static __always_inline void look_at(struct long_walk *w, struct dentry *at)
{
	struct super_block *sb = NULL;
	struct inode *inode = NULL;
	struct tf_grant *grant = NULL;
	unsigned long magic = 0;
	__u32 generation = 0;

	w->found.code = TF_NO_DATA;
	if (bpf_core_read(&inode, sizeof(inode), &at->d_inode) || !inode)
		return;
	if (bpf_core_read(&sb, sizeof(sb), &inode->i_sb) ||
	    bpf_core_read(&w->key.ino, sizeof(w->key.ino), &inode->i_ino) ||
	    bpf_core_read(&generation, sizeof(generation), &inode->i_generation) ||
	    bpf_core_read(&w->key.dev, sizeof(w->key.dev), &sb->s_dev) ||
	    bpf_core_read(&magic, sizeof(magic), &sb->s_magic))
		return;
	w->key.volume = 0;
	if (is_special(magic))
		identify((__u64)inode, magic, &w->key);
	if (is_enforcers_own(magic))
		w->found.marks |= FOUND_RESTED_ON;
	w->found.code = TF_NO_GRANT;
	if (may_be_granted(w->key.ino))
		grant = bpf_map_lookup_elem(&tf_grants, &w->key);
	if (!grant)
		return;
	generation = generation_of(generation, &w->key);
	if (grant->rights & TF_DENIED) {
		/* A stranger with its number is no denied object: by name it would be found anyway. */
		if (grant->generation == generation)
			w->found.code = TF_DENIED_NAME;
		return;
	}
	if (grant->rights & TF_EXPANDED)
		w->found.added |= tf_added(&w->key, generation);
	if (grant->rights & TF_ADDS_ONLY)
		return;
	w->found.code = check_grant(grant, generation);
	w->found.rights = rights_with(grant->rights, w->found.added);
	w->found.node = grant->node;
	if (grant->rights & TF_HOSTS_OWN)
		w->found.marks |= FOUND_HOSTS_OWN;
}

/*
 * Passes over one way. What a pass sees is read at one moment after the other, so a way that changes meanwhile may be seen
 * as it never was: an object moved out of a directory, and the directory then moved to where a grant is.
 */
struct passes {
	struct long_walk w;
	__u64 dentry; /* where each begins */
	__u64 mount;
	__u64 way;    /* of the pass before, if there was one */
	__u32 first;  /* step of the loop in this pass */
	__u32 moves;  /* before it */
	__u32 passes; /* that have ended */
	__u32 pad;
};

static __always_inline void start_pass(struct passes *p)
{
	p->w.at = p->dentry;
	p->w.mount = p->mount;
	p->w.way = 1;
	__builtin_memset(&p->w.found, 0, sizeof(p->w.found));
	p->w.found.code = TF_TOO_DEEP;
	p->moves = read_all_moves();
}

/*
 * Returns 0 to have another pass. It is checked by itself: of what such a function leaves the verifier knows nothing, so it
 * takes nothing after it for impossible.
 */
__noinline int tf_end_pass(struct passes *p)
{
	if (!p)
		return 1;
	/* Nothing moved anywhere, or nothing on this way between two passes. */
	if (!(p->moves & 1) && p->moves == read_all_moves())
		return 1;
	if (p->passes && p->way == p->w.way && !(p->way & WAY_MOVES))
		return 1;
	p->way = p->w.way;
	if (++p->passes >= TF_PASSES) {
		p->w.found.code = TF_NO_DATA;
		return 1;
	}
	start_pass(p);
	return 0;
}

/* One step up. It returns 1 where the way ends. */
static __always_inline long go_up(struct long_walk *w, bool first)
{
	struct dentry *at = (void *)w->at, *next = NULL;
	struct mount *mount = (void *)w->mount;

	look_at(w, at);
	if (w->found.code != TF_NO_GRANT) {
		if (first)
			w->found.marks |= FOUND_FIRST;
		return 1;
	}
	w->found.code = TF_NO_DATA;
	if (mount && bpf_core_read(&next, sizeof(next), &mount->mnt.mnt_root))
		return 1;
	if (mount && at == next) {
		if (bpf_core_read(&w->mount, sizeof(w->mount), &mount->mnt_parent) ||
		    bpf_core_read(&next, sizeof(next), &mount->mnt_mountpoint))
			return 1;
		if (!w->mount || w->mount == (__u64)mount) {
			w->found.code = TF_NO_GRANT;
			return 1;
		}
		w->found.marks |= FOUND_CROSSED;
		add_to_way(&w->way, w->mount, read_moves_of_mounts());
	} else {
		__u32 moves = read_moves_of(at);

		if (bpf_core_read(&next, sizeof(next), &at->d_parent))
			return 1;
		add_to_way(&w->way, (__u64)at, moves);
		if (next == at) {
			w->found.code = mount ? TF_DISCONNECTED : TF_NO_GRANT;
			return 1;
		}
		/* A name counts when it is left for its parent: the root of a mount is known by its mount point's. */
		w->found.last = (__u64)at;
		w->found.names++;
	}
	w->found.code = TF_TOO_DEEP;
	w->at = (__u64)next;
	return 0;
}

static long long_walk_step(__u32 step, struct passes *p)
{
	__u32 steps = step - p->first;
	long ended;

	if (steps < TF_MAX_DEPTH && !go_up(&p->w, !steps))
		return 0;
	p->first = step + 1;
	ended = tf_end_pass(p);
	asm volatile("" : "+r"(ended)); /* see denies */
	return ended & 1;
}

/*
 * What tf_find is asked, and what tf_judge_names has to know of its answer. In memory, because there a typed pointer
 * becomes the number that the function may take.
 */
struct question {
	__u64 dentry;
	__u64 mnt;  /* 0: stay within the file system */
	__u64 name; /* a name in the directory that dentry is, which need not exist: what is denied is asked of it; or 0 */
	__u32 policy;
	__u32 flags; /* of the jail, read together with its policy */
	__u64 last;  /* see struct found */
	__u32 names;
	__u32 node;
};

/* Walks, and says where and how that ended. */
static __always_inline bool walk_long(const struct question *q, struct passes *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	p->dentry = q->dentry;
	p->w.key.policy = q->policy;
	if (q->mnt)
		p->mount = q->mnt - bpf_core_field_offset(struct mount, mnt);
	start_pass(p);
	bpf_loop(TF_MAX_DEPTH * TF_PASSES, long_walk_step, p, 0);
	/*
	 * Linux 6.1 checks the step of a loop once: it takes a mark of one step and the end of another for impossible
	 * together, and removes the code for it. (Mended by commit ab5cfac139ab.) What a helper wrote it knows nothing of,
	 * so the helper writes the same once more.
	 */
	return !bpf_probe_read_kernel(&p->w.found, sizeof(p->w.found), &p->w.found);
}

/*
 * Finds the grant that decides for an object in a jail's policy. Beyond the root of its mount the way goes on below the
 * mount point: for a jail that follows mounts to decide, for any other to say that it is the mount that keeps the
 * object out.
 */
__noinline __u64 tf_find(struct question *q)
{
	struct passes p;

	if (!q || !walk_long(q, &p))
		return TF_NO_DATA;
	if (p.w.found.marks & FOUND_CROSSED && !p.w.found.code && !(q->flags & TF_JAIL_FOLLOW_MOUNTS))
		return p.w.found.rights ? TF_MOUNT_BOUNDARY : TF_NO_GRANT;
	q->last = p.w.found.last;
	q->names = p.w.found.names;
	q->node = p.w.found.code ? 0 : p.w.found.node;
	if (p.w.found.marks & FOUND_RESTED_ON)
		p.w.found.rights &= TF_READ;
	return p.w.found.code | (__u64)p.w.found.rights << 8 | p.w.found.marks | FOUND_WAY(p.w.way);
}

#define TF_HASH_SEED 0xcbf29ce484222325ULL
#define TF_HASH_FACTOR 0x9e3779b97f4a7c15ULL

/* The hash of a dentry's name; pkg/loader's nameHash is the same. 0: the name cannot be read. */
__noinline __u64 tf_hash_name(__u64 dentry)
{
	struct dentry *d = (void *)dentry;
	const unsigned char *name = BPF_CORE_READ(d, d_name.name);
	__u32 len = BPF_CORE_READ(d, d_name.len);
	__u64 hash = TF_HASH_SEED ^ len, word, n;

	if (!len) /* no dentry has an empty name: it was not read */
		return 0;
	for (__u32 at = 0; at < TF_NAME_BYTES && at < len; at += sizeof(word)) {
		n = len - at;
		asm volatile("" : "+r"(n)); /* see ascend */
		if (n > sizeof(word))
			n = sizeof(word);
		word = 0;
		if (bpf_probe_read_kernel(&word, n, name + at))
			return 0;
		hash = (hash ^ word) * TF_HASH_FACTOR;
		hash ^= hash >> 32;
	}
	return hash;
}

/*
 * Whether a directory compares names otherwise than byte by byte, so that a denied one has more spellings than can be
 * told here: FAT, and directories with the casefold attribute.
 */
static __always_inline bool folds_names(struct dentry *name)
{
	struct super_block *sb = BPF_CORE_READ(name, d_sb);

	if (!BPF_CORE_READ(name, d_op, d_compare))
		return false;
	if (!bpf_core_field_exists(sb->s_encoding) || !BPF_CORE_READ(sb, s_encoding))
		return true;
	return BPF_CORE_READ(name, d_parent, d_inode, i_flags) & S_CASEFOLD;
}

/* From an object up to the dentry with so many names above it, as long_walk_step counts them. */
struct climb {
	__u64 at;
	__u64 mount;
	__u32 names; /* still to pass */
	__u32 pad;
};

static long climb_step(__u32 step __attribute__((unused)), struct climb *c)
{
	struct dentry *at = (void *)c->at, *root = NULL;
	struct mount *mount = (void *)c->mount;

	if (mount && bpf_core_read(&root, sizeof(root), &mount->mnt.mnt_root))
		root = NULL;
	if (mount && at == root) {
		c->at = (__u64)BPF_CORE_READ(mount, mnt_mountpoint);
		c->mount = (__u64)BPF_CORE_READ(mount, mnt_parent);
		return 0;
	}
	if (!c->names)
		return 1;
	c->names--;
	c->at = (__u64)BPF_CORE_READ(at, d_parent);
	return 0;
}

static __always_inline __u64 climb(const struct question *q, __u32 names)
{
	struct climb c = { .at = q->dentry, .names = names };
	__u64 at = 0;

	if (q->mnt)
		c.mount = q->mnt - bpf_core_field_offset(struct mount, mnt);
	bpf_loop(TF_MAX_DEPTH, climb_step, &c, 0);
	bpf_probe_read_kernel(&at, sizeof(at), &c.at); /* see tf_find */
	return at;
}

enum { NAME_FREE, NAME_DENIED, NAME_ABOVE_DENIED };

/*
 * Goes down from the grant by the names that the walk has passed: is the object denied, or does it lie above what is?
 * Only the way to a denied name is ever climbed again, and nobody in the jail moves a directory there.
 */
__noinline int tf_judge_names(struct question *q)
{
	struct tf_name_key key = {};
	struct tf_name *edge;
	__u64 dentry;
	__u32 names;

	if (!q)
		return NAME_DENIED;
	key.policy = q->policy;
	key.node = q->node;
	names = q->names;
	for (__u32 i = 0; i < TF_DENY_DEPTH; i++) {
		if (i > names || (i == names && !q->name))
			return NAME_ABOVE_DENIED;
		if (i == names)
			dentry = q->name;
		else
			dentry = i ? climb(q, names - 1 - i) : q->last;
		if (folds_names((void *)dentry))
			return NAME_DENIED;
		key.hash = tf_hash_name(dentry);
		if (!key.hash)
			return NAME_DENIED;
		edge = bpf_map_lookup_elem(&tf_names, &key);
		if (!edge)
			return NAME_FREE;
		if (!edge->node)
			return NAME_DENIED;
		key.node = edge->node;
	}
	return NAME_DENIED; /* the loader makes no tree that deep */
}

/* What to ask for one jail. */
static __always_inline struct question ask_about(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u64 name)
{
	/* One load, so that no policy is judged by with another one's flags: the loader changes both in one store. */
	__u64 both = *(const volatile __u64 *)&jail->policy;

	return (struct question){ .dentry = dentry, .mnt = mnt, .name = name, .policy = (__u32)both, .flags = both >> 32 };
}

/*
 * The same for a name in a directory, which may be there or not. name 0: the object itself. The names are those of the way
 * that was found, if that is still the same after they were looked at.
 */
static __noinline __u64 find_name(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u64 name)
{
	struct question q = ask_about(jail, dentry, mnt, name);
	__u64 found;
	__u32 moves;
	int denied;

	for (int i = 0; i < TF_LOOKS; i++) {
		moves = read_all_moves();
		found = tf_find(&q);
		if (!q.node)
			return found;
		denied = tf_judge_names(&q);
		if (denied == NAME_DENIED)
			return TF_DENIED_NAME;
		if ((moves & 1 || moves != read_all_moves()) && (found & WAY_MOVES || FOUND_WAY(found ^ tf_find(&q))))
			continue;
		return denied == NAME_ABOVE_DENIED ? found | FOUND_ABOVE_DENIED : found;
	}
	return TF_NO_DATA;
}

static __always_inline __u64 find(const struct tf_jail *jail, __u64 dentry, __u64 mnt)
{
	return find_name(jail, dentry, mnt, 0);
}

static __always_inline __u16 type_of(__u64 dentry)
{
	return BPF_CORE_READ((struct dentry *)dentry, d_inode, i_mode) & S_IFMT;
}

/* Whether an object may be used with all of need. */
static __always_inline enum tf_code check_object(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u32 need)
{
	__u64 found = find(jail, dentry, mnt);
	__u16 type;

	if (FOUND_CODE(found))
		return FOUND_CODE(found);
	/* Being inside the workspace is not enough for a device: the node itself must be the grant. */
	type = type_of(dentry);
	if ((type == S_IFCHR || type == S_IFBLK) && !(found & FOUND_FIRST))
		return TF_DEVICE_NODE;
	return (FOUND_RIGHTS(found) & need) == need ? TF_OK : TF_RIGHTS;
}

/* Whether an object that is itself a grant may be taken out of its directory. */
static __always_inline enum tf_code check_above(const struct tf_jail *jail, __u64 dentry, __u64 mnt)
{
	__u64 above;

	if (dentry == (__u64)BPF_CORE_READ((struct vfsmount *)mnt, mnt_root))
		return TF_MOUNT_BOUNDARY;
	above = find(jail, (__u64)BPF_CORE_READ((struct dentry *)dentry, d_parent), mnt);
	if (FOUND_CODE(above))
		return FOUND_CODE(above);
	return FOUND_RIGHTS(above) & TF_DELETE ? TF_OK : TF_RIGHTS;
}

/*
 * Whether a name may be removed, and the rights of what it names. Removing changes the directory, so where the object
 * is itself a grant the directory's own rights count as well: nobody in a jail removes the workspace. Nor what lies
 * above a denied name.
 */
static __always_inline enum tf_code check_name(const struct tf_jail *jail, __u64 dentry, __u64 mnt, __u32 *rights)
{
	__u64 found = find(jail, dentry, mnt);
	enum tf_code above;

	*rights = FOUND_RIGHTS(found);
	if (FOUND_CODE(found))
		return FOUND_CODE(found);
	if (!(*rights & TF_DELETE))
		return TF_RIGHTS;
	above = found & FOUND_FIRST ? check_above(jail, dentry, mnt) : TF_OK;
	if (above)
		return above;
	return found & FOUND_ABOVE_DENIED ? TF_DENIED_NAME : TF_OK;
}

#endif
