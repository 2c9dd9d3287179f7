// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU time and wait time per owner, without a hook at context switches.
 *
 * The scheduler already accumulates both times per thread. A program that
 * visits a thread adds the increase since the last visit to the sum of the
 * thread's owner. Threads are visited:
 *
 * 1. by the iterator, when user space takes a sample, for all living
 *    threads;
 * 2. at the thread's exit, so that threads that live between two samples
 *    count;
 * 3. when the kernel frees the thread, for the rest: the kernel tears down a
 *    large address space after the exit trace point, which may be most of a
 *    short life.
 *
 * The counted amount is stored with the task itself. A thread that changes its
 * owner therefore takes no past use along, and no sum ever decreases.
 *
 * Limits: run time is as of the thread's last switch or tick; a wait counts
 * when it ends.
 */
#include "logic.h"
#include "process_use.h"

/* Threads that ran for less than this do not evict others from process_uses. */
#define MIN_LISTED_NS 1000000

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct counted);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct cpu_use);
} cpu_uses SEC(".maps");

static void add_use(__u32 owner, __u64 run_ns, __u64 wait_ns)
{
	struct cpu_use *use = bpf_map_lookup_elem(&cpu_uses, &owner);

	if (!use) {
		struct cpu_use none = {};

		bpf_map_update_elem(&cpu_uses, &owner, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&cpu_uses, &owner);
		if (!use)
			return;
	}
	__sync_fetch_and_add(&use->run_ns, run_ns);
	__sync_fetch_and_add(&use->wait_ns, wait_ns);
}

static void count_use(struct task_struct *task, struct counted *counted)
{
	struct bpf_config *config = get_config();
	__u64 run_ns = task->se.sum_exec_runtime;
	__u64 wait_ns = task->sched_info.run_delay;
	struct device cpu = {.kind = CPU};
	__u32 owner;

	if (!config)
		return;
	if (start_counting(counted, task->start_time < config->start_ns, run_ns,
			   wait_ns))
		return;
	run_ns = advance(&counted->run_ns, run_ns);
	wait_ns = advance(&counted->wait_ns, wait_ns);
	if (!run_ns && !wait_ns)
		return;
	owner = classify_task(task, config);
	add_use(owner, run_ns, wait_ns);
	if (run_ns && task->se.sum_exec_runtime >= MIN_LISTED_NS)
		note_process_use(task, owner, &cpu, run_ns, config);
}

/*
 * Records the pid of the meter's own process. The iterator runs in the process
 * that reads it, which is the meter. In a container the meter itself cannot
 * know its pid in the initial pid namespace.
 */
static void record_own_tgid(void)
{
	struct bpf_config *config = get_config();

	if (config)
		config->own_tgid = bpf_get_current_task_btf()->tgid;
}

SEC("iter/task")
int count_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct counted *counted;

	if (!task) {
		record_own_tgid();
		return 0;
	}
	note_queue(task);
	counted = bpf_task_storage_get(&threads, task, 0,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (counted)
		count_use(task, counted);
	else
		count_loss(LOST_THREAD);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(thread_exits, struct task_struct *task)
{
	struct counted *counted;

	counted = bpf_task_storage_get(&threads, task, 0,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (counted)
		count_use(task, counted);
	else
		count_loss(LOST_THREAD);
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(thread_is_freed, struct task_struct *task)
{
	struct counted *counted = bpf_task_storage_get(&threads, task, 0, 0);

	if (counted)
		count_use(task, counted);
	forget_pid(task);
	return 0;
}
