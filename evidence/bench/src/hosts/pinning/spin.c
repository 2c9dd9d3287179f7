/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * spin SECONDS THREADS [CPU...]: runs THREADS threads that compute for SECONDS seconds. If CPUs are
 * given, thread N binds itself to the Nth CPU. If the affinity mask of a thread at its end differs
 * from the mask after this binding, the program reports the thread as "moved".
 *
 * At most 64 threads and 64 CPUs are used. SIGALRM ends the program after 120 s. The exit status
 * is 2 if a thread cannot be started or bound.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double end;
static int cpus[64], bound;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *work(void *arg)
{
	long number = (long)arg;
	cpu_set_t own, after;

	CPU_ZERO(&own);
	if (number < bound) {
		CPU_SET(cpus[number], &own);
		if (sched_setaffinity(0, sizeof(own), &own)) {
			perror("sched_setaffinity");
			exit(2);
		}
	}
	sched_getaffinity(0, sizeof(own), &own);
	while (now() < end)
		for (volatile int i = 0; i < 100000; i++)
			;
	sched_getaffinity(0, sizeof(after), &after);
	if (!CPU_EQUAL(&own, &after))
		puts("moved");
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 2 ? atol(argv[2]) : 1;
	pthread_t others[64];

	alarm(120);
	end = now() + (argc > 1 ? atof(argv[1]) : 1);
	for (; bound + 3 < argc && bound < 64; bound++)
		cpus[bound] = atoi(argv[bound + 3]);
	for (long i = 1; i < threads && i < 64; i++)
		if (pthread_create(&others[i], NULL, work, (void *)i))
			return 2;
	work(NULL);
	for (long i = 1; i < threads && i < 64; i++)
		pthread_join(others[i], NULL);
	return 0;
}
