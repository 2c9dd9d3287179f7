/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Loops over the words of CPU sets
 *
 * A CPU set of a large machine has up to 32 words. The CPUs of a core, of an LLC and of a node are in
 * few of them. A bitmask of words contains the words that a loop visits, so that the cost of a loop
 * depends on the core, LLC or node and not on the machine. `struct place` has the bitmasks.
 *
 *	struct word_scan left = {here->near_words, 0};
 *
 *	for_words (left, word)
 *		any |= set->words[word];
 *
 * A loop visits at most CPU_WORDS words, and each step takes constant time. With CPU_WORDS 1, a
 * loop visits word 0, whatever the bitmask is.
 */
#ifndef USHER_RULES_WORDS_H
#define USHER_RULES_WORDS_H

#include "numbers.h"

_Static_assert(CPU_WORDS <= 32, "a bitmask of words has 32 bits");

/* The host build counts the words that loops visit, and defines the macro before. */
#ifndef count_words
#define count_words(words)
#endif

/* The rest of a loop. */
struct word_scan {
	/* Bitmask of the words that the loop has not visited. */
	__u32 left;
	/* Number of words that the loop has visited. */
	int visited;
};

/*
 * The verifier follows each iteration of a plain loop, but only a few iterations of bpf_for(). The
 * build for at most 64 CPUs has no loop.
 */
#if defined(__bpf__) && CPU_WORDS > 1
#define repeat_words(visited) bpf_for(visited, 0, CPU_WORDS)
#else
#define repeat_words(visited) \
	for ((visited) = 0; (visited) < CPU_WORDS; (visited)++)
#endif

/* Executes the following statement for each word of `scan`. */
#define for_words(scan, word) \
	repeat_words((scan).visited) if (!next_word(&(scan), &(word))) break; \
	else

/* Returns the bitmask that contains the word of a CPU. */
static inline __u32 word_bit(__u32 cpu)
{
	return 1U << cpu / 64 % CPU_WORDS;
}

/*
 * Returns the number of the lowest word in a bitmask that is not 0. The compiler knows that the
 * result is below 32, and would drop the modulo, which the verifier needs as a bound of the index.
 */
static inline __u32 lowest_word(__u32 words)
{
	return UNKNOWN(lowest_bit(words)) % CPU_WORDS;
}

/* Sets `word` to the number of the next word. Returns false if no word is left. */
static inline _Bool next_word(struct word_scan *scan, __u32 *word)
{
	if (CPU_WORDS > 1 && !scan->left)
		return 0;
	*word = CPU_WORDS == 1 ? 0 : lowest_word(scan->left);
	scan->left &= scan->left - 1;
	count_words(1);
	return 1;
}

#endif
