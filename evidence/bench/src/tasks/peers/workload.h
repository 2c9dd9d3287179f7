/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What every runtime under comparison does, and how it is timed.
 *
 * A wavefront: macroblocks of a frame, columns x rows, each in so many stages. A
 * task is a stage of a macroblock. It waits for the stage before, and for the same
 * stage of the macroblocks to the left, above, and above to the right. Tasks are
 * numbered macroblock by macroblock, stages innermost: as a sequential program
 * would run them.
 *
 * Runtimes bring a function that runs a whole frame; checking that each task ran
 * once and after what it waits for, timing, and printing happen here, so that they
 * are the same for all. One workload a process.
 */
#ifndef USHER_BENCH_WORKLOAD_H
#define USHER_BENCH_WORKLOAD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked for on the command line. */
struct workload {
	uint32_t threads;
	/* Compute fib(n) by forking and joining; 0: run the wavefront. */
	uint32_t fib;
	uint32_t columns;
	uint32_t rows;
	uint32_t stages;
	uint32_t tasks;
	/* By task: how many others it waits for. */
	const uint32_t *waits;
	/* The tasks that wait for task t: successors[first[t]] .. successors[first[t + 1] - 1]. */
	const uint32_t *first;
	const uint32_t *successors;
};

/* A whole frame, all tasks of it run when it returns; or fib(n), and its value. */
typedef uint64_t workload_frame(void *context);

/*
 * Reads `THREADS MS FRAMES wavefront COLUMNS ROWS STAGES CASE...` or `THREADS MS
 * FRAMES fib N`. Cases are empty, compute:STEPS and memory:BYTES; each is timed for
 * at least that many milliseconds and frames. NULL, and a line on standard error,
 * where that is not what the words say.
 */
const struct workload *workload_begin(int count, char **words);

/*
 * Whether frames of the present case are now what they will be, after so many of it;
 * 0: another one is run before any is timed.
 */
typedef int workload_settled(void *context, uint32_t frames);

/*
 * Times all cases, after a frame to warm up, or as many as it takes until it has
 * settled if that is not NULL, and checks what they have done. Prints
 * a line each: CASE TASKS FRAMES MEDIAN_NS MIN_NS, times of a frame. 0, or 1 and a
 * line on standard error where something ran twice, too early, or not at all.
 */
int workload_measure(workload_frame *frame, workload_settled *settled,
		     void *context);

/* Not 0: tasks have something to do. Written between frames only. */
extern uint32_t workload_mode;

/* Does what the task has to do. */
void workload_do(uint32_t task);

static inline void workload_task(uint32_t task)
{
	if (workload_mode != 0)
		workload_do(task);
}

/* Up to four tasks that this one waits for; how many. */
uint32_t workload_predecessors(uint32_t task, uint32_t before[4]);

#ifdef __cplusplus
}
#endif

#endif
