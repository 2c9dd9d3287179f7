/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interface of the workload that all compared task runtimes run: a wavefront, or fib(n).
 *
 * The wavefront processes a frame of columns x rows macroblocks. A task is one stage of one
 * macroblock. It waits for the previous stage of its macroblock, and for the same stage of the
 * macroblocks to the left, above, and above to the right. The number of a task is (row x columns +
 * column) x stages + stage, which is the order of a sequential program.
 *
 * The program of a runtime provides a function that runs a whole frame. workload.c checks that each
 * task runs once and after the tasks that it waits for, times the frames and prints the times;
 * these steps are therefore the same for all runtimes. A process runs one workload.
 */
#ifndef USHER_BENCH_WORKLOAD_H
#define USHER_BENCH_WORKLOAD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The workload of this process, as given on the command line. */
struct workload {
	uint32_t threads;
	/* n of fib(n), computed by forking and joining; 0: run the wavefront. */
	uint32_t fib;
	uint32_t columns;
	uint32_t rows;
	uint32_t stages;
	uint32_t tasks;
	/* For each task, the number of tasks that it waits for. */
	const uint32_t *waits;
	/* The tasks that wait for task t: successors[first[t]] .. successors[first[t + 1] - 1]. */
	const uint32_t *first;
	const uint32_t *successors;
};

/*
 * Runs a whole frame, and returns 0 after all its tasks have run; or computes and returns
 * fib(n).
 */
typedef uint64_t workload_frame(void *context);

/*
 * Parses `THREADS MS FRAMES wavefront COLUMNS ROWS STAGES CASE...` or `THREADS MS FRAMES fib N`.
 * Cases are empty, compute:STEPS and memory:BYTES; each case is timed for at least MS milliseconds
 * and FRAMES frames. If the words are invalid, prints an error and returns NULL.
 */
const struct workload *workload_begin(int count, char **words);

/*
 * Returns whether the runtime has settled after `frames` frames of the present case. After the
 * result 0, another frame runs without timing.
 */
typedef int workload_settled(void *context, uint32_t frames);

/*
 * Times all cases and checks their results. Before each case, one frame runs without timing; if
 * `settled` is not NULL, frames run until it returns true. Prints a line per case: CASE TASKS
 * FRAMES MEDIAN_NS MIN_NS, where the times are those of a frame. Returns 0; if a task ran twice,
 * too early or not at all, prints an error and returns 1.
 */
int workload_measure(workload_frame *frame, workload_settled *settled,
		     void *context);

/*
 * 0: tasks are empty. Other values: tasks call workload_do. The value changes only between
 * frames.
 */
extern uint32_t workload_mode;

/* Executes the work of a task in the present mode. */
void workload_do(uint32_t task);

static inline void workload_task(uint32_t task)
{
	if (workload_mode != 0)
		workload_do(task);
}

/* Stores the tasks that `task` waits for, at most four, in `before`. Returns their number. */
uint32_t workload_predecessors(uint32_t task, uint32_t before[4]);

#ifdef __cplusplus
}
#endif

#endif
