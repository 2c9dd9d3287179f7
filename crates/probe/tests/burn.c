/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program with a known CPU time.
 *
 *     burn compute THREADS CHILDREN MS
 *
 * Starts THREADS more threads, waits for a byte on its standard input, and then
 * uses MS milliseconds of CPU time in each thread and in each of CHILDREN child
 * processes, which it waits for. With `yield` in place of `compute` it yields the
 * CPU all the time; with `poll` it spins in spin_in_library(), which is in a
 * library. With MS 0 it runs until it is killed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef LIBRARY

void spin_in_library(volatile int *turns)
{
	for (int i = 0; i < 10000; i++)
		(*turns)++;
}

#else

#ifdef POLL
void spin_in_library(volatile int *turns);
#else
static void spin_in_library(volatile int *turns)
{
	(*turns)++;
}
#endif

static const char *how;
static int64_t burn_ns;
static pthread_barrier_t ready, go;

static int64_t thread_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void burn(void)
{
	int64_t end = thread_cpu_ns() + burn_ns;
	volatile int turns = 0;

	while (burn_ns == 0 || thread_cpu_ns() < end) {
		if (strcmp(how, "yield") == 0)
			sched_yield();
		else if (strcmp(how, "poll") == 0)
			spin_in_library(&turns);
		else
			for (int i = 0; i < 10000; i++)
				turns++;
	}
}

static void *thread(void *unused)
{
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&go);
	burn();
	return unused;
}

int main(int argc, char **argv)
{
	int threads = argc > 4 ? atoi(argv[2]) : 0;
	int children = argc > 4 ? atoi(argv[3]) : 0;
	pthread_t ids[64];
	char byte;

	if (argc != 5 || threads > 64)
		return 2;
	how = argv[1];
	burn_ns = atoll(argv[4]) * 1000000;
	pthread_barrier_init(&ready, NULL, threads + 1);
	pthread_barrier_init(&go, NULL, threads + 1);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, thread, NULL) != 0)
			return 3;
	pthread_barrier_wait(&ready);
	if (write(1, "r", 1) != 1 || read(0, &byte, 1) != 1)
		return 4;
	for (int i = 0; i < children; i++)
		if (fork() == 0) {
			burn();
			_exit(0);
		}
	pthread_barrier_wait(&go);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	while (wait(NULL) > 0)
		;
	return 0;
}

#endif
