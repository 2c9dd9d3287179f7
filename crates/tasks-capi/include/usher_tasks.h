/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fine-grained tasks in a cache-friendly order, for C11 and C++17.
 *
 *     cc program.c $(pkg-config --cflags --libs usher-tasks)
 *
 * A task is a function and its argument. Tasks run on the workers of a runtime,
 * which are threads. The runtime does not preempt tasks. A task may call every
 * function of this header; a call that would wait for the task itself is an
 * error. Tasks should not block, because a blocked worker runs no other task.
 * usher_tasks_depend.h, usher_tasks_graph.h, usher_tasks_loops.h,
 * usher_tasks_fork.h and usher_tasks_wait.h are parts of this header. The ways to declare tasks:
 *
 *     submitted  submits single tasks that are ready at once
 *     by token   registers and resolves single tasks, at any time
 *     as graph   declares many tasks once, which run repeatedly at less cost
 *     in scopes  spawns tasks that end before a function returns; and join
 *     in loops   calls a function for all parts of a range
 *     with slots submits single tasks that have a result and can be waited for
 *     by data    submits single tasks that are ordered by the data they use
 *
 * Two numbers of a task are hints on which tasks belong together. Tasks with
 * equal numbers are in the same group; 0 means no group.
 *
 *     t   temporal group: its tasks run close in time, on any cores
 *     s   spatial group: its tasks run on the same core
 *
 * If no task of a graph has groups, the first runs of the graph under the
 * default policy try several orders: by declaration, by functions, by addresses
 * of arguments, and by dependencies. Later runs use the fastest of these
 * orders if it is at least 5 % faster than the order by declaration. Tasks by
 * token and submitted tasks without groups are grouped by measurements of the
 * same kind.
 *
 * ERRORS. A function that can fail returns a value of enum usher_tasks_error as
 * an int, which is 0 on success. After a failure, usher_tasks_last_error()
 * returns a text that names the token or task. A failed function sets
 * out-pointers of handles to NULL. It has no other effect, unless its comment
 * states an effect. Lack of memory for a task, a graph, a block or a report is
 * an error, after which waiting, cancelling and destroying still work. Lack of
 * memory for the queues of running tasks ends the process with a message.
 *
 * THREADS. Any thread and any task may call any function at any time, but only
 * one thread at a time may use a builder or a report. A task sees all writes of
 * its dependencies. It also sees all writes that a thread made before that
 * thread submitted, registered or resolved the task, or ran its graph.
 *
 * HANDLES. A call with a NULL handle returns an error or has no effect. A
 * handle must not be used after it was destroyed. A runtime of the parent must
 * not be used in the child of a fork(), because it has no workers there:
 * waiting for it, running a graph or a loop on it and destroying it return ENDED,
 * and its memory is never freed. The child may create a new runtime if no other thread
 * was inside the library at the fork.
 *
 * ABI. All versions of the library with the same SONAME (libusher_tasks.so.0)
 * have the same meanings, values, sizes and offsets of all declarations of this
 * header. A structure that a program fills in begins with its size, so that
 * later versions can add fields.
 */
#ifndef USHER_TASKS_H
#define USHER_TASKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cast in C or C++, for the inline functions. C++ compilers may be set to
 * reject casts in C syntax. */
#ifdef __cplusplus
#define USHER_TASKS_CAST(type, value) static_cast<type>(value)
#else
#define USHER_TASKS_CAST(type, value) ((type)(value))
#endif

/* Visibility and linkage of the exported functions. */
#ifndef USHER_TASKS_API
#define USHER_TASKS_API extern
#endif

/* ---- Version ---- */

#define USHER_TASKS_VERSION_MAJOR 0
#define USHER_TASKS_VERSION_MINOR 1
#define USHER_TASKS_VERSION_PATCH 0

/* A version as one number, such that a later version has a larger number. */
#define USHER_TASKS_VERSION_NUMBER(major, minor, patch) \
	((USHER_TASKS_CAST(uint32_t, major) << 24) | \
	 (USHER_TASKS_CAST(uint32_t, minor) << 16) | \
	 USHER_TASKS_CAST(uint32_t, patch))

/* The version of this header. */
#define USHER_TASKS_VERSION \
	USHER_TASKS_VERSION_NUMBER(USHER_TASKS_VERSION_MAJOR, \
				   USHER_TASKS_VERSION_MINOR, \
				   USHER_TASKS_VERSION_PATCH)

/* Returns the version of the loaded library as a number. */
USHER_TASKS_API uint32_t usher_tasks_version(void);

/* Returns the version of the loaded library as text, such as "0.1.0". */
USHER_TASKS_API const char *usher_tasks_version_string(void);

/* ---- Errors ---- */

enum usher_tasks_error {
	USHER_TASKS_OK = 0,
	/* A handle, a function pointer or an out-pointer is NULL. */
	USHER_TASKS_ERROR_NULL = 1,
	/* The options have an invalid size, or set fields that the loaded
	 * library does not know. */
	USHER_TASKS_ERROR_OPTIONS = 2,
	/* The number of workers is 0 or above the limit (1024). */
	USHER_TASKS_ERROR_WORKERS = 3,
	/* The system could not start a thread for a worker. */
	USHER_TASKS_ERROR_THREAD = 4,
	/* There is no memory for the operation. */
	USHER_TASKS_ERROR_MEMORY = 5,
	/* The groups are outside the limits of the policy. */
	USHER_TASKS_ERROR_GROUPS = 6,
	/* A task with this token is registered and has not run yet. */
	USHER_TASKS_ERROR_REGISTERED = 7,
	/* The task was resolved more often than its count. */
	USHER_TASKS_ERROR_RESOLVED_TOO_OFTEN = 8,
	/* Some tasks are unfinished or have failed. The report lists them. */
	USHER_TASKS_ERROR_UNFINISHED = 9,
	/* A task tried to wait for its own runtime, and thus for itself. */
	USHER_TASKS_ERROR_INSIDE = 10,
	/* A task tried to wait for another runtime, whose tasks wait for the
	 * runtime of the calling task. */
	USHER_TASKS_ERROR_DEADLOCK = 11,
	/* The runtime is being destroyed, or belongs to the parent of this
	 * forked process. */
	USHER_TASKS_ERROR_ENDED = 12,
	/* The tasks of a graph have a dependency cycle. */
	USHER_TASKS_ERROR_CYCLE = 13,
	/* The number of a task, of a report line, of a worker or of a format is
	 * out of range. */
	USHER_TASKS_ERROR_RANGE = 14,
	/* The graph has more than 2^32 - 1 tasks or dependencies. */
	USHER_TASKS_ERROR_TOO_LARGE = 15,
	/* Tasks of the graph have failed, and the report lists them; or the
	 * functions of a loop have failed. */
	USHER_TASKS_ERROR_FAILED = 16,
	/* The graph is being run by another call. */
	USHER_TASKS_ERROR_BUSY = 17,
	/* The function may only be called by a task. */
	USHER_TASKS_ERROR_OUTSIDE = 18,
	/* The sizes of blocks or headers are invalid. */
	USHER_TASKS_ERROR_COLORING = 19,
	/* An internal error of the library. Please report it. */
	USHER_TASKS_ERROR_INTERNAL = 20,
	/* A file cannot be written. */
	USHER_TASKS_ERROR_FILE = 21,
	/* Waits and cancellations: usher_tasks_wait.h. */
	USHER_TASKS_ERROR_CANCELLED = 22,
	USHER_TASKS_ERROR_TOO_LATE = 23,
	USHER_TASKS_ERROR_TOO_DEEP = 24,
	USHER_TASKS_ERROR_ISOLATED = 25
};

/* Returns a general description of an error code. The text is never NULL and
 * always valid. */
USHER_TASKS_API const char *usher_tasks_strerror(int error);

/*
 * Returns the text of the last error of a call in this thread, which names the
 * token or task; "" if there was no error. The text is valid until the next
 * error in this thread or the end of the thread. Successful calls do not change
 * the text.
 */
USHER_TASKS_API const char *usher_tasks_last_error(void);

/* ---- Runtimes ---- */

/* A set of workers and their ready tasks. */
typedef struct usher_tasks_runtime usher_tasks_runtime;

/*
 * The function of a task. If a C++ exception leaves the function, the process
 * ends with a message. Catch exceptions inside the function, and call
 * usher_tasks_fail().
 */
typedef void (*usher_tasks_entry)(void *arg);

/* The order in which ready tasks run. */
enum usher_tasks_policy {
	/* The default. Each worker runs one temporal group after the other, and
	 * within a group first the task that became ready last. */
	USHER_TASKS_POLICY_USHER = 0,
	/* The order of Mori, Takeda and Matsuzaki, for group numbers t below
	 * t_groups and s below s_groups. */
	USHER_TASKS_POLICY_PAPER = 1,
	/* First come, first served. */
	USHER_TASKS_POLICY_FCFS = 2,
	/* Last come, first served. */
	USHER_TASKS_POLICY_LCFS = 3
};

/* The CPUs to which workers are bound. */
enum usher_tasks_binding {
	/* Workers are assigned to the cores of one last-level cache, then to
	 * those of the next, and so on. Each worker is bound to all CPUs of its
	 * last-level cache. The assignment of another runtime of the program
	 * begins with the cache that has most free cores. If the machine has a
	 * single last-level cache, workers are not bound. */
	USHER_TASKS_BINDING_LLC = 0,
	/* Workers may use all CPUs that are allowed for the thread that creates
	 * the runtime. */
	USHER_TASKS_BINDING_NONE = 1
};

/* How many workers run at the same time. */
enum usher_tasks_running {
	/* As many as the process may use CPUs, by its affinity and CPU quota, and
	 * one more for each worker that is blocked in a task while tasks wait.
	 * Changes of the affinity take effect within 10 ms, of the quota within
	 * 60 ms. If no task begins for 100 ms, more workers run. */
	USHER_TASKS_RUNNING_CPUS = 0,
	/* All workers, whenever there are tasks. */
	USHER_TASKS_RUNNING_ALL = 1
};

/* Whether a runtime reports its tasks as progress. */
enum usher_tasks_progress {
	/* Every 20 ms, on the heartbeat page that `usher run` creates, unless
	 * the program has named a unit of its own there. */
	USHER_TASKS_PROGRESS_REPORTED = 0,
	USHER_TASKS_PROGRESS_NOT_REPORTED = 1
};

/* The options of a runtime. Later versions may add fields at the end. */
typedef struct usher_tasks_options {
	size_t size; /* sizeof(usher_tasks_options) */
	uint32_t workers; /* 1 to 1024 */
	uint32_t policy; /* an enum usher_tasks_policy */
	/* The numbers of temporal and spatial groups, including group 0, for
	 * USHER_TASKS_POLICY_PAPER only. 0 counts as 1. The policy has t_groups
	 * x s_groups queues, at most 2^22. For each level at which tasks run
	 * graphs, it has as many queues again. */
	uint32_t t_groups;
	uint32_t s_groups;
	uint32_t binding; /* an enum usher_tasks_binding */
	uint32_t running; /* an enum usher_tasks_running */
	/* Size of each worker's stack in bytes, at least 64 KiB. 0 means 2 MiB.
	 * While a task waits for a graph that it runs, its worker runs other
	 * tasks on the same stack, which may wait, too. Up to 16 such waits are
	 * nested, or fewer if the stack has less than 128 KiB for each. Waits
	 * that the program itself nests come in addition. */
	size_t stack_bytes;
	uint32_t progress; /* an enum usher_tasks_progress */
	uint32_t reserved; /* 0 */
	/* dense_count tokens from dense_first on, at most 2^32, are cheaper: they
	 * are kept in an array of 64 bytes each instead of a hash table. They use
	 * memory from their first use on. A wait and a cancellation scan them,
	 * at about 1 ms per million. All results are the same. */
	uint64_t dense_first;
	uint64_t dense_count;
} usher_tasks_options;

/*
 * Options for this number of workers under the default policy. The other fields
 * are 0, which is also the default of fields that later versions add.
 */
#define USHER_TASKS_OPTIONS_INIT(workers) \
	{ \
		sizeof(usher_tasks_options), (workers), \
			USHER_TASKS_POLICY_USHER, 0, 0, \
			USHER_TASKS_BINDING_LLC, 0, 0, 0, 0, 0, 0 \
	}

/*
 * Returns the number of CPUs that this process may use, which is a suitable
 * number of workers. Returns 1 if the system does not report the number.
 */
USHER_TASKS_API uint32_t usher_tasks_cpus(void);

/*
 * Creates a runtime and starts its workers. If options is NULL, the runtime has
 * usher_tasks_cpus() workers and the default policy.
 *
 * The options of a program that was compiled with a newer header may be larger
 * than this version's. They are accepted if all additional bytes are 0.
 *
 * Errors: NULL, OPTIONS, WORKERS, THREAD; GROUPS if the policy would need too
 * many queues; MEMORY if there is no memory for the queues or the dense tokens,
 * or if 4,096 runtimes exist.
 */
USHER_TASKS_API int usher_tasks_runtime_new(const usher_tasks_options *options,
					    usher_tasks_runtime **runtime);

/*
 * Destroys a runtime, in these steps: reject new calls of other threads; wait
 * until their calls in progress have returned; run all ready tasks, and the
 * tasks that these make ready; drop all other tasks; end the workers; free all
 * memory. NULL has no effect.
 *
 * Threads other than tasks must not begin to use the runtime after this call.
 * Calls that are in progress or begin at the same time are allowed. A call that
 * begins too late returns ENDED, until a new runtime gets the same handle. To
 * drop ready tasks instead of running them, call usher_tasks_cancel() first.
 *
 * Errors, after which the runtime is unchanged: INSIDE if the caller is a task
 * of the runtime; DEADLOCK. ENDED if another thread destroys or has destroyed
 * the runtime, and in the child of a fork().
 */
USHER_TASKS_API int usher_tasks_runtime_destroy(usher_tasks_runtime *runtime);

/* Returns the number of workers; 0 if the runtime is NULL or being destroyed. */
USHER_TASKS_API uint32_t
usher_tasks_workers(const usher_tasks_runtime *runtime);

/* Returns the runtime of the calling task; NULL if the caller is no task. */
USHER_TASKS_API usher_tasks_runtime *usher_tasks_current(void);

/*
 * Returns the index of the calling worker, from 0 to usher_tasks_workers() - 1;
 * -1 if the calling thread is no worker of the runtime, if the runtime is NULL,
 * or if another thread destroys it and the caller is none of its tasks. Use the
 * index to give each worker data of its own, such as scratch memory, without
 * locks:
 *
 *     scratch[usher_tasks_worker_index(usher_tasks_current())]
 *
 * - A worker thread keeps its index for the life of the runtime. No two threads
 *   have the same index.
 * - A task runs on one thread from beginning to end, so its index does not
 *   change.
 * - The runtime does not interrupt a task in order to run another task on the
 *   same worker. Only usher_tasks_run(), usher_tasks_join(),
 *   usher_tasks_scope_run(), usher_tasks_for(), usher_tasks_reduce(),
 *   usher_tasks_slot_wait() and usher_tasks_slot_wait_all() run other tasks on
 *   the worker of the calling task, and these tasks have the same index.
 * - A discard function may run on any thread. usher_tasks_cancel() and
 *   usher_tasks_runtime_destroy() call it on the calling thread, which may be a
 *   worker; the index is -1 if that thread is no worker.
 * - Data of a worker may therefore change between tasks and during these nine
 *   calls, but at no other time.
 */
USHER_TASKS_API int
usher_tasks_worker_index(const usher_tasks_runtime *runtime);

/* ---- Priorities ---- */

/*
 * Instead of a temporal group, the parameter t of a task may be a priority.
 * Under the default policy, a worker runs its tasks with high priority before
 * those with and without temporal groups, and its tasks with low priority after
 * them. Of two tasks with one priority, the task that became ready first runs
 * first. A task with low priority that has waited longest runs at the latest
 * when its turn comes. The policies FCFS and LCFS ignore priorities; the policy
 * PAPER refuses them (GROUPS).
 */
#define USHER_TASKS_PRIORITY_HIGH UINT32_C(0xfffffffe)
#define USHER_TASKS_PRIORITY_LOW UINT32_C(0xfffffffd)

/* ---- Submitted tasks ---- */

/*
 * Submits a task that is ready at once and has no token. Any thread and any
 * task may call this function. A task may submit its successor, which may begin
 * before the submitting task has ended. The task runs exactly once, unless
 * usher_tasks_cancel() drops it. Submitting runs no other task. The rules of
 * usher_tasks_register() apply: usher_tasks_wait() waits for the task and
 * reports its failure, and the destruction of the runtime runs the task.
 *
 * Errors: NULL, GROUPS, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_submit(usher_tasks_runtime *runtime,
				       usher_tasks_entry entry, void *arg,
				       uint32_t t, uint32_t s);

/*
 * Submits a task as usher_tasks_submit() does. The task owns its argument: if
 * the runtime is cancelled before the task has run, the runtime calls
 * discard(arg) once instead of the task, as usher_tasks_register_owned()
 * describes. If usher_tasks_submit_owned() itself fails, the argument still
 * belongs to the caller, and discard is not called.
 *
 * Errors: NULL, GROUPS, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_submit_owned(usher_tasks_runtime *runtime,
					     usher_tasks_entry entry, void *arg,
					     usher_tasks_entry discard,
					     uint32_t t, uint32_t s);

/* ---- Tasks by token ---- */

/*
 * Registers a task that runs after it has been resolved count times.
 * Resolutions before the registration count, too. If count is 0, the task is
 * ready at once. The caller chooses the token, which identifies the task until
 * the task has run. After that, the token may be used for another task.
 *
 * Errors: NULL, REGISTERED, GROUPS, MEMORY, ENDED; RESOLVED_TOO_OFTEN if there
 * were more than count resolutions before this call, which are kept.
 */
USHER_TASKS_API int usher_tasks_register(usher_tasks_runtime *runtime,
					 uint64_t token, uint32_t count,
					 usher_tasks_entry entry, void *arg,
					 uint32_t t, uint32_t s);

/*
 * Registers a task as usher_tasks_register() does. The task owns its argument:
 * if the runtime is cancelled or destroyed before the task has run, the runtime
 * calls discard(arg) once instead of the task, as if a task called it. If
 * discard calls usher_tasks_fail(), the next usher_tasks_wait() reports the
 * task as failed. During the destruction of the runtime, no such report is
 * made, because no wait can follow. If usher_tasks_register_owned() itself
 * fails, the argument still belongs to the caller, and discard is not called.
 */
USHER_TASKS_API int
usher_tasks_register_owned(usher_tasks_runtime *runtime, uint64_t token,
			   uint32_t count, usher_tasks_entry entry, void *arg,
			   usher_tasks_entry discard, uint32_t t, uint32_t s);

/*
 * Resolves one dependency of a task. The task may be registered later.
 *
 * Errors: NULL, MEMORY, ENDED; RESOLVED_TOO_OFTEN if the task has no unresolved
 * dependency, or was resolved 2^32 - 1 times without being registered.
 */
USHER_TASKS_API int usher_tasks_resolve(usher_tasks_runtime *runtime,
					uint64_t token);

/* The rule by which the runtime groups tasks by token that have no groups. */
enum usher_tasks_grouping {
	/* The policy does not group tasks that have no groups. */
	USHER_TASKS_GROUPING_NONE_REQUESTED = 0,
	/* Tasks are grouped by time of registration. */
	USHER_TASKS_GROUPING_TIME = 1,
	/* Tasks are grouped by the region of memory to which their arguments point. */
	USHER_TASKS_GROUPING_DATA = 2,
	/* Tasks have no groups. */
	USHER_TASKS_GROUPING_NONE = 3
};

/*
 * Stores the current grouping of tasks by token without groups into *grouping,
 * as an enum usher_tasks_grouping. The runtime tries several groupings, so the
 * grouping may change at any time.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_current_grouping(usher_tasks_runtime *runtime,
						 uint32_t *grouping);

/* A report of failed and unfinished tasks. The section "Reports" of this header
 * declares its functions. */
typedef struct usher_tasks_report usher_tasks_report;

/*
 * Waits until no registered or submitted task is ready or running.
 *
 * EACH FAILURE IS REPORTED ONCE: if several threads wait, one of these threads
 * gets the failure, and the other threads may get OK. Unresolved and
 * unregistered tokens are reported to all threads.
 *
 * Errors: NULL, ENDED, DEADLOCK; INSIDE if the caller is a task of this
 * runtime.
 *
 * UNFINISHED if tasks wait to be resolved, if tokens were resolved and never
 * registered, or if tasks have failed since the last call. *report lists these
 * tasks and belongs to the caller; report may be NULL. Unfinished tasks are
 * kept, and may still be resolved or registered.
 *
 * MEMORY instead of UNFINISHED if there is no memory for the list. In this case
 * usher_tasks_last_error() contains the numbers of failed and unfinished tasks,
 * *report is NULL, and the next call reports the failed tasks.
 */
USHER_TASKS_API int usher_tasks_wait(usher_tasks_runtime *runtime,
				     usher_tasks_report **report);

/*
 * Drops the registered and submitted tasks that have not begun. Tasks that are
 * registered or submitted from now on are dropped when they become ready.
 * Graphs are not affected. If dropped is not NULL, stores into *dropped how
 * many tokens were waiting, including tokens that were resolved but not
 * registered.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_cancel(usher_tasks_runtime *runtime,
				       size_t *dropped);

/*
 * Marks the calling task as failed, with a message, which may be NULL. The
 * report of usher_tasks_wait() or usher_tasks_run() lists the task. The task
 * continues until it returns. If it is a task of a graph, the tasks of the
 * graph that have not begun by then are not run. Only the first message of a
 * task is reported.
 *
 * Errors: OUTSIDE if the caller is no task.
 */
USHER_TASKS_API int usher_tasks_fail(const char *message);

/* ---- Reports ---- */

/* The state of a task in a report. */
enum usher_tasks_unfinished_kind {
	/* The task failed. */
	USHER_TASKS_UNFINISHED_FAILED = 1,
	/* The task was registered, but resolved less often than its count. */
	USHER_TASKS_UNFINISHED_UNRESOLVED = 2,
	/* The token was resolved, but no task was registered. */
	USHER_TASKS_UNFINISHED_UNREGISTERED = 3,
	/* The task is part of a dependency cycle of a graph. */
	USHER_TASKS_UNFINISHED_CYCLE = 4,
	/* The task was submitted without a token, and failed. */
	USHER_TASKS_UNFINISHED_SUBMITTED_FAILED = 5
};

/* A line of a report. */
typedef struct usher_tasks_unfinished {
	/* its token, or its number in the graph; SUBMITTED_FAILED: a number that
	 * the runtime has given to the task, as in traces */
	uint64_t task;
	/* FAILED, SUBMITTED_FAILED: the reason, valid until the report is freed;
	 * otherwise NULL */
	const char *message;
	uint32_t kind; /* an enum usher_tasks_unfinished_kind */
	uint32_t missing; /* UNRESOLVED: missing resolutions; else 0 */
} usher_tasks_unfinished;

/* Returns the number of lines of a report; 0 if the report is NULL. */
USHER_TASKS_API size_t
usher_tasks_report_count(const usher_tasks_report *report);

/*
 * Reads line number `line`, from 0, into *unfinished. The failed tasks come
 * first, in order of time, then the unresolved tasks, sorted by token, then the
 * unregistered tokens in ascending order. The report of a cycle lists each task
 * after the task for which it waits; the first task waits for the last.
 *
 * Errors: NULL, RANGE.
 */
USHER_TASKS_API int usher_tasks_report_at(const usher_tasks_report *report,
					  size_t line,
					  usher_tasks_unfinished *unfinished);

/* Returns how many tasks of a graph were not run because other tasks had
 * failed. */
USHER_TASKS_API uint64_t
usher_tasks_report_skipped(const usher_tasks_report *report);

/* Frees a report. NULL has no effect. */
USHER_TASKS_API void usher_tasks_report_destroy(usher_tasks_report *report);

/* A list of declared tasks and dependencies, from which graphs are created. */
typedef struct usher_tasks_builder usher_tasks_builder;

/* Tasks and their dependencies, which can be run any number of times. */
typedef struct usher_tasks_graph usher_tasks_graph;

/* ---- Traces and counters ---- */

/* The format of a trace file. */
enum usher_tasks_format {
	/* JSON for ui.perfetto.dev and chrome://tracing. */
	USHER_TASKS_FORMAT_CHROME = 0,
	/* An SVG picture with a row per worker, time from left to right, and
	 * tasks coloured by temporal group. */
	USHER_TASKS_FORMAT_SVG_BY_T = 1,
	/* The SVG picture with tasks coloured by spatial group. */
	USHER_TASKS_FORMAT_SVG_BY_S = 2
};

/*
 * Starts to record which worker runs which task and when, and discards earlier
 * records. The records of the latest tasks_per_worker tasks of each worker are
 * kept until the runtime ends. They need 32 bytes for each of tasks_per_worker
 * + 1 tasks. A later call with a larger number allocates memory for at least
 * twice the earlier number, in addition to the earlier memory. Recording costs
 * some nanoseconds per task.
 *
 * Errors: NULL, MEMORY, ENDED. After an error, a trace in progress continues.
 */
USHER_TASKS_API int usher_tasks_trace_start(usher_tasks_runtime *runtime,
					    size_t tasks_per_worker);

/* Stops recording. Errors: NULL, ENDED. */
USHER_TASKS_API int usher_tasks_trace_stop(usher_tasks_runtime *runtime);

/*
 * Writes the recorded tasks to a file, in a format of enum usher_tasks_format.
 *
 * Errors: NULL, RANGE, FILE, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_trace_write(usher_tasks_runtime *runtime,
					    int format, const char *path);

/*
 * Counters of a worker since the runtime was created. Later versions may add
 * fields at the end.
 */
typedef struct usher_tasks_counters {
	size_t size; /* sizeof(usher_tasks_counters), from the caller */
	uint64_t tasks; /* tasks run */
	/* Chains of tasks stolen from workers of the same last-level cache. The
	 * next two fields count chains stolen from workers of the same package,
	 * and of other packages. */
	uint64_t steals_llc;
	uint64_t steals_package;
	uint64_t steals_machine;
	uint64_t outside; /* how often the worker took injected tasks */
	uint64_t sent; /* tasks sent to the owners of their spatial groups */
	uint64_t group_moves; /* spatial groups taken from other workers */
	uint64_t sleeps; /* how often the worker went to sleep */
	uint64_t asleep_ns; /* total time asleep */
} usher_tasks_counters;

/*
 * Reads the counters of worker number `worker`, from 0, into *counters. The
 * caller must have set counters->size. Fields that the loaded library does not
 * know are set to 0.
 *
 * Errors: NULL, OPTIONS for an invalid size, RANGE, ENDED.
 */
USHER_TASKS_API int usher_tasks_counters_of(usher_tasks_runtime *runtime,
					    uint32_t worker,
					    usher_tasks_counters *counters);

/* ---- Coloured blocks ---- */

/*
 * Blocks with headers that are spread over the cache sets. The size of a block
 * is a power of two, and a block is aligned to its size. Masking any pointer
 * into a block therefore gives the base of the block, and thus its header. If
 * all headers were at the bases of their blocks, they would fall into the same
 * few cache sets. Colouring shifts each header by a number of whole cache
 * lines, which is a hash of the block's address, so the header can be computed
 * from any pointer into the block. Half of the headers are near the start of
 * their blocks and half near the end, so they are also spread over the pages of
 * the blocks.
 */

/* Bytes of a cache line, the unit by which headers are shifted. */
#define USHER_COLORING_LINE_BYTES 64

/* The layout of headers in blocks. */
typedef struct usher_coloring {
	size_t block_bytes; /* a power of two, at least 64 */
	size_t header_bytes; /* at least 1 */
	size_t colors; /* positions of a header; 1: no colouring */
} usher_coloring;

/*
 * Checks that headers of all colours are inside their blocks, and that masking
 * gives the base of a block.
 *
 * Errors: NULL, COLORING.
 */
USHER_TASKS_API int usher_coloring_check(const usher_coloring *coloring);

/*
 * Returns the block that contains an address; NULL if the colouring is invalid.
 */
USHER_TASKS_API void *usher_coloring_base(const usher_coloring *coloring,
					  const void *inside);

/*
 * Returns the offset in bytes of the header of the block that starts at base; 0
 * if the colouring is invalid.
 */
USHER_TASKS_API size_t usher_coloring_shift(const usher_coloring *coloring,
					    const void *base);

/*
 * Returns the header of the block that contains an address; NULL if the
 * colouring is invalid.
 */
USHER_TASKS_API void *usher_coloring_header(const usher_coloring *coloring,
					    const void *inside);

/*
 * usher_coloring_base(), usher_coloring_shift() and usher_coloring_header() as
 * inline functions on numbers. usher_coloring_check() must have accepted the
 * colouring. If the sizes are constants, the compiler generates the best code.
 */
static inline uintptr_t
usher_coloring_inline_base(const usher_coloring *coloring, uintptr_t inside)
{
	return inside &
	       ~(USHER_TASKS_CAST(uintptr_t, coloring->block_bytes) - 1);
}

static inline size_t usher_coloring_inline_shift(const usher_coloring *coloring,
						 uintptr_t base)
{
	uintptr_t number = base / coloring->block_bytes;
	uintptr_t folded =
		number ^ (number >> 6) ^ (number >> 12) ^ (number >> 18);
	size_t color = USHER_TASKS_CAST(size_t, folded % coloring->colors);
	size_t inset = color / 2 * USHER_COLORING_LINE_BYTES;
	size_t last = (coloring->block_bytes - coloring->header_bytes) /
		      USHER_COLORING_LINE_BYTES * USHER_COLORING_LINE_BYTES;

	return color % 2 ? last - inset : inset;
}

static inline uintptr_t
usher_coloring_inline_header(const usher_coloring *coloring, uintptr_t inside)
{
	uintptr_t base = usher_coloring_inline_base(coloring, inside);

	return base + usher_coloring_inline_shift(coloring, base);
}

/*
 * A source of blocks with coloured headers. Blocks are allocated in chunks,
 * which are kept until the source is destroyed.
 */
typedef struct usher_blocks usher_blocks;

/* Creates a source of blocks that has not allocated any block. Errors: NULL,
 * COLORING. */
USHER_TASKS_API int usher_blocks_new(const usher_coloring *coloring,
				     usher_blocks **blocks);

/*
 * Takes a free block and stores a pointer to its header into *header. The block
 * is not cleared: it is uninitialised, or has the content of its last use.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_blocks_take(usher_blocks *blocks, void **header);

/*
 * Returns a block to its source, given any pointer into the block. The block
 * must have come from this source, and must not be used after this call. NULL
 * has no effect.
 *
 * Errors: NULL if blocks is NULL and inside is not NULL.
 */
USHER_TASKS_API int usher_blocks_give_back(usher_blocks *blocks, void *inside);

/* Frees all blocks, including those in use. NULL has no effect. */
USHER_TASKS_API void usher_blocks_destroy(usher_blocks *blocks);

#ifdef __cplusplus
}
#endif

/* ---- Dependencies by data, graphs, loops, join and scopes, waits ---- */

#include "usher_tasks_depend.h"
#include "usher_tasks_fork.h"
#include "usher_tasks_graph.h"
#include "usher_tasks_loops.h"
#include "usher_tasks_wait.h"

#endif
