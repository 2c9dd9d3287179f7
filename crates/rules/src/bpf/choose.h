/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Where (3b, the paper on SMT). A CPU whose core is wholly idle is better than
 * any that shares its core, and better than the CPU that the thread last ran on;
 * among equals the nearest: the last one itself, the same LLC, the same node.
 *
 * Whose CPU (1, the paper on seats). Where programs have seats, a thread's own CPUs
 * come first; there it takes the place of a guest at once. It is a guest itself
 * on cores that are idle, or that only guests work on.
 */
#ifndef USHER_RULES_CHOOSE_H
#define USHER_RULES_CHOOSE_H

#include "numbers.h"

#define NOWHERE (-1)

/* The first CPU that is in all three sets; the third may be all there is. */
static inline __s32 first_of(const struct cpu_set *some,
			     const struct cpu_set *allowed,
			     const struct cpu_set *within)
{
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++) {
		__u64 bits = some->words[word] & allowed->words[word];

		if (within)
			bits &= within->words[word];
		if (bits)
			return word * 64 + lowest_bit(bits);
	}
	return NOWHERE;
}

static inline _Bool has_any(const struct cpu_set *set)
{
	__u64 any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++)
		any |= set->words[word];
	return any != 0;
}

static inline _Bool has_cpu(const struct cpu_set *set, __u32 cpu)
{
	return set->words[cpu / 64 % CPU_WORDS] >> cpu % 64 & 1;
}

/* The nearest CPU to `last`, which lies at `here`, that is in both sets. */
static inline __s32 nearest_of(const struct cpu_set *some,
			       const struct cpu_set *allowed, __u32 last,
			       const struct place *here)
{
	__s32 cpu;

	if (has_cpu(some, last) && has_cpu(allowed, last))
		return last;
	cpu = first_of(some, allowed, &here->near);
	if (cpu < 0)
		cpu = first_of(some, allowed, &here->node);
	if (cpu < 0)
		cpu = first_of(some, allowed, 0);
	return cpu;
}

/* The sets that a choice is made from. */
struct idle_scan_ctx {
	struct cpu_set idle;
	/* CPUs of cores that are idle with all their threads. */
	struct cpu_set cores;
	struct cpu_set allowed;
	/* Those of them where the thread is at home; all, if it has no seat. */
	struct cpu_set preferred;
	/* CPUs that run threads which are not at home there. */
	struct cpu_set borrowers;
	/* Idle ones that have not been looked at yet. */
	struct cpu_set remaining;
	/* Nodes, by number, whose CPUs are not in `idle` and `cores` yet. */
	__u64 unread_nodes;
};

/*
 * An idle CPU at home, than which none is better: where it lies in the node of `last`,
 * what other nodes have does not matter.
 */
static inline __s32 choose_best(_Bool smt, const struct idle_scan_ctx *scan,
				__u32 last, const struct place *here)
{
	return nearest_of(smt ? &scan->cores : &scan->idle, &scan->preferred,
			  last, here);
}

/*
 * At home first, and there before a guest; then as a guest of cores that are
 * idle, so that nobody's core is shared with one; at last beside a thread at home.
 */
static inline __s32 choose_cpu(_Bool smt, const struct idle_scan_ctx *scan,
			       __u32 last, const struct place *here)
{
	const struct cpu_set *best = smt ? &scan->cores : &scan->idle;
	__s32 cpu = choose_best(smt, scan, last, here);

	if (cpu < 0)
		cpu = nearest_of(&scan->borrowers, &scan->preferred, last,
				 here);
	if (cpu < 0)
		cpu = nearest_of(best, &scan->allowed, last, here);
	if (cpu < 0)
		cpu = nearest_of(&scan->idle, &scan->preferred, last, here);
	return cpu;
}

/* Nobody works on this core but guests. */
static inline _Bool only_borrowers_run(const struct cpu_set *core,
				       const struct idle_scan_ctx *scan)
{
	__u64 others = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++)
		others |= core->words[word] & ~(scan->idle.words[word] |
						scan->borrowers.words[word]);
	return !others;
}

/* As choose_cpu, of idle cores alone. */
static inline __s32 choose_core_of(const struct idle_scan_ctx *scan, __u32 last,
				   const struct place *here)
{
	__s32 cpu = choose_best(1, scan, last, here);

	return cpu >= 0 ? cpu
			: nearest_of(&scan->cores, &scan->allowed, last, here);
}

/* Where a thread with this seat is at home; false: it may run nowhere there. */
static inline _Bool find_preferred(struct cpu_set *preferred,
				   const struct cpu_set *allowed,
				   const struct cpu_set *seat)
{
	__u64 any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++) {
		preferred->words[word] =
			allowed->words[word] & seat->words[word];
		any |= preferred->words[word];
	}
	return any != 0;
}

#endif
