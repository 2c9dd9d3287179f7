/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * OpenMP work of known useful CPU time: `work KIND ROUNDS MS`.
 *
 *     balanced:   every thread burns MS in each round.
 *     imbalanced: one thread burns MS, the others wait at the barrier.
 *     tasks:      one thread creates eight tasks of MS, all threads execute them.
 *     critical:   every thread burns MS inside a critical section.
 *     forked:     the work of `balanced`, in a forked child process.
 *     barriers:   ROUNDS empty barriers; prints nanoseconds per barrier.
 *     locks:      ROUNDS empty critical sections; prints ns per section.
 */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void burn(int ms)
{
	int64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000LL;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
		;
}

static void round_of(const char *kind, int ms)
{
	if (strcmp(kind, "tasks") == 0) {
#pragma omp parallel
#pragma omp single
		for (int i = 0; i < 8; i++) {
#pragma omp task
			burn(ms);
		}
	} else if (strcmp(kind, "critical") == 0) {
#pragma omp parallel
		{
#pragma omp critical
			burn(ms);
		}
	} else {
#pragma omp parallel
		if (strcmp(kind, "imbalanced") != 0 ||
		    omp_get_thread_num() == 0)
			burn(ms);
	}
}

static void cost(const char *kind, int rounds)
{
	int64_t begin = clock_ns(CLOCK_MONOTONIC);

#pragma omp parallel
	for (int i = 0; i < rounds; i++) {
		if (strcmp(kind, "barriers") == 0) {
#pragma omp barrier
		} else {
#pragma omp critical
			;
		}
	}
	printf("%.1f\n", (double)(clock_ns(CLOCK_MONOTONIC) - begin) / rounds);
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[2]) : 0;
	int ms = argc > 3 ? atoi(argv[3]) : 0;
	const char *kind = argc > 1 ? argv[1] : "";

	if (strcmp(kind, "barriers") == 0 || strcmp(kind, "locks") == 0) {
		cost(kind, rounds);
		return 0;
	}
	if (strcmp(kind, "forked") == 0) {
		round_of("balanced",
			 ms); /* the parent has a slot and threads */
		if (fork() != 0)
			return wait(NULL) > 0 ? 0 : 4;
	}
	for (int i = 0; i < rounds; i++)
		round_of(kind, ms);
	return 0;
}
