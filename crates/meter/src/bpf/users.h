/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Which process it was: use of the last one or two seconds (epochs) by process
 * and device, so that people can be told who was in whose way. Those that have
 * not been heard of for longest make room for others.
 */
#ifndef USHER_METER_USERS_H
#define USHER_METER_USERS_H

#include "party.h"
#include "rules.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct user_key);
	__type(value, struct user_use);
} users SEC(".maps");

static void note_user(struct task_struct *task, __u32 party,
		      struct device *device, __u64 amount,
		      struct control *orders)
{
	struct user_key key = {.tgid = task->tgid, .device = *device};
	struct user_use *use = bpf_map_lookup_elem(&users, &key);

	if (use) {
		turn_page(use, orders->epoch);
		use->party = party;
		__sync_fetch_and_add(&use->now, amount);
		return;
	}
	struct user_use first = {
		.epoch = orders->epoch, .now = amount, .party = party};

	bpf_core_read(first.comm, sizeof(first.comm),
		      &task->group_leader->comm);
	bpf_map_update_elem(&users, &key, &first, BPF_NOEXIST);
}

#endif
