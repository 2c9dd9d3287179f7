// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPU time and waiting, without a hook at every context switch.
 *
 * The scheduler keeps both for each thread anyway. What is missing is the sum
 * by party, and it is made of three visits to a thread, each adding what has
 * come since the one before:
 *
 * - the iterator, when user space wants to know, to all threads that live;
 * - at the thread's exit, so that what lived between two looks is counted;
 * - when the kernel frees it, for the rest: taking down a large address space
 *   comes after the exit's trace point and may be most of a short life.
 *
 * What was counted is kept with the task itself, so a thread that changes
 * parties takes nothing along, and no sum ever falls.
 *
 * A run is as of the thread's last switch or tick; a wait counts when it ends.
 */
#include "rules.h"
#include "users.h"

/* Threads that hardly lived do not push others off the list of users. */
#define WORTH_A_NAME_NS 1000000

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

static void add_use(__u32 party, __u64 run_ns, __u64 wait_ns)
{
	struct cpu_use *use = bpf_map_lookup_elem(&cpu_uses, &party);

	if (!use) {
		struct cpu_use none = {};

		bpf_map_update_elem(&cpu_uses, &party, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&cpu_uses, &party);
		if (!use)
			return;
	}
	__sync_fetch_and_add(&use->run_ns, run_ns);
	__sync_fetch_and_add(&use->wait_ns, wait_ns);
}

static void visit(struct task_struct *task, struct counted *counted)
{
	struct control *orders = orders_given();
	__u64 run_ns = task->se.sum_exec_runtime;
	__u64 wait_ns = task->sched_info.run_delay;
	struct device cpu = {.kind = CPU};
	__u32 party;

	if (!orders)
		return;
	if (is_new_here(counted, task->start_time < orders->begun_ns, run_ns,
			wait_ns))
		return;
	run_ns = advance(&counted->run_ns, run_ns);
	wait_ns = advance(&counted->wait_ns, wait_ns);
	if (!run_ns && !wait_ns)
		return;
	party = party_of(task, orders);
	add_use(party, run_ns, wait_ns);
	if (run_ns && task->se.sum_exec_runtime >= WORTH_A_NAME_NS)
		note_user(task, party, &cpu, run_ns, orders);
}

/*
 * The iterator runs in the process that reads it, which is the meter's. What
 * number the kernel knows that by, a container hides from it.
 */
static void know_ourselves(void)
{
	struct control *orders = orders_given();

	if (orders)
		orders->own_tgid = bpf_get_current_task_btf()->tgid;
}

SEC("iter/task")
int each_thread(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct counted *counted;

	if (!task) {
		know_ourselves();
		return 0;
	}
	note_queue(task);
	counted = bpf_task_storage_get(&threads, task, 0,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (counted)
		visit(task, counted);
	else
		lose(LOST_THREAD);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(thread_exits, struct task_struct *task)
{
	struct counted *counted;

	counted = bpf_task_storage_get(&threads, task, 0,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (counted)
		visit(task, counted);
	else
		lose(LOST_THREAD);
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(thread_is_freed, struct task_struct *task)
{
	struct counted *counted = bpf_task_storage_get(&threads, task, 0, 0);

	if (counted)
		visit(task, counted);
	forget_kin(task);
	return 0;
}
