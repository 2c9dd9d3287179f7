/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Defines the keys and values of the BPF maps that the BPF programs share with
 * user space. src/layout.rs contains the same definitions in Rust. User space
 * compares the sizes when it opens the maps. A sector has 512 bytes. Fields
 * with the suffix _ns contain nanoseconds; times are those of
 * bpf_ktime_get_ns(). The fields of cpu_use, disk_use and link_use only
 * increase.
 */
#ifndef USHER_METER_SHARED_H
#define USHER_METER_SHARED_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#define COMM_BYTES 16

/*
 * The owner to which the use of a resource is charged. Values from
 * FIRST_PROGRAM on are background programs. The number of a program is never
 * reused.
 */
enum owner_class {
	FOREGROUND = 0,
	IGNORED = 1,
	FIRST_PROGRAM = 2,
};

/* Configuration, written by user space. */
struct bpf_config {
	/* Start of metering. Use before this time is not counted. */
	__u64 start_ns;
	/* Current epoch (second) of the process_uses map. */
	__u64 epoch;
	/* Foreground use of a device causes a notification if background work
	 * has used the device within this time before. */
	__u64 recent_ns;
	/* Bit n is set if the cgroup of a background program is n levels below the
	 * root. */
	__u32 cgroup_levels;
	/* Nonzero if a background program has no cgroup and is tracked by pid_map. */
	__u32 tracks_pids;
	/* Number of background programs. */
	__u32 programs;
	/* Pid of the meter's process in the initial pid namespace; set by the
	 * iterator. */
	__u32 own_tgid;
	/* Nonzero if user space requests notifications of vacant CPUs. */
	__u32 notify_vacancies;
	/*
	 * Nonzero if user space requests notifications of run-queue imbalances.
	 */
	__u32 notify_imbalances;
};

struct cpu_use {
	__u64 run_ns;
	__u64 wait_ns;
};

struct disk {
	__u32 major;
	__u32 minor;
};

struct disk_key {
	__u32 owner;
	struct disk disk;
};

struct disk_use {
	__u64 requests;
	__u64 sync_sectors;
	__u64 async_sectors;
	__u64 last_ns;
};

struct link {
	/* Index of the interface; 0 if the route is unknown. */
	__u32 ifindex;
	/*
	 * Network namespace of the interface. Interface indices are unique only
	 * within a namespace.
	 */
	__u32 netns;
};

struct link_key {
	__u32 owner;
	struct link link;
};

struct link_use {
	__u64 sends;
	__u64 sent_bytes;
	__u64 receives;
	__u64 received_bytes;
	__u64 packets;
	__u64 last_ns;
};

enum kind {
	CPU = 0,
	DISK = 1,
	LINK = 2,
};

/*
 * The CPUs, a disk or a link. For a disk or link, a and b are the fields of
 * struct disk or struct link.
 */
struct device {
	__u32 kind;
	__u32 a;
	__u32 b;
};

struct process_key {
	__u32 tgid;
	struct device device;
};

/* Nanoseconds, sectors or bytes used by a process. */
struct process_use {
	__u64 epoch;
	/* Use in `epoch`. */
	__u64 current;
	/* Use in the epoch before `epoch`. */
	__u64 previous;
	__u32 owner;
	__u32 unused;
	char comm[COMM_BYTES];
};

/* State of the periodic run-queue scan. */
struct rq_scan {
	/* Imbalances reported since metering started. */
	__u64 imbalances;
	/*
	 * Time since which all scans have found a vacant CPU; 0 if no CPU is
	 * vacant.
	 */
	__u64 vacant_since_ns;
	/* Minimum number of vacant CPUs since vacant_since_ns. */
	__u32 vacant_cpus;
	/* Nonzero if user space has been notified of the present vacancy. */
	__u32 vacancy_notified;
	/*
	 * Number of known run queues. `cpus` is an upper bound of their CPU
	 * numbers.
	 */
	__u32 queues;
	__u32 cpus;
	/* Number of scans; `scans_ns` is their total run time. */
	__u64 scans;
	__u64 scans_ns;
	/* Results of the current scan: number of CPUs without work, of CPUs that run
	 * only background work, and of CPUs with an imbalance to report. */
	__u32 idle;
	__u32 background;
	__u32 reports;
	/* Nonzero if the last scan found background work and no idle CPU. */
	__u32 was_full;
	/* Time since which all CPUs have run only background work, apart from
	 * isolated scans that found other work; 0 if a CPU runs other work. */
	__u64 background_only_since_ns;
	/* Number of CPUs with other work in the current scan. `others_scans` is
	 * the number of consecutive scans that found such a CPU. */
	__u32 others;
	__u32 others_scans;
};

/* Events that could not be counted. */
enum lost {
	LOST_THREAD = 0,
	LOST_DEVICE = 1,
	LOST_PROCESS = 2,
	/* Uses of the CPU by an owner without an entry in cpu_uses. */
	LOST_OWNER = 3,
	LOSSES = 4,
};

#endif
