/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fine-grained tasks in a cache-friendly order, for C11 and C++17.
 *
 *     cc program.c $(pkg-config --cflags --libs usher-tasks)
 *
 * A task is a function and its argument. Tasks run to completion on the workers
 * of a runtime: they are not preempted. A task may call every function declared
 * here; a call that would wait for the task itself is an error. Tasks should
 * not block, as a blocked worker runs nothing else. There are two ways to
 * declare tasks:
 *
 *     by token   register and resolve single tasks, at any time
 *     as graph   declared once, run for each frame; costs less
 *
 * Two hints state which tasks belong together. Equal numbers mean the same
 * group; 0 means no group.
 *
 *     t   temporal group: its tasks run close in time, on any cores
 *     s   spatial group: its tasks run on the same core
 *
 * For graphs without groups, and for tasks by token without groups, the default
 * policy tries several groupings: by the order of declaration, by the
 * functions, and by the addresses of the arguments. It keeps the fastest.
 *
 * ERRORS. Every function that can fail returns an enum usher_tasks_error as an
 * int, 0 for success. usher_tasks_last_error() then returns a text that names
 * the token or task. A failed function has no effect, unless its comment states
 * otherwise; it sets out-pointers of handles to NULL. Lack of memory for a
 * task, a graph, a block or a report is an error, and waiting, cancelling and
 * destroying still work. Lack of memory for the queues of running tasks ends
 * the process with a message.
 *
 * THREADS. Any thread, tasks included, may call any function at any time, but
 * only one thread at a time may use a builder or a report. A task sees all that
 * a thread wrote before it registered, resolved or ran something, and all that
 * its dependencies wrote.
 *
 * HANDLES. A handle may be NULL, which is an error or has no effect. A handle
 * must not be used after it has been destroyed. In the child of a fork() a
 * runtime has no workers and must not be used: waiting for it, running a graph
 * on it and destroying it return ENDED, and it is never freed. The child may
 * create a runtime of its own if no other thread was inside the library at the
 * fork.
 *
 * ABI. Within one SONAME (libusher_tasks.so.0) the meaning, value, size and
 * offset of everything declared here stay the same. Structures that a program
 * fills in start with their size, so that they can be extended.
 */
#ifndef USHER_TASKS_H
#define USHER_TASKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cast for the inline functions: C++ programs may forbid C casts. */
#ifdef __cplusplus
#define USHER_TASKS_CAST(type, value) static_cast<type>(value)
#else
#define USHER_TASKS_CAST(type, value) ((type)(value))
#endif

/* Visibility and linkage; precedes each exported function. */
#ifndef USHER_TASKS_API
#define USHER_TASKS_API extern
#endif

/* ---- Version ---- */

#define USHER_TASKS_VERSION_MAJOR 0
#define USHER_TASKS_VERSION_MINOR 1
#define USHER_TASKS_VERSION_PATCH 0

/* A version as a comparable number. */
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
	/* The options have an invalid size, or set fields unknown to this version. */
	USHER_TASKS_ERROR_OPTIONS = 2,
	/* The number of workers is 0 or above the limit (1024). */
	USHER_TASKS_ERROR_WORKERS = 3,
	/* The system could not start a thread for a worker. */
	USHER_TASKS_ERROR_THREAD = 4,
	/* There is no memory. */
	USHER_TASKS_ERROR_MEMORY = 5,
	/* The groups are outside the limits of the policy. */
	USHER_TASKS_ERROR_GROUPS = 6,
	/* The token is registered, and its task has not run yet. */
	USHER_TASKS_ERROR_REGISTERED = 7,
	/* The task was resolved more often than it waits for. */
	USHER_TASKS_ERROR_RESOLVED_TOO_OFTEN = 8,
	/* Some tasks are unfinished or have failed; see the report. */
	USHER_TASKS_ERROR_UNFINISHED = 9,
	/* A task would wait for itself. */
	USHER_TASKS_ERROR_INSIDE = 10,
	/* A task would wait for a runtime that waits for the task's runtime. */
	USHER_TASKS_ERROR_DEADLOCK = 11,
	/* The runtime is being destroyed, or belongs to the parent of this
	 * forked process. */
	USHER_TASKS_ERROR_ENDED = 12,
	/* The tasks of a graph have a dependency cycle. */
	USHER_TASKS_ERROR_CYCLE = 13,
	/* A number of a task, report line, worker or format is out of range. */
	USHER_TASKS_ERROR_RANGE = 14,
	/* The graph has more tasks or dependencies than can be numbered. */
	USHER_TASKS_ERROR_TOO_LARGE = 15,
	/* Tasks of the graph failed; see the report. */
	USHER_TASKS_ERROR_FAILED = 16,
	/* The graph is being run. */
	USHER_TASKS_ERROR_BUSY = 17,
	/* The caller must be a task. */
	USHER_TASKS_ERROR_OUTSIDE = 18,
	/* The sizes of blocks or headers are invalid. */
	USHER_TASKS_ERROR_COLORING = 19,
	/* An internal error of the library. Please report it. */
	USHER_TASKS_ERROR_INTERNAL = 20,
	/* A file cannot be written. */
	USHER_TASKS_ERROR_FILE = 21
};

/* Returns a general description of an error. Never NULL; valid forever. */
USHER_TASKS_API const char *usher_tasks_strerror(int error);

/*
 * Returns the text of the last error in this thread, with the token or task
 * concerned; "" if there was none. The text is valid until the next error in
 * this thread, or the end of the thread. A successful call does not change it.
 */
USHER_TASKS_API const char *usher_tasks_last_error(void);

/* ---- Runtimes ---- */

/* A set of workers and their ready tasks. */
typedef struct usher_tasks_runtime usher_tasks_runtime;

/*
 * The function of a task. An exception that leaves it ends the process with a
 * message: catch it inside, and call usher_tasks_fail().
 */
typedef void (*usher_tasks_entry)(void *arg);

/* The order in which ready tasks run. */
enum usher_tasks_policy {
	/* The default: one temporal group after the other, and within a group the task
	 * that became ready last first. */
	USHER_TASKS_POLICY_USHER = 0,
	/* The dispatcher of Mori, Takeda and Matsuzaki, for groups below
	 * t_groups and s_groups. */
	USHER_TASKS_POLICY_PAPER = 1,
	/* First come, first served. */
	USHER_TASKS_POLICY_FCFS = 2,
	/* Last come, first served. */
	USHER_TASKS_POLICY_LCFS = 3
};

/* Where workers run. */
enum usher_tasks_binding {
	/* Workers fill the cores of one last-level cache after another; each worker is
	 * bound to the CPUs of its cache. The workers of a further runtime of the
	 * program begin at the cache with most free cores. On machines with a single
	 * last-level cache workers are not bound. */
	USHER_TASKS_BINDING_LLC = 0,
	/* Workers may use the same CPUs as the thread that creates the runtime.
	 */
	USHER_TASKS_BINDING_NONE = 1
};

/* The options of a runtime. Later versions may add fields at the end. */
typedef struct usher_tasks_options {
	size_t size; /* sizeof(usher_tasks_options) */
	uint32_t workers; /* 1 to 1024 */
	uint32_t policy; /* an enum usher_tasks_policy */
	/* Only for USHER_TASKS_POLICY_PAPER: the number of groups, group 0
	 * included. 0 counts as 1. The policy keeps t_groups x s_groups queues,
	 * at most 2^22, and the same number again for each level at which tasks
	 * run graphs. */
	uint32_t t_groups;
	uint32_t s_groups;
	uint32_t binding; /* an enum usher_tasks_binding */
	uint32_t reserved; /* 0 */
	/* Bytes of each worker's stack, at least 64 KiB; 0: 2 MiB. Other tasks may run
	 * on top of a task that waits because it runs a graph: up to 16 nested waits,
	 * fewer if the stack has less than 128 KiB for each, and the waits nested in
	 * the program itself. */
	size_t stack_bytes;
} usher_tasks_options;

/*
 * Options for this number of workers under the default policy. The other fields
 * are 0, which is also the default of fields that later versions add.
 */
#define USHER_TASKS_OPTIONS_INIT(workers) \
	{ \
		sizeof(usher_tasks_options), (workers), \
			USHER_TASKS_POLICY_USHER, 0, 0, \
			USHER_TASKS_BINDING_LLC, 0, 0 \
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
 * Options larger than this version's, from a newer header, are accepted if all
 * bytes beyond this version's are 0.
 *
 * Errors: NULL, OPTIONS, WORKERS, THREAD; GROUPS for too many queues; MEMORY if
 * there is no memory for the queues, or if there are 4,096 runtimes already.
 */
USHER_TASKS_API int usher_tasks_runtime_new(const usher_tasks_options *options,
					    usher_tasks_runtime **runtime);

/*
 * Destroys a runtime: rejects new calls of other threads, waits until their
 * running calls have returned, runs all ready tasks and the tasks that they
 * make ready, drops waiting tasks, ends the workers and frees everything. NULL
 * has no effect.
 *
 * Threads other than tasks must not begin to use the runtime after this call.
 * Calls that are in progress or just beginning are allowed. Calls that come too
 * late return ENDED, before and after this function has returned, until another
 * runtime is created in the same place. To skip ready tasks, call
 * usher_tasks_cancel() first.
 *
 * Errors, after which the runtime is unchanged: INSIDE in one of its own tasks,
 * DEADLOCK. ENDED if another thread destroys or has destroyed the runtime, and
 * in the child of a fork().
 */
USHER_TASKS_API int usher_tasks_runtime_destroy(usher_tasks_runtime *runtime);

/* Returns the number of workers; 0 if the runtime is NULL or being destroyed. */
USHER_TASKS_API uint32_t
usher_tasks_workers(const usher_tasks_runtime *runtime);

/* Returns the runtime of the calling task; NULL if the caller is no task. */
USHER_TASKS_API usher_tasks_runtime *usher_tasks_current(void);

/* ---- Tasks by token ---- */

/*
 * Registers a task that runs after it has been resolved count times, earlier
 * resolutions included; with 0 the task is ready at once. The caller chooses
 * the token, which identifies the task until the task has run, and is then free
 * again.
 *
 * Errors: NULL, REGISTERED, RESOLVED_TOO_OFTEN (before this call; the
 * resolutions stay), GROUPS, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_register(usher_tasks_runtime *runtime,
					 uint64_t token, uint32_t count,
					 usher_tasks_entry entry, void *arg,
					 uint32_t t, uint32_t s);

/*
 * As usher_tasks_register(), for a task that owns its argument. If the task
 * never runs, because the runtime is cancelled or destroyed before,
 * discard(arg) is called once instead, as if by a task. If discard calls
 * usher_tasks_fail(), the next usher_tasks_wait() reports the task as failed,
 * except while the runtime is destroyed, when no wait can follow. If
 * usher_tasks_register_owned() itself fails, the argument still belongs to the
 * caller, and discard is not called.
 */
USHER_TASKS_API int
usher_tasks_register_owned(usher_tasks_runtime *runtime, uint64_t token,
			   uint32_t count, usher_tasks_entry entry, void *arg,
			   usher_tasks_entry discard, uint32_t t, uint32_t s);

/*
 * Resolves one dependency of a task. The task may be registered later.
 *
 * Errors: NULL, RESOLVED_TOO_OFTEN (the task has no unresolved dependency, or
 * was resolved 2^32 - 1 times and not registered), MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_resolve(usher_tasks_runtime *runtime,
					uint64_t token);

/* How tasks by token without groups are grouped. */
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
 * Stores into *grouping, as an enum usher_tasks_grouping, how tasks by token
 * without groups are grouped at present. The runtime tries the groupings in
 * turn, so the grouping may change at any time.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_current_grouping(usher_tasks_runtime *runtime,
						 uint32_t *grouping);

/* A report of failed and unfinished tasks; see below. */
typedef struct usher_tasks_report usher_tasks_report;

/*
 * Waits until no registered task is ready or running.
 *
 * EACH FAILURE IS REPORTED ONCE: if several threads wait, one thread gets the
 * failure, and the others may get OK. All threads get the unresolved and
 * unregistered tokens.
 *
 * Errors: UNFINISHED if tasks wait to be resolved, if tokens were resolved and
 * never registered, or if tasks have failed since the last call. *report lists
 * these tasks and belongs to the caller; report may be NULL. Unfinished tasks
 * stay: they may still be resolved or registered. MEMORY instead of UNFINISHED
 * if there is no memory for the list: usher_tasks_last_error() has the numbers
 * of failed and unfinished tasks, *report is NULL, and the next call reports
 * the failed tasks. NULL, ENDED; INSIDE in a task of this runtime, DEADLOCK.
 */
USHER_TASKS_API int usher_tasks_wait(usher_tasks_runtime *runtime,
				     usher_tasks_report **report);

/*
 * Drops the registered tasks that have not begun. Tasks that are registered
 * from now on are dropped when they become ready. Graphs are not affected.
 * Stores into *dropped, if dropped is not NULL, how many tokens were waiting,
 * registered or not.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_cancel(usher_tasks_runtime *runtime,
				       size_t *dropped);

/*
 * Marks the calling task as failed, with a message or NULL. The report of
 * usher_tasks_wait() or usher_tasks_run() lists the task. The task continues
 * until it returns; tasks of a graph that depend on it are then not run. Only
 * the first message of a task counts.
 *
 * Errors: OUTSIDE if the caller is no task.
 */
USHER_TASKS_API int usher_tasks_fail(const char *message);

/* ---- Reports ---- */

/* The state of a task in a report. */
enum usher_tasks_unfinished_kind {
	/* The task failed. */
	USHER_TASKS_UNFINISHED_FAILED = 1,
	/* The task was registered, and not resolved often enough. */
	USHER_TASKS_UNFINISHED_UNRESOLVED = 2,
	/* The task was resolved, and not registered. */
	USHER_TASKS_UNFINISHED_UNREGISTERED = 3,
	/* The task is part of a dependency cycle. */
	USHER_TASKS_UNFINISHED_CYCLE = 4
};

/* A line of a report. */
typedef struct usher_tasks_unfinished {
	uint64_t task; /* its token, or its number in the graph */
	/* FAILED: the reason, valid until the report is freed; otherwise NULL */
	const char *message;
	uint32_t kind; /* an enum usher_tasks_unfinished_kind */
	uint32_t missing; /* UNRESOLVED: missing resolutions; else 0 */
} usher_tasks_unfinished;

/* Returns the number of lines of a report; 0 if the report is NULL. */
USHER_TASKS_API size_t
usher_tasks_report_count(const usher_tasks_report *report);

/*
 * Reads a line, from 0: failed tasks in order of time, then unresolved and then
 * unregistered tasks, both by token. For a cycle: each task comes after the
 * task that it waits for, and the first task waits for the last.
 *
 * Errors: NULL, RANGE.
 */
USHER_TASKS_API int usher_tasks_report_at(const usher_tasks_report *report,
					  size_t line,
					  usher_tasks_unfinished *unfinished);

/* Returns how many tasks of a graph were not run after others had failed. */
USHER_TASKS_API uint64_t
usher_tasks_report_skipped(const usher_tasks_report *report);

/* Frees a report. NULL has no effect. */
USHER_TASKS_API void usher_tasks_report_destroy(usher_tasks_report *report);

/* ---- Graphs ---- */

/* Declares tasks and their dependencies. */
typedef struct usher_tasks_builder usher_tasks_builder;

/* Tasks that can be run any number of times. */
typedef struct usher_tasks_graph usher_tasks_graph;

/* Creates an empty builder. Errors: NULL. */
USHER_TASKS_API int usher_tasks_builder_new(usher_tasks_builder **builder);

/*
 * Declares a task. Stores the number of the task, from 0, into *task, if task
 * is not NULL. Declare tasks in the order in which a sequential program would
 * run them: without other information, the runtime stays close to this order.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_task(usher_tasks_builder *builder,
					     usher_tasks_entry entry, void *arg,
					     uint32_t t, uint32_t s,
					     size_t *task);

/*
 * Declares that task `task` runs after task `before`. Repeating a declaration
 * has no effect. Either task may be declared later.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_after(usher_tasks_builder *builder,
					      size_t task, size_t before);

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
 * also call this function, with another graph, on its own runtime or on
 * another. A graph may be run on different runtimes, one at a time.
 *
 * Errors: FAILED if tasks failed. *report lists them and belongs to the caller
 * (report may be NULL); tasks that had not begun by then were not run. *report
 * is NULL if there is no memory for a report. Before anything is run: NULL,
 * GROUPS, BUSY, ENDED, DEADLOCK; MEMORY if a task calls and there is no memory
 * for the queues of one more level.
 */
USHER_TASKS_API int usher_tasks_run(usher_tasks_runtime *runtime,
				    usher_tasks_graph *graph,
				    usher_tasks_report **report);

/* Frees a graph. NULL has no effect. Errors, with the graph unchanged: BUSY. */
USHER_TASKS_API int usher_tasks_graph_destroy(usher_tasks_graph *graph);

/*
 * Writes a table of the orders tried for a graph and their times into text, at
 * most `bytes` bytes, including the final 0. Returns the length of the whole
 * table, as snprintf() does; 0 if the graph is NULL or being run.
 */
USHER_TASKS_API size_t usher_tasks_graph_explain(const usher_tasks_graph *graph,
						 char *text, size_t bytes);

/* ---- Traces and counters ---- */

/* The format of a trace file. */
enum usher_tasks_format {
	/* JSON for ui.perfetto.dev and chrome://tracing. */
	USHER_TASKS_FORMAT_CHROME = 0,
	/* A picture, workers against time: tasks coloured by temporal group. */
	USHER_TASKS_FORMAT_SVG_BY_T = 1,
	/* The same picture, with tasks coloured by spatial group. */
	USHER_TASKS_FORMAT_SVG_BY_S = 2
};

/*
 * Starts to record which worker runs which task and when, and discards earlier
 * records. Until the runtime ends, the latest tasks_per_worker tasks of each
 * worker are kept, at 32 bytes each and one more. A later call with a larger
 * number allocates at least twice the earlier number, in addition to the
 * earlier memory. Recording costs some nanoseconds per task.
 *
 * Errors: NULL, MEMORY, ENDED; a trace in progress continues.
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
	/* Chains of tasks taken from workers of the same last-level cache; the next
	 * fields: from workers of the same package, and of other packages. */
	uint64_t steals_llc;
	uint64_t steals_package;
	uint64_t steals_machine;
	uint64_t outside; /* times that it took injected tasks */
	uint64_t sent; /* tasks sent to the owners of their spatial groups */
	uint64_t group_moves; /* spatial groups taken over */
	uint64_t sleeps; /* times that it went to sleep */
	uint64_t asleep_ns; /* total time asleep */
} usher_tasks_counters;

/*
 * Reads the counters of a worker, from 0, into *counters, whose size the caller
 * has set. Fields unknown to this version are set to 0.
 *
 * Errors: NULL, OPTIONS for an invalid size, RANGE, ENDED.
 */
USHER_TASKS_API int usher_tasks_counters_of(usher_tasks_runtime *runtime,
					    uint32_t worker,
					    usher_tasks_counters *counters);

/* ---- Coloured blocks ---- */

/*
 * Blocks whose size is a power of two, aligned to their size. Masking any
 * pointer into a block gives the header of the block, as the kernel finds the
 * task structure below a stack. The headers of plain blocks fall into the same
 * few cache sets. Colouring spreads the headers: each is shifted by whole cache
 * lines, computed from a hash of the block's address, so a header can still be
 * found. Half of the headers are near the start of their blocks and half near
 * the end, so they also use different pages of a block.
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
 * Checks that headers of all colours lie in their blocks and that masking gives
 * the block's base.
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
 * inline functions on numbers. The colouring must be valid by
 * usher_coloring_check(); constant sizes give the best code.
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

/* Creates a source of blocks, without blocks. Errors: NULL, COLORING. */
USHER_TASKS_API int usher_blocks_new(const usher_coloring *coloring,
				     usher_blocks **blocks);

/*
 * Takes a free block and stores a pointer to its header into *header. The
 * content of the block is left as it was.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_blocks_take(usher_blocks *blocks, void **header);

/*
 * Returns a block to its source, given any pointer into the block. The block
 * must have come from this source, and must not be used after this call. NULL
 * has no effect.
 *
 * Errors: NULL if blocks is NULL and the pointer is not.
 */
USHER_TASKS_API int usher_blocks_give_back(usher_blocks *blocks, void *inside);

/* Frees all blocks, including those in use. NULL has no effect. */
USHER_TASKS_API void usher_blocks_destroy(usher_blocks *blocks);

#ifdef __cplusplus
}
#endif

#endif
