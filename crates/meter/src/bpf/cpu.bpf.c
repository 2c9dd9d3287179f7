// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts CPU time and wait time per owner, without a hook at context switches.
 *
 * The scheduler already accumulates the CPU time and the wait time of each
 * thread. When a BPF program visits a thread, it adds the increase since the
 * last visit to the sums of the thread's owner. A thread is visited:
 *
 * 1. by the task iterator, which visits all living threads when user space
 *    takes a sample;
 * 2. at its exit, because the iterator misses threads that live only between
 *    two samples;
 * 3. when the kernel frees the thread, to count the time since the exit trace
 *    point. In this time, the kernel may tear down a large address space, which
 *    can take most of a short life.
 *
 * The counted amount is stored with the task itself (task storage). If a thread
 * changes its owner, its past use stays with the former owner, and no sum
 * decreases.
 *
 * Limits: the run time of a thread is known up to its last context switch or
 * scheduler tick. A wait is counted when it ends. A sample costs time in
 * proportion to the number of threads. The sums of at most 1024 owners are
 * kept; uses of further owners are lost and counted as LOST_OWNER. A thread
 * without memory for its storage is counted as LOST_THREAD.
 */
#include "logic.h"
#include "process_use.h"

/*
 * Use of less CPU time than this creates no entry in process_uses, because a
 * new entry may evict the entry of another process.
 */
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
		if (!use) {
			count_loss(LOST_OWNER);
			return;
		}
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
 * that reads it, which is the meter. The kernel side must determine this pid,
 * because in a container the meter does not know its pid in the initial pid
 * namespace.
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
