/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Place of each CPU, written by user space. */
#ifndef USHER_SCX_MACHINE_H
#define USHER_SCX_MACHINE_H

#include "kernel.h"
#include "numbers.h"

/* Variables that user space reads or writes have a section, and therefore a map, of their own. */
#ifdef __bpf__
struct place g_places[CPUS_MAX] SEC(".data.places");
#endif

#define ONLY(map) \
	({ \
		__u32 only = 0; \
		bpf_map_lookup_elem(&map, &only); \
	})

static inline __u32 latency_slot(__u64 latency_ns)
{
	__u32 slot = slot_of(latency_ns);

	/* The compiler would drop the modulo, which the verifier needs. */
	barrier_var(slot);
	return slot % LATENCY_SLOTS;
}

static inline struct place *place_of(__u32 cpu)
{
	return &g_places[cpu % CPUS_MAX];
}

#endif
