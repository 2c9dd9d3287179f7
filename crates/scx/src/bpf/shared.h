/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the programs and user space tell one another: the values of their maps, beside
 * `struct place`. In user space src/layout.rs is the other side, which compares sizes as
 * it opens the maps; where each field lies, its tests compare.
 */
#ifndef USHER_SCX_SHARED_H
#define USHER_SCX_SHARED_H

#include "sets.h"

#define NODES_MAX 64
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024
#define DUMP_BYTES 131072
/* Programs that may have seats at the same time. */
#define SEATS_MAX 256
#define NAME_BYTES 32

/* What user space wants; read at every decision, so that it may change. */
struct settings {
	__u64 slice_ns;
	/* How long the threads of one address space may follow one another. */
	__u64 turn_ns;
	/* How far, in virtual time, they may get ahead of whoever waits. */
	__u64 max_lag_ns;
	__u32 smt;
	__u32 aggregate;
	__u32 llcs;
	__u32 unused;
};

/* What it wants before the program is loaded, which has no trace of the other ways. */
struct order {
	/* Nothing of this: one queue, first come, first served. */
	__u32 fifo;
	/* By the levels of Linux 2.6; paper 4's cure of it, if `aggregate`. */
	__u32 o1;
	/* Nodes, by number, whose idle CPUs the kernel keeps apart; 0: all are kept
	 * together. */
	__u64 nodes;
	/* The words of a set of CPUs that this machine's lie in. */
	__u64 cpu_words;
};

/*
 * The CPUs of a program: its threads are at home there, and guests elsewhere,
 * where they make room at once. The program is whoever is in a cgroup.
 */
struct seat {
	struct cpu_set cpus;
	char name[NAME_BYTES];
};

/* What became of it, for each CPU that its threads ran on. */
struct seat_tally {
	__u64 home_ns;
	__u64 guest_ns;
	/* Threads that had one of their CPUs back from a guest. */
	__u64 returns;
	/* From such a wake-up until the thread ran. */
	__u64 return_latency[LATENCY_SLOTS];
};

/* Written by whoever writes seats, after it. */
struct seating {
	/* Another one after every change; 0: nobody has a seat. */
	__u64 version;
};

/* Why a thread is where it runs. */
enum why {
	WHY_UNKNOWN,
	/* It may run nowhere else. */
	WHY_ONLY_HERE,
	WHY_IDLE_CORE,
	WHY_IDLE_THREAD,
	/* Its program's CPU, which a guest had. */
	WHY_RETURNED,
	/* It waited in the queue of its address space. */
	WHY_TURN,
	WHY_URGENT,
	/* Taken from another LLC's queues. */
	WHY_STOLEN,
	/* There was nobody else. */
	WHY_ALONE,
	WHY_FIFO,
	/* It waited by its level, as in Linux 2.6. */
	WHY_LEVEL,
};

/* What a thread has among the levels of Linux 2.6; its key is its virtual time. */
struct o1_entity {
	/* Of its slice, while it does not run. */
	__u64 slice_left_ns;
	/* When its slice ends, while it runs. */
	__u64 slice_ends_ns;
	/* When it fell asleep; 0: not since it had its key. */
	__u64 slept_at_ns;
	__u64 sleep_average_ns;
	__u32 has_key;
	__u32 unused;
};

/* A thread, as long as the scheduler has it. */
struct thread {
	__u64 vtime;
	/* Of all that it has run, by the kernel's count, what is charged by now. */
	__u64 counted_ns;
	/* Ran since it woke. */
	__u64 burst_ns;
	__u64 burst_average_ns;
	/* How far ahead of the others it was when it last ran or woke, in virtual time. */
	__s64 lag_ns;
	/* The cgroup whose seat is this thread's, as of that version; 0: none. */
	__u64 cgroup;
	__u64 seat_version;
	__u64 seat_found_ns;
	/* The same, where it may run on one of the seat's CPUs at all. */
	__u64 seat;
	/* When it was given a guest's CPU; 0: long there. */
	__u64 returning_ns;
	/* The queue that it waits in, or NO_QUEUE. */
	__u32 queue;
	__u32 urgent;
	__u32 cpu;
	enum why why;
	/* By whose clock its virtual time is. */
	__u32 llc;
	/* What its cgroups make of its weight, in per cent. */
	__u32 group_weight;
	struct o1_entity o1;
	/* When that was last looked up. */
	__u64 weighed_at_ticks;
	/* Its address space, as of when it was last asked for. */
	__u64 mm;
	/* The only CPU that it may run on, as of when it came to wait, and 1; 0: others, too. */
	__u32 pinned_cpu;
	__u32 unused;
};

struct tally {
	__u64 switches;
	/* User threads after ones of another address space on that CPU. */
	__u64 space_switches;
	__u64 idle_cores;
	__u64 idle_threads;
	/* In the queues of address spaces; `soon`: among urgent threads. */
	__u64 queued;
	__u64 prolonged;
	__u64 turns_kept;
	__u64 stolen;
	__u64 pulls;
	__u64 moved;
	__u64 soon;
	__u64 preempted;
	/* CPUs that guests had to give back. */
	__u64 returned;
	/* Threads sent to cores of other programs, which were idle. */
	__u64 borrowed;
};

/* No CPU's lie in another's cache line. */
struct cpu_tally {
	struct tally tally;
} __attribute__((aligned(64)));

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
