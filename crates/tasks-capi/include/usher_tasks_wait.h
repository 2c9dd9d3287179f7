/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Waits for single tasks and sets of tasks, results of tasks, and cancellation.
 * Part of usher_tasks.h, which includes this header.
 *
 * A task that is submitted with a slot stores its result and its state there.
 * Any thread and any task may wait for a slot, any number of times. The task is
 * a submitted task: usher_tasks_wait() waits for it, usher_tasks_cancel() drops
 * it, usher_tasks_current() and usher_tasks_fail() work in it.
 *
 * A task of the same runtime that waits runs the awaited task itself if that
 * task has not begun. While the awaited task runs on another worker, the
 * waiting worker runs tasks with slots that the waiting task has submitted,
 * directly or through other such tasks. Otherwise it sleeps. A task must not
 * wait for a task that has submitted it.
 *
 * HOLD NO LOCK OVER A WAIT IN A TASK if the awaited task, or tasks that the
 * calling task has submitted, take the same lock. The worker runs these tasks
 * inside the call, and would wait for itself forever.
 */
#ifndef USHER_TASKS_WAIT_H
#define USHER_TASKS_WAIT_H

#ifndef USHER_TASKS_H
#error "include usher_tasks.h instead of usher_tasks_wait.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The state and the result of a task. */
typedef struct usher_tasks_slot usher_tasks_slot;

/* The function of a task that has a result. The rules of usher_tasks_entry
 * apply. */
typedef void *(*usher_tasks_value_entry)(void *arg);

/* The state of a task with a slot. */
enum usher_tasks_status {
	/* The task has not begun. */
	USHER_TASKS_STATUS_PENDING = 0,
	/* The task has begun and has not ended. */
	USHER_TASKS_STATUS_RUNNING = 1,
	/* The task has ended, and its result is available. */
	USHER_TASKS_STATUS_READY = 2,
	/* The task has called usher_tasks_fail(). */
	USHER_TASKS_STATUS_FAILED = 3,
	/* The task was cancelled before it began, and will not run. */
	USHER_TASKS_STATUS_CANCELLED = 4
};

/*
 * Submits a ready task as usher_tasks_submit() does, and stores a new slot in
 * *slot. The program destroys the slot. If the task never runs, because it is
 * cancelled, the library calls discard(arg) instead; discard may be NULL. After
 * an error, the argument belongs to the caller.
 *
 * Errors: NULL, GROUPS, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_submit_slot(usher_tasks_runtime *runtime,
					    usher_tasks_value_entry entry,
					    void *arg,
					    usher_tasks_entry discard,
					    uint32_t t, uint32_t s,
					    usher_tasks_slot **slot);

/*
 * Waits until the task has ended, and stores its result in *value unless value
 * is NULL. After an error, *value is NULL.
 *
 * Errors, which usher_tasks_last_error() describes with the number of the task:
 * NULL if slot is NULL. FAILED if the task failed, CANCELLED if it was
 * cancelled. INSIDE if the wait would never end: the calling task is the task,
 * was submitted by it, or the task waits for the calling task, directly or
 * through other tasks. DEADLOCK if a task of another runtime calls, for which
 * tasks of the task's runtime wait. TOO_DEEP if the stack of the worker is too
 * full to run the task. ISOLATED if the calling task is in an isolate region to
 * which the task does not belong. ENDED in the child of a fork(), if the task
 * has not ended.
 */
USHER_TASKS_API int usher_tasks_slot_wait(usher_tasks_slot *slot, void **value);

/*
 * Waits until all of count tasks have ended. A task that calls first runs the
 * tasks that have not begun, in this order.
 *
 * Errors: NULL, if slots or one of its elements is NULL, before any wait. The
 * first error of usher_tasks_slot_wait() in this order. If a wait for a task is
 * rejected, the function still waits for the other tasks.
 */
USHER_TASKS_API int usher_tasks_slot_wait_all(usher_tasks_slot *const *slots,
					      size_t count);

/* Returns the state of the task, of enum usher_tasks_status, at once; -1 if slot
 * is NULL. */
USHER_TASKS_API int usher_tasks_slot_status(const usher_tasks_slot *slot);

/* Returns the number of the task in error texts and traces; 0 if slot is NULL. */
USHER_TASKS_API uint64_t usher_tasks_slot_task(const usher_tasks_slot *slot);

/*
 * Cancels the task if it has not begun. Calls that wait for it return CANCELLED.
 *
 * Errors: NULL. TOO_LATE if the task has begun, has ended or was cancelled
 * before; the call then has no effect.
 */
USHER_TASKS_API int usher_tasks_slot_cancel(usher_tasks_slot *slot);

/*
 * Cancels the run of a graph that is in progress, or the first run of a graph
 * that has never run. Tasks that have not begun do not run. Running tasks
 * continue. The call of usher_tasks_run() returns CANCELLED after they have
 * ended, or FAILED if a task has failed, too. Later runs are not affected. A
 * second cancellation of the same run has no effect and succeeds.
 *
 * Errors: NULL. TOO_LATE if the graph has finished its last run; the call then
 * has no effect.
 */
USHER_TASKS_API int usher_tasks_graph_cancel(usher_tasks_graph *graph);

/*
 * Calls entry(arg) in the calling thread, in an isolate region: nested waits in
 * the region run only tasks that were created in it. A task may therefore hold a
 * lock over usher_tasks_run(), usher_tasks_join(), usher_tasks_for(),
 * usher_tasks_reduce() and usher_tasks_scope_run() in a region, for the runtime
 * of the calling task. Tasks of other runtimes are not isolated: do not hold a
 * lock over such a call for another runtime whose tasks take the lock.
 * usher_tasks_scope_run() for another runtime returns ISOLATED in a region.
 *
 * In a region, these calls run their functions on the calling worker alone, one
 * after the other. Tasks with slots that are submitted in the region belong to
 * it, and other workers may run them. A wait for the slot of a task from outside
 * that has not ended returns ISOLATED. If no task of the runtime calls, the
 * function is only called.
 *
 * Errors before the function is called: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_isolate(usher_tasks_runtime *runtime,
					usher_tasks_entry entry, void *arg);

/*
 * Frees a slot. No other call may use the slot at the same time. The task still
 * runs. If it fails and no call has waited for it, usher_tasks_wait() reports the
 * failure. NULL has no effect.
 */
USHER_TASKS_API void usher_tasks_slot_destroy(usher_tasks_slot *slot);

#ifdef __cplusplus
}
#endif

#endif
