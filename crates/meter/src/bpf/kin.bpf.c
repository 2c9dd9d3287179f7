// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose child is whose, for programs without a cgroup: what a listed process
 * begets is listed, before it has run for the first time, and stays so when
 * its parents have ended or it has a session of its own.
 */
#include "party.h"

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_forks, struct task_struct *parent,
	     struct task_struct *child)
{
	struct control *orders = orders_given();
	__u32 tgid = child->tgid;
	__u32 program;

	if (!orders || !orders->kin || child->pid != child->tgid)
		return 0;
	program = program_by_kin(parent->tgid);
	if (program && bpf_map_update_elem(&kin, &tgid, &program, BPF_ANY))
		lose(LOST_KIN);
	return 0;
}

/*
 * The number may be another process's from now on. To be exact it may be that
 * since the process was reaped, a grace period ago: should the kernel have gone
 * through all its numbers meanwhile, and given this one to the same program,
 * that process is taken for foreground.
 */
static void forget_kin(struct task_struct *task)
{
	struct control *orders = orders_given();
	__u32 tgid = task->tgid;

	if (orders && orders->kin && task->pid == task->tgid)
		bpf_map_delete_elem(&kin, &tgid);
}
