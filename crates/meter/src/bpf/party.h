/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Whom a task works for.
 *
 * A background program is a cgroup and all below it; where it has none, a
 * process and all that it has begotten since (kin.bpf.c keeps the list). What
 * is neither that nor the kernel's own nor an always-on service is foreground.
 * Whoever runs when nobody else wants to (SCHED_IDLE) is not: it is background
 * work, of another Usher's or of nobody's.
 */
#ifndef USHER_METER_PARTY_H
#define USHER_METER_PARTY_H

#include "kernel.h"

#define DEEPEST_LEVEL 31

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

/* Programs by the number of their cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} cgroups SEC(".maps");

/* Programs by the number of each of their processes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} kin SEC(".maps");

/* Names of processes that are neither foreground nor background. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, char[COMM_BYTES]);
	__type(value, __u32);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

static inline void lose(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &what);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static struct control *orders_given(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&control, &only);
}

/* The program whose cgroup is the task's or one above it. */
static __u32 program_by_cgroup(struct task_struct *task, __u32 levels)
{
	struct cgroup *cgroup = task->cgroups->dfl_cgrp;
	int deepest = cgroup->level;

	for (int level = 0; level <= DEEPEST_LEVEL; level++) {
		struct cgroup *ancestor;
		__u32 *program;
		__u64 id;

		if (level > deepest || !(levels >> level))
			break;
		if (!(levels >> level & 1))
			continue;
		bpf_core_read(&ancestor, sizeof(ancestor),
			      &cgroup->ancestors[level]);
		id = BPF_CORE_READ(ancestor, kn, id);
		program = bpf_map_lookup_elem(&cgroups, &id);
		if (program)
			return *program;
	}
	return 0;
}

static __u32 program_by_kin(__u32 tgid)
{
	__u32 *program = bpf_map_lookup_elem(&kin, &tgid);

	return program ? *program : 0;
}

static _Bool is_service(struct task_struct *task)
{
	char comm[COMM_BYTES];

	bpf_core_read(comm, sizeof(comm), &task->group_leader->comm);
	return bpf_map_lookup_elem(&services, comm) != 0;
}

static __u32 party_of(struct task_struct *task, struct control *orders)
{
	__u32 program = 0;

	if (task->flags & PF_KTHREAD || !task->pid)
		return IGNORED;
	if (orders->levels)
		program = program_by_cgroup(task, orders->levels);
	if (!program && orders->kin)
		program = program_by_kin(task->tgid);
	if (program)
		return program;
	if ((__u32)task->tgid == orders->own_tgid || is_service(task) ||
	    task->policy == SCHED_IDLE)
		return IGNORED;
	return FOREGROUND;
}

#endif
