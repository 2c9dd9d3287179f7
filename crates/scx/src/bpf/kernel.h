/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Declarations of the kernel's structures and functions, as far as the BPF programs use them
 *
 * libbpf locates the fields and functions in the running kernel (CO-RE), so that the order of
 * fields and omitted fields do not matter. A function that changed between Linux 6.12 and 7.3 is
 * declared in each of its forms, as a weak symbol. A wrapper in this file, such as insert(), calls
 * the form that the running kernel has. The suffixes ___here and ___v1 distinguish the forms:
 * libbpf drops the last ___word of a name. Names of the kernel itself may end in ___v2.
 */
#ifndef USHER_SCX_KERNEL_H
#define USHER_SCX_KERNEL_H

#include "shared.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,

	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

#define PF_KTHREAD 0x00200000
#define CLOCK_MONOTONIC 1

struct bpf_spin_lock {
	__u32 val;
};

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

/* For functions that run at every context switch, where a function call would double the cost. */
#define ALWAYS static inline __attribute__((always_inline))

/* Declares a callback of sched_ext; OP_SLEEPABLE declares a callback that may sleep. */
#define OP(name) SEC("struct_ops/" #name)
#define OP_SLEEPABLE(name) SEC("struct_ops.s/" #name)

enum scx_dsq_id_flags {
	SCX_DSQ_LOCAL = 1,
	SCX_DSQ_LOCAL_ON = 2,
};

enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1,
	SCX_ENQ_LAST = 3,
	SCX_ENQ_PREEMPT = 4,
	SCX_ENQ_REENQ = 5,
	SCX_ENQ_IMMED = 6,
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1,
};

enum scx_wake_flags {
	SCX_WAKE_FORK = 1,
	SCX_WAKE_SYNC = 2,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
};

/* Values of the kernel's constants in the running kernel (CO-RE). */
#define DSQ_LOCAL bpf_core_enum_value(enum scx_dsq_id_flags, SCX_DSQ_LOCAL)
#define DSQ_LOCAL_ON \
	bpf_core_enum_value(enum scx_dsq_id_flags, SCX_DSQ_LOCAL_ON)
#define ENQ_WAKEUP bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_WAKEUP)
#define ENQ_LAST bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_LAST)
#define ENQ_PREEMPT bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_PREEMPT)
#define ENQ_REENQ bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_REENQ)
/*
 * Enqueue the thread again (ENQ_REENQ) if it cannot run on the CPU of the local queue at once. The
 * flag exists from Linux 7.1 on; for older kernels, see realtime.h.
 */
#define ENQ_IMMED \
	(bpf_core_enum_value_exists(enum scx_enq_flags, SCX_ENQ_IMMED) \
		 ? bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_IMMED) \
		 : 0)
#define TASK_QUEUED bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_QUEUED)
/*
 * Flags of select_cpu: the thread is new; the waker is about to sleep. A kernel whose type
 * information lacks them has the values of Linux 6.12 to 7.3.
 */
#define WAKE_FORK \
	(bpf_core_enum_value_exists(enum scx_wake_flags, SCX_WAKE_FORK) \
		 ? bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_FORK) \
		 : 0x04)
#define WAKE_SYNC \
	(bpf_core_enum_value_exists(enum scx_wake_flags, SCX_WAKE_SYNC) \
		 ? bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_SYNC) \
		 : 0x10)
#define KICK_IDLE bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_IDLE)
#define KICK_PREEMPT bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_PREEMPT)

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

struct mm_struct;

#include "kernel_types.h"

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int pid;
	int tgid;
	int static_prio; /* Only the O(1) scheduler of evidence/bench reads it. */
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	struct mm_struct *mm;
	struct css_set *cgroups;
	struct task_group *sched_task_group;
	struct sched_entity se;
	struct sched_ext_entity scx;
};

struct scx_dump_ctx {
	_Bool idle;
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	__s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

#pragma clang attribute pop

/* Whether the kernel reports the quotas of cgroups by callbacks: Linux 6.17 and newer. */
#define KERNEL_REPORTS_QUOTAS \
	bpf_core_field_exists(((struct scx_cgroup_init_args *)0)->bw_quota_us)

/* The kernel has this structure from 6.19 on. */
struct scx_bpf_dsq_insert_vtime_args {
	__u64 dsq_id;
	__u64 slice;
	__u64 vtime;
	__u64 enq_flags;
};

/*
 * The structure by which a scheduler registers its callbacks. CO-RE does not apply to it: libbpf
 * matches members by name, and ignores members that the kernel lacks if they are empty. The members
 * that user space writes come first, so that user space need not know the other members.
 */
struct sched_ext_ops {
	__u64 hotplug_seq;
	__u64 flags;
	__u32 timeout_ms;
	__u32 exit_dump_len;
	/*
	 * Kernels without CONFIG_EXT_GROUP_SCHED lack the callbacks for cgroups, and user space
	 * removes them.
	 */
	__s32 (*cgroup_init)(struct cgroup *cgroup,
			     struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgroup);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from,
			    struct cgroup *to);
	/* The kernel has this callback from 6.17 on. */
	void (*cgroup_set_bandwidth)(struct cgroup *cgroup, __u64 period_us,
				     __u64 quota_us, __u64 burst_us);
	/* User space removes this callback on kernels with SCX_ENQ_IMMED. */
	void (*cpu_release)(__s32 cpu, void *args);
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev, __u64 flags);
	void (*enqueue)(struct task_struct *p, __u64 flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	/* Only the O(1) scheduler of evidence/bench sets this callback. */
	void (*stopping)(struct task_struct *p, _Bool runnable);
	void (*update_idle)(__s32 cpu, _Bool idle);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	__s32 (*init_task)(struct task_struct *p,
			   struct scx_init_task_args *args);
	__s32 (*init)(void);
	void (*dump)(struct scx_dump_ctx *into);
	void (*exit)(struct scx_exit_info *info);
	char name[128];
};

/*
 * SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST, with the values that they have had since the first
 * published interface.
 */
#define OPS_FLAGS (1 << 0 | 1 << 1)

extern __s32 scx_bpf_create_dsq(__u64 dsq, __s32 node) __ksym;
/* Only usher_cpu_release() calls this function. */
extern __u32 scx_bpf_reenqueue_local(void) __ksym __weak;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev,
				    __u64 flags, _Bool *is_idle) __ksym;
extern const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
extern const struct cpumask *scx_bpf_get_idle_smtmask(void) __ksym;
/*
 * The kernel has these functions from 6.15 on. Only schedulers that request idle masks by node may
 * call them.
 */
extern const struct cpumask *
scx_bpf_get_idle_cpumask_node(__s32 node) __ksym __weak;
extern const struct cpumask *
scx_bpf_get_idle_smtmask_node(__s32 node) __ksym __weak;
extern void scx_bpf_put_idle_cpumask(const struct cpumask *mask) __ksym;
extern _Bool bpf_cpumask_empty(const struct cpumask *mask) __ksym;
extern _Bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *mask) __ksym;
extern _Bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern __u32 scx_bpf_nr_cpu_ids(void) __ksym;

extern void scx_bpf_dump_bstr(char *format, unsigned long long *data,
			      __u32 data__sz) __ksym;

extern __u64 scx_bpf_now(void) __ksym __weak;
extern _Bool scx_bpf_task_set_slice(struct task_struct *p,
				    __u64 slice) __ksym __weak;
/* Three forms of one function: from Linux 6.19, from 6.13, and of 6.12. */
extern _Bool scx_bpf_dsq_insert___v2___here(struct task_struct *p, __u64 dsq,
					    __u64 slice,
					    __u64 flags) __ksym __weak;
extern void scx_bpf_dsq_insert___v1(struct task_struct *p, __u64 dsq,
				    __u64 slice, __u64 flags) __ksym __weak;
extern void scx_bpf_dispatch___here(struct task_struct *p, __u64 dsq,
				    __u64 slice, __u64 flags) __ksym __weak;
extern _Bool __scx_bpf_dsq_insert_vtime(
	struct task_struct *p,
	struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
extern void scx_bpf_dsq_insert_vtime___here(struct task_struct *p, __u64 dsq,
					    __u64 slice, __u64 vtime,
					    __u64 flags) __ksym __weak;
extern void scx_bpf_dispatch_vtime___here(struct task_struct *p, __u64 dsq,
					  __u64 slice, __u64 vtime,
					  __u64 flags) __ksym __weak;
/* Three forms of one function: from Linux 7.1, from 6.13, and of 6.12. */
extern _Bool scx_bpf_dsq_move_to_local___v2___here(__u64 dsq,
						   __u64 flags) __ksym __weak;
extern _Bool scx_bpf_dsq_move_to_local___v1(__u64 dsq) __ksym __weak;
extern _Bool scx_bpf_consume___here(__u64 dsq) __ksym __weak;

static inline __u64 now_ns(void)
{
	return bpf_ksym_exists(scx_bpf_now) ? scx_bpf_now()
					    : bpf_ktime_get_ns();
}

/*
 * Returns the thread's CPU, as scx_bpf_task_cpu() does, but without a call on kernels that store
 * the CPU number in `struct thread_info`.
 */
ALWAYS __u32 cpu_of(const struct task_struct *p)
{
	return bpf_core_field_exists(p->thread_info.cpu) ? p->thread_info.cpu
							 : scx_bpf_task_cpu(p);
}

static inline void set_slice(struct task_struct *p, __u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

ALWAYS void insert(struct task_struct *p, __u64 dsq, __u64 slice, __u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___here))
		scx_bpf_dsq_insert___v2___here(p, dsq, slice, flags);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert___v1))
		scx_bpf_dsq_insert___v1(p, dsq, slice, flags);
	else
		scx_bpf_dispatch___here(p, dsq, slice, flags);
}

static inline void insert_at(struct task_struct *p, __u64 dsq, __u64 slice,
			     __u64 vtime, __u64 flags)
{
	if (bpf_core_type_exists(struct scx_bpf_dsq_insert_vtime_args)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = dsq,
			.slice = slice,
			.vtime = vtime,
			.enq_flags = flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime___here)) {
		scx_bpf_dsq_insert_vtime___here(p, dsq, slice, vtime, flags);
	} else {
		scx_bpf_dispatch_vtime___here(p, dsq, slice, vtime, flags);
	}
}

/*
 * Moves the first thread of a dispatch queue that may run on this CPU to the CPU's local queue.
 * Returns whether there was such a thread.
 */
static inline _Bool take(__u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___here))
		return scx_bpf_dsq_move_to_local___v2___here(dsq, ENQ_IMMED);
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v1))
		return scx_bpf_dsq_move_to_local___v1(dsq);
	return scx_bpf_consume___here(dsq);
}

/* Iterator over the threads of a dispatch queue. */
struct bpf_iter_scx_dsq {
	__u64 opaque[6];
} __attribute__((aligned(8)));
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq,
				__u64 flags) __ksym;
extern struct task_struct *
bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

extern __s32 scx_bpf_dsq_nr_queued(__u64 dsq) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
/* Moves of a thread that an iterator has returned: from Linux 6.13 on, and in 6.12. */
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it,
				       __u64 vtime) __ksym __weak;
extern _Bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it,
			      struct task_struct *p, __u64 dsq,
			      __u64 flags) __ksym __weak;
extern _Bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it,
				    struct task_struct *p, __u64 dsq,
				    __u64 flags) __ksym __weak;
extern void scx_bpf_dispatch_from_dsq_set_vtime(struct bpf_iter_scx_dsq *it,
						__u64 vtime) __ksym __weak;
extern _Bool scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it,
				       struct task_struct *p, __u64 dsq,
				       __u64 flags) __ksym __weak;
extern _Bool scx_bpf_dispatch_vtime_from_dsq(struct bpf_iter_scx_dsq *it,
					     struct task_struct *p, __u64 dsq,
					     __u64 flags) __ksym __weak;

/* Moves a thread to the end of another dispatch queue. Returns whether it was moved. */
static inline _Bool move(struct bpf_iter_scx_dsq *it, struct task_struct *p,
			 __u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move))
		return scx_bpf_dsq_move(it, p, dsq, 0);
	return scx_bpf_dispatch_from_dsq(it, p, dsq, 0);
}

/* Moves a thread to another dispatch queue, which is ordered by vtime. */
static inline _Bool move_at(struct bpf_iter_scx_dsq *it, struct task_struct *p,
			    __u64 dsq, __u64 vtime)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_vtime)) {
		scx_bpf_dsq_move_set_vtime(it, vtime);
		return scx_bpf_dsq_move_vtime(it, p, dsq, 0);
	}
	scx_bpf_dispatch_from_dsq_set_vtime(it, vtime);
	return scx_bpf_dispatch_vtime_from_dsq(it, p, dsq, 0);
}

/* Returns the vtime of the first thread in a dispatch queue; `none` if the queue is empty. */
static inline __u64 first_vtime(__u64 dsq, __u64 none)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		p = bpf_iter_scx_dsq_next(&it);
		if (p)
			none = p->scx.dsq_vtime;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return none;
}

/*
 * Place between load and compare-and-swap of a clock. The host build simulates a race at this
 * place; the BPF build does nothing.
 */
#define before_swap(clock)

/* Iterator over numbers, which bpf_for() uses; the kernel has it from 6.4 on. */
struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start,
			    int end) __weak __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __weak __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __weak __ksym;

#endif
