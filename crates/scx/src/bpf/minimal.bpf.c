// SPDX-License-Identifier: GPL-2.0-only
/*
 * Smallest possible sched_ext scheduler, as the reference for overhead measurements: the kernel's
 * selection of idle CPUs, and one FIFO queue. Equivalent to tools/sched_ext/scx_simple.c of the
 * kernel source with -f, without its counters.
 */
#include "ending.h"
#include "seats.h"

char LICENSE[] SEC("license") = "GPL";

/* SCX_SLICE_DFL */
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
	insert(p, FIFO, SLICE_NS, flags);
}

OP(minimal_dispatch)
void BPF_PROG(minimal_dispatch, __s32 cpu, struct task_struct *prev)
{
	take(FIFO);
}

OP_SLEEPABLE(minimal_init)
__s32 BPF_PROG(minimal_init)
{
	return scx_bpf_create_dsq(FIFO, -1);
}

/* Same name, so that user space finds and stops it in the same way. */
SEC(".struct_ops.link")
struct sched_ext_ops usher = {
	.exit_dump_len = DUMP_BYTES,
	.select_cpu = (void *)minimal_select_cpu,
	.enqueue = (void *)minimal_enqueue,
	.dispatch = (void *)minimal_dispatch,
	.init = (void *)minimal_init,
	.exit = (void *)usher_exit,
	.name = "usher",
};
