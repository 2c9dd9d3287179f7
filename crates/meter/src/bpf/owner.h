/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Classifies a task: determines the owner to which the task's use of resources
 * is charged.
 *
 * The first matching rule determines the owner:
 *
 * 1. The task belongs to a background program. A program with a cgroup consists
 *    of the tasks in this cgroup and in all cgroups below it; if programs are
 *    nested, the outermost program is the owner. A program without a cgroup
 *    consists of a process and its descendants. The meter registers the
 *    existing descendants; pid_map.bpf.c adds later descendants at their fork.
 * 2. Kernel threads, the meter itself, always-on services and SCHED_IDLE tasks
 *    are ignored. Such SCHED_IDLE tasks are background work that this Usher
 *    process does not manage; for the demoted tasks of a background program,
 *    rule 1 applies.
 * 3. All other tasks are foreground.
 *
 * Limits: a classification looks up each cgroup level that contains a program
 * (levels 0 to 31), and then at most one process and one service. There are at
 * most 1024 cgroups, 65536 processes of programs without a cgroup, and 1024
 * services.
 */
#ifndef USHER_METER_OWNER_H
#define USHER_METER_OWNER_H

#include "kernel.h"

#define DEEPEST_LEVEL 31

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_config);
} config_map SEC(".maps");

/* The background program of each cgroup, by the cgroup's ID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} cgroups SEC(".maps");

/*
 * The background program of each process, by the process's tgid, for programs
 * without a cgroup.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} pid_map SEC(".maps");

/* Process names of always-on services. */
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

static inline void count_loss(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&losses, &what);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static struct bpf_config *get_config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&config_map, &zero);
}

/*
 * Returns the program of the task's cgroup or of the outermost ancestor cgroup
 * with a program; 0 if there is no such program.
 */
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

static __u32 program_by_pid(__u32 tgid)
{
	__u32 *program = bpf_map_lookup_elem(&pid_map, &tgid);

	return program ? *program : 0;
}

static _Bool is_service(struct task_struct *task)
{
	char comm[COMM_BYTES];

	bpf_core_read(comm, sizeof(comm), &task->group_leader->comm);
	return bpf_map_lookup_elem(&services, comm) != 0;
}

static __u32 classify_task(struct task_struct *task, struct bpf_config *config)
{
	__u32 program = 0;

	if (task->flags & PF_KTHREAD || !task->pid)
		return IGNORED;
	if (config->cgroup_levels)
		program = program_by_cgroup(task, config->cgroup_levels);
	if (!program && config->tracks_pids)
		program = program_by_pid(task->tgid);
	if (program)
		return program;
	if ((__u32)task->tgid == config->own_tgid || is_service(task) ||
	    task->policy == SCHED_IDLE)
		return IGNORED;
	return FOREGROUND;
}

#endif
