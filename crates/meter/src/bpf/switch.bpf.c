// SPDX-License-Identifier: GPL-2.0-only
/*
 * The baseline of examples/meter_cost, which is not a part of the library: a
 * program that accounts the CPU time at every context switch, and an empty
 * program, which shows the cost of the hook itself.
 */
#include "owner.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} switch_start SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} run_ns SEC(".maps");

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_counted, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	struct bpf_config *config = get_config();
	__u64 now = bpf_ktime_get_ns();
	__u32 zero = 0;
	__u64 *start = bpf_map_lookup_elem(&switch_start, &zero);
	__u64 *total;
	__u64 ran;
	__u32 owner;

	if (!start || !config)
		return 0;
	ran = *start ? now - *start : 0;
	*start = now;
	owner = classify_task(prev, config);
	total = bpf_map_lookup_elem(&run_ns, &owner);
	if (total)
		*total += ran;
	else
		bpf_map_update_elem(&run_ns, &owner, &ran, BPF_NOEXIST);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_empty, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
