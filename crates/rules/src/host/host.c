/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Host build of the scheduler: its callbacks, compiled for this machine, and a simulated kernel
 * that calls them
 *
 * Unit tests and the simulator run the scheduler through this file (sched.rs). An instance is one
 * scheduler on one simulated machine. A task is a thread of the simulated machine, as the kernel
 * sees it; a `struct thread` is the scheduler's state of a task. This file has the part of
 * kernel/sched/ext.c that the scheduler relies on: wake-ups, scheduling and ticks. Dispatch queues
 * and idle CPUs are in kfuncs.h, the state of an instance in instance.h.
 *
 * 1. host_new() creates a machine of idle CPUs, host_new_task() a task that sleeps.
 * 2. The caller sets the time (host_set_now()) and calls an event: host_wake(), host_tick(),
 *    host_set_cpus() and others. The event runs the scheduler's callbacks. If a CPU has to schedule
 *    as a result, the event only marks the CPU.
 * 3. The caller lets each marked CPU schedule (host_next_resched(), host_schedule()) until none is
 *    left: the running task is charged, `dispatch` selects the next one, and the CPU switches to
 *    it.
 * 4. host_end_task() ends a task, host_free() the instance.
 *
 * Nothing happens between calls, so that the same calls give the same results.
 *
 * Limits: CPUS_MAX CPUs, LLCS_MAX LLCs, SEATS_MAX soft seats, any number of tasks. More seats, or
 * lack of memory, abort the process. An insertion by vtime takes time in proportion to the waiting
 * tasks. There are no locks, real-time threads only take CPUs (realtime.h), and one callback runs at
 * a time: races are simulated by host_race() and host_lose_claims().
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "kernel.h"

#include "callbacks.h"

#include "host.h"
#include "kfuncs.h"

/* Scheduling. */

static void enqueue(struct task_struct *p, __u64 flags)
{
	usher_enqueue(p, flags);
	finish_insert(p);
}

#include "realtime.h"

/*
 * Simulates the kernel's balance_one(): calls `dispatch` if the CPU needs a task. Returns whether
 * `prev` keeps the CPU.
 */
static _Bool balance(struct rq *rq, __u32 cpu, struct task_struct *prev)
{
	_Bool is_runnable = prev && prev->scx.flags & TASK_QUEUED;

	if (is_runnable && prev->scx.slice)
		return 1;
	if (rq->local.first)
		return 0;
	usher_dispatch(cpu, prev);
	return is_runnable && prev->scx.slice;
}

/*
 * Switches the CPU to a task, or to idle (`next` is 0), with the callbacks that the kernel calls.
 */
static void switch_to(struct rq *rq, __u32 cpu, struct task_struct *next)
{
	rq->curr = instance->current = next;
	rq->since_ns = instance->now_ns;
	if (next) {
		unlink_from(next);
		if (rq->is_idle) {
			rq->is_idle = 0;
			mark_busy(cpu);
			usher_update_idle(cpu, 0);
		}
		usher_running(next);
	} else if (!rq->is_idle) {
		rq->is_idle = 1;
		mark_idle(cpu);
		if (!instance->is_bypassed)
			usher_update_idle(cpu, 1);
	}
}

#include "transitions.h"

/* Lets a CPU schedule. Returns the number of the task that runs afterwards; -1: the CPU is idle. */
__s32 host_schedule(struct instance *host, __u32 cpu)
{
	struct rq *rq = &host->rqs[cpu];
	struct task_struct *prev = rq->curr;
	struct task_struct *next;

	enter(host, cpu);
	finish_idle(rq, cpu);
	account(rq);
	remove_from(&host->resched, cpu);
	if (rq->is_taken)
		return -1;
	if (!rq->is_online) {
		if (prev && prev->scx.flags & TASK_QUEUED)
			return prev->id;
		rq->curr = 0;
		return -1;
	}
	if (balance(rq, cpu, prev))
		return prev->id;
	next = rq->local.first;
	if (prev && prev->scx.flags & TASK_QUEUED) {
		enqueue(prev, next ? 0 : ENQ_LAST);
		reenqueue_marked(host);
	}
	/*
	 * The previous task, which was enqueued again, continues if no other task comes before it.
	 */
	next = rq->local.first;
	if (!next && begins_idle(rq))
		return -1;
	switch_to(rq, cpu, next);
	/* Tasks that were dispatched with ENQ_IMMED do not wait behind the next task. */
	if (next && rq->local.first && ENQ_IMMED) {
		add_to(&host->reenqueue, cpu);
		reenqueue_marked(host);
	}
	/* If a callback has claimed this CPU but inserted no task, the CPU is marked idle again. */
	if (!next && !mask_has(&host->idle, cpu))
		mark_idle(cpu);
	return next ? (__s32)next->id : -1;
}

/* Returns the first CPU that is marked to schedule; -1: there is none. */
__s32 host_next_resched(const struct instance *host)
{
	__u32 word;

	for (word = 0; word < words_of(host); word++)
		if (host->resched.words[word])
			return word * 64 +
			       lowest_bit(host->resched.words[word]);
	return -1;
}

/*
 * Ends the slice of the running task at `at_ns`, a time in the past, as if the CPU had dispatched
 * then and the task had continued because no task waited. With this function, the caller skips the
 * events of slices that end without a switch. If the scheduler decides to migrate the task, the
 * migration happens at the next tick.
 */
void host_end_slice(struct instance *host, __u32 cpu, __u64 at_ns)
{
	struct rq *rq = &host->rqs[cpu];
	__u64 now = host->now_ns;

	if (!rq->curr)
		return;
	enter(host, cpu);
	host->now_ns = at_ns;
	account(rq);
	rq->curr->scx.slice = 0;
	usher_dispatch(cpu, rq->curr);
	if (!rq->curr->scx.slice)
		rq->curr->scx.slice = g_settings.slice_ns;
	if (rq->local.first)
		resched(cpu);
	host->now_ns = now;
}

/* The running task of a CPU gives up the rest of its slice. */
void host_yield(struct instance *host, __u32 cpu)
{
	struct rq *rq = &host->rqs[cpu];

	enter(host, cpu);
	account(rq);
	if (rq->curr)
		rq->curr->scx.slice = 0;
	resched(cpu);
}

/* Runs the tick of a CPU. */
void host_tick(struct instance *host, __u32 cpu)
{
	struct rq *rq = &host->rqs[cpu];

	if (!rq->curr)
		return;
	enter(host, cpu);
	account(rq);
	usher_tick(rq->curr);
	if (!rq->curr->scx.slice)
		resched(cpu);
}

/* Tasks. */

/* Returns the CPU of a task if the task may run there; otherwise the first allowed CPU. */
static __u32 first_allowed(const struct task_struct *p)
{
	__u32 cpu = p->thread_info.cpu;

	return mask_has(&p->cpus, cpu)
		       ? cpu
		       : (__u32)first_of((const void *)&p->cpus,
					 (const void *)&p->cpus, 0, ~0U);
}

/*
 * Makes a sleeping or new task runnable. `by_cpu` is the CPU on which the waking call runs. `flags`:
 * WAKE_FORK for a new task, WAKE_SYNC for a synchronous wake-up, else 0.
 */
void host_wake(struct instance *host, __u32 id, __u32 by_cpu, __u64 flags)
{
	struct task_struct *p = host->tasks[id];
	__u32 cpu = p->thread_info.cpu;

	enter(host, by_cpu);
	p->scx.flags |= TASK_QUEUED;
	if (p->nr_cpus_allowed > 1 && !p->migration_disabled)
		p->thread_info.cpu = usher_select_cpu(p, cpu, flags);
	p->thread_info.cpu = first_allowed(p);
	if (p->to_dsq)
		finish_insert(p);
	else
		enqueue(p, flags & WAKE_FORK ? 0 : ENQ_WAKEUP);
	reenqueue_marked(host);
}

/*
 * Enqueues a runnable task that does not run. If the task waits in a queue, it is removed from that
 * queue first.
 */
void host_requeue(struct instance *host, __u32 id)
{
	struct task_struct *p = host->tasks[id];

	if (p->in)
		unlink_from(p);
	p->thread_info.cpu = first_allowed(p);
	enter(host, p->thread_info.cpu);
	p->scx.flags |= TASK_QUEUED;
	enqueue(p, 0);
	reenqueue_marked(host);
}

/* Makes a task unrunnable: a running task sleeps, or a waiting task is stopped. */
void host_remove(struct instance *host, __u32 id)
{
	struct task_struct *p = host->tasks[id];

	enter(host, p->thread_info.cpu);
	p->scx.flags &= ~TASK_QUEUED;
	if (!p->in) {
		account(rq_of(p->thread_info.cpu));
		resched(p->thread_info.cpu);
		return;
	}
	/*
	 * The kernel never removes a waiting thread: a thread to stop is woken, and stops when it
	 * runs. The host build removes the task directly.
	 */
	leave_queue(&p->storage);
	drop_grant(&p->storage);
	remove_count(&p->storage.counted);
	unlink_from(p);
}

/* Sets the allowed CPUs. A waiting task is enqueued again; a running task continues. */
void host_set_cpus(struct instance *host, __u32 id, const struct cpu_set *cpus)
{
	struct task_struct *p = host->tasks[id];
	__u32 word;

	memcpy(&p->cpus, cpus, sizeof(p->cpus));
	p->nr_cpus_allowed = 0;
	for (word = 0; word < CPU_WORDS; word++)
		p->nr_cpus_allowed += bits_in(cpus->words[word]);
	if (p->in) {
		host_requeue(host, id);
	} else if (rq_of(p->thread_info.cpu)->curr == p) {
		/* The kernel puts the running task back without a call of `enqueue`. */
		enter(host, p->thread_info.cpu);
		account(rq_of(p->thread_info.cpu));
		usher_running(p);
	}
}

void host_set_migration_disabled(struct instance *host, __u32 id, __u32 times)
{
	host->tasks[id]->migration_disabled = times;
}

/* Returns a cgroup that host_new_cgroup() has created; 0: the cgroup has no state. */
static struct host_cgroup *cgroup_of(struct instance *host, __u64 number)
{
	__u64 at = number - HOST_CGROUPS;

	return at < host->cgroups_made ? host->cgroups[at] : 0;
}

/*
 * Returns a task without content. Its number is that of an ended task, or else the next unused
 * number.
 */
static struct task_struct *new_task(struct instance *host)
{
	struct task_struct *p = host->free_tasks;
	__u32 id = host->tasks_made;
	__u32 room = id & (id - 1) ? 0 : id ? 2 * id : 1;

	if (p) {
		host->free_tasks = p->behind;
		id = p->id;
		memset(p, 0, sizeof(*p));
		p->id = id;
		return p;
	}
	p = calloc(1, sizeof(*p));
	if (room)
		host->tasks = realloc(host->tasks, room * sizeof(p));
	if (!p || !host->tasks)
		abort();
	p->id = id;
	host->tasks[id] = p;
	host->tasks_made++;
	return p;
}

/* Creates a task that sleeps, and returns its number. */
__u32 host_new_task(struct instance *host, const struct host_task *task)
{
	struct scx_init_task_args args = {.fork = task->is_forked};
	struct task_struct *p = new_task(host);

	p->is_used = 1;
	p->pid = p->id + 1;
	p->thread_info.cpu = task->cpu;
	p->flags = task->is_kernel ? PF_KTHREAD : 0;
	/*
	 * The tasks of one address space are one process (tgid); each kernel thread is a process of
	 * its own.
	 */
	p->tgid = task->mm ? (int)(task->mm * 0x9e3779b97f4a7c15ULL >> 40)
			   : -(int)p->id;
	p->migration_disabled = task->migration_disabled;
	p->mm = (struct mm_struct *)(uintptr_t)task->mm;
	p->cpus_ptr = &p->cpus;
	p->scx.weight = task->weight;
	p->se.sum_exec_runtime = task->ran_ns;
	p->cgroups = &p->css;
	p->cgroup.kn = &p->node;
	p->node.id = task->cgroup;
	p->css.dfl_cgrp = cgroup_of(host, task->cgroup)
				  ? &cgroup_of(host, task->cgroup)->cgroup
				  : &p->cgroup;
	p->sched_task_group = &p->group;
	p->group.css.cgroup = &p->cgroup;
	if (cgroup_of(host, task->cgroup))
		p->sched_task_group = &cgroup_of(host, task->cgroup)->group;
	host_set_cpus(host, p->id, &task->cpus);
	enter(host, task->cpu);
	if (task->is_forked)
		host->current = host->tasks[task->parent];
	else
		host->current = p;
	usher_init_task(p, &args);
	usher_enable(p);
	return p->id;
}

void host_end_task(struct instance *host, __u32 id)
{
	struct task_struct *p = host->tasks[id];

	if (!p->is_used)
		abort();
	enter(host, p->thread_info.cpu);
	usher_disable(p);
	p->is_used = 0;
	p->behind = host->free_tasks;
	host->free_tasks = p;
}

/* Cgroups. */

/* Creates a cgroup without a quota, and returns its number. `parent` 0: the parent is the root. */
__u64 host_new_cgroup(struct instance *host, __u64 parent)
{
	struct scx_cgroup_init_args args = {.bw_quota_us = -1};
	struct host_cgroup *made = calloc(1, sizeof(*made));
	__u32 at = host->cgroups_made;

	host->cgroups = realloc(host->cgroups, (at + 1) * sizeof(made));
	if (!made || !host->cgroups)
		abort();
	host->cgroups[at] = made;
	host->cgroups_made++;
	made->node.id = HOST_CGROUPS + at;
	made->cgroup.kn = &made->node;
	made->group.css.cgroup = &made->cgroup;
	made->group.parent = &host->root_group;
	made->group.scx.weight = WEIGHT_NORMAL;
	made->group.cfs_bandwidth.quota = -1;
	if (parent) {
		made->cgroup.self.parent =
			&cgroup_of(host, parent)->cgroup.self;
		made->group.parent = &cgroup_of(host, parent)->group;
	}
	enter(host, 0);
	if (usher_cgroup_init(&made->cgroup, &args))
		abort();
	return made->node.id;
}

/* Removes a cgroup without tasks. Its number is not used again. */
void host_end_cgroup(struct instance *host, __u64 cgroup)
{
	enter(host, 0);
	usher_cgroup_exit(&cgroup_of(host, cgroup)->cgroup);
}

/* Writes cpu.max and cpu.max.burst of a cgroup. A quota of UINT64_MAX stands for `max`. */
void host_set_quota(struct instance *host, __u64 cgroup, __u64 period_us,
		    __u64 quota_us, __u64 burst_us)
{
	struct host_cgroup *to = cgroup_of(host, cgroup);

	enter(host, 0);
	to->group.cfs_bandwidth.period = period_us * 1000;
	to->group.cfs_bandwidth.quota =
		quota_us == (__u64)-1 ? quota_us : quota_us * 1000;
	to->group.cfs_bandwidth.burst = burst_us * 1000;
	if (!host->hides_quotas)
		usher_cgroup_set_bandwidth(&to->cgroup, period_us, quota_us,
					   burst_us);
}

/* Writes cpu.weight and cpu.idle of a cgroup. */
void host_set_weight(struct instance *host, __u64 cgroup, __u32 weight,
		     _Bool is_idle)
{
	struct task_group *group = &cgroup_of(host, cgroup)->group;

	group->scx.weight = weight;
	group->idle = is_idle;
}

/* From now on, the kernel does not report quotas, and the scheduler has to read them. */
void host_hide_quotas(struct instance *host)
{
	enter(host, 0);
	host->hides_quotas = 1;
	g_limits.version++;
}

/*
 * Moves a task to another cgroup, as the kernel's sched_move_task() does: a runnable task is
 * enqueued again, and a running task continues.
 */
void host_move(struct instance *host, __u32 id, __u64 cgroup)
{
	struct task_struct *p = host->tasks[id];
	struct rq *rq = rq_of(p->thread_info.cpu);
	struct cgroup *from = p->css.dfl_cgrp;

	enter(host, p->thread_info.cpu);
	account(rq);
	p->css.dfl_cgrp = &cgroup_of(host, cgroup)->cgroup;
	p->sched_task_group = &cgroup_of(host, cgroup)->group;
	usher_cgroup_move(p, from, p->css.dfl_cgrp);
	if (p->in) {
		unlink_from(p);
		enqueue(p, 0);
	} else if (rq->curr == p) {
		usher_enqueue(p, 0);
		p->to_dsq = 0;
		usher_running(p);
	}
}

/*
 * Returns the next timer to expire: that of the shares, of a CPU or of a park queue. 0: no timer is
 * armed.
 */
static struct bpf_timer *next_timer(struct instance *host, __u32 *key)
{
	struct bpf_timer *next = 0;
	__u32 number;

	if (!host->has_timers)
		return 0;
	enter(host, 0);
	if (host->group_timer.timer.expires_ns)
		next = &host->group_timer.timer;
	if (!g_limits.used)
		return next;
	for (number = 0; number < g_limits.created; number++) {
		struct bpf_timer *timer = &host->parks_by_number[number].timer;

		if (timer->expires_ns &&
		    (!next || timer->expires_ns < next->expires_ns)) {
			next = timer;
			*key = number;
		}
	}
	for (number = 0; number < host->cpus; number++) {
		struct bpf_timer *timer =
			&host->slice_timers_by_cpu[number].timer;

		if (timer->expires_ns &&
		    (!next || timer->expires_ns < next->expires_ns)) {
			next = timer;
			*key = number;
		}
	}
	return next;
}

/* Returns the time at which the next timer expires; UINT64_MAX: no timer is armed. */
__u64 host_next_timer(struct instance *host)
{
	struct bpf_timer *timer;
	__u32 key;

	timer = next_timer(host, &key);
	return timer ? timer->expires_ns : (__u64)-1;
}

/* Lets each timer expire that is due. */
void host_run_timers(struct instance *host)
{
	struct bpf_timer *timer;
	__u32 key;

	while ((timer = next_timer(host, &key)) &&
	       timer->expires_ns <= host->now_ns) {
		timer->expires_ns = 0;
		timer->callback(0, &key, timer);
	}
}

/* The instance. */

/* Creates an instance with `cpus` idle CPUs. `seed` determines its random numbers. */
struct instance *host_new(const struct place *places, __u32 cpus,
			  const struct settings *settings,
			  const struct variant *variant, __u64 seed)
{
	/* The tables are large; pages that are not used take no memory and no time. */
	struct instance *host = mmap(0, sizeof(*host), PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	__u32 cpu;

	if (host == MAP_FAILED)
		abort();
	memcpy(host->places, places, cpus * sizeof(*places));
	enter(host, 0);
	host->cpus = cpus;
	host->random = seed;
	g_settings = *settings;
	memcpy((void *)(uintptr_t)&g_variant, variant, sizeof(*variant));
	for (cpu = 0; cpu < cpus; cpu++) {
		rq_of(cpu)->is_online = rq_of(cpu)->is_idle = 1;
		mark_idle(cpu);
	}
	if (usher_init())
		abort();
	for (cpu = 0; cpu < cpus; cpu++)
		state_of(cpu)->idle = 1;
	return host;
}

void host_free(struct instance *host)
{
	__u32 id;

	for (id = 0; id < host->tasks_made; id++)
		free(host->tasks[id]);
	for (id = 0; id < host->cgroups_made; id++)
		free(host->cgroups[id]);
	free(host->cgroups);
	free(host->tasks);
	munmap(host, sizeof(*host));
}

void host_set_now(struct instance *host, __u64 now)
{
	host->now_ns = now;
}

/* Takes a CPU off line, or on line again. */
void host_set_online(struct instance *host, __u32 cpu, _Bool is_online)
{
	struct rq *rq = &host->rqs[cpu];

	if (rq->is_online == is_online)
		return;
	enter(host, cpu);
	rq->is_online = is_online;
	if (is_online) {
		rq->is_idle = 1;
		mark_idle(cpu);
		usher_update_idle(cpu, 1);
	} else if (rq->is_idle) {
		rq->is_idle = 0;
		mark_busy(cpu);
		usher_update_idle(cpu, 0);
	}
}

/*
 * Gives the tasks of a cgroup a soft seat, or changes the CPUs of their seat. At most SEATS_MAX
 * cgroups may have a seat.
 */
void host_set_seat(struct instance *host, __u64 cgroup,
		   const struct cpu_set *cpus)
{
	struct host_seat *seat;
	__u32 at = 0;

	enter(host, 0);
	while (at < host->seats_used &&
	       host->seats_by_cgroup[at].cgroup != cgroup)
		at++;
	if (at == SEATS_MAX)
		abort();
	if (at == host->seats_used)
		host->seats_used++;
	seat = &host->seats_by_cgroup[at];
	seat->cgroup = cgroup;
	seat->seat.cpus = *cpus;
	g_seating.version++;
}

/* Functions by which tests and the simulator read the state. */

__u64 host_slice(struct instance *host, __u32 id)
{
	return host->tasks[id]->scx.slice;
}

/* Returns whether any CPU on which the task may run is idle. */
_Bool host_may_idle(const struct instance *host, __u32 id)
{
	const struct task_struct *p = host->tasks[id];
	unsigned long any = 0;
	__u32 word;

	for (word = 0; word < words_of(host); word++)
		any |= host->idle.bits[word] & p->cpus.bits[word];
	return any != 0;
}

_Bool host_any_idle(const struct instance *host)
{
	return !bpf_cpumask_empty(&host->idle);
}

void host_read_task(const struct instance *host, __u32 id,
		    struct host_task_state *state)
{
	const struct task_struct *p = host->tasks[id];
	const struct thread *thread = &p->storage;

	state->vtime = thread->vtime;
	state->burst_average_ns = thread->burst_average_ns;
	state->ran_ns = p->se.sum_exec_runtime;
	state->uncharged_ns = uncharged(p, thread);
	state->slice_ns = p->scx.slice;
	state->lag_ns = thread->lag_ns;
	state->cpu = p->thread_info.cpu;
	state->llc = thread->llc;
	state->is_urgent = thread->urgent;
	state->why = thread->why;
	state->is_queued = p->in != 0;
	state->placed = thread->placed;
	state->placed_llc = thread->placed_llc;
	state->capacity = thread->capacity;
	enter((struct instance *)(uintptr_t)host, 0);
	state->factor = factor_of(thread->group);
}

void host_read_llc(struct instance *host, __u32 llc,
		   struct host_llc_state *state)
{
	const struct llc_rq *llc_rq;

	enter(host, 0);
	llc_rq = llc_rq_of(llc);
	state->clock = llc_rq->clock;
	state->threads = g_llc_loads[llc % LLCS_MAX].threads;
	state->waiting = llc_rq->waiting;
	state->urgent = llc_rq->urgent;
}

void host_read_tally(struct instance *host, struct tally *sum)
{
	__u64 *to = (void *)sum;
	__u32 cpu, at;

	enter(host, 0);
	memset(sum, 0, sizeof(*sum));
	for (cpu = 0; cpu < host->cpus; cpu++) {
		const __u64 *from = (const void *)&g_tallies[cpu].tally;

		for (at = 0; at < sizeof(*sum) / sizeof(*to); at++)
			to[at] += from[at];
	}
}

/* Lets the next `claims` claims of an idle CPU fail, as if another CPU had claimed it first. */
void host_lose_claims(struct instance *host, __u32 claims)
{
	host->claims_lost = claims;
}

/* While `is_bypassed` is set, CPUs become idle without a call of update_idle. */
void host_set_bypassed(struct instance *host, _Bool is_bypassed)
{
	host->is_bypassed = is_bypassed;
}

/*
 * Simulates races: before each of the next `races` compare-and-swaps of the vtime clock of LLC 0,
 * another CPU advances the clock by race_ns. Returns the number of races from the previous call
 * that have not taken place.
 */
__u32 host_race(struct instance *host, __u32 races, __u64 race_ns)
{
	__u32 left = host->races;

	host->races = races;
	host->race_ns = race_ns;
	return left;
}

/*
 * Returns the number of loop iterations (bpf_for()) in callbacks since the last call of this
 * function.
 */
__u64 host_take_iterations(struct instance *host)
{
	__u64 iterations = host->iterations;

	host->iterations = 0;
	return iterations;
}
