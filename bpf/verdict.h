/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From an answer to the hook's return value. */
#ifndef TF_VERDICT_H
#define TF_VERDICT_H

static __always_inline void count_verdict(const struct tf_jail *jail, __u32 hook, bool denied)
{
	__u64 *runs = bpf_map_lookup_elem(&tf_runs, &hook);
	struct tf_canary_count *count;

	if (runs)
		(*runs)++;
	if (!jail || !(jail->flags & TF_JAIL_CANARY))
		return;
	count = bpf_map_lookup_elem(&tf_canary, &hook);
	if (count)
		__sync_fetch_and_add(denied ? &count->denied : &count->allowed, 1);
}

/*
 * Counts and records an answer. Returns 1 where the operation is to be denied, 0 where it may go on: allowed, or only
 * monitored. Not static, so that the verifier checks it once for each program and not once for each way to get here.
 */
__noinline int tf_settle(struct request *r)
{
	struct tf_jail *jail;
	bool monitored;
	__u32 slot;

	if (!r)
		return 1;
	slot = r->slot;
	jail = bpf_map_lookup_elem(&tf_jails, &slot);
	count_verdict(jail, r->hook, r->code != TF_OK);
	if (r->code == TF_OK)
		return 0;
	if (!jail) {
		emit(r, 0, 0);
		return 1;
	}
	monitored = jail->flags & TF_JAIL_MONITOR;
	if (!r->silent) {
		__sync_fetch_and_add(&jail->denials, 1);
		/* A canary's are counted above; nobody wants to read about them. */
		if (!(jail->flags & TF_JAIL_CANARY) && !emit(r, jail->id, monitored ? TF_EVENT_MONITOR : 0))
			__sync_fetch_and_add(&jail->lost, 1);
	}
	return !monitored;
}

/*
 * What an earlier security module said; programs honour a denial first. Read whole: of half the word the verifier does
 * not know the range, to which it holds what an LSM program returns.
 */
#define earlier(ctx, args) (*(volatile long long *)&(ctx)[args])

/*
 * tf_settle, in a form that the compiler cannot turn into arithmetic on its result: an LSM program has to return one of
 * two constants as far as the verifier can see.
 */
static __always_inline bool denies(struct request *r)
{
	long denied = tf_settle(r);

	asm volatile("" : "+r"(denied));
	return denied;
}

#define settle(r, errno) (denies(r) ? -(errno) : 0)

/*
 * Asks a question of the subject's jail and of every jail around it; all have to agree. question is an expression in
 * j, the jail that is asked. The answer is that of the first jail that enforces and denies, else of the first
 * monitored one that would have.
 */
#define ask_every_jail(s, r, question)                                                                      \
	({                                                                                                  \
		struct tf_jail *j = (s)->jail;                                                              \
		__u32 at = (s)->slot, answer;                                                               \
		(r)->code = j ? TF_OK : TF_NO_DATA;                                                         \
		for (int inner = 0; inner < TF_MAX_INNER && j; inner++) {                                   \
			answer = (question);                                                                \
			if (answer && (!(r)->code || !(j->flags & TF_JAIL_MONITOR))) {                      \
				(r)->code = answer;                                                         \
				(r)->slot = at;                                                             \
				if (!(j->flags & TF_JAIL_MONITOR))                                          \
					break;                                                              \
			}                                                                                   \
			at = j->parent - 1;                                                                 \
			j = jail_around(j);                                                                 \
		}                                                                                           \
	})

#endif
