/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Topology for the programs: `g_places` has the core, LLC and node of each CPU, by CPU number
 *
 * User space writes the table before the programs start (src/machine.rs). The table does not change
 * later, because the kernel ends the scheduler at a CPU hotplug. The programs sched.bpf.c and
 * count.bpf.c include this file. The table has CPUS_MAX entries.
 */
#ifndef USHER_SCX_MACHINE_H
#define USHER_SCX_MACHINE_H

#include "kernel.h"
#include "numbers.h"

/* User space writes this variable, so that it has a section, and therefore a map, of its own. */
#ifdef __bpf__
struct place g_places[CPUS_MAX] SEC(".data.places");
#endif

/* Returns a pointer to the only value of an array map. */
#define ONLY(map) \
	({ \
		__u32 only = 0; \
		bpf_map_lookup_elem(&map, &only); \
	})

/* Returns the slot of a latency in a histogram of LATENCY_SLOTS slots (slot_of()). */
static inline __u32 latency_slot(__u64 latency_ns)
{
	__u32 slot = slot_of(latency_ns);

	/*
	 * Without the barrier, the compiler would drop the modulo, which the verifier needs as a
	 * bound of the index.
	 */
	barrier_var(slot);
	return slot % LATENCY_SLOTS;
}

/* Returns the place of a CPU. The modulo bounds the index for the verifier. */
static inline struct place *place_of(__u32 cpu)
{
	return &g_places[cpu % CPUS_MAX];
}

#endif
