/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Where each CPU lies, as user space says. */
#ifndef USHER_SCX_MACHINE_H
#define USHER_SCX_MACHINE_H

#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

#define ONLY(map) \
	({ \
		__u32 only = 0; \
		bpf_map_lookup_elem(&map, &only); \
	})

static inline struct place *place_of(__u32 cpu)
{
	return bpf_map_lookup_elem(&places, &cpu);
}

#endif
