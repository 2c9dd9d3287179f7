/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The bell: foreground work has just used what background work used a moment
 * ago, its threads crowd on a CPU, or a CPU has become vacant, and user space need
 * not wait for its next look to learn of it.
 *
 * It rings once and is then still until user space arms it again, so that its
 * cost does not grow with what there is to tell. A device that lies on another
 * (a loop device on a file) counts as that one too.
 */
#ifndef USHER_METER_BELL_H
#define USHER_METER_BELL_H

#include "party.h"
#include "rules.h"

/* When background work last used a device. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct device);
	__type(value, __u64);
} touched SEC(".maps");

/* What a stacked disk lies on, as user space has found out. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct device);
	__type(value, struct device);
} beneath SEC(".maps");

/* 0: armed; 1: has rung. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} latch SEC(".maps");

/* A page; user space says how large one is here. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} bell SEC(".maps");

static void ring(__u64 now)
{
	__u32 only = 0;
	__u32 *has_rung = bpf_map_lookup_elem(&latch, &only);

	if (!has_rung || *has_rung || __sync_lock_test_and_set(has_rung, 1))
		return;
	bpf_ringbuf_output(&bell, &now, sizeof(now), BPF_RB_FORCE_WAKEUP);
}

static void meet(__u32 party, struct device *device, __u64 now,
		 struct control *orders)
{
	__u64 *before = bpf_map_lookup_elem(&touched, device);

	if (party == FOREGROUND) {
		if (before && is_recent(*before, now, orders->recent_ns))
			ring(now);
	} else if (before) {
		*before = now;
	} else {
		bpf_map_update_elem(&touched, device, &now, BPF_ANY);
	}
}

static void note_meeting(__u32 party, struct device *device, __u64 now,
			 struct control *orders)
{
	struct device *lower;

	if (!orders->programs || party == IGNORED)
		return;
	meet(party, device, now, orders);
	lower = bpf_map_lookup_elem(&beneath, device);
	if (lower) {
		struct device copy = *lower;

		meet(party, &copy, now, orders);
	}
}

#endif
