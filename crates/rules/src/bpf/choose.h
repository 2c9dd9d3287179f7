/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Selection of a CPU for a thread that wakes, from given CPU sets (paper 3b, SMT; paper 1, seats)
 *
 * An idle core is better than an idle CPU of a busy core, even if the latter is the CPU that the
 * thread last used. Among equally good CPUs, the nearest wins: the CPU that the thread last used,
 * then CPUs of the same LLC, then CPUs of the same node. Without `smt`, each idle CPU counts as an
 * idle core.
 *
 * A program may have a seat: CPUs that user space gave it. The preferred CPUs of a thread are those
 * of its program's seat, and are selected first. On a preferred CPU, the thread preempts a borrower
 * at once. On other CPUs, the thread is a borrower itself. A borrower uses only idle cores, and
 * cores that run nothing but borrowers.
 *
 * Each function makes a few passes over the words of a CPU set: first over the words of the LLC,
 * then over those of the node, at last over those of the machine, of which there are at most
 * CPU_WORDS (32). The sets are snapshots, which the caller (select_cpu.h in crates/scx) takes. The
 * caller also claims the selected CPU. A function that finds no suitable CPU returns NOWHERE (-1).
 */
#ifndef USHER_RULES_CHOOSE_H
#define USHER_RULES_CHOOSE_H

#include "words.h"

#define NOWHERE (-1)

/*
 * Returns the first CPU that is in all three sets and in one of the `words`. If the pointer `within`
 * is 0, the third set does not restrict the result.
 */
static inline __s32 first_of(const struct cpu_set *some,
			     const struct cpu_set *allowed,
			     const struct cpu_set *within, __u32 words)
{
	struct word_scan left = {words, 0};
	__u32 word;

	for_words(left, word)
	{
		__u64 bits = some->words[word] & allowed->words[word];

		if (within)
			bits &= within->words[word];
		if (bits)
			return word * 64 + lowest_bit(bits);
	}
	return NOWHERE;
}

/* Returns whether the set contains a CPU in one of the `words`. */
static inline _Bool has_any(const struct cpu_set *set, __u32 words)
{
	struct word_scan left = {words, 0};
	__u64 any = 0;
	__u32 word;

	for_words(left, word) any |= set->words[word];
	return any != 0;
}

/* Returns whether the set contains this CPU. */
static inline _Bool has_cpu(const struct cpu_set *set, __u32 cpu)
{
	return set->words[cpu / 64 % CPU_WORDS] >> cpu % 64 & 1;
}

/*
 * Returns the CPU that is in `some` and in `allowed`, and nearest to the CPU `last`; NOWHERE if no
 * CPU is in both sets. `here` is the place of `last` in the topology. CPUs outside `words`, which
 * include those of the LLC, are not examined.
 */
static inline __s32 nearest_of(const struct cpu_set *some,
			       const struct cpu_set *allowed, __u32 last,
			       const struct place *here, __u32 words)
{
	__s32 cpu;

	if (has_cpu(some, last) && has_cpu(allowed, last))
		return last;
	cpu = first_of(some, allowed, &here->near, here->near_words);
	if (cpu < 0)
		cpu = first_of(some, allowed, &here->node,
			       here->node_words & words);
	if (cpu < 0)
		cpu = first_of(some, allowed, 0, here->all_words & words);
	return cpu;
}

/* Scratch CPU sets for the selection of an idle CPU; one for each CPU. */
struct idle_scan_ctx {
	struct cpu_set idle;
	/* CPUs of idle cores, which are cores with only idle hardware threads. */
	struct cpu_set cores;
	struct cpu_set allowed;
	/* Allowed CPUs in the seat of the thread; without a seat, all allowed CPUs. */
	struct cpu_set preferred_cpus;
	/* CPUs that run borrowers. */
	struct cpu_set borrowers;
	/* Idle CPUs that the scan has not examined yet. */
	struct cpu_set remaining;
	/* Bitmask of the nodes that the caller has not read into `idle` and `cores` yet. */
	__u64 unread_nodes;
	/* Bitmask of the words that the caller has read. The other words of the sets are undefined. */
	__u32 words;
	__u32 unused;
} __attribute__((aligned(CACHE_LINE)));

/*
 * Returns the nearest preferred CPU of an idle core; without `smt`, the nearest preferred CPU that
 * is idle. If the result is in the node of `last`, the caller need not read the idle CPUs of other
 * nodes.
 */
static inline __s32 choose_best(_Bool smt, const struct idle_scan_ctx *scan,
				__u32 last, const struct place *here)
{
	return nearest_of(smt ? &scan->cores : &scan->idle,
			  &scan->preferred_cpus, last, here, scan->words);
}

/*
 * Returns the first CPU that exists, in this order: a preferred CPU of an idle core; a preferred
 * CPU that runs a borrower; an allowed CPU of an idle core outside the seat; an idle preferred CPU
 * of a busy core. By this order, a borrower never shares a core with a thread that runs in its own
 * seat.
 */
static inline __s32 choose_cpu(_Bool smt, const struct idle_scan_ctx *scan,
			       __u32 last, const struct place *here)
{
	const struct cpu_set *best = smt ? &scan->cores : &scan->idle;
	__s32 cpu = choose_best(smt, scan, last, here);

	if (cpu < 0)
		cpu = nearest_of(&scan->borrowers, &scan->preferred_cpus, last,
				 here, scan->words);
	if (cpu < 0)
		cpu = nearest_of(best, &scan->allowed, last, here, scan->words);
	if (cpu < 0)
		cpu = nearest_of(&scan->idle, &scan->preferred_cpus, last, here,
				 scan->words);
	return cpu;
}

/* Returns whether each CPU of the core, which is in `words`, is idle or runs a borrower. */
static inline _Bool only_borrowers_run(const struct cpu_set *core, __u32 words,
				       const struct idle_scan_ctx *scan)
{
	struct word_scan left = {words, 0};
	__u64 others = 0;
	__u32 word;

	for_words(left, word) others |=
		core->words[word] &
		~(scan->idle.words[word] | scan->borrowers.words[word]);
	return !others;
}

/*
 * Returns a CPU of an idle core: a preferred CPU, else an allowed CPU; NOWHERE if no allowed core
 * is idle.
 */
static inline __s32 choose_core_of(const struct idle_scan_ctx *scan, __u32 last,
				   const struct place *here)
{
	__s32 cpu = choose_best(1, scan, last, here);

	return cpu >= 0 ? cpu
			: nearest_of(&scan->cores, &scan->allowed, last, here,
				     scan->words);
}

/*
 * Computes the preferred CPUs in the `words` of the machine, which are the allowed CPUs in the seat.
 * Returns false if the thread may run on no CPU of its seat.
 */
static inline _Bool find_preferred(struct cpu_set *preferred_cpus,
				   const struct cpu_set *allowed,
				   const struct cpu_set *seat, __u32 words)
{
	struct word_scan left = {words, 0};
	__u64 any = 0;
	__u32 word;

	for_words(left, word)
	{
		preferred_cpus->words[word] =
			allowed->words[word] & seat->words[word];
		any |= preferred_cpus->words[word];
	}
	return any != 0;
}

#endif
