/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tasks that are ordered by the data that they read and write, as by OpenMP's
 * clause depend. Part of usher_tasks.h, which includes this header.
 *
 * The program submits tasks in the order of a sequential program, and names the
 * data of each task by addresses:
 *
 * - A task that reads data runs after the last task before it that writes the
 *   data.
 * - A task that writes data runs after all tasks before it that read or write
 *   the data.
 *
 * The addresses are only compared, and may be any numbers. Two accesses overlap
 * only if their addresses are equal. Only tasks of the same
 * usher_tasks_dependencies are ordered. Any thread and any task may submit
 * tasks; tasks that several threads submit at the same time are ordered by the
 * order of the calls.
 *
 * The tasks are submitted tasks: usher_tasks_wait() waits for them and reports
 * their failures, usher_tasks_cancel() drops them, and the destruction of the
 * runtime runs them. IF A TASK FAILS OR IS DROPPED, all tasks that depend on it,
 * directly or through other tasks, are dropped, whenever they are submitted. Use
 * a new usher_tasks_dependencies after a failure.
 */
#ifndef USHER_TASKS_DEPEND_H
#define USHER_TASKS_DEPEND_H

#ifndef USHER_TASKS_H
#error "include usher_tasks.h instead of usher_tasks_depend.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The data that the tasks use, and the last tasks that have used them. */
typedef struct usher_tasks_dependencies usher_tasks_dependencies;

/*
 * Creates an empty table of data for tasks of a runtime, and stores it in
 * *dependencies. The program destroys it.
 *
 * Errors: NULL, MEMORY, ENDED.
 */
USHER_TASKS_API int
usher_tasks_dependencies_new(usher_tasks_runtime *runtime,
			     usher_tasks_dependencies **dependencies);

/*
 * Submits a task that reads the data at the in_count addresses in, and writes,
 * or reads and writes, the data at the out_count addresses out. The arrays may
 * be NULL if their count is 0. The call does not keep them. A task without
 * groups is grouped by its first address, of out if there is one.
 *
 * If the task never runs, the library calls discard(arg) instead, as if a task
 * called it; discard may be NULL. If discard calls usher_tasks_fail(), the next
 * usher_tasks_wait() reports it. After an error, the argument belongs to the
 * caller.
 *
 * Errors: NULL, GROUPS, MEMORY, ENDED; RANGE if a count is larger than an array
 * can be. Tasks that other threads have submitted
 * during such a call, and that depend on its task, are dropped.
 */
USHER_TASKS_API int usher_tasks_dependencies_submit(
	usher_tasks_dependencies *dependencies, usher_tasks_entry entry,
	void *arg, usher_tasks_entry discard, uint32_t t, uint32_t s,
	const void *const *in, size_t in_count, const void *const *out,
	size_t out_count);

/*
 * Frees the table; its tasks still run. No other call may use the table at the
 * same time. The table may be destroyed after its runtime, but no task may be
 * submitted then. NULL has no effect.
 */
USHER_TASKS_API void
usher_tasks_dependencies_destroy(usher_tasks_dependencies *dependencies);

#ifdef __cplusplus
}
#endif

#endif
