// SPDX-License-Identifier: GPL-2.0-only
/*
 * pid_map: processes of programs without a cgroup. A child of a listed process is
 * added at fork, before it runs. It stays listed after its parents have ended and
 * after setsid().
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
 * Removes a process from pid_map; its number may be reused from now on.
 *
 * The kernel may reuse a pid as soon as the process is reaped, one grace period
 * before this program runs. If the kernel cycles through all pids in that
 * period and gives this pid to a new process of the same program, the new
 * process is classified as foreground.
 */
static void forget_pid(struct task_struct *task)
{
	struct bpf_config *config = get_config();
	__u32 tgid = task->tgid;

	if (config && config->tracks_pids && task->pid == task->tgid)
		bpf_map_delete_elem(&pid_map, &tgid);
}
