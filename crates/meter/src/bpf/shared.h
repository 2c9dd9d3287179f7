/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the programs and user space tell one another: the keys and values of
 * their maps. src/layout.rs is the other side, and sizes are compared as the maps
 * are opened.
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

/* Who uses something. A number of a program is never used again. */
enum party {
	FOREGROUND = 0,
	IGNORED = 1,
	FIRST_PROGRAM = 2,
};

/* The orders that user space gives, in one place. */
struct control {
	/* Threads that are older were there before metering began. */
	__u64 begun_ns;
	/* Which second it is, for the list of users. */
	__u64 epoch;
	/* The bell rings if background work used the device this recently. */
	__u64 recent_ns;
	/* Bit n: a cgroup n levels below the root is a program's. */
	__u32 levels;
	/* Processes are told apart by their parents as well. */
	__u32 kin;
	/* How many programs there are. */
	__u32 programs;
	/* The meter's own process; the iterator finds it out. */
	__u32 own_tgid;
	/* The bell rings, too, when a CPU has become idle. */
	__u32 vacancies;
	/* Crowds are looked for. */
	__u32 crowds;
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
	__u32 party;
	struct disk disk;
};

struct disk_use {
	__u64 requests;
	__u64 sync_sectors;
	__u64 async_sectors;
	__u64 last_ns;
};

struct link {
	/* 0: not known. */
	__u32 ifindex;
	/* Indices are a network namespace's own. */
	__u32 netns;
};

struct link_key {
	__u32 party;
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

/* A device of either kind; the numbers are those of struct disk or link. */
struct device {
	__u32 kind;
	__u32 a;
	__u32 b;
};

struct user_key {
	__u32 tgid;
	struct device device;
};

/* Nanoseconds, sectors or bytes of a process in this epoch and the last. */
struct user_use {
	__u64 epoch;
	__u64 now;
	__u64 before;
	__u32 party;
	__u32 unused;
	char comm[COMM_BYTES];
};

/* What the watch on the run queues has seen. */
struct crowds {
	/* How often threads crowded on one CPU beside background work. */
	__u64 found;
	/* Since when a CPU has been vacant at every look; 0: all are busy. */
	__u64 vacant_since_ns;
	/* How many were vacant at least, all that time. */
	__u32 vacant_cpus;
	/* Whether the bell has rung for it. */
	__u32 vacancy_told;
	/* CPUs whose queues are known: their number, and a bound of theirs. */
	__u32 queues;
	__u32 cpus;
	/* Looks ever made, and how long they took. */
	__u64 looks;
	__u64 looks_ns;
	/* This look: CPUs without work, those that run background work alone, and
	 * those on which a crowd is to be told of. */
	__u32 idle;
	__u32 background;
	__u32 crowds;
	/* Whether the last look found background work and no idle CPU. */
	__u32 was_full;
	/* Since when no CPU has run anything but background work, but for single
	 * looks; 0: some do. */
	__u64 alone_since_ns;
	/* This look: CPUs that run anything else; for how many looks some have. */
	__u32 others;
	__u32 others_looks;
};

/* What could not be counted. */
enum lost {
	LOST_THREAD = 0,
	LOST_DEVICE = 1,
	LOST_KIN = 2,
	LOSSES = 3,
};

#endif
