/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts primes on several threads and reports its progress, one beat per
 * thousand numbers. From the root of the repository:
 *
 *     cc -O2 -pthread -I crates/heartbeat/include -o primes examples/heartbeat/primes.c
 *     usher run -- ./primes 2 20000000
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "usher_heartbeat.h"

#define PIECE 1000u
#define THREADS_MAX 256u

static atomic_uint next_number;
static atomic_uint primes;
static unsigned limit;

static int is_prime(unsigned number)
{
	if (number < 2 || number % 2 == 0)
		return number == 2;
	for (unsigned divisor = 3; divisor <= number / divisor; divisor += 2)
		if (number % divisor == 0)
			return 0;
	return 1;
}

static void *count(void *unused)
{
	unsigned first;

	while ((first = atomic_fetch_add(&next_number, PIECE)) < limit) {
		unsigned last = first + PIECE < limit ? first + PIECE : limit;
		unsigned found = 0;

		for (unsigned number = first; number < last; number++)
			found += (unsigned)is_prime(number);
		atomic_fetch_add(&primes, found);
		usher_beat(1);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t team[THREADS_MAX];
	unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;

	limit = argc > 2 ? (unsigned)atoi(argv[2]) : 10000000;
	if (threads < 1 || threads > THREADS_MAX || limit < 1 ||
	    limit > 2000000000) {
		fprintf(stderr,
			"usage: primes [THREADS (1..%u) [LIMIT "
			"(1..2000000000)]]\n",
			THREADS_MAX);
		return 2;
	}
	usher_describe("thousand numbers", 0.0, "primes");
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&team[i], NULL, count, NULL) != 0) {
			perror("primes: starting a thread");
			return 1;
		}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(team[i], NULL);
	printf("%u primes below %u\n", atomic_load(&primes), limit);
	return 0;
}
