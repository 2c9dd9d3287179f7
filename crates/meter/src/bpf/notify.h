/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Notification of user space through a ring buffer, for three events:
 *
 * - foreground work used a device that background work used less than
 *   `recent_ns` ago;
 * - the run-queue scan found an imbalance;
 * - the run-queue scan found a vacant CPU.
 *
 * The notification is one-shot: after a notification, the BPF programs send no
 * other notification until user space arms it again. The one-shot rule bounds
 * the cost for any frequency of the events. Use of a stacked device, such as a
 * loop device on a file, also counts as use of the device below it.
 *
 * Limits: a check costs at most three map operations per device. The last uses
 * of at most 1024 devices are kept, the most recent ones; a use of a forgotten
 * device causes no notification. At most 1024 stacked devices are known.
 */
#ifndef USHER_METER_NOTIFY_H
#define USHER_METER_NOTIFY_H

#include "owner.h"
#include "logic.h"

/* Time of the last use by background work, per device. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct device);
	__type(value, __u64);
} background_uses SEC(".maps");

/* The device below each stacked disk. User space writes this map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct device);
	__type(value, struct device);
} lower_devices SEC(".maps");

/* 0 while notification is armed, 1 after a notification has been sent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} notify_state SEC(".maps");

/*
 * A ring buffer of one page. User space sets its size to the page size of this
 * machine.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} notify_ringbuf SEC(".maps");

static void notify(__u64 now)
{
	__u32 zero = 0;
	__u32 *is_sent = bpf_map_lookup_elem(&notify_state, &zero);

	if (!is_sent || *is_sent || __sync_lock_test_and_set(is_sent, 1))
		return;
	bpf_ringbuf_output(&notify_ringbuf, &now, sizeof(now),
			   BPF_RB_FORCE_WAKEUP);
}

static void check_contention(__u32 owner, struct device *device, __u64 now,
			     struct bpf_config *config)
{
	__u64 *before = bpf_map_lookup_elem(&background_uses, device);

	if (owner == FOREGROUND) {
		if (before && is_recent(*before, now, config->recent_ns))
			notify(now);
	} else if (before) {
		*before = now;
	} else {
		bpf_map_update_elem(&background_uses, device, &now, BPF_ANY);
	}
}

static void note_device_use(__u32 owner, struct device *device, __u64 now,
			    struct bpf_config *config)
{
	struct device *lower;

	if (!config->programs || owner == IGNORED)
		return;
	check_contention(owner, device, now, config);
	lower = bpf_map_lookup_elem(&lower_devices, device);
	if (lower) {
		struct device copy = *lower;

		check_contention(owner, &copy, now, config);
	}
}

#endif
