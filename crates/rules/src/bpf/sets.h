/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* CPU sets, the place of each CPU, and the sizes of the tables. */
#ifndef USHER_RULES_SETS_H
#define USHER_RULES_SETS_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

/* Bytes. Structures that one CPU writes begin at a multiple, so that CPUs do not share a line. */
#define CACHE_LINE 64

#define CPUS_MAX 512
#define CPU_WORDS (CPUS_MAX / 64)
#define LLCS_MAX 64
/* Run queues per LLC. With more address spaces than this, some share a queue. */
#define MM_QUEUES_PER_LLC 32
/* Histogram slots of latencies in nanoseconds, four per power of two. */
#define LATENCY_SLOTS 256

struct cpu_set {
	__u64 words[CPU_WORDS];
};

/* Place of a CPU in the topology. */
struct place {
	__u32 known;
	__u32 llc;
	/* Number of its node in the kernel. */
	__u32 node_number;
	__u32 unused;
	/* Bitmask of the LLCs of its node. */
	__u64 node_llcs;
	struct cpu_set core;
	struct cpu_set near;
	struct cpu_set node;
};

#endif
