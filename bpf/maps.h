/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map, and the global state: key, value, writer. */
#ifndef TF_MAPS_H
#define TF_MAPS_H

/* By a pragma and not by SEC, so that the object file does not hold its zeroes. */
#pragma clang section bss = ".data.global"
struct tf_global tf_state;
#pragma clang section bss = ""

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

/* slot -> the root directory that a pending jail waits for. Writer: loader; armed: programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TF_MAX_JAILS);
	__type(key, __u32);
	__type(value, struct tf_root);
} tf_roots SEC(".maps");

/*
 * task_struct -> 1 where the task is armed. Writer: programs. Not a task storage, which cannot be asked about a task that
 * was only found by its address, and which Linux 6.1 does not look up while another task of that CPU does.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_ARMED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} tf_armed SEC(".maps");

/*
 * identity (policy 0) -> serial number, for granted objects whose inodes have no generation. A serial number lives as long
 * as the inode: whoever inherits its number gets another one, or none. Writer: loader; removed by programs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_GRANTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tf_grant_key);
	__type(value, __u32);
} tf_objects SEC(".maps");

/* name below a node -> where it leads. Writer: loader, before a jail uses the policy. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_NAMES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tf_name_key);
	__type(value, struct tf_name);
} tf_names SEC(".maps");

/* (policy, inode) -> expansions of the object. Writer: loader, each value whole. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_EXPANDED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tf_grant_key);
	__type(value, struct tf_expanded);
} tf_expansions SEC(".maps");

/* A verdict that is remembered; see cache.h. */
struct tf_verdict {
	__u64 turn;    /* odd while it is being written */
	__u64 cgroup;  /* of the task */
	__u64 mount;   /* see mount_id */
	__u64 ino;     /* of the directory, or of an object that is itself a grant */
	__u64 volume;  /* the same's on btrfs, else 0 */
	__u64 expires; /* as in tf_grant */
	__u64 since;   /* when it was stored, in ticks of the kernel's clock */
	__u32 generation;
	__u32 epoch;  /* tf_state.epoch and */
	__u32 moves;  /* read_moves() before the walk */
	__u32 rights; /* that the walk found */
	__u64 opens;  /* that were allowed from here, whatever lay here: counted where it costs least */
};

/* Verdicts that are remembered, at places that hash their keys. Writer: programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << TF_VERDICT_BITS);
	__type(key, __u32);
	__type(value, struct tf_verdict);
} tf_verdicts SEC(".maps");

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

/* pseudo terminal -> jail that unlocked its master. Writer: file_ioctl; removed by devpts_pty_kill. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TF_MAX_PTYS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct tf_pty_key);
	__type(value, __u64);
} tf_ptys SEC(".maps");

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

#endif
