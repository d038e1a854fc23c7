/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Membership of cgroups made after their jail. */
#ifndef TF_CGROUPS_H
#define TF_CGROUPS_H

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

#endif
