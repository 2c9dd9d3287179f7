/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Transitions of a CPU to idle, in steps between which other CPUs act
 *
 * A CPU that finds no task in `dispatch` becomes idle a few microseconds later. A task that is
 * enqueued in between finds neither a CPU that will dispatch nor an idle CPU to kick. Without
 * host_split_idle(), host_schedule() makes the whole transition at once.
 *
 * 1. host_schedule() finds no task: the CPU runs no task, and is not marked idle yet.
 * 2. host_continue_idle(): the kernel adds the CPU to its masks of idle CPUs, or calls update_idle.
 *    The order differs between versions of the kernel.
 * 3. host_continue_idle(): the other of the two.
 *
 * The lock of a run queue is held during a transition. Kicks and tasks for the local queue of the CPU
 * therefore only mark the CPU, which schedules after the transition. host.c includes this file. Each
 * function takes constant time.
 */
#ifndef USHER_RULES_TRANSITIONS_H
#define USHER_RULES_TRANSITIONS_H

/* Begins a transition to idle, if transitions have steps and the CPU is not idle yet. */
static _Bool begins_idle(struct rq *rq)
{
	if (!instance->splits_idle || rq->is_idle)
		return 0;
	rq->curr = instance->current = 0;
	rq->idle_steps = 2;
	return 1;
}

/* Makes the next step of a transition to idle. */
static void step_idle(struct rq *rq, __u32 cpu)
{
	rq->is_idle = 1;
	rq->idle_steps--;
	if ((rq->idle_steps == 1) == instance->marks_late)
		usher_update_idle(cpu, 1);
	else
		mark_idle(cpu);
}

static void finish_idle(struct rq *rq, __u32 cpu)
{
	while (rq->idle_steps)
		step_idle(rq, cpu);
}

/* From now on, CPUs become idle in steps. `marks_late`: the kernel updates its masks last. */
void host_split_idle(struct instance *host, _Bool marks_late)
{
	host->splits_idle = 1;
	host->marks_late = marks_late;
}

/* Returns whether a CPU is in a transition to idle. */
_Bool host_becomes_idle(const struct instance *host, __u32 cpu)
{
	return host->rqs[cpu].idle_steps != 0;
}

/* Makes the next step of a transition to idle, if the CPU is in a transition. */
void host_continue_idle(struct instance *host, __u32 cpu)
{
	enter(host, cpu);
	if (host->rqs[cpu].idle_steps)
		step_idle(&host->rqs[cpu], cpu);
}

/* Copies the set of CPUs that are marked to schedule. */
void host_read_marked(const struct instance *host, struct cpu_set *marked)
{
	*marked = host->resched;
}

/* While `is_lost` is set, kicks of CPUs that run no task have no effect. */
void host_lose_idle_kicks(struct instance *host, _Bool is_lost)
{
	host->loses_idle_kicks = is_lost;
}

#endif
