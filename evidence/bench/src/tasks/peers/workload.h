/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interface of the workload that all compared task runtimes run: a wavefront, fib(n), loops, or the
 * Cholesky factorisation of a matrix by tiles.
 *
 * The wavefront processes a frame of columns x rows macroblocks. A task is one stage of one
 * macroblock. It waits for the previous stage of its macroblock, and for the same stage of the
 * macroblocks to the left, above, and above to the right. The number of a task is (row x columns +
 * column) x stages + stage, which is the order of a sequential program.
 *
 * A loop calls a function for each item of a range, or adds up the values of all items. The items
 * have equal costs, or costs that depend on the item.
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

/* What a task of the factorisation computes. */
enum tile_kind { TILE_POTRF, TILE_TRSM, TILE_GEMM };

/* A task of the factorisation: it writes a tile, and reads up to two others. */
struct tile_task {
	enum tile_kind kind;
	uint32_t tile;
	uint32_t reads[2];
	uint32_t read_count;
};

/* The workload of this process, as given on the command line. */
struct workload {
	uint32_t threads;
	/* n of fib(n), computed by forking and joining; 0: run the wavefront. */
	uint32_t fib;
	/* Number of items of a loop; 0: run the wavefront or fib. */
	uint32_t items;
	uint32_t columns;
	uint32_t rows;
	uint32_t stages;
	uint32_t tasks;
	/* For each task, the number of tasks that it waits for. */
	const uint32_t *waits;
	/* The tasks that wait for task t: successors[first[t]] .. successors[first[t + 1] - 1]. */
	const uint32_t *first;
	const uint32_t *successors;
	/* Tiles of a row of the matrix, and the tasks in the order of the sequential program; 0: no
	 * factorisation. */
	uint32_t tiles;
	const struct tile_task *tile_tasks;
};

/*
 * Runs a whole frame, and returns 0 after all its tasks have run; or computes and returns
 * fib(n). A frame of a loop calls workload_item for each item and returns 0; or, if
 * workload_reduces is set, returns the sum of workload_value of all items.
 */
typedef uint64_t workload_frame(void *context);

/*
 * Parses `THREADS MS FRAMES wavefront COLUMNS ROWS STAGES CASE...`, `THREADS MS FRAMES fib N`,
 * `THREADS MS FRAMES loop ITEMS CASE...` or `THREADS MS FRAMES cholesky TILES SIDE`, for TILES x
 * TILES tiles of SIDE x SIDE numbers; SIDE is a multiple of 8. Each case is timed for at least MS milliseconds and
 * FRAMES frames. If the words are invalid, prints an error and returns NULL.
 *
 * Cases of the wavefront are empty, compute:STEPS and memory:BYTES. Cases of a loop are
 * for-COSTS:STEPS and sum-COSTS:STEPS, where STEPS is the mean number of steps of arithmetic of an
 * item. COSTS is `equal`, `ramp` (the costs grow with the number of the item, from 0 to twice the
 * mean), or `cluster` (the last 64th of the items has half of the work).
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

/* Whether the present case of a loop adds up values. Changes only between frames. */
extern uint32_t workload_reduces;

/* Does the work of an item of a loop, and stores its value in the state of the item. */
void workload_item(uint32_t item);

/* Returns the value of an item of a loop. */
uint64_t workload_value(uint32_t item);

/* Calls workload_item for the items from `begin` to `end` - 1. */
void workload_items(uint32_t begin, uint32_t end);

/* Returns the sum of workload_value of the items from `begin` to `end` - 1. */
uint64_t workload_values(uint32_t begin, uint32_t end);

/* Runs a task of the factorisation. */
void workload_tile(uint32_t task);

/* Stores the tasks that `task` waits for, at most four, in `before`. Returns their number. */
uint32_t workload_predecessors(uint32_t task, uint32_t before[4]);

#ifdef __cplusplus
}
#endif

#endif
