/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wrappers with external linkage of the inline functions of arrays.h and levels.h, which the
 * Rust tests call.
 */
#include "arrays.h"

const __u64 o1_sizes[] = {
	sizeof(struct o1_thread),
	sizeof(struct o1_cpu),
	sizeof(struct candidates),
};

void o1_place(struct o1_thread *thread, struct o1_cpu *state, __u32 cpu,
	      __s32 nice_level, __u64 now)
{
	place(thread, state, cpu, nice_level, now);
}

void o1_account_run(struct o1_thread *thread, __u64 now)
{
	account_run(thread, now);
}

void o1_swap_if_empty(struct o1_cpu *state, const struct o1_thread *prev)
{
	swap_if_empty(state, prev);
}

__u32 o1_best_level(const struct o1_cpu *state)
{
	return best_level(state);
}

__u64 o1_bit_of(__u32 level)
{
	return bit_of(level);
}

__u32 o1_choose(const struct candidates *of, _Bool aggregate)
{
	return choose(of, aggregate);
}

_Bool o1_preempts(const struct o1_thread *woken, const struct o1_cpu *state,
		  _Bool aggregate)
{
	return preempts(woken, state, aggregate);
}

__u64 o1_left_of_slice(const struct o1_thread *thread, __u64 now)
{
	return left_of_slice(thread, now);
}

__u64 o1_slice(__s32 nice_level)
{
	return slice_of_level(nice_level);
}

__u32 o1_level_of(__s32 nice_level, __u64 sleep_average_ns)
{
	return level_of(nice_level, sleep_average_ns);
}

_Bool o1_is_interactive(__s32 nice_level, __u64 sleep_average_ns)
{
	return is_interactive(nice_level, sleep_average_ns);
}

__u64 o1_after_sleep(__u64 average_ns, __u64 slept_ns, __s32 nice_level)
{
	return average_after_sleep(average_ns, slept_ns, nice_level);
}

__u64 o1_after_run(__u64 average_ns, __u64 ran_ns)
{
	return average_after_run(average_ns, ran_ns);
}

__u64 o1_of_child(__u64 average_ns)
{
	return average_of_child(average_ns);
}

_Bool o1_is_starving(__u64 since_ns, __u64 now_ns, __u32 waiting)
{
	return is_starving(since_ns, now_ns, waiting);
}
