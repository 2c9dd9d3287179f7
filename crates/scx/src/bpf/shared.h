/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface between the BPF programs and user space: the values of the maps
 *
 * User space writes settings and seats, and reads counters, the state of threads and the report of
 * the end. `struct place`, the table of the topology, is in sets.h. The counterpart in user space
 * is src/layout.rs. It compares sizes when it opens the maps; its tests compare the offset of each
 * field. Names of times end in _ns; vtime (CPU time over weight) is in nanoseconds too.
 */
#ifndef USHER_SCX_SHARED_H
#define USHER_SCX_SHARED_H

#include "sets.h"

/* NUMA nodes with idle masks of their own, as bits of one word. */
#define NODES_MAX 64
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024
#define DUMP_BYTES 131072
/* Upper limit of programs with a seat. */
#define SEATS_MAX 256
#define NAME_BYTES 32

/* Settings that user space may change at any time; read at every decision. */
struct settings {
	/* Time for which a thread runs before the CPU selects again. */
	__u64 slice_ns;
	/* Longest turn of an address space. */
	__u64 turn_ns;
	/* Largest vtime by which the address space may get ahead of waiting threads. */
	__u64 max_lag_ns;
	/* 1: idle cores come before idle CPUs of busy cores, and threads leave shared cores. */
	__u32 smt;
	/* 1: threads of one address space run one after another, in turns. */
	__u32 aggregate;
	/* Number of LLCs with run queues of their own. */
	__u32 llcs;
	__u32 unused;
};

/* Variant, fixed when the program is loaded: code of the other variants is removed. */
struct variant {
	/* One queue in FIFO order, without any other feature. */
	__u32 fifo;
	__u32 unused;
	/* Bitmask of nodes with idle masks of their own in the kernel; 0: one mask for all. */
	__u64 nodes;
	/* Words of a CPU set that contain CPUs of this machine. */
	__u64 cpu_words;
};

/*
 * Soft seat: the preferred CPUs of a program, which is identified by its cgroup. On other CPUs its
 * threads are borrowers and are preempted on demand.
 */
struct seat {
	struct cpu_set cpus;
	char name[NAME_BYTES];
};

/* Counters of a seat, for each CPU that its threads ran on. */
struct seat_tally {
	/* CPU time on the CPUs of the seat, and as borrowers on other CPUs. */
	__u64 home_ns;
	__u64 guest_ns;
	/* Preemptions of borrowers by threads of this seat. */
	__u64 returns;
	/* Histogram of the latency from such a wake-up until the thread ran; see slot_of(). */
	__u64 return_latency[LATENCY_SLOTS];
};

/* Updated after each change of the seats. */
struct seating {
	/* Changes with the seats; 0: there are no seats. */
	__u64 version;
};

/* Reason for the CPU on which a thread runs. */
enum why {
	WHY_UNKNOWN,
	/* It may run on no other CPU. */
	WHY_ONLY_HERE,
	WHY_IDLE_CORE,
	WHY_IDLE_THREAD,
	/* A preferred CPU, reclaimed from a borrower. */
	WHY_RETURNED,
	/* From the queue of its address space. */
	WHY_TURN,
	WHY_URGENT,
	/* From a queue of another LLC. */
	WHY_STOLEN,
	/* No other thread was runnable. */
	WHY_ALONE,
	WHY_FIFO,
};

/* State of a thread. */
struct thread {
	/*
	 * CPU time over weight, relative to the clock of `llc`. May overflow: only differences
	 * count.
	 */
	__u64 vtime;
	/* Part of the kernel's sum_exec_runtime that is charged. */
	__u64 counted_ns;
	/* CPU time since the last sleep, and its average over earlier bursts (burst_after()). */
	__u64 burst_ns;
	__u64 burst_average_ns;
	/*
	 * vtime minus the LLC's clock when the thread last ran or woke; positive: more than its
	 * share.
	 */
	__s64 lag_ns;
	/* Cgroup of the program's seat; 0: none. Read at seat_found_ns, as of seat_version. */
	__u64 cgroup;
	__u64 seat_version;
	__u64 seat_found_ns;
	/* Same as `cgroup`, but 0 if the thread may run on no CPU of the seat. */
	__u64 seat;
	/* Time at which the thread preempted a borrower; 0 once it runs. */
	__u64 returning_ns;
	/* Queue in which the thread waits, or NO_QUEUE. */
	__u32 queue;
	/* 1: waits in the urgent queue (enqueue.h). */
	__u32 urgent;
	/* CPU on which it last started to run, and the reason. */
	__u32 cpu;
	enum why why;
	/* LLC of the clock that the vtime refers to. */
	__u32 llc;
	/* Product of the weights of its cgroups, in per cent. */
	__u32 group_weight;
	/* Time of the last update of `group_weight`. */
	__u64 weight_read_at_ticks;
	/* Address space, as of the last call of mm_id(). */
	__u64 mm;
	/* CPU to which it is pinned, counted from 1, as of the last enqueue; 0: not pinned. */
	__u32 pinned_cpu;
	/* Process whose children share a vtime while they are young; 0: none. */
	__u32 family;
	/* Part of its family's vtime that comes from this thread, in the LLC `llc`. */
	__u64 family_ns;
	/* Part of `vtime` by which the thread waits for its family; removed when it has run. */
	__u64 family_wait_ns;
};

/* Counters of one CPU since the scheduler started. */
struct tally {
	/* Threads that started to run. */
	__u64 switches;
	/* A user thread followed one of another address space on that CPU. */
	__u64 space_switches;
	/* Threads placed on an idle core, and on an idle CPU of a busy core. */
	__u64 idle_cores;
	__u64 idle_threads;
	/* Enqueued in the queues of address spaces; `soon`: in the urgent queue. */
	__u64 queued;
	/* Slices extended because no thread waited; `turns_kept`: although threads waited. */
	__u64 prolonged;
	__u64 turns_kept;
	/* Threads taken from the queues of another LLC. */
	__u64 stolen;
	/* Kicks by which an idle core pulls a thread from a shared core. */
	__u64 pulls;
	/* Threads moved to an idle CPU without a sleep. */
	__u64 moved;
	__u64 soon;
	/* Kicks by which an urgent thread preempts. */
	__u64 preempted;
	/* CPUs reclaimed from borrowers. */
	__u64 returned;
	/* Threads placed on idle CPUs outside their seats. */
	__u64 borrowed;
};

/* Aligned, so that CPUs do not share a cache line. */
struct cpu_tally {
	struct tally tally;
} __attribute__((aligned(CACHE_LINE)));

/* Report of the end of the scheduler. */
struct ending {
	__u64 kind;
	__s64 code;
	char reason[REASON_BYTES];
	char message[MESSAGE_BYTES];
};

/* Counters of a CPU under any scheduler; count.bpf.c defines each event. */
struct counts {
	__u64 switches;
	__u64 space_switches;
	/* Same, with a kernel thread in between counted as an address space. */
	__u64 mm_changes;
	/* By distance: within the core, the LLC, the node, and to another node. */
	__u64 migrations_core;
	__u64 migrations_llc;
	__u64 migrations_node;
	__u64 migrations_far;
	__u64 wakeups;
	__u64 latency[LATENCY_SLOTS];
};

/* Durations over the whole machine. */
struct sharing {
	/* At least one core ran two or more threads. */
	__u64 shared_ns;
	/* Same, while another core was idle. */
	__u64 needless_ns;
	__u64 since_ns;
	/* Low word: number of idle cores. High word: number of shared cores. */
	__u64 cores;
};

#endif
