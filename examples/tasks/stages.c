/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends pictures through a pipeline of stages. Each stage is a task without a
 * token; at its end it submits the next stage of its picture. Each worker has
 * scratch memory and counters of its own, so the stages need no locks.
 *
 *     cc -O2 stages.c $(pkg-config --cflags --libs usher-tasks) -o stages
 *
 * To build without an installed library, run these commands in the root of the
 * source tree:
 *
 *     cargo build --release --package usher-tasks-capi
 *     cc -O2 -I crates/tasks-capi/include examples/tasks/stages.c \
 *         target/release/libusher_tasks_capi.a -lpthread -lm -ldl -o stages
 *     ./stages 2
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "usher_tasks.h"

#define PICTURES 64u
#define PIXELS 4096u
#define STAGES 5u

struct picture {
	unsigned stage; /* number of stages that have run */
	unsigned char pixels[PIXELS];
};

/* The data of a worker, on cache lines of its own. */
struct worker {
	_Alignas(128) unsigned char scratch[PIXELS];
	unsigned stages;
};

static struct picture pictures[PICTURES];
static struct worker *workers;

/* Ends the program with a message if a call has failed. */
static void check(int error)
{
	if (error != USHER_TASKS_OK) {
		fprintf(stderr, "stages: %s\n", usher_tasks_last_error());
		exit(1);
	}
}

/* Replaces each pixel by the mean of the pixel and its right neighbour. */
static void blur(struct picture *picture, unsigned char *scratch)
{
	memcpy(scratch, picture->pixels, PIXELS);
	for (unsigned i = 0; i < PIXELS; i++)
		picture->pixels[i] =
			(unsigned char)((scratch[i] +
					 scratch[(i + 1) % PIXELS]) /
					2);
}

/* The function of a task: runs a stage of a picture. The stage calls neither
 * usher_tasks_run() nor blocks, so no other task uses the data of its worker
 * at the same time. */
static void run_stage(void *arg)
{
	usher_tasks_runtime *runtime = usher_tasks_current();
	struct worker *worker = &workers[usher_tasks_worker_index(runtime)];
	struct picture *picture = arg;

	blur(picture, worker->scratch);
	worker->stages++;
	picture->stage++;
	if (picture->stage < STAGES)
		check(usher_tasks_submit(runtime, run_stage, picture, 0, 0));
}

/* Returns the sum of all pixels after the stages. */
static unsigned long sum_of_pixels(void)
{
	unsigned long sum = 0;

	for (unsigned i = 0; i < PICTURES; i++)
		for (unsigned at = 0; at < PIXELS; at++)
			sum += pictures[i].pixels[at];
	return sum;
}

static void make_pictures(void)
{
	for (unsigned i = 0; i < PICTURES; i++) {
		pictures[i].stage = 0;
		for (unsigned at = 0; at < PIXELS; at++)
			pictures[i].pixels[at] =
				(unsigned char)(i * 7 + at * at);
	}
}

/* Runs all stages in one thread. */
static unsigned long sequential_sum(void)
{
	static unsigned char scratch[PIXELS];

	make_pictures();
	for (unsigned i = 0; i < PICTURES; i++)
		for (unsigned stage = 0; stage < STAGES; stage++)
			blur(&pictures[i], scratch);
	return sum_of_pixels();
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
	unsigned count = workers_of(argc, argv);
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(count);
	unsigned long sequential = sequential_sum();
	usher_tasks_runtime *runtime;
	unsigned stages = 0;

	workers = aligned_alloc(128, count * sizeof(*workers));
	if (!workers) {
		fprintf(stderr, "stages: out of memory\n");
		return 1;
	}
	memset(workers, 0, count * sizeof(*workers));
	make_pictures();
	check(usher_tasks_runtime_new(&options, &runtime));
	for (unsigned i = 0; i < PICTURES; i++)
		check(usher_tasks_submit(runtime, run_stage, &pictures[i], 0,
					 0));
	check(usher_tasks_wait(runtime, NULL));
	check(usher_tasks_runtime_destroy(runtime));
	for (unsigned i = 0; i < count; i++)
		stages += workers[i].stages;
	free(workers);
	printf("%u stages, sum of pixels %lu, sequential %lu\n", stages,
	       sum_of_pixels(), sequential);
	return 0;
}
