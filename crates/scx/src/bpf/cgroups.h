/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Callbacks of sched_ext for cgroups
 *
 *   usher_cgroup_init           a cgroup is created, or exists at the start: its quota
 *   usher_cgroup_exit           a cgroup is removed: forget its quota and its entry
 *   usher_cgroup_move           a thread moves to another cgroup: examine its quotas again
 *   usher_cgroup_set_bandwidth  cpu.max or cpu.max.burst was written
 *
 * Linux reports quotas from 6.17 on. On earlier kernels, each thread reads the quotas of its cgroups
 * about once per second (limits.h). Kernels without CONFIG_EXT_GROUP_SCHED have none of these
 * callbacks, and user space removes them before the load.
 */
#ifndef USHER_SCX_CGROUPS_H
#define USHER_SCX_CGROUPS_H

#include "release.h"

static inline __u64 id_of(struct cgroup *cgroup)
{
	return BPF_CORE_READ(cgroup, kn, id);
}

OP_SLEEPABLE(usher_cgroup_init)
__s32 BPF_PROG(usher_cgroup_init, struct cgroup *cgroup,
	       struct scx_cgroup_init_args *args)
{
	/* An error would prevent the creation of the cgroup. Without a queue, its quota is rejected. */
	create_parks(PARKS_AT_ONCE);
	if (KERNEL_REPORTS_QUOTAS)
		set_limit(id_of(cgroup), args->bw_period_us, args->bw_quota_us,
			  args->bw_burst_us);
	return 0;
}

OP_SLEEPABLE(usher_cgroup_exit)
void BPF_PROG(usher_cgroup_exit, struct cgroup *cgroup)
{
	forget_limit(id_of(cgroup));
	forget_group(id_of(cgroup));
}

OP(usher_cgroup_move)
void BPF_PROG(usher_cgroup_move, struct task_struct *p, struct cgroup *from,
	      struct cgroup *to)
{
	struct thread *thread = thread_of(p);

	if (!thread || g_variant.fifo)
		return;
	drop_grant(thread);
	remove_count(&thread->counted);
	thread->limits_version = g_limits.version - 1;
}

OP(usher_cgroup_set_bandwidth)
void BPF_PROG(usher_cgroup_set_bandwidth, struct cgroup *cgroup,
	      __u64 period_us, __u64 quota_us, __u64 burst_us)
{
	set_limit(id_of(cgroup), period_us, quota_us, burst_us);
}

#endif
