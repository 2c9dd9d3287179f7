/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * BPF maps of the scheduler that are not plain variables (globals.h has those)
 *
 * - `threads`: state of each thread (`struct thread`), created by usher_init_task() and freed by
 *   the kernel with the thread;
 * - `seats`: the CPUs of each program with a seat (seats.h), by the number of its cgroup;
 * - `seat_tallies`: counters of each seat, by cgroup, one set per CPU;
 * - `limits`, `parks`: the quota of each cgroup with a quota, and the timer of its park queue;
 * - `slice_timers`: a timer per CPU (limits.h has these three maps);
 * - `group_numbers`, `group_timers`: number of each cgroup with threads, and a timer (groups.h).
 *
 * User space writes `seats`, and reads the first three maps. The kernel rejects more than SEATS_MAX
 * seats with an error.
 */
#ifndef USHER_SCX_MAPS_H
#define USHER_SCX_MAPS_H

#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SEATS_MAX);
	__type(key, __u64);
	__type(value, struct seat);
} seats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SEATS_MAX);
	__type(key, __u64);
	__type(value, struct seat_tally);
} seat_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LIMITS_MAX);
	__type(key, __u64);
	__type(value, struct limit);
} limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIMITS_MAX);
	__type(key, __u32);
	__type(value, struct park);
} parks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GROUPS_MAX);
	__type(key, __u64);
	__type(value, __u32);
} group_numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct group_timer);
} group_timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, struct slice_timer);
} slice_timers SEC(".maps");

#endif
