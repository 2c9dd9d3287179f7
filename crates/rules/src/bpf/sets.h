/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Types and table sizes that the BPF programs, the host build and user space share: integers, CPU
 * sets, and the place of a CPU in the topology
 *
 * User space rejects a machine with a CPU number from 2,048 on. The build of the BPF programs sets
 * CPUS_MAX to 64 for machines with at most 64 CPUs, so that such a machine has no tables for 2,048
 * CPUs. With more than LLCS_MAX LLCs, LLC n shares the run queues of LLC n % LLCS_MAX.
 * src/select_cpu.rs declares the same structures for Rust, and a test compares the layouts.
 */
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

/*
 * Size of a cache line in bytes. The structure of each CPU is aligned to this size, so that no
 * cache line holds data of two CPUs.
 */
#define CACHE_LINE 64

/* All CPU numbers are below this limit. */
#ifndef CPUS_MAX
#define CPUS_MAX 2048
#endif
#define CPU_WORDS (CPUS_MAX / 64)
/* Number of LLCs with run queues of their own. A set of LLCs is a bitmask in one 64-bit word. */
#define LLCS_MAX 64
/*
 * Run queues per LLC. With more than eight address spaces, two of them may share a queue
 * (mm_queue_of()).
 */
#define MM_QUEUES_PER_LLC 32
/* Upper limit of the classes of CPUs by capacity. */
#define CLASSES_MAX 4
/* Histogram slots of latencies in nanoseconds, four per power of two. */
#define LATENCY_SLOTS 256

/* A set of CPUs: CPU n is bit n % 64 of word n / 64. */
struct cpu_set {
	__u64 words[CPU_WORDS];
};

/* Value of `known` in `struct place` for an isolated CPU. */
#define PLACE_ISOLATED 2

/* Place of a CPU in the topology. */
struct place {
	/* 1: the CPU exists. PLACE_ISOLATED: it exists and is isolated (isolation.h). */
	__u32 known;
	/* Number of the CPU's LLC, below LLCS_MAX. */
	__u32 llc;
	/* Number of the CPU's NUMA node in the kernel. */
	__u32 node_number;
	/*
	 * Capacity: 1024 for the fastest CPUs. Class of CPUs of similar capacity, below
	 * CLASSES_MAX; 0 for the fastest class.
	 */
	__u16 capacity;
	__u16 capacity_class;
	/*
	 * Bitmasks of words: those with CPUs of the sets `core`, `near` and `node`, and those with
	 * CPUs of the machine (words.h).
	 */
	__u32 core_words;
	__u32 near_words;
	__u32 node_words;
	__u32 all_words;
	/* Bitmask of the LLCs of the CPU's node. */
	__u64 node_llcs;
	/*
	 * CPUs of the CPU's core, of its LLC (`near`), and of its node. Each of the three sets
	 * contains the CPU itself.
	 */
	struct cpu_set core;
	struct cpu_set near;
	struct cpu_set node;
};

#endif
