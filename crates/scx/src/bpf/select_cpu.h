/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Selection of a CPU for a thread
 * ===============================
 *
 * 1. Problem
 * ----------
 * A thread that wakes should run at once, on an idle CPU. Two threads that share a core slow each
 * other down, which is needless while another core is idle (paper 3b). A program with a seat should
 * run on the CPUs of the seat, and leave these CPUs to other programs while the program sleeps
 * (paper 1).
 *
 * 2. Terms
 * --------
 * - Seat: the CPUs that user space gave to a program (seats.h).
 * - Preferred CPUs: the allowed CPUs of a thread that lie in its program's seat; without a seat,
 *   all allowed CPUs.
 * - Borrower: a thread that runs on a CPU outside its program's seat. A thread that prefers the CPU
 *   may preempt it at any time.
 * - Shared core: a core on which two or more threads run.
 * - Claim: take a CPU out of the kernel's set of idle CPUs, or out of the set of CPUs that run
 *   borrowers, by an atomic operation. Of several simultaneous claims, one succeeds.
 *
 * 3. Steps
 * --------
 * At wake-up and fork, and in `enqueue` for threads that did not wake, claim():
 *
 * The search begins at the last CPU of the thread, or at the home of a new thread (placement.h).
 *
 * 0. claim_near_core(), without seats and classes of CPUs: claim an idle core of the thread's LLC
 *    (near_core.h). The further steps follow if there is none.
 * 1. fill_scan_ctx(): read the idle CPUs, the idle cores, the allowed CPUs and the preferred CPUs
 *    into scratch sets. If no CPU is idle and there are no seats, the thread has to wait.
 * 2. choose(): select the best kind of CPU, in this order: an idle core among the preferred CPUs; a
 *    preferred CPU that runs a borrower; any other idle core; an idle preferred CPU of a busy core.
 *    Among CPUs of the same kind, the CPU nearest to the thread's last CPU is selected (choose.h).
 *    Without `smt`, each idle CPU counts as an idle core. On hybrid machines, idle cores of the
 *    fastest class come first (capacity.h).
 * 3. choose_beside_borrowers(): if there is no such CPU, select an idle CPU of a core that runs
 *    only borrowers.
 * 4. Claim the CPU. If another thread has claimed the CPU first, remove the CPU from the sets and
 *    repeat step 2.
 *
 * When the last busy CPU of a core becomes idle, smt_pull():
 *
 * 5. find_smt_pull_source(): search this LLC, then all other LLCs, for a running thread that shares
 *    a core and may run on the idle CPU.
 * 6. Kick the CPU of that thread. The thread passes through `enqueue`, which moves it to an idle
 *    core by steps 1 to 4. At the tick and at the end of a slice, should_migrate_to_idle_core()
 *    checks again. This covers a core that became idle while the thread could not migrate.
 *
 * 4. Bound
 * --------
 * CLAIM_ATTEMPTS (4) attempts, each with a constant number of passes over the words of the LLC, of
 * the node and of the machine (at most 32), and at most BORROWER_SCANS_MAX (8) cores. After the last
 * failed attempt, the thread waits in a queue. The idle CPUs of the other nodes (at most NODES_MAX =
 * 64 nodes) are read once. Step 5 takes at most 2 * PULL_STEPS_MAX = 50 loop iterations.
 *
 * 5. Known limits
 * ---------------
 * - The sets are snapshots: a CPU may have become busy since. The claim then fails.
 * - A search of step 5 may reach its limit before it finds a thread. The next search continues
 *   where the last search ended.
 * - A CPU that became idle without a report counts as busy (find_unreported_idle()).
 */
#ifndef USHER_SCX_SELECT_CPU_H
#define USHER_SCX_SELECT_CPU_H

#include "capacity.h"
#include "near_core.h"

/*
 * Reads the `words` of the idle CPUs of the node of `here`, or of all idle CPUs if the kernel keeps
 * one mask. Returns whether any of these CPUs is idle.
 */
ALWAYS _Bool read_idle(struct cpu_set *idle, const struct place *here,
		       __u32 words)
{
	const struct cpumask *mask = idle_mask(0, here->node_number);

	read_words(idle, mask, words);
	scx_bpf_put_idle_cpumask(mask);
	return has_any(idle, words);
}

/*
 * Adds CPUs to g_idle_cpus that became idle without a call of update_idle, because the kernel had
 * bypassed the scheduler, as during a suspend. The function adds CPUs only if g_idle_cpus is empty.
 * While other CPUs are idle, a CPU that became idle without a report counts as busy until its next
 * idle period. The cost of this error is at most one migration of a thread on the core of that CPU.
 */
static inline void find_unreported_idle(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	struct word_scan left = {here->all_words, 0};
	__u32 word;

	if (any_idle() || is_mask_empty(idle_mask(0, here->node_number)))
		return;
	read_idle(&scan->remaining, here, here->all_words);
	for_words(left, word)
	{
		__u64 idle = scan->remaining.words[word];

		if (g_variant.isolates)
			idle &= g_cpus.words[word];
		if (!idle)
			continue;
		__sync_fetch_and_or(&g_idle_cpus.words[word], idle);
		if (CPU_WORDS > 1)
			add_idle_word(word);
	}
}

/*
 * Reads the `words` of the CPUs of idle cores: those in the node of `here`, or all of them if the
 * kernel keeps one mask.
 */
ALWAYS void read_cores(struct cpu_set *cores, const struct place *here,
		       __u32 words)
{
	const struct cpumask *mask = idle_mask(1, here->node_number);

	read_words(cores, mask, words);
	scx_bpf_put_idle_cpumask(mask);
}

/* Adds the CPUs of a kernel mask in the `words` to the set `to`, and releases the mask. */
static inline void add_mask(struct cpu_set *to, const struct cpumask *mask,
			    __u32 words)
{
	struct word_scan left = {words, 0};
	__u32 word;

	for_words(left, word) to->words[word] |= read_word(mask, word);
	scx_bpf_put_idle_cpumask(mask);
}

/*
 * Adds the idle CPUs of the nodes in `unread_nodes` to the scratch sets. Callers defer this until
 * the own node has no suitable CPU. Returns whether the scratch set of idle CPUs contains a CPU.
 */
__noinline int read_other_nodes(void)
{
	struct idle_scan_ctx *scan = scan_ctx();
	__u64 nodes = scan->unread_nodes;
	int step;

	if (!has_nodes())
		return 0;
	bpf_for(step, 0, NODES_MAX)
	{
		__u32 node = lowest_bit(nodes) % NODES_MAX;
		__u32 words = g_node_words[node] & scan->words;

		if (!nodes)
			break;
		nodes &= nodes - 1;
		add_mask(&scan->idle, scx_bpf_get_idle_cpumask_node(node),
			 words);
		add_mask(&scan->cores, scx_bpf_get_idle_smtmask_node(node),
			 words);
	}
	scan->unread_nodes = 0;
	return has_any(&scan->idle, scan->words);
}

/* Returns whether there is nothing to select: no CPU is idle, and there are no seats. */
ALWAYS _Bool has_no_choice(void)
{
	return !any_idle() && !seats_version();
}

/*
 * Returns false, the result of fill_scan_ctx() if no CPU is idle and there are no seats. Also
 * clears the seat that the thread may still record.
 */
static inline _Bool nothing_to_scan(struct thread *thread)
{
	leave_seat(thread);
	return 0;
}

/*
 * Fills the `words` of the scratch CPU sets for a thread whose last CPU is `last`. With idle masks
 * per node, the masks of the other nodes are read later (read_other_nodes()). Returns false if no
 * CPU is idle in the `words` and there are no seats.
 */
static LARGE_CALL _Bool fill_words(struct idle_scan_ctx *scan,
				   struct task_struct *p, struct thread *thread,
				   __u32 last, __u32 words)
{
	struct place *here = place_of(last);

	if (has_no_choice())
		return nothing_to_scan(thread);
	scan->words = words;
	scan->unread_nodes =
		g_variant.nodes & ~(1ULL << here->node_number % NODES_MAX);
	if (read_idle(&scan->idle, here, words)) {
		read_cores(&scan->cores, here, words);
	} else {
		if (!g_variant.nodes && !seats_version())
			return nothing_to_scan(thread);
		clear_words(&scan->cores, words);
		if (!read_other_nodes() && !seats_version())
			return nothing_to_scan(thread);
	}
	read_allowed(p, words);
	copy_words(&scan->borrowers, &g_borrowers, words);
	read_preferred(scan, p, thread);
	return 1;
}

/*
 * Fills the scratch CPU sets: with seats, all words of the machine; without seats, the words with
 * idle CPUs.
 */
ALWAYS _Bool fill_scan_ctx(struct idle_scan_ctx *scan, struct task_struct *p,
			   struct thread *thread, __u32 last)
{
	struct place *here = place_of(last);
	__u32 words = seats_version() ? here->all_words
				      : here->near_words | idle_words();

	return fill_words(scan, p, thread, last, words);
}

/*
 * Fills the scratch CPU sets: without seats, only the words of window_of(). On a hybrid machine, the
 * fastest idle core may be in any word.
 */
ALWAYS _Bool fill_window(struct idle_scan_ctx *scan, struct task_struct *p,
			 struct thread *thread, __u32 last)
{
	struct place *here = place_of(last);
	__u32 words = seats_version() || is_hybrid() ? here->all_words
						     : window_of(last);

	return fill_words(scan, p, thread, last, words);
}

/*
 * Updates the seat of a running thread after a change of the seats, and records whether the thread
 * is a borrower on its CPU.
 */
static inline void follow_seats(struct task_struct *p, struct thread *thread,
				__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();

	if (!is_stale(thread, seats_version()))
		return;
	fill_scan_ctx(scan, p, thread, cpu);
	note_borrower(cpu, !is_preferred(thread->seat, cpu));
}

/*
 * If the kernel keeps idle masks per node, returns an idle preferred CPU of this node; with `smt`,
 * a CPU of an idle core. If this node has no such CPU, reads the masks of the other nodes and
 * returns NOWHERE. If these masks have been read, or the kernel keeps one mask, returns NOWHERE at
 * once.
 */
static inline __s32 choose_near(_Bool smt, const struct idle_scan_ctx *scan,
				__u32 last, const struct place *here)
{
	__s32 cpu = NOWHERE;

	if (scan->unread_nodes) {
		cpu = choose_best(smt, scan, last, here);
		if (cpu < 0)
			read_other_nodes();
	}
	return cpu;
}

/*
 * Selects a CPU: step 2 of the overview. The function is not inlined, so that the verifier checks
 * it once.
 */
__noinline int choose(__u32 smt, __u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 near;

	near = choose_near(smt, scan, last, here);
	return near >= 0 ? near : choose_cpu(smt, scan, last, here);
}

/* Selects a CPU of an idle core: a preferred CPU, else an allowed CPU; NOWHERE: there is none. */
__noinline int choose_core(__u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 near;

	near = choose_near(1, scan, last, here);
	return near >= 0 ? near : choose_core_of(scan, last, here);
}

static inline void clear_cpu(struct cpu_set *set, __u32 cpu)
{
	set->words[cpu / 64 % CPU_WORDS] &= ~(1ULL << cpu % 64);
}

/* Upper limit of the idle CPUs that a call of choose_beside_borrowers() examines. */
#define BORROWER_SCANS_MAX 8

/*
 * Returns the nearest allowed idle CPU on a core that runs only borrowers; NOWHERE: there is none.
 * The function is called when no other CPU is suitable: two borrowers may then share a core.
 */
__noinline int choose_beside_borrowers(__u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 found = NOWHERE;
	int step;

	if (!seats_version())
		return NOWHERE;
	copy_words(&scan->remaining, &scan->idle, scan->words);
	bpf_for(step, 0, BORROWER_SCANS_MAX)
	{
		__s32 cpu = nearest_of(&scan->remaining, &scan->allowed, last,
				       here, scan->words);

		if (cpu < 0)
			break;
		if (only_borrowers_run(&place_of(cpu)->core,
				       place_of(cpu)->core_words, scan)) {
			found = cpu;
			break;
		}
		clear_cpu(&scan->remaining, cpu);
	}
	return found;
}

/* Claims the CPU of a borrower. Returns false if another thread has claimed the CPU first. */
static inline _Bool claim_from_borrower(struct thread *thread, __u32 cpu)
{
	if (!preempt_borrower(cpu))
		return 0;
	COUNT(returned);
	thread->why = WHY_RETURNED;
	thread->returning_ns = now_ns();
	return 1;
}

/*
 * Claims an idle CPU, and counts whether its core was idle. Returns false if another thread has
 * claimed the CPU first.
 */
static inline _Bool claim_idle(struct thread *thread, __u32 cpu,
			       const struct idle_scan_ctx *scan)
{
	if (!scx_bpf_test_and_clear_cpu_idle(cpu))
		return 0;
	if (has_cpu(&scan->cores, cpu)) {
		COUNT(idle_cores);
		thread->why = WHY_IDLE_CORE;
	} else {
		COUNT(idle_threads);
		thread->why = WHY_IDLE_THREAD;
	}
	if (!has_cpu(&scan->preferred_cpus, cpu))
		COUNT(borrowed);
	return 1;
}

/*
 * Selects a CPU of an idle core on a machine with several classes of CPUs: steps 1 and 2 of
 * capacity.h. With `moves`, the thread runs on `last`.
 */
__noinline int choose_on_hybrid(__u32 smt, __u32 last, __u32 moves,
				__u32 demanding)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct cpu_set *best = smt ? &scan->cores : &scan->idle;
	__u32 slowest = CLASSES_MAX;

	if (scan->unread_nodes)
		read_other_nodes();
	if (moves) {
		slowest = class_of(last);
		if (!is_shared(last, 0)) {
			if (!demanding || !slowest)
				return NOWHERE;
			slowest--;
		}
	} else if (!demanding && has_cpu(best, last) &&
		   has_cpu(&scan->preferred_cpus, last)) {
		return last;
	}
	return nearest_of_fastest(smt, last, slowest);
}

/* Selects a CPU; with `cores_only`, for a thread that runs on `last`, a CPU of an idle core. */
ALWAYS __s32 choose_for(const struct thread *thread, __u32 last, _Bool smt,
			_Bool cores_only)
{
	if (is_hybrid()) {
		__s32 cpu = choose_on_hybrid(smt, last, cores_only,
					     is_demanding(thread));

		if (cpu >= 0 || cores_only)
			return cpu;
	}
	return cores_only ? choose_core(last) : choose(smt, last);
}

/* Number of failed claims after which the selection gives up. */
#define CLAIM_ATTEMPTS 4

/*
 * Selects and claims a CPU: steps 2 to 4 of the overview. With `cores_only`, only CPUs of idle
 * cores are suitable. Returns NOWHERE if there is no suitable CPU, or after CLAIM_ATTEMPTS failed
 * claims.
 */
static inline __s32 claim_of_scan(struct thread *thread, __u32 last, _Bool smt,
				  _Bool cores_only)
{
	struct idle_scan_ctx *scan = scan_ctx();
	int try;

	bpf_for(try, 0, CLAIM_ATTEMPTS)
	{
		__s32 cpu = choose_for(thread, last, smt, cores_only);

		if (cpu < 0 && !cores_only)
			cpu = choose_beside_borrowers(last);
		if (cpu < 0)
			break;
		if (has_cpu(&scan->idle, cpu)
			    ? claim_idle(thread, cpu, scan)
			    : claim_from_borrower(thread, cpu)) {
			if (is_hybrid() && class_of(cpu) < class_of(last) &&
			    thread->why == WHY_IDLE_CORE)
				thread->why = WHY_FASTER_CORE;
			return cpu;
		}
		clear_cpu(&scan->idle, cpu);
		clear_cpu(&scan->cores, cpu);
		clear_cpu(&scan->borrowers, cpu);
	}
	return NOWHERE;
}

/*
 * Selects and claims a CPU among the words of window_of(), or else among all words with idle CPUs.
 * With seats, the first search covers all words.
 */
ALWAYS __s32 claim_best(struct task_struct *p, struct thread *thread,
			__u32 last, _Bool smt, _Bool cores_only)
{
	struct idle_scan_ctx *scan = scan_ctx();
	int round;

	for (round = 0; round < (CPU_WORDS == 1 ? 1 : 2); round++) {
		__s32 cpu = NOWHERE;

		if (round ? fill_scan_ctx(scan, p, thread, last)
			  : fill_window(scan, p, thread, last))
			cpu = claim_of_scan(thread, last, smt, cores_only);
		if (cpu >= 0 || seats_version() ||
		    !(idle_words() & ~scan->words))
			return cpu;
	}
	return NOWHERE;
}

/*
 * Same as claim_best(), with two fast paths: no CPU is idle and there are no seats, or a core of the
 * thread's LLC is idle (has_near_search()).
 */
ALWAYS __s32 claim(struct task_struct *p, struct thread *thread, __u32 last,
		   _Bool smt, _Bool cores_only)
{
	__s32 cpu;

	if (has_no_choice()) {
		leave_seat(thread);
		return NOWHERE;
	}
	if (has_near_search()) {
		cpu = claim_near_core(p, thread, last, smt);
		if (cpu >= 0)
			return cpu;
	}
	return claim_best(p, thread, last, smt, cores_only);
}

/*
 * Returns whether the running thread shares its core with another running thread, and could run on
 * an idle core; or, on a hybrid machine, whether it gains by a migration (capacity.h).
 */
static inline _Bool should_migrate_to_idle_core(struct task_struct *p,
						__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct thread *thread = thread_of(p);

	if (!thread || !is_movable(p))
		return 0;
	if (!is_shared(cpu, 0) && !(is_hybrid() && class_of(cpu)))
		return 0;
	if (!any_idle())
		return 0;
	if (has_near_search() && find_near_core(p, cpu, 1) >= 0)
		return 1;
	return fill_window(scan, p, thread, cpu) &&
	       choose_for(thread, cpu, 1, 1) >= 0;
}

/*
 * Publishes a pointer to the affinity mask of the running thread. CPUs that become idle read the
 * mask.
 */
static inline void note_allowed(struct cpu_state *state, struct task_struct *p)
{
	*(const struct cpumask *volatile *)&state->allowed = p->cpus_ptr;
}

/*
 * Returns whether the running thread of the CPU with this state may migrate to `cpu`. The result is
 * only a hint, because the thread may stop at any time and its mask may be freed.
 */
static inline _Bool can_migrate(const struct cpu_state *state, __u32 cpu)
{
	const struct cpumask *allowed = state->allowed;
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), &allowed->bits[cpu / 64]);
	return word >> cpu % 64 & 1;
}

/*
 * Upper limit of the steps of a search for a thread to pull. Each step examines a busy CPU, or skips
 * a word without busy CPUs. The search is limited because the kernel holds the lock of the idle
 * CPU's run queue during the search.
 */
#define PULL_STEPS_MAX 25

/*
 * Returns the busy CPUs of a word in the LLC of `here`; with `other_llcs`, those of all other LLCs.
 */
static inline __u64 busy_in(__u32 word, const struct place *here,
			    _Bool other_llcs)
{
	__u64 cpus = here->near.words[word];

	if (other_llcs)
		cpus = g_cpus.words[word] & ~cpus;
	return cpus & ~g_idle_cpus.words[word];
}

/*
 * Returns a CPU with a running thread that gains by a migration to `idle`, because it shares its
 * core or by its demand (gains_on()); NOWHERE: the search found none. The search covers the LLC of
 * `idle` or, with `other_llcs`, all other LLCs. The search takes at most PULL_STEPS_MAX steps. The
 * next search of this CPU starts where this search ended, so that successive searches cover all
 * CPUs. The first search starts at the CPU after `idle`. If all searches started at CPU 0, all idle
 * CPUs would find the same CPU first, and a kick of that CPU has no effect while it runs a real-time
 * thread.
 */
__noinline int find_smt_pull_source(__u32 idle, __u32 other_llcs)
{
	const struct place *here = place_of(idle);
	__u32 words = other_llcs ? here->all_words : here->near_words;
	__u32 *passed = &state_of(idle)->pull_passed[other_llcs & 1];
	__u32 at = (idle + 1 + *passed) % CPUS_MAX;
	__s32 found = NOWHERE;
	int step;

	/*
	 * The first word is visited twice: first its upper bits, at the end its lower bits.
	 */
	bpf_for(step, 0, PULL_STEPS_MAX)
	{
		__u32 word = at / 64 % CPU_WORDS;
		__u64 bits = busy_in(word, here, other_llcs) >> at % 64;
		__u32 cpu;

		/*
		 * The remainders keep the numbers in a fixed range, so that the verifier treats all
		 * iterations alike.
		 */
		if (!bits) {
			at = UNKNOWN(following_word(words, word) * 64) %
			     CPUS_MAX;
			continue;
		}
		cpu = UNKNOWN(at + lowest_bit(bits)) % CPUS_MAX;
		at = UNKNOWN(cpu + 1) % CPUS_MAX;
		if (state_of(cpu)->movable &&
		    gains_on(idle, cpu, state_of(cpu)->demanding,
			     is_shared(cpu, 0)) &&
		    can_migrate(state_of(cpu), idle)) {
			found = cpu;
			break;
		}
	}
	*passed = (at - idle - 1) % CPUS_MAX;
	return found;
}

/* If the whole core of this idle CPU is idle, pulls a thread from a shared core to it. */
static inline void smt_pull(__u32 cpu)
{
	__s32 from;

	if (is_shared(cpu, 0))
		return;
	from = find_smt_pull_source(cpu, 0);
	if (from < 0)
		from = find_smt_pull_source(cpu, 1);
	if (from < 0)
		return;
	COUNT(pulls);
	scx_bpf_kick_cpu(from, KICK_PREEMPT);
}

#endif
