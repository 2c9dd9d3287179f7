/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Arithmetic on timestamps, bits and logarithms, for the BPF programs and the host
 *
 * Timestamps and vtimes (CPU time over weight) are 64-bit nanoseconds that may overflow. They are
 * compared by their difference, which must be below 2^63. Each function takes constant time and has
 * no loop. The functions on bits have no branch either, because the verifier follows each path.
 */
#ifndef USHER_RULES_NUMBERS_H
#define USHER_RULES_NUMBERS_H

#include "sets.h"

/*
 * UNKNOWN() is the only line in which the BPF programs differ from the source that the tests and
 * the simulator run. The verifier follows paths separately if they differ in a number that it
 * knows. `zero` is always 0, but the verifier does not know its value. A sum with `zero` is
 * therefore an unknown number, and the verifier merges paths that differ only in that number.
 */
#ifdef __bpf__
static volatile __u32 zero;
#define UNKNOWN(number) ((number) + zero)
#else
#define UNKNOWN(number) (number)
#endif

/* Returns whether `a` is before `b`, also across an overflow. */
static inline _Bool is_before(__u64 a, __u64 b)
{
	return (__s64)(a - b) < 0;
}

static inline __u64 earlier(__u64 a, __u64 b)
{
	return is_before(a, b) ? a : b;
}

static inline __u64 later(__u64 a, __u64 b)
{
	return is_before(a, b) ? b : a;
}

/*
 * Returns the time from `then_ns` to `now_ns`; 0 if `then_ns` is later, because it comes from a CPU
 * with a clock further ahead.
 */
static inline __u64 since(__u64 then_ns, __u64 now_ns)
{
	return is_before(then_ns, now_ns) ? now_ns - then_ns : 0;
}

/* Returns the number of bits that are set in a word. */
static inline __u32 bits_in(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) +
	       (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

/* Returns the number of the lowest bit that is set; 64 if no bit is set. */
static inline __s32 lowest_bit(__u64 bits)
{
	return bits_in((bits & -bits) - 1);
}

/* Returns the binary logarithm, rounded down; 0 for 0. */
static inline __u32 log2_of(__u64 value)
{
	value |= 1;
	value |= value >> 1;
	value |= value >> 2;
	value |= value >> 4;
	value |= value >> 8;
	value |= value >> 16;
	value |= value >> 32;
	return bits_in(value) - 1;
}

/*
 * Returns the histogram slot of a value, 0 to 255. There are four slots per power of two: the slot
 * number consists of the value's logarithm and the two bits below its leading bit.
 */
static inline __u32 slot_of(__u64 value)
{
	__u32 power = log2_of(value);
	__u64 below = power < 2 ? value << (2 - power) : value >> (power - 2);

	return 4 * power + (below & 3);
}

#endif
