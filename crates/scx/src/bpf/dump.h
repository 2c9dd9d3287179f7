/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The scheduler's part of the kernel's dump, which precedes the list of the threads of each CPU
 *
 * The kernel takes a dump when it ends a scheduler because of a fault, and at sysrq-D. For the
 * dump, the kernel calls `dump`. This callback writes for each LLC the numbers of waiting threads,
 * the clock and each queue in use. For each CPU, it writes the CPU's clock, its turn and whether it
 * is busy. The kernel cuts the dump at DUMP_BYTES.
 *
 * The loops visit at most LLCS_MAX (64) LLCs with MM_QUEUES_PER_LLC (32) queues each, and all CPUs.
 * DUMP_BYTES is 128 KiB.
 */
#ifndef USHER_SCX_DUMP_H
#define USHER_SCX_DUMP_H

#include "run_queue.h"

/* Writes one line of the dump: the format `text` with the numbers that follow, each a __u64. */
#define DUMP_LINE(text, ...) \
	do { \
		static char format[] = text; \
		__u64 data[] = {__VA_ARGS__}; \
		scx_bpf_dump_bstr(format, data, sizeof(data)); \
	} while (0)

__noinline int dump_llc_rq(__u32 llc)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);
	int at;

	DUMP_LINE("LLC %llu: %llu threads wait for turns, %llu are urgent", llc,
		  llc_rq->waiting, llc_rq->urgent);
	DUMP_LINE("  virtual clock %llu", llc_rq->clock);
	bpf_for(at, 0, MM_QUEUES_PER_LLC)
	{
		struct mm_queue *mm_queue =
			&llc_rq->mm_queues[at % MM_QUEUES_PER_LLC];

		if (mm_queue->waiting)
			DUMP_LINE("  queue 0x%llx: %llu threads from vtime "
				  "%llu on, "
				  "address-space key %llx",
				  queue_at(llc, at), mm_queue->waiting,
				  mm_queue->min_vtime, mm_queue->key);
	}
	return 0;
}

__noinline int dump_cpu(__u32 cpu)
{
	struct cpu_state *state = state_of(cpu);

	DUMP_LINE("CPU %llu: busy %llu, idle %llu, urgency %llu", cpu,
		  is_busy(cpu), state->idle, state->urgency);
	DUMP_LINE("  virtual clock %llu, overdue up to %llu since %llu ns",
		  state->clock, state->aging.overdue, state->aging.began_ns);
	DUMP_LINE("  last non-urgent thread ran at %llu ns, heads skipped: "
		  "0x%llx",
		  state->served_ns, state->head_skip.queues);
	DUMP_LINE(
		"  turn of address-space key %llx, queue 0x%llx, since %llu ns",
		state->turn_key, state->turn_queue, state->turn_began_ns);
	return 0;
}

OP(usher_dump)
void BPF_PROG(usher_dump, struct scx_dump_ctx *into)
{
	__u32 cpus = scx_bpf_nr_cpu_ids();
	int at;

	bpf_for(at, 0, LLCS_MAX)
	{
		if ((__u32)at >= g_settings.llcs)
			break;
		dump_llc_rq(at);
	}
	bpf_for(at, 0, CPUS_MAX)
	{
		if ((__u32)at >= cpus)
			break;
		dump_cpu(at);
	}
}

#endif
