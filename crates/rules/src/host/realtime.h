/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Real-time threads of the simulated machine
 *
 * A real-time thread takes a CPU: the running task is preempted, and no task runs on the CPU until
 * the thread releases the CPU. Tasks that were dispatched to the CPU with ENQ_IMMED are enqueued
 * again. Without this flag (host_set_immediate()), the kernel calls `cpu_release`, and a task that
 * is dispatched to a taken CPU waits there.
 *
 * host.c includes this file. A switch takes time in proportion to the tasks of the local queue.
 */
#ifndef USHER_RULES_REALTIME_H
#define USHER_RULES_REALTIME_H

/* Enqueues the marked tasks of the local queue of a CPU again. */
static void reenqueue_from(struct instance *host, __u32 cpu)
{
	struct rq *rq = &host->rqs[cpu];
	struct task_struct *p = rq->local.first;
	struct dsq again = {0};

	while (p) {
		struct task_struct *behind = p->behind;

		if (p->is_immediate) {
			unlink_from(p);
			link_behind(&again, again.last, p);
		}
		p = behind;
	}
	while (again.first) {
		p = again.first;
		unlink_from(p);
		enter(host, cpu);
		enqueue(p, ENQ_REENQ);
	}
}

/* Enqueues tasks again that were dispatched to taken CPUs, until no such task is left. */
static void reenqueue_marked(struct instance *host)
{
	__u32 word;

	for (word = 0; word < words_of(host); word++) {
		while (host->reenqueue.words[word]) {
			__u32 cpu = word * 64 +
				    lowest_bit(host->reenqueue.words[word]);

			remove_from(&host->reenqueue, cpu);
			reenqueue_from(host, cpu);
		}
	}
}

/* Preempts the running task of a CPU: it becomes the first task of the local queue. */
static void preempt_for_realtime(struct rq *rq)
{
	struct task_struct *prev = rq->curr;

	rq->curr = instance->current = 0;
	if (prev && prev->scx.flags & TASK_QUEUED)
		link_behind(&rq->local, 0, prev);
}

/* Marks a CPU as taken, or released, by a real-time thread. */
void host_set_realtime(struct instance *host, __u32 cpu, _Bool is_taken)
{
	struct rq *rq = &host->rqs[cpu];

	if (rq->is_taken == is_taken)
		return;
	enter(host, cpu);
	rq->is_taken = is_taken;
	if (!is_taken) {
		resched(cpu);
		return;
	}
	account(rq);
	remove_from(&host->resched, cpu);
	if (rq->is_idle) {
		rq->is_idle = 0;
		mark_busy(cpu);
		usher_update_idle(cpu, 0);
	}
	preempt_for_realtime(rq);
	if (host->lacks_immediate)
		usher_cpu_release(cpu);
	else
		add_to(&host->reenqueue, cpu);
	reenqueue_marked(host);
}

/* Determines whether the kernel has ENQ_IMMED. */
void host_set_immediate(struct instance *host, _Bool is_immediate)
{
	host->lacks_immediate = !is_immediate;
}

#endif
