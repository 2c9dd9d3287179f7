/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Idle CPUs, as reported by update_idle, and copies of the kernel's cpumasks
 *
 * - g_idle_cpus: the idle CPUs.
 * - g_idle_words: bitmask of the words of g_idle_cpus that contain a CPU, so that any_idle() takes
 *   constant time. The build for at most 64 CPUs uses the only word of g_idle_cpus instead.
 *
 * Several CPUs change both at the same time:
 *
 * 1. A CPU that becomes idle adds itself to g_idle_cpus, and then its word to g_idle_words.
 * 2. A CPU that leaves an empty word behind removes the word from g_idle_words. If the word is not
 *    empty any more, it adds the word again.
 * 3. Between the two parts of step 2, a CPU that enqueues a thread may have found no idle CPU. Step
 *    2 therefore kicks the idle CPUs of the word if threads wait.
 *
 * A copy of a mask takes time in proportion to the words of the machine; step 2 kicks 64 CPUs at
 * most. Each other function takes constant time.
 */
#ifndef USHER_SCX_IDLE_H
#define USHER_SCX_IDLE_H

#include "state.h"

/* Returns whether any CPU is idle, which is rare under load. */
ALWAYS _Bool any_idle(void)
{
	if (CPU_WORDS == 1)
		return g_idle_cpus.words[0] != 0;
	return *(volatile __u32 *)&g_idle_words != 0;
}

/* Returns the bitmask of the words that contain idle CPUs. */
static inline __u32 idle_words(void)
{
	return CPU_WORDS == 1 ? 1 : *(volatile __u32 *)&g_idle_words;
}

/* Returns the number of the word in `words` that follows `word`, cyclically; `words` is not 0. */
static inline __u32 following_word(__u32 words, __u32 word)
{
	__u32 behind = words & ~((2U << word) - 1);

	return lowest_word(behind ? behind : words);
}

/* Number of words outside the LLC that window_of() adds. */
#define WINDOW_MAX 4

/*
 * Implements window_of(). The function is not inlined, so that the verifier checks the branches of
 * the loop once.
 */
__noinline __u32 find_window(__u32 cpu)
{
	const struct place *here = place_of(cpu);
	__u32 others = idle_words() & ~here->near_words;
	__u32 window = here->near_words;
	__u32 added;

	if (bits_in(others) <= WINDOW_MAX)
		return window | others;
	for (added = 0; added < WINDOW_MAX; added++) {
		__u32 in_node = others & here->node_words;
		__u32 word = following_word(in_node ? in_node : others,
					    cpu / 64 % CPU_WORDS);

		window |= 1U << word;
		others &= ~(1U << word);
	}
	return window;
}

/*
 * Returns the words that a search for an idle CPU reads first: those of the LLC of `cpu`, and at
 * most WINDOW_MAX others that contain idle CPUs, first those of the node.
 */
static inline __u32 window_of(__u32 cpu)
{
	return CPU_WORDS == 1 ? 1 : find_window(cpu);
}

/*
 * Returns whether the CPU is busy, as reported by the kernel. A busy CPU may run a real-time
 * thread. In that case, the CPU's `struct cpu_state` refers to the last thread of this scheduler.
 */
static inline _Bool is_busy(__u32 cpu)
{
	return !has_cpu(&g_idle_cpus, cpu);
}

/* Adds a word to g_idle_words, after a CPU has been added to the word. */
static inline void add_idle_word(__u32 word)
{
	__u32 bit = 1U << word % CPU_WORDS;

	if (!(*(volatile __u32 *)&g_idle_words & bit))
		__sync_fetch_and_or(&g_idle_words, bit);
}

/* Kicks the idle CPUs of a word if threads wait: step 3 of the overview. */
__noinline int kick_idle_word(__u32 word)
{
	__u64 bits = g_idle_cpus.words[word % CPU_WORDS];
	int step;

	if (!*(volatile __u64 *)&g_waiting_llcs)
		return 0;
	bpf_for(step, 0, 64)
	{
		if (!bits)
			break;
		scx_bpf_kick_cpu(word % CPU_WORDS * 64 + lowest_bit(bits),
				 KICK_IDLE);
		bits &= bits - 1;
	}
	return 0;
}

/* Removes an empty word from g_idle_words: step 2 of the overview. */
static inline void remove_idle_word(__u32 word)
{
	__u32 at = word % CPU_WORDS;

	__sync_fetch_and_and(&g_idle_words, ~(1U << at));
	if (!*(volatile __u64 *)&g_idle_cpus.words[at])
		return;
	add_idle_word(at);
	kick_idle_word(at);
}

/* Records whether a CPU is idle. In the common case nothing changes. */
static inline void note_idle(__u32 cpu, _Bool is_idle)
{
	__u32 word = cpu / 64 % CPU_WORDS;
	__u64 bit = 1ULL << cpu % 64;

	if (has_cpu(&g_idle_cpus, cpu) == is_idle)
		return;
	if (is_idle) {
		/* The result is used, so that the operation orders the following read. */
		if (__sync_fetch_and_or(&g_idle_cpus.words[word], bit) & bit)
			return;
		if (CPU_WORDS > 1)
			add_idle_word(word);
	} else if (__sync_fetch_and_and(&g_idle_cpus.words[word], ~bit) ==
			   bit &&
		   CPU_WORDS > 1) {
		remove_idle_word(word);
	}
}

/* Copies a cpumask of the kernel; CPUs beyond the words of the machine are left out. */
static inline void read_set(struct cpu_set *to, const struct cpumask *from)
{
	__u64 bytes = sizeof(*to);

	if (CPU_WORDS > 1) {
		bytes = g_variant.cpu_words * 8;
		if (bytes > sizeof(*to))
			bytes = sizeof(*to);
	}
	count_words(bytes / 8);
	bpf_probe_read_kernel(to, bytes, from);
}

/* Returns whether the kernel keeps its idle masks per node, and has the functions to read them. */
static inline _Bool has_nodes(void)
{
	return g_variant.nodes &&
	       bpf_ksym_exists(scx_bpf_get_idle_cpumask_node) &&
	       bpf_ksym_exists(scx_bpf_get_idle_smtmask_node);
}

/* Returns a word of a cpumask of the kernel. */
static inline __u64 read_word(const struct cpumask *from, __u32 word)
{
	__u64 bits = 0;

	count_words(1);
	bpf_probe_read_kernel(&bits, sizeof(bits),
			      &from->bits[word % CPU_WORDS]);
	return bits;
}

/* Number of words up to which separate reads cost less than a copy of the whole set. */
#define WORD_READS_MAX 4

/* Copies at least the `words` of a cpumask of the kernel. */
static inline void read_words(struct cpu_set *to, const struct cpumask *from,
			      __u32 words)
{
	struct word_scan left = {words, 0};
	__u32 word;

	if (CPU_WORDS == 1 || bits_in(words) > WORD_READS_MAX) {
		read_set(to, from);
		return;
	}
	for_words(left, word) to->words[word] = read_word(from, word);
}

/* Copies the `words` of a set. */
static inline void copy_words(struct cpu_set *to, const struct cpu_set *from,
			      __u32 words)
{
	struct word_scan left = {words, 0};
	__u32 word;

	for_words(left, word) to->words[word] = from->words[word];
}

/* Removes the CPUs in the `words` from a set. */
static inline void clear_words(struct cpu_set *set, __u32 words)
{
	struct word_scan left = {words, 0};
	__u32 word;

	for_words(left, word) set->words[word] = 0;
}

#endif
