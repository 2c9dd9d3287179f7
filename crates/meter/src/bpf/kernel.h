/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Declares the fields of kernel structures that the BPF programs read. libbpf
 * relocates each access for the running kernel (CO-RE). Therefore the order of
 * the fields has no meaning, and unused fields are left out.
 */
#ifndef USHER_METER_KERNEL_H
#define USHER_METER_KERNEL_H

#include "shared.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

/*
 * Constants of include/uapi/linux/bpf.h. The constants are copied, because
 * Debian's copy of this header also includes headers of glibc.
 */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,

	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

#define CLOCK_MONOTONIC 1

/* A timer in a map's value. The kernel recognises this type by its name. */
struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

/*
 * A bit of task_struct.flags, from include/linux/sched.h. The value has not
 * changed since the beginning of the kernel's git history.
 */
#define PF_KTHREAD 0x00200000

/* A value of task_struct.policy, from include/uapi/linux/sched.h. */
#define SCHED_IDLE 5

#define AF_INET 2
#define AF_INET6 10
#define EAGAIN 11
/* States of a connection, include/net/tcp_states.h. */
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7
/*
 * Index of the loopback interface in each network namespace, which
 * net/core/dev.c guarantees.
 */
#define LOOPBACK_IFINDEX 1

/* Parts of bio.bi_opf: the operation is in the low bits, followed by flags. */
#define REQ_OP_MASK 0xff
#define REQ_OP_READ 0

enum req_flag_bits {
	__REQ_SYNC = 11,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[];
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct sched_info {
	/* Nanoseconds that the thread has spent waiting on run queues, in waits that
	 * have ended. */
	unsigned long long run_delay;
};

struct cfs_rq {
	unsigned int h_nr_runnable;
	unsigned int h_nr_idle;
	struct rq *rq;
};

struct rq {
	unsigned int nr_running;
	struct cfs_rq cfs;
	int cpu;
	int online;
};

/* Layout of struct cfs_rq in kernels before 6.13. */
struct cfs_rq___6_13 {
	unsigned int h_nr_running;
	unsigned int idle_h_nr_running;
};

struct rq___6_13 {
	struct cfs_rq___6_13 cfs;
};

/* Layout of struct cfs_rq in kernels 6.12 and 6.13. */
struct cfs_rq___6_12 {
	unsigned int h_nr_delayed;
};

struct rq___6_12 {
	struct cfs_rq___6_12 cfs;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	/* Exists only with CONFIG_FAIR_GROUP_SCHED. */
	struct cfs_rq *cfs_rq;
};

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	unsigned int policy;
	struct task_struct *group_leader;
	/*
	 * Start of the task, in nanoseconds of the clock of bpf_ktime_get_ns().
	 */
	__u64 start_time;
	struct css_set *cgroups;
	struct sched_info sched_info;
	struct sched_entity se;
	char comm[COMM_BYTES];
};

struct gendisk {
	int major;
	int first_minor;
};

struct block_device {
	struct gendisk *bd_disk;
};

struct bvec_iter {
	unsigned int bi_size;
};

struct bio {
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	struct bvec_iter bi_iter;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct dst_entry {
	struct net_device *dev;
};

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	unsigned short skc_family;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	/* 0 if the kernel has not generated a cookie for this socket yet. */
	atomic64_t skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	int sk_rx_dst_ifindex;
};

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
};

struct bpf_iter__task {
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
