/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Graphs: tasks and their dependencies, declared before they run, and run any
 * number of times. Include usher_tasks.h, which includes this header and defines
 * the types usher_tasks_builder and usher_tasks_graph.
 */
#ifndef USHER_TASKS_GRAPH_H
#define USHER_TASKS_GRAPH_H

#ifndef USHER_TASKS_H
#error "include usher_tasks.h instead of usher_tasks_graph.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Creates an empty builder. Errors: NULL. */
USHER_TASKS_API int usher_tasks_builder_new(usher_tasks_builder **builder);

/*
 * Declares a task. If task is not NULL, stores the number of the task, from 0,
 * into *task. Declare tasks in the order in which a sequential program would
 * run them. If the tasks have no groups, the runtime tries this order and
 * others. Another order is used if it is at least 5 % faster.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_task(usher_tasks_builder *builder,
					     usher_tasks_entry entry, void *arg,
					     uint32_t t, uint32_t s,
					     size_t *task);

/*
 * Declares that task `task` runs after task `before`. Repeating a declaration
 * has no effect. The two tasks may be declared after the call.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_after(usher_tasks_builder *builder,
					      size_t task, size_t before);

/*
 * Makes the graphs of a builder keep the declared order: of two ready tasks, the
 * one that was declared first runs first by preference, and no other order is
 * tried. It has no effect if tasks have groups. Errors: NULL.
 */
USHER_TASKS_API int
usher_tasks_builder_keep_order(usher_tasks_builder *builder);

/*
 * Creates a graph. The builder is unchanged and can be extended or destroyed.
 *
 * Errors: NULL, MEMORY, TOO_LARGE; RANGE if a dependency names a task that does
 * not exist; CYCLE, with one cycle in *report, if report is not NULL.
 */
USHER_TASKS_API int
usher_tasks_builder_build(const usher_tasks_builder *builder,
			  usher_tasks_graph **graph,
			  usher_tasks_report **report);

/* Frees a builder. NULL has no effect. */
USHER_TASKS_API void usher_tasks_builder_destroy(usher_tasks_builder *builder);

/* Returns the number of tasks of a graph; 0 if the graph is NULL. */
USHER_TASKS_API size_t usher_tasks_graph_tasks(const usher_tasks_graph *graph);

/*
 * Runs a graph and returns when all tasks of the graph have run. A task may
 * call this function with another graph than its own, for its own runtime or
 * for another runtime. A graph may be run on several runtimes, but not at the
 * same time.
 *
 * HOLD NO LOCK OVER THIS CALL IN A TASK. If the runtime is the task's own, the
 * worker runs other tasks inside the call. If such a task locks a mutex that
 * the calling task holds, the worker waits for itself forever.
 *
 * Errors before any task is run: NULL, GROUPS, BUSY, ENDED, DEADLOCK; MEMORY if
 * the caller is a task and there is no memory for the queues of one more
 * nesting level.
 *
 * FAILED if tasks failed. Tasks that had not begun by then were not run.
 * *report lists the failed tasks and belongs to the caller; report may be NULL.
 * *report is NULL if there is no memory for a report.
 */
USHER_TASKS_API int usher_tasks_run(usher_tasks_runtime *runtime,
				    usher_tasks_graph *graph,
				    usher_tasks_report **report);

/* Frees a graph. NULL has no effect. Errors: BUSY, and the graph is unchanged.
 */
USHER_TASKS_API int usher_tasks_graph_destroy(usher_tasks_graph *graph);

/*
 * Writes a table of the orders that were tried for a graph, and of their times,
 * into text. Writes at most `bytes` bytes, including the final 0. Returns the
 * length of the whole table, as snprintf() does; 0 if the graph is NULL or
 * being run.
 */
USHER_TASKS_API size_t usher_tasks_graph_explain(const usher_tasks_graph *graph,
						 char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
