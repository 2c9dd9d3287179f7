/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Join and scopes: functions and tasks that may use local variables of their
 * caller, because the caller returns only after they have ended. Include
 * usher_tasks.h, which includes this header.
 *
 * The functions and tasks are tasks of the runtime: usher_tasks_current()
 * returns the runtime, and usher_tasks_fail() marks the function or task as
 * failed. A task sees all writes that its spawner made before, and the caller
 * sees all writes of the functions and tasks.
 *
 * If a task of the runtime calls usher_tasks_join() or usher_tasks_scope_run(),
 * the first function or the body runs on the task's worker. If another thread
 * calls, they run on a worker, and the thread waits. Under policies other than
 * USHER_TASKS_POLICY_USHER and in the child of a fork(), the functions and tasks
 * run one after the other in one thread.
 *
 * HOLD NO LOCK OVER THESE CALLS IN A TASK. The worker runs other tasks inside
 * the call. If such a task locks a mutex that the calling task holds, the worker
 * waits for itself forever.
 */
#ifndef USHER_TASKS_FORK_H
#define USHER_TASKS_FORK_H

#ifndef USHER_TASKS_H
#error "include usher_tasks.h instead of usher_tasks_fork.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Join ---- */

/*
 * Runs both functions and returns after both have ended. If a worker is idle,
 * the second function runs at the same time as the first. The functions may
 * call usher_tasks_join() themselves. Allocates no memory. If tasks of the
 * runtime wait for the runtime of the calling task, both functions run in the
 * calling thread, one after the other.
 *
 * Errors before any function runs: NULL, ENDED. FAILED if a function failed;
 * usher_tasks_last_error() contains its message. Both functions run even if the
 * first fails.
 */
USHER_TASKS_API int usher_tasks_join(usher_tasks_runtime *runtime,
				     usher_tasks_entry first, void *first_arg,
				     usher_tasks_entry second,
				     void *second_arg);

/* ---- Scopes ---- */

/* A set of tasks that end before usher_tasks_scope_run() returns. */
typedef struct usher_tasks_scope usher_tasks_scope;

/* The body or a task of a scope. The rules of usher_tasks_entry apply. */
typedef void (*usher_tasks_scope_entry)(usher_tasks_scope *scope, void *arg);

/*
 * Opens a scope: calls body(scope, arg), and returns after all tasks that were
 * spawned in the scope have ended. Scopes may be nested: a task of a scope may
 * open further scopes.
 *
 * Errors before the body runs: NULL, ENDED; ISOLATED in an isolate region of
 * another runtime. FAILED if the body or tasks failed;
 * usher_tasks_last_error() contains the first message. All other tasks run even
 * if a task fails.
 */
USHER_TASKS_API int usher_tasks_scope_run(usher_tasks_runtime *runtime,
					  usher_tasks_scope_entry body,
					  void *arg);

/*
 * Spawns a task of a scope, which may begin at once. Only the body and the tasks
 * of the scope may call this function, on any thread, and functions that they
 * wait for. The scope handle is invalid after usher_tasks_scope_run() has
 * returned.
 *
 * Errors: NULL; MEMORY if there is no memory for the task, which then does not
 * run.
 */
USHER_TASKS_API int usher_tasks_scope_spawn(usher_tasks_scope *scope,
					    usher_tasks_scope_entry entry,
					    void *arg);

#ifdef __cplusplus
}
#endif

#endif
