/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the programs and user space tell one another: the values of their maps.
 * src/layout.rs is the other side, and sizes are compared as the maps are opened.
 */
#ifndef USHER_SCX_SHARED_H
#define USHER_SCX_SHARED_H

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
#define SPACES 32
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024
#define DUMP_BYTES 32768
/* Wake-up latencies by their binary logarithm in nanoseconds. */
#define LATENCY_SLOTS 64

struct cpu_set {
	__u64 words[CPU_WORDS];
};

/* What user space wants; read at every decision, so that it may change. */
struct settings {
	__u64 slice_ns;
	/* How long the threads of one address space may follow one another. */
	__u64 turn_ns;
	/* How far, in virtual time, they may get ahead of whoever waits. */
	__u64 lead_ns;
	__u32 smt;
	__u32 aggregate;
	/* Nothing of this: one queue, first come, first served. */
	__u32 fifo;
	__u32 llcs;
};

/* Where a CPU lies. */
struct place {
	__u32 known;
	__u32 llc;
	struct cpu_set core;
	struct cpu_set near;
	struct cpu_set node;
};

struct tally {
	__u64 switches;
	/* User threads after ones of another address space on that CPU. */
	__u64 space_switches;
	__u64 idle_cores;
	__u64 idle_threads;
	__u64 queued;
	__u64 prolonged;
	__u64 turns_kept;
	__u64 stolen;
	__u64 pulls;
	__u64 moved;
	__u64 soon;
	__u64 preempted;
};

/* How the kernel ended it. */
struct ending {
	__u64 kind;
	__s64 code;
	char reason[REASON_BYTES];
	char message[MESSAGE_BYTES];
};

/* What the counter has counted on a CPU, under any scheduler. */
struct counts {
	__u64 switches;
	__u64 space_switches;
	/* The same if a kernel thread in between counted as an address space. */
	__u64 mm_changes;
	__u64 migrations_core;
	__u64 migrations_llc;
	__u64 migrations_node;
	__u64 migrations_far;
	__u64 wakeups;
	__u64 latency[LATENCY_SLOTS];
};

/* How long, over the whole machine. */
struct sharing {
	/* Cores of which two or more threads work. */
	__u64 shared_ns;
	/* The same while another core is idle. */
	__u64 needless_ns;
	__u64 since_ns;
	/* How many cores are idle, and above that word how many are shared. */
	__u64 cores;
};

#endif
