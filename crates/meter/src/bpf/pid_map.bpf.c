// SPDX-License-Identifier: GPL-2.0-only
/*
 * Maintains pid_map, the processes of background programs without a cgroup. A
 * child of a listed process is added at its fork, before the child runs. The
 * child stays listed after its parents have ended and after setsid(), and is
 * removed when the kernel frees it. The map has room for 65536 processes;
 * further processes are foreground and are counted as LOST_PROCESS. A fork
 * costs two map operations.
 */
#include "owner.h"

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_forks, struct task_struct *parent,
	     struct task_struct *child)
{
	struct bpf_config *config = get_config();
	__u32 tgid = child->tgid;
	__u32 program;

	if (!config || !config->tracks_pids || child->pid != child->tgid)
		return 0;
	program = program_by_pid(parent->tgid);
	if (program && bpf_map_update_elem(&pid_map, &tgid, &program, BPF_ANY))
		count_loss(LOST_PROCESS);
	return 0;
}

/*
 * Removes a process from pid_map, because its pid may be reused.
 *
 * The kernel may reuse a pid as soon as the process is reaped, one grace period
 * before this BPF program runs. If the kernel cycles through all pids in this
 * period and gives the pid to a new process of the same program, the entry of
 * the new process is removed, and the process is classified as foreground.
 */
static void forget_pid(struct task_struct *task)
{
	struct bpf_config *config = get_config();
	__u32 tgid = task->tgid;

	if (config && config->tracks_pids && task->pid == task->tgid)
		bpf_map_delete_elem(&pid_map, &tgid);
}
