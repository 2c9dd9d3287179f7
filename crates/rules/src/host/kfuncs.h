/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The kernel's functions that the scheduler calls, on the CPUs, tasks and dispatch queues of the
 * instance that the calling thread has entered
 *
 * host.c includes this file, after the scheduler. kernel.h declares the functions. They have the
 * names and results of the kernel's functions, but use no locks:
 *
 * - helpers: time (set by the caller), seats by cgroup, seeded random numbers;
 * - idle CPUs: two masks, of idle CPUs and of idle cores;
 * - dispatch queues: doubly linked lists. insert() only records the target; finish_insert() inserts
 *   after the callback, as the kernel does.
 *
 * insert_at() and take() visit the waiting tasks of a queue one by one, and host_lookup() visits
 * the seats one by one. Each other function takes constant time, or time in proportion to the
 * number of CPUs.
 */
#ifndef USHER_RULES_KFUNCS_H
#define USHER_RULES_KFUNCS_H

const char host_threads, host_seats, host_seat_tallies, host_limits, host_parks,
	host_slice_timers, host_group_numbers, host_group_timers;

/* Enters an instance: later calls by this thread act as the running task of the given CPU. */
static void enter(struct instance *host, __u32 cpu)
{
	instance = host;
	g_places = host->places;
	host->cpu = cpu;
	host->current = host->rqs[cpu % CPUS_MAX].curr;
}

/* Returns the number of words of a CPU set that contain CPUs of the instance. */
static __u32 words_of(const struct instance *host)
{
	return (host->cpus + 63) / 64;
}

static struct rq *rq_of(__u32 cpu)
{
	return &instance->rqs[cpu % CPUS_MAX];
}

static _Bool mask_has(const struct cpumask *mask, __u32 cpu)
{
	return mask->bits[cpu / 64 % CPU_WORDS] >> cpu % 64 & 1;
}

/* Time. */

static __u64 now_ns(void)
{
	return instance->now_ns;
}

/* Jiffies of 4 ms, as in a kernel with CONFIG_HZ=250. */
static __u64 bpf_jiffies64(void)
{
	return instance->now_ns / 4000000;
}

/* Adds the CPU time of a CPU's current run to its task, as the kernel's update_curr_scx() does. */
static void account(struct rq *rq)
{
	struct task_struct *curr = rq->curr;
	__u64 ran = instance->now_ns - rq->since_ns;

	if (!curr || (__s64)ran <= 0)
		return;
	rq->since_ns = instance->now_ns;
	curr->se.sum_exec_runtime += ran;
	/* The kernel does not subtract from a slice without an end (SCX_SLICE_INF). */
	if (curr->scx.slice != (__u64)-1)
		curr->scx.slice -=
			ran < curr->scx.slice ? ran : curr->scx.slice;
}

/* Helpers. */

static void host_count_iteration(void)
{
	instance->iterations++;
}

static void host_count_words(__u64 words)
{
	if (instance)
		instance->iterations += words;
}

/* Simulates a race: another CPU advances the clock of LLC 0 (host_race()). */
static void host_before_swap(__u64 *clock)
{
	if (!instance->races || clock != &g_llc_rqs[0].clock)
		return;
	instance->races--;
	*clock += instance->race_ns;
}

static _Bool host_reports_quotas(void)
{
	return !instance->hides_quotas;
}

static void host_start_timer(struct bpf_timer *timer, __u64 ns)
{
	timer->expires_ns = instance->now_ns + (ns ? ns : 1);
	instance->has_timers = 1;
}

/* Returns the slot of a cgroup's quota in the hash table, or the free slot to use for it. */
static struct host_limit *limit_slot(__u64 cgroup)
{
	__u64 at = cgroup * 0x9e3779b97f4a7c15ULL >> 40;

	while (instance->limits_by_cgroup[at % HOST_LIMITS].is_used &&
	       instance->limits_by_cgroup[at % HOST_LIMITS].cgroup != cgroup)
		at++;
	return &instance->limits_by_cgroup[at % HOST_LIMITS];
}

/* Adds an entry; -1: there is one already. */
static int add_limit_slot(__u64 cgroup, const struct limit *limit)
{
	struct host_limit *slot = limit_slot(cgroup);

	if (slot->is_used && slot->limit.unused)
		return -1;
	slot->is_used = 1;
	slot->cgroup = cgroup;
	slot->limit = *limit;
	slot->limit.unused = 1;
	return 0;
}

/* Marks an entry as deleted; its slot stays in use for the same cgroup. -1: there is none. */
static int delete_limit_slot(__u64 cgroup)
{
	struct host_limit *slot = limit_slot(cgroup);

	if (!slot->limit.unused)
		return -1;
	slot->limit.unused = 0;
	return 0;
}

/* Returns the number of a cgroup's entry; 0: the cgroup has none. */
static __u32 *group_number_slot(__u64 cgroup)
{
	__u32 at;

	for (at = 0; at < GROUPS_MAX; at++)
		if (instance->group_cgroups[at] == cgroup)
			return &instance->group_numbers_by_slot[at];
	return 0;
}

/* Sets the value of a key; -1: the map has the key already. */
static int host_update(const char *map, const __u64 *key, const void *value)
{
	__u32 at = *(const __u32 *)value;

	if (map == &host_limits)
		return add_limit_slot(*key, value);
	if (group_number_slot(*key))
		return -1;
	instance->group_cgroups[at] = *key;
	instance->group_numbers_by_slot[at] = at;
	return 0;
}

/* Deletes a key; -1: the map does not have the key. */
static int host_delete(const char *map, const __u64 *key)
{
	__u32 *number;

	if (map == &host_limits)
		return delete_limit_slot(*key);
	number = group_number_slot(*key);
	if (!number)
		return -1;
	instance->group_cgroups[*number] = 0;
	return 0;
}

/* Returns the seat of a cgroup, or the counters of its seat; 0: the cgroup has no seat. */
static void *seat_of(const char *map, __u64 cgroup)
{
	__u32 at;

	for (at = 0; at < instance->seats_used; at++) {
		struct host_seat *found = &instance->seats_by_cgroup[at];

		if (found->cgroup != cgroup)
			continue;
		return map == &host_seats ? (void *)&found->seat
					  : (void *)&found->tally;
	}
	return 0;
}

/*
 * Returns the value of a map; 0: the map has no value with this key. Inlined, the compiler would warn
 * of keys that are too short for other maps.
 */
__noinline void *host_lookup(const char *map, const void *key)
{
	struct host_limit *slot;

	if (map == &host_limits) {
		slot = limit_slot(*(const __u64 *)key);
		return slot->is_used && slot->limit.unused ? &slot->limit : 0;
	}
	if (map == &host_parks)
		return *(const __u32 *)key < LIMITS_MAX
			       ? &instance->parks_by_number[*(const __u32 *)key]
			       : 0;
	if (map == &host_slice_timers)
		return &instance->slice_timers_by_cpu[*(const __u32 *)key %
						      CPUS_MAX];
	if (map == &host_group_timers)
		return &instance->group_timer;
	if (map == &host_group_numbers)
		return group_number_slot(*(const __u64 *)key);
	return seat_of(map, *(const __u64 *)key);
}

static __u32 bpf_get_smp_processor_id(void)
{
	return instance->cpu;
}

/* The task of an idle CPU; no callback changes it. */
static struct task_struct idle_task;

static struct task_struct *bpf_get_current_task_btf(void)
{
	return instance->current ? instance->current : &idle_task;
}

/* Pseudo-random numbers by the generator splitmix64. */
static __u32 bpf_get_prandom_u32(void)
{
	__u64 z = instance->random += 0x9e3779b97f4a7c15ULL;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

static int bpf_probe_read_kernel(void *to, __u32 bytes, const void *from)
{
	/* No page is mapped below this address: the read fails with -EFAULT. */
	if ((uintptr_t)from < 4096) {
		memset(to, 0, bytes);
		return -14;
	}
	memcpy(to, from, bytes);
	return 0;
}

static _Bool bpf_cpumask_test_cpu(__u32 cpu, const struct cpumask *mask)
{
	return mask_has(mask, cpu);
}

static _Bool bpf_cpumask_empty(const struct cpumask *mask)
{
	unsigned long any = 0;
	__u32 word;

	for (word = 0; word < words_of(instance); word++)
		any |= mask->bits[word];
	return !any;
}

static __u32 scx_bpf_nr_cpu_ids(void)
{
	return instance->cpus;
}

/* Idle CPUs. */

/*
 * Adds a CPU to the idle CPUs. If all CPUs of its core are idle, adds the core to the idle cores.
 */
static void mark_idle(__u32 cpu)
{
	const struct cpu_set *core = &instance->places[cpu].core;
	_Bool whole = 1;
	__u32 word;

	instance->idle.bits[cpu / 64] |= 1UL << cpu % 64;
	for (word = 0; word < words_of(instance); word++)
		whole &= !(core->words[word] & ~instance->idle.bits[word]);
	for (word = 0; whole && word < words_of(instance); word++)
		instance->idle_cores.bits[word] |= core->words[word];
}

/*
 * Removes a CPU from the idle CPUs, and its core from the idle cores. Returns whether the CPU was
 * idle.
 */
static _Bool mark_busy(__u32 cpu)
{
	const struct cpu_set *core = &instance->places[cpu].core;
	_Bool was_idle = mask_has(&instance->idle, cpu);
	__u32 word;

	instance->idle.bits[cpu / 64] &= ~(1UL << cpu % 64);
	for (word = 0; word < words_of(instance); word++)
		instance->idle_cores.bits[word] &= ~core->words[word];
	return was_idle;
}

static _Bool scx_bpf_test_and_clear_cpu_idle(__s32 cpu)
{
	_Bool was_idle = mark_busy(cpu);

	if (!was_idle || !instance->claims_lost)
		return was_idle;
	instance->claims_lost--;
	return 0;
}

static const struct cpumask *scx_bpf_get_idle_cpumask(void)
{
	return &instance->idle;
}

static const struct cpumask *scx_bpf_get_idle_smtmask(void)
{
	return &instance->idle_cores;
}

/*
 * Returns the CPUs of a mask that are in a node. The result is a scratch mask, which the next call
 * overwrites.
 */
static const struct cpumask *of_node(const struct cpumask *all, __u32 node)
{
	__u32 cpu;

	memset(&instance->scratch, 0, sizeof(instance->scratch));
	for (cpu = 0; cpu < instance->cpus; cpu++)
		if (mask_has(all, cpu) &&
		    instance->places[cpu].node_number == node)
			instance->scratch.bits[cpu / 64] |= 1UL << cpu % 64;
	return &instance->scratch;
}

static const struct cpumask *scx_bpf_get_idle_cpumask_node(__s32 node)
{
	return of_node(&instance->idle, node);
}

static const struct cpumask *scx_bpf_get_idle_smtmask_node(__s32 node)
{
	return of_node(&instance->idle_cores, node);
}

static void scx_bpf_put_idle_cpumask(const struct cpumask *mask)
{
	(void)mask;
}

/* Real-time threads. */

static __u64 host_enq_immed(void)
{
	return instance->lacks_immediate ? 0 : 1ULL << 33;
}

/* Marks all tasks of the local queue of this CPU, which host_set_realtime() enqueues again. */
static __u32 scx_bpf_reenqueue_local(void)
{
	struct rq *rq = rq_of(instance->cpu);
	struct task_struct *p;

	for (p = rq->local.first; p; p = p->behind)
		p->is_immediate = 1;
	add_to(&instance->reenqueue, instance->cpu);
	return rq->local.waiting;
}

/* Dispatch queues. */

/* Returns the index of a queue in the table; HOST_DSQS or more: the table has no such queue. */
static __u64 dsq_index(__u64 dsq)
{
	return dsq == FIFO ? HOST_DSQS - 1 : dsq - QUEUES;
}

/*
 * Returns a queue by its number. The kernel ends a scheduler that uses a queue which it has not
 * created; the host build aborts the process.
 */
static struct dsq *dsq_of(__u64 dsq)
{
	__u64 at = dsq_index(dsq);

	if (at >= HOST_DSQS || !instance->dsqs[at].is_created)
		abort();
	return &instance->dsqs[at];
}

static __s32 scx_bpf_create_dsq(__u64 dsq, __s32 node)
{
	__u64 at = dsq_index(dsq);

	(void)node;
	if (at >= HOST_DSQS)
		return -22;
	if (instance->dsqs[at].is_created)
		return -17;
	instance->dsqs[at].is_created = 1;
	return 0;
}

static __s32 scx_bpf_dsq_nr_queued(__u64 dsq)
{
	return dsq_of(dsq)->waiting;
}

/* Inserts a task behind the task `before`; at the head of the queue if `before` is 0. */
static void link_behind(struct dsq *dsq, struct task_struct *before,
			struct task_struct *p)
{
	p->in = dsq;
	p->before = before;
	p->behind = before ? before->behind : dsq->first;
	*(before ? &before->behind : &dsq->first) = p;
	*(p->behind ? &p->behind->before : &dsq->last) = p;
	dsq->waiting++;
}

static void unlink_from(struct task_struct *p)
{
	struct dsq *dsq = p->in;

	*(p->before ? &p->before->behind : &dsq->first) = p->behind;
	*(p->behind ? &p->behind->before : &dsq->last) = p->before;
	p->in = 0;
	p->before = p->behind = 0;
	dsq->waiting--;
}

/*
 * Inserts a task by virtual time. Tasks with equal virtual times keep the order of their arrival.
 */
static void link_by_vtime(struct dsq *dsq, struct task_struct *p)
{
	struct task_struct *before = dsq->last;

	while (before && is_before(p->scx.dsq_vtime, before->scx.dsq_vtime))
		before = before->before;
	link_behind(dsq, before, p);
}

/* Marks a CPU that has to schedule. */
static void resched(__u32 cpu)
{
	add_to(&instance->resched, cpu);
}

/* Inserts a task into the local queue of a CPU. ENQ_PREEMPT ends the slice of the running task. */
static void put_local(struct task_struct *p, __u32 cpu, __u64 flags)
{
	struct rq *rq = rq_of(cpu);

	p->thread_info.cpu = cpu;
	p->is_immediate = (flags & ENQ_IMMED) != 0;
	link_behind(&rq->local, rq->local.last, p);
	if (rq->is_taken && p->is_immediate)
		add_to(&instance->reenqueue, cpu);
	/* A running task that is enqueued again does not preempt itself. */
	if (flags & ENQ_PREEMPT && rq->curr && rq->curr != p) {
		account(rq);
		rq->curr->scx.slice = 0;
		resched(cpu);
	}
	if (!rq->curr)
		resched(cpu);
}

static void insert(struct task_struct *p, __u64 dsq, __u64 slice, __u64 flags)
{
	p->to_dsq = dsq;
	p->to_flags = flags;
	p->by_vtime = 0;
	p->scx.slice = slice ? slice : 1;
}

static void insert_at(struct task_struct *p, __u64 dsq, __u64 slice,
		      __u64 vtime, __u64 flags)
{
	insert(p, dsq, slice, flags);
	p->by_vtime = 1;
	p->scx.dsq_vtime = vtime;
}

/* Executes the insertion that a callback has requested, as the kernel does after the callback. */
static void finish_insert(struct task_struct *p)
{
	__u64 dsq = p->to_dsq;

	p->to_dsq = 0;
	if (dsq == DSQ_LOCAL)
		put_local(p, p->thread_info.cpu, p->to_flags);
	else if ((dsq & DSQ_LOCAL_ON) == DSQ_LOCAL_ON)
		put_local(p, dsq & (CPUS_MAX - 1), p->to_flags);
	else if (p->by_vtime)
		link_by_vtime(dsq_of(dsq), p);
	else
		link_behind(dsq_of(dsq), dsq_of(dsq)->last, p);
}

/*
 * Moves the first task of a queue that may run on this CPU to the CPU's local queue. Returns
 * whether there was such a task.
 */
static _Bool take(__u64 dsq)
{
	__u32 cpu = instance->cpu;
	struct task_struct *p = dsq_of(dsq)->first;

	while (p && !mask_has(&p->cpus, cpu))
		p = p->behind;
	if (!p)
		return 0;
	unlink_from(p);
	p->thread_info.cpu = cpu;
	p->is_immediate = ENQ_IMMED != 0;
	link_behind(&rq_of(cpu)->local, rq_of(cpu)->local.last, p);
	return 1;
}

static __u64 first_vtime(__u64 dsq, __u64 none)
{
	struct task_struct *p = dsq_of(dsq)->first;

	return p ? p->scx.dsq_vtime : none;
}

static int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq,
				__u64 flags)
{
	(void)flags;
	it->next = dsq_of(dsq)->first;
	return 0;
}

static struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it)
{
	struct task_struct *p = it->next;

	it->next = p ? p->behind : 0;
	return p;
}

/* Moves a task that an iterator has returned to another queue. */
static _Bool move(struct bpf_iter_scx_dsq *it, struct task_struct *p, __u64 dsq)
{
	(void)it;
	unlink_from(p);
	p->by_vtime = 0;
	p->to_dsq = dsq;
	p->to_flags = 0;
	finish_insert(p);
	return 1;
}

static _Bool move_at(struct bpf_iter_scx_dsq *it, struct task_struct *p,
		     __u64 dsq, __u64 vtime)
{
	(void)it;
	unlink_from(p);
	p->by_vtime = 1;
	p->scx.dsq_vtime = vtime;
	p->to_dsq = dsq;
	p->to_flags = 0;
	finish_insert(p);
	return 1;
}

static void scx_bpf_kick_cpu(__s32 cpu, __u64 flags)
{
	struct rq *rq = rq_of(cpu);

	if (!rq->is_online || (flags & KICK_IDLE && rq->curr))
		return;
	if (!rq->curr && instance->loses_idle_kicks)
		return;
	if (flags & KICK_PREEMPT && rq->curr) {
		account(rq);
		rq->curr->scx.slice = 0;
	}
	resched(cpu);
}

#endif
