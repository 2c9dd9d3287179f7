/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Declarations of the kernel for the host build
 *
 * This file replaces scx/src/bpf/kernel.h and defines the include guard of that file. It declares
 * the same structures, constants and functions. kfuncs.h implements these functions, on the queues
 * and CPUs of one instance. Properties that the BPF build reads from the running kernel (CO-RE) are
 * fixed here: the host behaves like the newest kernel. bpf_for() also counts loop iterations, so
 * that tests check upper limits for the cost of callbacks.
 *
 * The file only declares; kfuncs.h states the cost of the functions. A read of a field always
 * succeeds, except that bpf_probe_read_kernel() fails for addresses below 4,096.
 */
#ifndef USHER_SCX_KERNEL_H
#define USHER_SCX_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shared.h"

/* Words of CPU sets that callbacks visit count as loop iterations. */
static void host_count_words(__u64 words);
#define count_words(words) host_count_words(words)

#define SEC(name)
#define OP(name) static
#define OP_SLEEPABLE(name) static
#define BPF_PROG(name, ...) name(__VA_ARGS__)
#define ALWAYS static inline
#define __noinline static __attribute__((noinline))
#define barrier_var(value)

#define PF_KTHREAD 0x00200000
#define CLOCK_MONOTONIC 1
#define BPF_NOEXIST 1

/* There is no other CPU, so that locks do nothing. */
struct bpf_spin_lock {
	__u32 val;
};
#define bpf_spin_lock(lock) ((void)(lock))
#define bpf_spin_unlock(lock) ((void)(lock))
#define bpf_rcu_read_lock()
#define bpf_rcu_read_unlock()

/* A timer, which host_run_timers() lets expire. */
struct bpf_timer {
	/* 0: the timer is not armed. */
	__u64 expires_ns;
	int (*callback)(void *map, __u32 *key, void *value);
};
#define bpf_timer_init(timer, map, clock) ((void)(timer))
#define bpf_timer_set_callback(timer, call) \
	((timer)->callback = (int (*)(void *, __u32 *, void *))(call))
#define bpf_timer_start(timer, ns, flags) host_start_timer(timer, ns)
static void host_start_timer(struct bpf_timer *timer, __u64 ns);

/* Values of the kernel's constants in Linux 6.12 to 7.1. */
#define DSQ_LOCAL (1ULL << 63 | 2)
#define DSQ_LOCAL_ON (3ULL << 62)
#define ENQ_WAKEUP 1ULL
#define ENQ_PREEMPT (1ULL << 32)
#define ENQ_REENQ (1ULL << 40)
#define ENQ_LAST (1ULL << 41)
/* Kernels before Linux 7.1 do not have this flag (host_set_immediate()). */
#define ENQ_IMMED host_enq_immed()
#define TASK_QUEUED 1U
#define WAKE_FORK 4ULL
#define WAKE_SYNC 16ULL
#define KICK_IDLE 1ULL
#define KICK_PREEMPT 2ULL
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1

struct cpumask {
	unsigned long bits[CPU_WORDS];
};

#include "kernel_types.h"

/* A dispatch queue (DSQ): a list, ordered by virtual time for insertions with a vtime. */
struct dsq {
	struct task_struct *first, *last;
	__u32 waiting;
	_Bool is_created;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int pid;
	int tgid;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	struct mm_struct *mm;
	struct css_set *cgroups;
	struct task_group *sched_task_group;
	struct sched_entity se;
	struct sched_ext_entity scx;

	/*
	 * Fields that only the host build has: targets of the pointers above, and the task's queue.
	 */
	__u32 id, is_used;
	struct cpumask cpus;
	struct thread storage;
	struct css_set css;
	struct cgroup cgroup;
	struct kernfs_node node;
	struct task_group group;
	struct dsq *in;
	struct task_struct *before, *behind;
	/*
	 * Dispatch queue into which a callback has inserted the task, and flags of the insertion;
	 * 0: no callback has inserted the task yet.
	 */
	__u64 to_dsq, to_flags;
	_Bool by_vtime;
	/* 1: dispatched to a local queue with ENQ_IMMED. */
	_Bool is_immediate;
};

/* BPF_CORE_READ() of one to three fields, as plain loads. */
#define READ_1(p, a) ((p)->a)
#define READ_2(p, a, b) ((p)->a->b)
#define READ_3(p, a, b, c) ((p)->a->b->c)
#define READ_FOURTH(_1, _2, _3, name, ...) name
#define BPF_CORE_READ(p, ...) \
	READ_FOURTH(__VA_ARGS__, READ_3, READ_2, READ_1, 0)(p, __VA_ARGS__)
/* Whether the simulated kernel reports the quotas of cgroups (host_hide_quotas()). */
static _Bool host_reports_quotas(void);
#define KERNEL_REPORTS_QUOTAS host_reports_quotas()
#define bpf_core_field_exists(field) (sizeof(field) > 0)
#define bpf_core_field_offset(type, field) offsetof(type, field)
#define bpf_ksym_exists(name) 1

/*
 * The scheduler's BPF maps. host_lookup() distinguishes them by the addresses of these variables.
 */
extern const char host_threads, host_seats, host_seat_tallies, host_limits,
	host_parks, host_slice_timers, host_group_numbers, host_group_timers;
#define limits host_limits
#define parks host_parks
#define slice_timers host_slice_timers
#define group_numbers host_group_numbers
#define group_timers host_group_timers
#define threads host_threads
#define seats host_seats
#define seat_tallies host_seat_tallies
#define bpf_map_lookup_elem(map, key) host_lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) host_update(map, key, value)
#define bpf_map_delete_elem(map, key) host_delete(map, key)
#define bpf_task_storage_get(map, p, init, create) (&(p)->storage)

struct limit;
__noinline void *host_lookup(const char *map, const void *key);
static int host_update(const char *map, const __u64 *key, const void *value);
static int host_delete(const char *map, const __u64 *key);
static __u32 bpf_get_smp_processor_id(void);
static struct task_struct *bpf_get_current_task_btf(void);
static __u32 bpf_get_prandom_u32(void);
static __u64 bpf_jiffies64(void);
static int bpf_probe_read_kernel(void *to, __u32 bytes, const void *from);
static _Bool bpf_cpumask_empty(const struct cpumask *mask);
static _Bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *mask);

static __u64 host_enq_immed(void);
static __u32 scx_bpf_reenqueue_local(void);
static __s32 scx_bpf_create_dsq(__u64 dsq, __s32 node);
static __s32 scx_bpf_dsq_nr_queued(__u64 dsq);
static void scx_bpf_kick_cpu(__s32 cpu, __u64 flags);
static const struct cpumask *scx_bpf_get_idle_cpumask(void);
static const struct cpumask *scx_bpf_get_idle_smtmask(void);
static const struct cpumask *scx_bpf_get_idle_cpumask_node(__s32 node);
static const struct cpumask *scx_bpf_get_idle_smtmask_node(__s32 node);
static void scx_bpf_put_idle_cpumask(const struct cpumask *mask);
static _Bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu);
static __u32 scx_bpf_nr_cpu_ids(void);

static __u64 now_ns(void);
static void insert(struct task_struct *p, __u64 dsq, __u64 slice, __u64 flags);
static void insert_at(struct task_struct *p, __u64 dsq, __u64 slice,
		      __u64 vtime, __u64 flags);
static _Bool take(__u64 dsq);
static __u64 first_vtime(__u64 dsq, __u64 none);

static inline __u32 cpu_of(const struct task_struct *p)
{
	return p->thread_info.cpu;
}

static inline void set_slice(struct task_struct *p, __u64 slice)
{
	p->scx.slice = slice;
}

struct bpf_iter_scx_dsq {
	struct task_struct *next;
};

static _Bool move(struct bpf_iter_scx_dsq *it, struct task_struct *p,
		  __u64 dsq);
static _Bool move_at(struct bpf_iter_scx_dsq *it, struct task_struct *p,
		     __u64 dsq, __u64 vtime);
static int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq,
				__u64 flags);
static struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it);
static inline void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it)
{
	it->next = 0;
}

/*
 * bpf_for() counts each iteration of a loop of unknown length, so that tests check the cost of
 * callbacks.
 */
static void host_count_iteration(void);
#define bpf_for(at, begin, end) \
	for ((at) = (begin); (at) < (end); host_count_iteration(), (at)++)

/* Simulates another CPU that advances a vtime clock between the load and the compare-and-swap. */
static void host_before_swap(__u64 *clock);
#define before_swap(clock) host_before_swap(clock)

/* Places of the CPUs of the instance that the calling thread has entered. */
static __thread struct place *g_places;

#endif
