/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who is judged: the task's cgroup, its jail. */
#ifndef TF_SUBJECT_H
#define TF_SUBJECT_H

struct subject {
	struct tf_jail *jail; /* the innermost; NULL: a member whose jail is not there, to be denied */
	__u64 cgroup;
	__u32 slot;
	bool outer; /* the cgroup has a jail further in, which does not judge this task yet */
};

static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

static __always_inline bool may_be_member(__u64 cgroup)
{
	return tf_state.members[(cgroup / 64) % (TF_MEMBER_BITS / 64)] >> (cgroup % 64) & 1;
}

/* Whether a task of a cgroup may have to be judged: false for all but a few that are in no jail. */
static __always_inline bool may_be_judged(__u64 cgroup) { return may_be_member(cgroup) || tf_state.overflow; }

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

/* Whether a task of a pending jail is judged yet; see arming.h. */
static __always_inline bool is_armed(struct task_struct *task)
{
	__u64 address = (__u64)task;

	return bpf_map_lookup_elem(&tf_armed, &address);
}

/* Whether the current task's cgroup is in a jail, and in which. */
static __always_inline bool find_member(struct subject *s, struct task_struct *task)
{
	struct tf_member *member;

	s->cgroup = cgroup_of(task);
	s->outer = false;
	if (!may_be_judged(s->cgroup))
		return false;
	member = bpf_map_lookup_elem(&tf_members, &s->cgroup);
	if (!member && tf_state.overflow)
		member = member_by_ancestor();
	if (!member)
		return false;
	s->slot = member->slot;
	s->jail = jail_of(member);
	if (!s->jail)
		s->slot = ~0U;
	return true;
}

/* The jail around a jail, or NULL. */
static __always_inline struct tf_jail *jail_around(const struct tf_jail *jail)
{
	__u32 slot = jail->parent;

	if (!slot--)
		return NULL;
	return bpf_map_lookup_elem(&tf_jails, &slot);
}

/* For a task in a pending jail: whether it is to be judged, and by which jail. Those around a pending one do so anyway. */
static __noinline bool find_judge(struct subject *s)
{
	if (is_armed(bpf_get_current_task_btf()))
		return true;
	for (int i = 0; i < TF_MAX_INNER && s->jail && s->jail->flags & TF_JAIL_PENDING; i++) {
		s->slot = s->jail->parent - 1;
		s->jail = jail_around(s->jail);
		s->outer = true;
	}
	return s->jail;
}

/* Whether the current task is to be judged, and by which jail. */
static __always_inline bool find_subject(struct subject *s)
{
	if (!find_member(s, bpf_get_current_task_btf()))
		return false;
	return !s->jail || !(s->jail->flags & TF_JAIL_PENDING) || find_judge(s);
}

/* Whether a cgroup belongs to a jail or to one inside it. A cgroup that is not recorded is outside. */
static __always_inline bool is_in_jail(const struct tf_jail *jail, __u64 cgroup)
{
	struct tf_member *member = bpf_map_lookup_elem(&tf_members, &cgroup);
	struct tf_jail *at;

	if (!member)
		return false;
	at = jail_of(member);
	for (int i = 0; i < TF_MAX_INNER && at; i++) {
		if (at->id == jail->id)
			return true;
		at = jail_around(at);
	}
	return false;
}

/*
 * Whether a task in a jail is pending. It is nobody's peer then: it still has all the power of the runtime, and whoever
 * traces it has that too. With a full tf_members its jail may not be known.
 */
static __noinline bool is_pending(__u64 cgroup, struct task_struct *task)
{
	struct tf_member *member = bpf_map_lookup_elem(&tf_members, &cgroup);
	struct tf_jail *jail = member ? jail_of(member) : NULL;

	if (member ? !jail || !(jail->flags & TF_JAIL_PENDING) : !tf_state.arming)
		return false;
	return !is_armed(task);
}

#endif
