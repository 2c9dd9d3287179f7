// SPDX-License-Identifier: GPL-2.0-only
/*
 * Smallest possible sched_ext scheduler, as the reference for overhead measurements. It has one
 * FIFO queue for all CPUs. The kernel's default function selects an idle CPU for a waking thread; a
 * thread without an idle CPU enters the queue, and each CPU takes the first thread of the queue.
 * The scheduler is equivalent to tools/sched_ext/scx_simple.c of the kernel source with -f, without
 * its counters. The declarations of kernel functions are those of Usher's scheduler
 * (crates/scx/src/bpf).
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "GPL";

/* Number of the only queue. */
#define QUEUE 0
/* The default slice of the kernel, SCX_SLICE_DFL: 20 ms. */
#define SLICE_NS 20000000ULL

OP(minimal_select_cpu)
__s32 BPF_PROG(minimal_select_cpu, struct task_struct *p, __s32 prev,
	       __u64 flags)
{
	_Bool is_idle = 0;
	__s32 cpu = scx_bpf_select_cpu_dfl(p, prev, flags, &is_idle);

	if (is_idle)
		insert(p, DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

OP(minimal_enqueue)
void BPF_PROG(minimal_enqueue, struct task_struct *p, __u64 flags)
{
	insert(p, QUEUE, SLICE_NS, flags);
}

OP(minimal_dispatch)
void BPF_PROG(minimal_dispatch, __s32 cpu, struct task_struct *prev)
{
	take(QUEUE);
}

OP_SLEEPABLE(minimal_init)
__s32 BPF_PROG(minimal_init)
{
	return scx_bpf_create_dsq(QUEUE, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops minimal_fifo = {
	.select_cpu = (void *)minimal_select_cpu,
	.enqueue = (void *)minimal_enqueue,
	.dispatch = (void *)minimal_dispatch,
	.init = (void *)minimal_init,
	.name = "minimal_fifo",
};
