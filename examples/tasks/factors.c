/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A parallel loop and a reduction. The loop counts the prime factors of many
 * numbers, which costs more for some numbers than for others. The reduction
 * finds the number with most factors, and the first of several such numbers.
 *
 *     cc -O2 factors.c $(pkg-config --cflags --libs usher-tasks) -o factors
 *
 * To build without an installed library, run these commands in the root of the
 * source tree:
 *
 *     cargo build --release --package usher-tasks-capi
 *     cc -O2 -I crates/tasks-capi/include examples/tasks/factors.c \
 *         target/release/libusher_tasks_capi.a -lpthread -lm -ldl -o factors
 *     ./factors 2
 */
#include <stdio.h>
#include <stdlib.h>

#include "usher_tasks.h"

#define NUMBERS 200000u

static unsigned char factors[NUMBERS];

/* A number with most factors. */
struct most {
	uint64_t number;
	unsigned factors;
};

/* Ends the program with a message if a call has failed. */
static void check(int error)
{
	if (error != USHER_TASKS_OK) {
		fprintf(stderr, "factors: %s\n", usher_tasks_last_error());
		exit(1);
	}
}

static unsigned char count_factors(uint64_t number)
{
	unsigned char count = 0;

	for (uint64_t factor = 2; factor * factor <= number; factor++)
		for (; number % factor == 0; number /= factor)
			count++;
	return (unsigned char)(count + (number > 1));
}

/* The body of the loop. Each number has a byte of its own, so the blocks need
 * no locks. */
static void count_block(uint64_t begin, uint64_t end, void *arg)
{
	(void)arg;
	for (uint64_t number = begin; number < end; number++)
		factors[number] = count_factors(number);
}

static void no_number(void *accumulator, void *arg)
{
	(void)arg;
	*(struct most *)accumulator = (struct most){0, 0};
}

static void add_block(void *accumulator, uint64_t begin, uint64_t end,
		      void *arg)
{
	struct most *most = accumulator;

	(void)arg;
	for (uint64_t number = begin; number < end; number++)
		if (factors[number] > most->factors)
			*most = (struct most){number, factors[number]};
}

/* The numbers of right are larger than those of left, so left wins if both have
 * equally many factors. */
static void add_most(void *left, void *right, void *arg)
{
	struct most *most = left;
	const struct most *other = right;

	(void)arg;
	if (other->factors > most->factors)
		*most = *other;
}

/* Returns the number of workers: by default one per CPU. */
static unsigned workers_of(int argc, char **argv)
{
	char *end;
	unsigned long count;

	if (argc < 2)
		return usher_tasks_cpus();
	count = strtoul(argv[1], &end, 10);
	if (argc > 2 || end == argv[1] || *end || count < 1 || count > 1024) {
		fprintf(stderr, "usage: %s [WORKERS], 1 to 1024: not %s\n",
			argv[0], argv[argc - 1]);
		exit(2);
	}
	return (unsigned)count;
}

int main(int argc, char **argv)
{
	usher_tasks_options options =
		USHER_TASKS_OPTIONS_INIT(workers_of(argc, argv));
	usher_tasks_runtime *runtime;
	struct most most, sequential;

	check(usher_tasks_runtime_new(&options, &runtime));
	check(usher_tasks_for(runtime, 1, NUMBERS, count_block, NULL));
	check(usher_tasks_reduce(runtime, 1, NUMBERS, sizeof(most), no_number,
				 add_block, add_most, NULL, &most));
	check(usher_tasks_runtime_destroy(runtime));
	no_number(&sequential, NULL);
	count_block(1, NUMBERS, NULL);
	add_block(&sequential, 1, NUMBERS, NULL);
	printf("%llu has %u prime factors, sequential %llu\n",
	       (unsigned long long)most.number, most.factors,
	       (unsigned long long)sequential.number);
	return 0;
}
