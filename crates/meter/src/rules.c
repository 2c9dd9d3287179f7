/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The rules with names that tests on this machine can call. */
#include "bpf/rules.h"

_Bool rules_is_new_here(struct counted *counted, _Bool is_older, __u64 run_ns,
			__u64 wait_ns)
{
	return is_new_here(counted, is_older, run_ns, wait_ns);
}

__u64 rules_advance(__u64 *counted, __u64 total)
{
	return advance(counted, total);
}

void rules_turn_page(struct user_use *use, __u64 epoch)
{
	turn_page(use, epoch);
}

_Bool rules_is_recent(__u64 before, __u64 now, __u64 recent_ns)
{
	return is_recent(before, now, recent_ns);
}

_Bool rules_note_vacancy(struct crowds *seen, __u32 vacant, __u64 now,
			 _Bool is_wanted)
{
	return note_vacancy(seen, vacant, now, is_wanted);
}

_Bool rules_look(struct crowds *seen, __u32 *looks, const struct load *loads,
		 __u32 cpus, __u64 now)
{
	__u32 cpu;

	begin_look(seen);
	for (cpu = 0; cpu < cpus; cpu++)
		add_cpu(seen, &looks[cpu], &loads[cpu]);
	note_alone(seen, now);
	return end_look(seen);
}

__u32 rules_minus_or_none(__u32 all, __u32 some)
{
	return minus_or_none(all, some);
}
