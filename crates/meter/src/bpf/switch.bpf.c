// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the meter does not do: account CPU time at every context switch, with an
 * empty program to subtract. examples/meter_cost compares with it; the library
 * does not carry it.
 */
#include "party.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} since SEC(".maps");

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
	struct control *orders = orders_given();
	__u64 now = bpf_ktime_get_ns();
	__u32 only = 0;
	__u64 *start = bpf_map_lookup_elem(&since, &only);
	__u64 *total;
	__u64 ran;
	__u32 party;

	if (!start || !orders)
		return 0;
	ran = *start ? now - *start : 0;
	*start = now;
	party = party_of(prev, orders);
	total = bpf_map_lookup_elem(&run_ns, &party);
	if (total)
		*total += ran;
	else
		bpf_map_update_elem(&run_ns, &party, &ran, BPF_NOEXIST);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_empty, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
