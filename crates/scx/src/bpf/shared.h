/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Interface between the BPF programs and user space: the values of the maps
 *
 * User space writes settings and seats, and reads counters, the state of threads and the report of
 * the scheduler's end. `struct place`, the table of the topology, is in sets.h. The counterpart in
 * user space is src/layout.rs. User space compares the sizes of the values when it opens the maps,
 * and tests compare the offset of each field. Names of times end in _ns; vtime (CPU time over
 * weight) is in nanoseconds too.
 */
#ifndef USHER_SCX_SHARED_H
#define USHER_SCX_SHARED_H

#include "sets.h"

/*
 * Upper limit of NUMA nodes with idle masks of their own. A set of nodes is a bitmask in one 64-bit
 * word.
 */
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
	/*
	 * Largest vtime by which the address space that has the turn may get ahead of waiting
	 * threads.
	 */
	__u64 max_lag_ns;
	/*
	 * 1: idle cores come before idle CPUs of busy cores, and threads migrate from shared cores
	 * to idle cores.
	 */
	__u32 smt;
	/* 1: threads of one address space run one after another, in turns. */
	__u32 aggregate;
	/* Number of LLCs with run queues of their own. */
	__u32 llcs;
	__u32 unused;
};

/*
 * Variant of the scheduler. It is constant from the load of the BPF programs on, so that the kernel
 * removes the code of the other variants.
 */
struct variant {
	/* 1: the scheduler has one queue in FIFO order, and no other feature. */
	__u32 fifo;
	/* Number of classes of CPUs by capacity (capacity.h); 0 is the same as 1. */
	__u32 classes;
	/*
	 * Bitmask of the nodes for which the kernel keeps separate masks of idle CPUs; 0: the
	 * kernel keeps one mask for all nodes.
	 */
	__u64 nodes;
	/* Number of words of a CPU set that contain CPUs of this machine. */
	__u64 cpu_words;
	/* 1: CPUs of this machine are isolated (isolation.h). */
	__u64 isolates;
};

/*
 * Soft seat: the preferred CPUs of a program, which is identified by its cgroup. On other CPUs,
 * threads of the program are borrowers, which threads that prefer the CPU preempt.
 */
struct seat {
	struct cpu_set cpus;
	char name[NAME_BYTES];
};

/* Counters of a seat, kept separately for each CPU on which threads of the seat ran. */
struct seat_tally {
	/*
	 * CPU time of the seat's threads on the CPUs of the seat (home_ns), and as borrowers on
	 * other CPUs (guest_ns).
	 */
	__u64 home_ns;
	__u64 guest_ns;
	/* Preemptions of borrowers by threads of this seat. */
	__u64 returns;
	/*
	 * Histogram of the latency of these preemptions, from the claim of the CPU until the thread
	 * runs; see slot_of().
	 */
	__u64 return_latency[LATENCY_SLOTS];
};

/* Version of the seats, which user space updates after each change. */
struct seating {
	/* A new number after each change of the seats; 0: there are no seats. */
	__u64 version;
};

/* State of the quotas of cgroups. */
struct limit_table {
	/* A new number after each quota that is added or removed; 0: there was no quota yet. */
	__u32 version;
	/* Number of changes of quotas. Waiting threads lose their grants at each change. */
	__u32 epoch;
	/* Number of CPUs that may share a quota. */
	__u32 cpus;
	/* Number of park queues that exist, and that belong to a cgroup with a quota. */
	__u32 created;
	__u32 used;
	__u32 unused;
	/* Number of quotas that were rejected, and the cgroup of the last of them. */
	__u64 rejected;
	__u64 rejected_cgroup;
};

/* Reason why a thread runs on its CPU, or waits in its queue. */
enum why {
	WHY_UNKNOWN,
	/* The thread may run on no other CPU. */
	WHY_ONLY_HERE,
	WHY_IDLE_CORE,
	WHY_IDLE_THREAD,
	/* The CPU is a preferred CPU, and the thread has reclaimed it from a borrower. */
	WHY_RETURNED,
	/* The thread comes from the queue of its address space. */
	WHY_TURN,
	WHY_URGENT,
	/* The CPU has taken the thread from a queue of another LLC. */
	WHY_STOLEN,
	/* No other thread was runnable on the CPU. */
	WHY_ALONE,
	WHY_FIFO,
	/* A cgroup of the thread has used up its quota (cpu.max). */
	WHY_THROTTLED,
	/* The core was idle, and is faster than the core on which the thread ran before. */
	WHY_FASTER_CORE,
	/* The thread may run on isolated CPUs only. */
	WHY_ISOLATED,
};

/* Reason for the LLC of a thread when it last woke, or started (placement.h). */
enum placement {
	PLACED_UNKNOWN,
	/* The thread is new, and the load of its parent's LLC was low enough. */
	PLACED_NEW_NEAR,
	/* The thread is new, and the LLC had the least load. */
	PLACED_NEW_IDLEST,
	/* The thread woke, and found a CPU in its LLC, in its node, or in another node. */
	PLACED_SAME_LLC,
	PLACED_SAME_NODE,
	PLACED_OTHER_NODE,
	/* The thread woke, and exchanges data with the thread that woke it. */
	PLACED_WAKER,
	/* The thread woke while no CPU was free for it, and waits in its LLC. */
	PLACED_WAITS,
};

/* Counter in which a thread is counted as runnable (groups.h). */
struct counted {
	__u32 group;
	__u32 llc;
	/* Weight that the thread has added to the counter; 0: the thread is not counted. */
	__u32 weight;
	__u32 unused;
};

/* State of a thread. */
struct thread {
	/*
	 * CPU time over weight, relative to the clock of `llc`. May overflow: only differences
	 * count.
	 */
	__u64 vtime;
	/* Part of the kernel's sum_exec_runtime that has been charged to the thread. */
	__u64 counted_ns;
	/*
	 * CPU time since the last sleep (burst_ns), and the average length of earlier bursts
	 * (burst_after()).
	 */
	__u64 burst_ns;
	__u64 burst_average_ns;
	/*
	 * vtime minus the LLC's clock when the thread last ran or woke. A positive lag means that
	 * the thread has had more than its share.
	 */
	__s64 lag_ns;
	/*
	 * Cgroup of the program's seat, as read at the time seat_found_ns from the version
	 * seat_version of the seats; 0: the program has no seat.
	 */
	__u64 cgroup;
	__u64 seat_version;
	__u64 seat_found_ns;
	/* Same as `cgroup`, but 0 if the thread may run on no CPU of the seat. */
	__u64 seat;
	/* Time at which the thread preempted a borrower; 0 after the thread has started to run. */
	__u64 returning_ns;
	/* Queue in which the thread waits, or NO_QUEUE. */
	__u32 queue;
	/* 1: the thread is urgent, and waits in the urgent queue (enqueue.h). */
	__u32 urgent;
	/* CPU on which the thread last started to run, and the reason for that CPU. */
	__u32 cpu;
	enum why why;
	/* LLC of the clock to which the vtime refers. */
	__u32 llc;
	/* Factor of the thread's weight by the shares of its cgroups (groups.h). */
	__u32 group_weight;
	/* Time at which the thread last examined its quotas, in ticks (jiffies). */
	__u64 limits_read_at_ticks;
	/* Address space, as of the last call of mm_id(). */
	__u64 mm;
	/* CPU to which the thread was pinned at the last enqueue, counted from 1; 0: not pinned. */
	__u32 pinned_cpu;
	/* Number of the thread's family: the process that is its origin (share.h); 0: no family. */
	__u32 family;
	/* Part of the family's vtime in the LLC `llc` that comes from this thread. */
	__u64 family_ns;
	/* Part of `vtime` by which the thread waits for its family; removed when it has run. */
	__u64 family_wait_ns;
	/*
	 * Nearest cgroup of the thread with a quota, as of the version `limits_version` of the
	 * quotas; 0: none has a quota.
	 */
	__u64 limit;
	__u32 limits_version;
	/* Epoch of the grant (struct limit_table). */
	__u32 granted_epoch;
	/*
	 * CPU time that the thread may use in its next run, taken from the quotas at the time
	 * granted_at_ns; void from granted_until_ns on. 0: none.
	 */
	__u64 granted_ns;
	__u64 granted_at_ns;
	__u64 granted_until_ns;
	/*
	 * Cgroup whose quota was exhausted at the last attempt to take a grant. A parked thread
	 * waits in the park queue of this cgroup, since parked_at_ns.
	 */
	__u64 throttled_by;
	__u64 parked_at_ns;
	/* Number of the thread's cgroup in `g_groups`. */
	__u32 group;
	/* 1: the thread is the first thread of a process that was forked. */
	__u32 is_process;
	/* Counter of the thread while it waits. */
	struct counted counted;
	/* Reason for the LLC `placed_llc`. */
	enum placement placed;
	__u32 placed_llc;
	/* Number of the thread that last woke this thread by a synchronous wake-up. */
	__u32 waker;
	/* Capacity of the CPU; 0: all CPUs have the same capacity (capacity.h). */
	__u32 capacity;
	/* vtime at which a preempted young thread waits again (note_resume()); 0: none. */
	__u64 resume_vtime;
};

/* Counters of one CPU since the scheduler started. */
struct tally {
	/* Threads that started to run. */
	__u64 switches;
	/*
	 * Switches to a user thread after a user thread of another address space on the same CPU.
	 */
	__u64 space_switches;
	/* Threads placed on an idle core, and on an idle CPU of a busy core. */
	__u64 idle_cores;
	__u64 idle_threads;
	/*
	 * Threads enqueued in the queues of address spaces; `soon` counts threads enqueued in the
	 * urgent queues.
	 */
	__u64 queued;
	/*
	 * Slices extended because no other thread was runnable on the CPU; `turns_kept` counts
	 * slices extended although threads waited.
	 */
	__u64 prolonged;
	__u64 turns_kept;
	/* Threads taken from the queues of another LLC. */
	__u64 stolen;
	/* Kicks by which an idle core pulls a thread from a shared core. */
	__u64 pulls;
	/* Threads moved to an idle CPU without a sleep. */
	__u64 moved;
	__u64 soon;
	/* Kicks by which an urgent thread preempts another thread. */
	__u64 preempted;
	/* CPUs reclaimed from borrowers. */
	__u64 returned;
	/* Threads placed on idle CPUs outside their seats. */
	__u64 borrowed;
};

/* Aligned, so that the counters of two CPUs are in different cache lines. */
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
	/* As `space_switches`, but a kernel thread in between counts as another address space. */
	__u64 mm_changes;
	/*
	 * Migrations by distance: within a core, between cores of an LLC, between LLCs of a node,
	 * and to another node.
	 */
	__u64 migrations_core;
	__u64 migrations_llc;
	__u64 migrations_node;
	__u64 migrations_far;
	__u64 wakeups;
	__u64 latency[LATENCY_SLOTS];
};

/* Durations of the sharing of cores, on the whole machine. */
struct sharing {
	/* Time during which at least one core ran two or more threads. */
	__u64 shared_ns;
	/* Part of `shared_ns` during which another core was idle. */
	__u64 needless_ns;
	__u64 since_ns;
	/* Low word: number of idle cores. High word: number of shared cores. */
	__u64 cores;
};

#endif
