/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parallel loops and reductions. Part of usher_tasks.h, which includes this
 * header.
 *
 * A loop runs over the items begin to end - 1; it runs no item if end <= begin.
 * The library divides the range into blocks and calls a function for each
 * block. It finds the lengths of the blocks while the loop runs, so that a
 * block takes about 8 to 64 microseconds. Items may differ in their costs.
 * Under the default policy, idle workers take a part of the range; under other
 * policies, and with a single worker, the whole range is one block.
 *
 * Any thread and any task may run loops, and a loop may run loops and graphs
 * inside. If a task of the runtime calls, the loop begins on the worker of the
 * task. If another thread calls, the loop runs as a task of the runtime and the
 * thread waits.
 *
 * The functions of a loop are called as tasks: usher_tasks_current() returns
 * the runtime, and usher_tasks_fail() marks the loop as failed. Blocks that are
 * running then continue, no further block begins, and the call returns FAILED.
 * usher_tasks_last_error() returns the first failure and the items of its
 * block.
 *
 * HOLD NO LOCK OVER A LOOP IN A TASK. The worker runs other tasks while it waits
 * for parts that other workers have taken. If such a task locks a mutex that
 * the calling task holds, the worker waits for itself forever.
 */
#ifndef USHER_TASKS_LOOPS_H
#define USHER_TASKS_LOOPS_H

#ifndef USHER_TASKS_H
#error "include usher_tasks.h instead of usher_tasks_loops.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A function that runs the items begin to end - 1; begin < end. */
typedef void (*usher_tasks_block)(uint64_t begin, uint64_t end, void *arg);

/*
 * Calls body for blocks of the range, in parallel, and returns when all calls
 * have returned. The blocks are disjoint, and together they are the range.
 *
 * Errors before any item is run: NULL, ENDED, DEADLOCK. FAILED if a call has
 * failed; some items were then not run.
 */
USHER_TASKS_API int usher_tasks_for(usher_tasks_runtime *runtime,
				    uint64_t begin, uint64_t end,
				    usher_tasks_block body, void *arg);

/* A function that initialises an accumulator with the value of no items. */
typedef void (*usher_tasks_init)(void *accumulator, void *arg);

/* A function that adds the items begin to end - 1 to an accumulator. */
typedef void (*usher_tasks_fold)(void *accumulator, uint64_t begin,
				 uint64_t end, void *arg);

/*
 * A function that adds the accumulator `right` to `left`. The items of right
 * follow those of left. The library frees the memory of right afterwards; what
 * right owns must be moved to left, or be freed.
 */
typedef void (*usher_tasks_combine)(void *left, void *right, void *arg);

/*
 * Reduces the range in parallel, and stores the result in *result. An
 * accumulator has accumulator_bytes bytes, is aligned to 128 bytes, and is not
 * moved. *result is memory of the caller for another accumulator, with the
 * alignment that the functions need.
 *
 * 1. The library calls init for *result and for the accumulator of each part of
 *    the range.
 * 2. It calls fold for the blocks of a part, in ascending order.
 * 3. It calls combine for neighbouring parts until *result has all items.
 *
 * combine must be associative, but need not be commutative. The division of the
 * range depends on the run. With an operation that is only nearly associative,
 * such as the addition of floating-point numbers, the result may differ
 * slightly from run to run.
 *
 * Errors before any function is called: NULL, ENDED, DEADLOCK; MEMORY if
 * accumulator_bytes is too large. FAILED if a call has failed; MEMORY if there
 * is no memory for an accumulator. After these two errors, *result contains the
 * items that were added until then, and owns what their accumulators owned.
 */
USHER_TASKS_API int
usher_tasks_reduce(usher_tasks_runtime *runtime, uint64_t begin, uint64_t end,
		   size_t accumulator_bytes, usher_tasks_init init,
		   usher_tasks_fold fold, usher_tasks_combine combine,
		   void *arg, void *result);

#ifdef __cplusplus
}
#endif

#endif
