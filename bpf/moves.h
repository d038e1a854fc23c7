/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * When something moved. A dentry gets another parent only under rename_lock, whose sequence is odd meanwhile and then
 * another number, and so is the dentry's own d_seq (__d_move in the kernel's fs/dcache.c). The place of a mount changes
 * under mount_lock in the same manner.
 */
#ifndef TF_MOVES_H
#define TF_MOVES_H

/* Weak: a kernel may hide its addresses (kptr_restrict=2). */
extern void rename_lock __ksym __weak;
extern void mount_lock __ksym __weak;

static __always_inline bool knows_moves(void) { return &rename_lock && &mount_lock; }

/* A number that is another one after every move of a dentry or a mount, and odd during one, or where it is not known. */
static __always_inline __u32 read_all_moves(void)
{
	__u32 moves = 1, mounts = 1;

	if (!knows_moves())
		return 1;
	bpf_probe_read_kernel(&moves, sizeof(moves), &rename_lock);
	bpf_probe_read_kernel(&mounts, sizeof(mounts), &mount_lock);
	/* Both only grow, so the sum stays only while both do. */
	return (moves + mounts) | (moves & 1) | (mounts & 1);
}

/* The same of the mounts alone. Where it is not known the way they make has to do: no mount takes another's place at once. */
static __always_inline __u32 read_moves_of_mounts(void)
{
	__u32 mounts = 0;

	if (knows_moves())
		bpf_probe_read_kernel(&mounts, sizeof(mounts), &mount_lock);
	return mounts;
}

/* The same of one dentry. */
static __always_inline __u32 read_moves_of(struct dentry *dentry)
{
	__u32 moves = 1;

	bpf_core_read(&moves, sizeof(moves), &dentry->d_seq.seqcount.sequence);
	return moves;
}

/* Set in the hash of a way while something on it moves. */
#define WAY_MOVES (1ULL << 63)

/* Adds a step to the hash of a way. What is equal after a second look has not moved in between. */
static __always_inline void add_to_way(__u64 *way, __u64 at, __u32 moves)
{
	__u64 moving = *way & WAY_MOVES;

	if (moves & 1)
		moving = WAY_MOVES;
	*way = (((*way ^ at) * 0x9E3779B97F4A7C15ULL + moves) & ~WAY_MOVES) | moving;
}

#endif
