/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Wrappers with external linkage for the inline functions of the headers in bpf/
 *
 * c.rs and the other modules of this crate declare the wrappers for Rust, and unit tests call them.
 * Each wrapper calls one function. The array `rules_numbers` at the end contains the constants and
 * layouts of the headers; a test in c.rs compares them with the constants and layouts in Rust.
 */
#include <stddef.h>

#include "bpf/rules.h"

__s32 rules_choose_cpu(_Bool smt, const struct idle_scan_ctx *scan, __u32 last,
		       const struct place *here)
{
	return choose_cpu(smt, scan, last, here);
}

__s32 rules_choose_best(_Bool smt, const struct idle_scan_ctx *scan, __u32 last,
			const struct place *here)
{
	return choose_best(smt, scan, last, here);
}

__s32 rules_choose_core(const struct idle_scan_ctx *scan, __u32 last,
			const struct place *here)
{
	return choose_core_of(scan, last, here);
}

_Bool rules_only_borrowers_run(const struct cpu_set *core, __u32 words,
			       const struct idle_scan_ctx *scan)
{
	return only_borrowers_run(core, words, scan);
}

_Bool rules_find_preferred(struct cpu_set *preferred_cpus,
			   const struct cpu_set *allowed,
			   const struct cpu_set *seat)
{
	return find_preferred(preferred_cpus, allowed, seat, ~0U);
}

__u32 rules_pick_next(struct pick_ctx *ctx, const struct mm_queue *mm_queues,
		      const struct head_skip *head_skip, __u32 *queue)
{
	return pick_next(ctx, mm_queues, head_skip, queue);
}

_Bool rules_has_unrunnable_head(__u64 taken, __u64 first)
{
	return has_unrunnable_head(taken, first);
}

void rules_mark_head_unrunnable(struct head_skip *head_skip, __u32 at,
				__u64 least)
{
	mark_head_unrunnable(head_skip, at, least);
}

void rules_clear_head_unrunnable(struct head_skip *head_skip, __u32 at)
{
	clear_head_unrunnable(head_skip, at);
}

void rules_lower_min(struct head_skip *head_skip, __u32 at, __u64 vtime)
{
	lower_min(head_skip, at, vtime);
}

__u32 rules_min_vtime_queue(const struct mm_queue *mm_queues,
			    const struct head_skip *head_skip)
{
	return min_vtime_queue(mm_queues, head_skip, head_skip->queues, 0);
}

__u64 rules_queue_key(__u64 mm, __u64 seat, __u32 version, __u32 pinned_cpu)
{
	return queue_key(mm, seat, version, pinned_cpu);
}

__u32 rules_mm_queue_of(const struct mm_queue *mm_queues, __u64 key)
{
	return mm_queue_of(mm_queues, key);
}

void rules_join_mm_queue(struct mm_queue *mm_queue, __u64 key, __u64 seat,
			 __u32 version, __u64 vtime)
{
	join_mm_queue(mm_queue, key, seat, version, vtime);
}

_Bool rules_is_seated(const struct mm_queue *mm_queue, __u32 version)
{
	return is_seated(mm_queue, version);
}

void rules_leave_mm_queue(struct mm_queue *mm_queue, __u64 vtime)
{
	leave_mm_queue(mm_queue, vtime);
}

__u64 rules_weight_in(__u64 weight, __u32 factor)
{
	return weight_in(weight, factor);
}

__u64 rules_virtual_ns(__u64 ran_ns, __u64 weight)
{
	return virtual_in(ran_ns, weight_in(weight, FACTOR_ONE));
}

__u64 rules_clamp_sleeper(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	return clamp_sleeper(vtime, clock, slice_ns);
}

__u64 rules_place_at(const struct mm_queue *mm_queues, __u64 clock, __u64 seat,
		     __u64 vtime, __u64 max_lag_ns)
{
	return place_at(mm_queues, clock, seat, vtime, max_lag_ns);
}

_Bool rules_first_of_seat(const struct mm_queue *mm_queues, __u64 seat,
			  __u64 *least)
{
	return first_of_seat(mm_queues, seat, least);
}

_Bool rules_is_urgent(__u64 burst_ns, __u64 vtime, __u64 share)
{
	return is_urgent(burst_ns, vtime, share);
}

__u64 rules_burst_after(__u64 average_ns, __u64 burst_ns)
{
	return burst_after(average_ns, burst_ns);
}

__u64 rules_clamp_to_clock(__u64 vtime, __u64 clock)
{
	return clamp_to_clock(vtime, clock);
}

__u64 rules_max_lag(__u64 max_lag_ns, __u64 slice_ns, __u64 weight)
{
	return max_lag(max_lag_ns, slice_ns, weight_in(weight, FACTOR_ONE));
}

_Bool rules_is_young(__u64 ran_ns)
{
	return is_young(ran_ns);
}

__u64 rules_family_charge(__u64 family_vtime, __u64 clock, __u64 ran)
{
	return family_charge(family_vtime, clock, ran);
}

void rules_reset_aging(struct aging *aging)
{
	reset_aging(aging);
}

void rules_follow_periods(struct aging *aging, __u64 clock, __u64 now_ns)
{
	follow_periods(aging, clock, now_ns);
}

_Bool rules_has_overdue(const struct aging *aging, __u64 clock)
{
	return has_overdue(aging, clock);
}

__u64 rules_behind_overdue(const struct aging *aging, __u64 clock, __u64 vtime)
{
	return behind_overdue(aging, clock, vtime);
}

__u64 rules_average_of(const struct mm_queue *mm_queues, __u64 clock)
{
	return average_of(mm_queues, clock);
}

__u32 rules_slot_of(__u64 value)
{
	return slot_of(value);
}

__u32 rules_log2_of(__u64 value)
{
	return log2_of(value);
}

__u32 rules_surplus_of(struct load there, struct load here, _Bool last_sleeps,
		       _Bool in_node)
{
	return surplus_of(there, here, last_sleeps, in_node);
}

_Bool rules_begins_balance(__u64 now_ns, __u64 *balance_at_ns)
{
	return begins_balance(now_ns, balance_at_ns);
}

void rules_end_balance(__u32 surplus, __u64 now_ns, __u64 *here_at_ns,
		       __u64 *there_at_ns)
{
	end_balance(surplus, now_ns, here_at_ns, there_at_ns);
}

__u32 rules_other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	return other_llc(here, llcs, drawn);
}

_Bool rules_is_overdue(__u64 served_ns, __u64 now_ns, __u64 max_lag_ns)
{
	return is_overdue(served_ns, now_ns, max_lag_ns);
}

/* Constants and layouts that c.rs checks. */
const __u64 rules_numbers[] = {
	CPUS_MAX,
	LLCS_MAX,
	MM_QUEUES_PER_LLC,
	WEIGHT_NORMAL,
	SHORT_BURST_NS,
	BALANCE_PERIOD_NS,
	SURPLUS_NONE,
	SURPLUS_ONE,
	SURPLUS_MANY,
	NEXT_SAME,
	LATENCY_SLOTS,
	sizeof(struct place),
	offsetof(struct place, core_words),
	offsetof(struct place, near_words),
	offsetof(struct place, node_words),
	offsetof(struct place, all_words),
	offsetof(struct place, node_llcs),
	offsetof(struct place, core),
	offsetof(struct place, near),
	offsetof(struct place, node),
	sizeof(struct idle_scan_ctx),
	offsetof(struct idle_scan_ctx, idle),
	offsetof(struct idle_scan_ctx, cores),
	offsetof(struct idle_scan_ctx, allowed),
	offsetof(struct idle_scan_ctx, preferred_cpus),
	offsetof(struct idle_scan_ctx, borrowers),
	offsetof(struct idle_scan_ctx, words),
	sizeof(struct mm_queue),
	offsetof(struct mm_queue, min_vtime),
	offsetof(struct mm_queue, seat),
	offsetof(struct mm_queue, waiting),
	offsetof(struct mm_queue, version),
	sizeof(struct pick_ctx),
	offsetof(struct pick_ctx, turn.turn_ns),
	offsetof(struct pick_ctx, turn.max_lag_ns),
	offsetof(struct pick_ctx, now_ns),
	offsetof(struct pick_ctx, has_prev),
	offsetof(struct pick_ctx, aggregate),
	offsetof(struct pick_ctx, prev_vtime),
	offsetof(struct pick_ctx, own),
	offsetof(struct pick_ctx, excluded),
	offsetof(struct pick_ctx, skipped),
	offsetof(struct pick_ctx, min_vtime_queue),
	offsetof(struct pick_ctx, min_vtime),
	offsetof(struct pick_ctx, min_vtime_with_prev),
	offsetof(struct pick_ctx, cpu),
	sizeof(struct head_skip),
	offsetof(struct head_skip, min_vtime),
	sizeof(struct aging),
	offsetof(struct aging, began_ns),
	OVERDUE_NS,
	sizeof(struct load),
	offsetof(struct load, cpus),
	0,
};
