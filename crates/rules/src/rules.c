/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The rules with names that programs on this machine can call. */
#include <stddef.h>

#include "bpf/levels.h"
#include "bpf/rules.h"

__s32 rules_choose_cpu(_Bool smt, const struct outlook *sees, __u32 last,
		       const struct place *here)
{
	return choose_cpu(smt, sees, last, here);
}

__s32 rules_choose_best(_Bool smt, const struct outlook *sees, __u32 last,
			const struct place *here)
{
	return choose_best(smt, sees, last, here);
}

__s32 rules_choose_core(const struct outlook *sees, __u32 last,
			const struct place *here)
{
	return choose_core_of(sees, last, here);
}

_Bool rules_is_left_to_guests(const struct cpu_set *core,
			      const struct outlook *sees)
{
	return is_left_to_guests(core, sees);
}

_Bool rules_find_home(struct cpu_set *home, const struct cpu_set *allowed,
		      const struct cpu_set *seat)
{
	return find_home(home, allowed, seat);
}

__u32 rules_who_is_next(struct moment *is, const struct space *spaces,
			const struct passed *passed, __u32 *queue)
{
	return who_is_next(is, spaces, passed, queue);
}

_Bool rules_has_passed(__u64 taken, __u64 first)
{
	return has_passed(taken, first);
}

void rules_pass_by(struct passed *passed, __u32 at, __u64 least)
{
	pass_by(passed, at, least);
}

void rules_face(struct passed *passed, __u32 at)
{
	face(passed, at);
}

void rules_meet(struct passed *passed, __u32 at, __u64 vtime)
{
	meet(passed, at, vtime);
}

__u32 rules_hindmost(const struct space *spaces, const struct passed *passed)
{
	return hindmost(spaces, passed, passed->queues, 0);
}

__u64 rules_sharers(__u64 mm, __u64 seat, __u32 version, __u32 only)
{
	return sharers(mm, seat, version, only);
}

__u32 rules_space_of(const struct space *spaces, __u64 of)
{
	return space_of(spaces, of);
}

void rules_join_space(struct space *space, __u64 of, __u64 seat, __u32 version,
		      __u64 vtime)
{
	join_space(space, of, seat, version, vtime);
}

_Bool rules_is_seated(const struct space *space, __u32 version)
{
	return is_seated(space, version);
}

void rules_leave_space(struct space *space, __u64 vtime)
{
	leave_space(space, vtime);
}

__u32 rules_within_group(__u32 percent, __u32 weight)
{
	return within_group(percent, weight);
}

__u64 rules_weight_in(__u64 weight, __u32 percent)
{
	return weight_in(weight, percent);
}

__u64 rules_virtual_ns(__u64 ran_ns, __u64 weight)
{
	return virtual_ns(ran_ns, weight);
}

__u64 rules_wake_at(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	return wake_at(vtime, clock, slice_ns);
}

__u64 rules_place_at(const struct space *spaces, __u64 clock, __u64 seat,
		     __u64 vtime, __u64 ahead_ns)
{
	return place_at(spaces, clock, seat, vtime, ahead_ns);
}

_Bool rules_first_of_seat(const struct space *spaces, __u64 seat, __u64 *least)
{
	return first_of_seat(spaces, seat, least);
}

_Bool rules_is_urgent(__u64 burst_ns, __u64 vtime, __u64 share)
{
	return is_urgent(burst_ns, vtime, share);
}

__u64 rules_burst_after(__u64 average_ns, __u64 burst_ns)
{
	return burst_after(average_ns, burst_ns);
}

__u64 rules_alone_at(__u64 vtime, __u64 clock)
{
	return alone_at(vtime, clock);
}

__u64 rules_ahead_at_most(__u64 lead_ns, __u64 slice_ns, __u64 weight)
{
	return ahead_at_most(lead_ns, slice_ns, weight);
}

void rules_rest(struct pace *pace)
{
	rest(pace);
}

void rules_keep_pace(struct pace *pace, __u64 clock, __u64 now_ns)
{
	keep_pace(pace, clock, now_ns);
}

__u64 rules_at_pace(const struct pace *pace, __u64 clock, __u64 vtime)
{
	return at_pace(pace, clock, vtime);
}

__u64 rules_average_of(const struct space *spaces, __u64 clock)
{
	return average_of(spaces, clock);
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

_Bool rules_begins_look(__u64 now_ns, __u64 *look_at_ns)
{
	return begins_look(now_ns, look_at_ns);
}

void rules_end_look(__u32 surplus, __u64 now_ns, __u64 *here_at_ns,
		    __u64 *there_at_ns)
{
	end_look(surplus, now_ns, here_at_ns, there_at_ns);
}

__u32 rules_other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	return other_llc(here, llcs, drawn);
}

_Bool rules_is_late(__u64 served_ns, __u64 now_ns, __u64 lead_ns)
{
	return is_late(served_ns, now_ns, lead_ns);
}

__u64 levels_key_at(__u64 array, __u32 level, __u64 arrival)
{
	return key_at(array, level, arrival);
}

__u64 levels_key_expired(__u64 key, __u64 active, __u32 level, __u64 arrival)
{
	return key_expired(key, active, level, arrival);
}

__u64 levels_key_preempted(__u64 key, __u64 active)
{
	return key_preempted(key, active);
}

__u64 levels_key_elsewhere(__u64 key, __u64 active_there, __u64 active_here,
			   __u64 arrival)
{
	return key_elsewhere(key, active_there, active_here, arrival);
}

__u64 levels_slice(__s32 nice_level)
{
	return slice_of_level(nice_level);
}

__u32 levels_level_of(__s32 nice_level, __u64 sleep_average_ns)
{
	return level_of(nice_level, sleep_average_ns);
}

_Bool levels_is_interactive(__s32 nice_level, __u64 sleep_average_ns)
{
	return is_interactive(nice_level, sleep_average_ns);
}

__u64 levels_after_sleep(__u64 average_ns, __u64 slept_ns, __s32 nice_level)
{
	return average_after_sleep(average_ns, slept_ns, nice_level);
}

__u64 levels_after_run(__u64 average_ns, __u64 ran_ns)
{
	return average_after_run(average_ns, ran_ns);
}

__u64 levels_of_child(__u64 average_ns)
{
	return average_of_child(average_ns);
}

_Bool levels_is_starving(__u64 since_ns, __u64 now_ns, __u32 waiting)
{
	return is_starving(since_ns, now_ns, waiting);
}

_Bool levels_has_better_level(__u64 key, __u64 running, _Bool same_space,
			      _Bool aggregate)
{
	return has_better_level(key, running, same_space, aggregate);
}

/* What c.rs has to agree with. */
const __u64 rules_numbers[] = {
	CPUS_MAX,
	LLCS_MAX,
	SPACES,
	WEIGHT_NORMAL,
	SHORT_BURST_NS,
	LOOK_EVERY_NS,
	SURPLUS_NONE,
	SURPLUS_ONE,
	SURPLUS_MANY,
	NEXT_SAME,
	LATENCY_SLOTS,
	LEVEL,
	sizeof(struct place),
	offsetof(struct place, node_llcs),
	offsetof(struct place, core),
	offsetof(struct place, near),
	offsetof(struct place, node),
	sizeof(struct outlook),
	offsetof(struct outlook, idle),
	offsetof(struct outlook, cores),
	offsetof(struct outlook, allowed),
	offsetof(struct outlook, home),
	offsetof(struct outlook, guests),
	sizeof(struct space),
	offsetof(struct space, least),
	offsetof(struct space, seat),
	offsetof(struct space, waiting),
	offsetof(struct space, version),
	sizeof(struct moment),
	offsetof(struct moment, turn.turn_ns),
	offsetof(struct moment, turn.lead_ns),
	offsetof(struct moment, now_ns),
	offsetof(struct moment, has_prev),
	offsetof(struct moment, aggregate),
	offsetof(struct moment, prev_vtime),
	offsetof(struct moment, own),
	offsetof(struct moment, not ),
	offsetof(struct moment, passes),
	offsetof(struct moment, hindmost),
	offsetof(struct moment, hindmost_at),
	offsetof(struct moment, least),
	offsetof(struct moment, cpu),
	sizeof(struct passed),
	offsetof(struct passed, least),
	sizeof(struct pace),
	offsetof(struct pace, at_ns),
	sizeof(struct load),
	offsetof(struct load, cpus),
	0,
};
