/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Maps: threads, seats and the counters of seats. */
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

#endif
