/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Counts the use of each device by each process, in the current and the
 * previous epoch. An epoch is at least one second: user space begins a new
 * epoch with a thorough sample. Reports use these numbers to name the process
 * that uses a device. The map has 8192 entries, one per process and device. The
 * map is an LRU map: the least recently updated entries are evicted. A use
 * costs one or two map operations.
 */
#ifndef USHER_METER_PROCESS_USE_H
#define USHER_METER_PROCESS_USE_H

#include "owner.h"
#include "logic.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct process_key);
	__type(value, struct process_use);
} process_uses SEC(".maps");

static void note_process_use(struct task_struct *task, __u32 owner,
			     struct device *device, __u64 amount,
			     struct bpf_config *config)
{
	struct process_key key = {.tgid = task->tgid, .device = *device};
	struct process_use *use = bpf_map_lookup_elem(&process_uses, &key);

	if (use) {
		advance_epoch(use, config->epoch);
		use->owner = owner;
		__sync_fetch_and_add(&use->current, amount);
		return;
	}
	struct process_use first = {
		.epoch = config->epoch, .current = amount, .owner = owner};

	bpf_core_read(first.comm, sizeof(first.comm),
		      &task->group_leader->comm);
	bpf_map_update_elem(&process_uses, &key, &first, BPF_NOEXIST);
}

#endif
