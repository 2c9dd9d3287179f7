/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Integers, words of bits and moments: what the other rules reckon with. */
#ifndef USHER_RULES_NUMBERS_H
#define USHER_RULES_NUMBERS_H

#include "sets.h"

/*
 * The one line in which the programs differ from what tests and the simulator run. The
 * verifier follows each number that it knows apart from all others. This is always 0,
 * which it cannot know, as the word is not constant: a sum with it may be any number, and
 * paths that differ in that number alone are one.
 */
#ifdef __bpf__
static volatile __u32 zero;
#define UNKNOWN(number) ((number) + zero)
#else
#define UNKNOWN(number) (number)
#endif

/* In an order that survives overflow. */
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

/* The time that has passed: none, where another CPU's clock was ahead of this one's. */
static inline __u64 since(__u64 then_ns, __u64 now_ns)
{
	return is_before(then_ns, now_ns) ? now_ns - then_ns : 0;
}

/* Without a branch: the verifier would follow each of them. */
static inline __u32 bits_in(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) +
	       (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

static inline __s32 lowest_bit(__u64 bits)
{
	return bits_in((bits & -bits) - 1);
}

/* The binary logarithm, rounded down; 0 of 0. */
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

/* Four to a power of two: the logarithm, and the two bits below the first. */
static inline __u32 slot_of(__u64 value)
{
	__u32 power = log2_of(value);
	__u64 below = power < 2 ? value << (2 - power) : value >> (power - 2);

	return 4 * power + (below & 3);
}

#endif
