/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* CPUs and where they lie, and how much the tables hold: what the rules are about. */
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

#define CPUS_MAX 512
#define CPU_WORDS (CPUS_MAX / 64)
#define LLCS_MAX 64
/* Run queues in an LLC. More address spaces than these share some. */
#define MM_QUEUES_PER_LLC 32
/* Latencies in nanoseconds, four slots to a power of two. */
#define LATENCY_SLOTS 256

struct cpu_set {
	__u64 words[CPU_WORDS];
};

/* Where a CPU lies. */
struct place {
	__u32 known;
	__u32 llc;
	/* The kernel's number of its node. */
	__u32 node_number;
	__u32 unused;
	/* LLCs of its node, by number. */
	__u64 node_llcs;
	struct cpu_set core;
	struct cpu_set near;
	struct cpu_set node;
};

#endif
