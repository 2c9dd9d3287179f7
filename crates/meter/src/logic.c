/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Exports the functions of bpf/logic.h, the arithmetic of the BPF programs,
 * under names that the unit tests in logic.rs call on the host. This file is
 * not a part of the product.
 */
#include "bpf/logic.h"

_Bool logic_start_counting(struct counted *counted, _Bool is_older,
			   __u64 run_ns, __u64 wait_ns)
{
	return start_counting(counted, is_older, run_ns, wait_ns);
}

__u64 logic_advance(__u64 *counted, __u64 total)
{
	return advance(counted, total);
}

void logic_advance_epoch(struct process_use *use, __u64 epoch)
{
	advance_epoch(use, epoch);
}

_Bool logic_is_recent(__u64 before, __u64 now, __u64 recent_ns)
{
	return is_recent(before, now, recent_ns);
}

_Bool logic_note_vacancy(struct rq_scan *scan, __u32 vacant, __u64 now,
			 _Bool is_wanted)
{
	return note_vacancy(scan, vacant, now, is_wanted);
}

_Bool logic_scan(struct rq_scan *scan, __u32 *scans, const struct load *loads,
		 __u32 cpus, __u64 now)
{
	__u32 cpu;

	begin_scan(scan);
	for (cpu = 0; cpu < cpus; cpu++)
		add_cpu(scan, &scans[cpu], &loads[cpu]);
	note_background_only(scan, now);
	return end_scan(scan);
}

__u32 logic_saturating_sub(__u32 all, __u32 some)
{
	return saturating_sub(all, some);
}
