/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fine-grained tasks in the order that caches like: C11 and C++17.
 *
 *     cc program.c $(pkg-config --cflags --libs usher-tasks)
 *
 * Tasks run to completion on the workers of a runtime: they are not preempted.
 * They may call everything here but what would wait for themselves, which is
 * refused. They should not block, as a worker that blocks runs nothing else. A
 * task is a function and its argument. Which tasks are ready is told in one of
 * two ways:
 *
 *   by token   register and resolve, one by one; tasks may come and go
 *   as graph   declared once, run each frame; the cheaper way
 *
 * Two hints say which tasks belong together, for the caches' sake. The numbers
 * mean nothing but "the same group"; 0 is no group.
 *
 *   t   temporal group: its tasks run close in time, on whatever cores
 *   s   spatial group: its tasks run on the same core
 *
 * Where no task of a graph has any, and tasks by token that have none, the default
 * policy tries what may be good, by the order in which tasks were declared, their
 * functions and the addresses of their arguments, and goes on with what was
 * fastest.
 *
 * ERRORS. Every function that can fail returns an enum usher_tasks_error as an
 * int, 0 for success. usher_tasks_last_error() then says in words what was
 * wrong with which token or task. When a function fails it has done nothing,
 * unless its comment says otherwise, and out-pointers of handles are set to NULL.
 * Where there is no memory for a task, a graph, a block or a report, that is an
 * error, and waiting, cancelling and destroying work on; where there is none for
 * the queues of tasks that run, it ends the process with a message.
 *
 * THREADS. Any function may be called by any thread at any time, tasks
 * included, but a builder and a report by one thread at a time. What one thread
 * wrote before it registered, resolved or ran something, the task sees, and so
 * do tasks after what they waited for.
 *
 * HANDLES. A handle may be NULL, which is an error or does nothing. It must not
 * be used after it has been destroyed. A runtime has no workers in the child of a
 * fork(): there it may not be used, and waiting for it, running a graph on it and
 * destroying it give ENDED; nothing frees it. The child may make its own if no
 * other thread was inside the library when it was forked.
 *
 * ABI. Within one SONAME (libusher_tasks.so.0) nothing that is here changes its
 * meaning, value, size or place. Structures that a program fills in start with
 * their size, so that they can grow.
 */
#ifndef USHER_TASKS_H
#define USHER_TASKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For what is compiled in: programs may forbid casts as C has them. */
#ifdef __cplusplus
#define USHER_TASKS_CAST(type, value) static_cast<type>(value)
#else
#define USHER_TASKS_CAST(type, value) ((type)(value))
#endif

/* Stands before each function that the library exports. */
#ifndef USHER_TASKS_API
#define USHER_TASKS_API extern
#endif

/* ---- Version ---- */

#define USHER_TASKS_VERSION_MAJOR 0
#define USHER_TASKS_VERSION_MINOR 1
#define USHER_TASKS_VERSION_PATCH 0

/* A version as one number, that can be compared. */
#define USHER_TASKS_VERSION_NUMBER(major, minor, patch) \
	((USHER_TASKS_CAST(uint32_t, major) << 24) | \
	 (USHER_TASKS_CAST(uint32_t, minor) << 16) | \
	 USHER_TASKS_CAST(uint32_t, patch))

/* The version of this header. */
#define USHER_TASKS_VERSION \
	USHER_TASKS_VERSION_NUMBER(USHER_TASKS_VERSION_MAJOR, \
				   USHER_TASKS_VERSION_MINOR, \
				   USHER_TASKS_VERSION_PATCH)

/* The version of the library that the program runs with, as a number. */
USHER_TASKS_API uint32_t usher_tasks_version(void);

/* The same in words, as "0.1.0". */
USHER_TASKS_API const char *usher_tasks_version_string(void);

/* ---- Errors ---- */

enum usher_tasks_error {
	USHER_TASKS_OK = 0,
	/* A handle, a function or an out-pointer is NULL. */
	USHER_TASKS_ERROR_NULL = 1,
	/* Options whose size cannot be, or that this version does not know. */
	USHER_TASKS_ERROR_OPTIONS = 2,
	/* No worker, or more than there can be (1024). */
	USHER_TASKS_ERROR_WORKERS = 3,
	/* The system has no thread for a worker. */
	USHER_TASKS_ERROR_THREAD = 4,
	/* No memory. */
	USHER_TASKS_ERROR_MEMORY = 5,
	/* Groups for which the policy has no place. */
	USHER_TASKS_ERROR_GROUPS = 6,
	/* The token is registered, and its task has not run yet. */
	USHER_TASKS_ERROR_REGISTERED = 7,
	/* Resolved more often than the task waits for. */
	USHER_TASKS_ERROR_RESOLVED_TOO_OFTEN = 8,
	/* Not all is well with what was waited for; see the report. */
	USHER_TASKS_ERROR_LEFT = 9,
	/* A task would wait for itself. */
	USHER_TASKS_ERROR_INSIDE = 10,
	/* A task would wait for a runtime that waits for the task's. */
	USHER_TASKS_ERROR_DEADLOCK = 11,
	/* The runtime is being destroyed, or was made by the process from which
	 * this one was forked. */
	USHER_TASKS_ERROR_ENDED = 12,
	/* Tasks of a graph wait for one another in a circle. */
	USHER_TASKS_ERROR_CYCLE = 13,
	/* There is no such task in the graph, no such line in the report, no such
	 * worker or format. */
	USHER_TASKS_ERROR_RANGE = 14,
	/* More tasks or dependencies than can be numbered. */
	USHER_TASKS_ERROR_TOO_LARGE = 15,
	/* Tasks of the graph failed; see the report. */
	USHER_TASKS_ERROR_FAILED = 16,
	/* The graph is being run. */
	USHER_TASKS_ERROR_BUSY = 17,
	/* Only a task may call this. */
	USHER_TASKS_ERROR_OUTSIDE = 18,
	/* Blocks or headers whose sizes cannot be. */
	USHER_TASKS_ERROR_COLORING = 19,
	/* A mistake of the library itself; please tell us. */
	USHER_TASKS_ERROR_INTERNAL = 20,
	/* A file cannot be written. */
	USHER_TASKS_ERROR_FILE = 21
};

/* What an error means in general; never NULL, and valid for ever. */
USHER_TASKS_API const char *usher_tasks_strerror(int error);

/*
 * What the last error in this thread was, in words and with the token or task
 * that it is about; "" if there was none. Valid until the next error in this
 * thread, or its end. Success does not change it.
 */
USHER_TASKS_API const char *usher_tasks_last_error(void);

/* ---- Runtimes ---- */

/* Workers, and the order in which they run what is ready. */
typedef struct usher_tasks_runtime usher_tasks_runtime;

/* What a task does. It may throw nothing: an exception that leaves it ends the
 * process with a message. Catch it inside, and call usher_tasks_fail(). */
typedef void (*usher_tasks_entry)(void *arg);

/* In which order ready tasks run. */
enum usher_tasks_policy {
	/* Ours: one temporal group after the other, what is in the cache first. */
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
	/* On the cores of one last-level cache after another, each bound to the
	 * CPUs of its own; a further runtime of the program begins where most cores
	 * are left. On machines with one such cache nobody is bound. */
	USHER_TASKS_BINDING_LLC = 0,
	/* Wherever the thread that makes the runtime may. */
	USHER_TASKS_BINDING_NONE = 1
};

/* How a runtime is to be. Later versions may add fields at the end. */
typedef struct usher_tasks_options {
	size_t size; /* sizeof(usher_tasks_options) */
	uint32_t workers; /* 1 to 1024 */
	uint32_t policy; /* an enum usher_tasks_policy */
	/* For USHER_TASKS_POLICY_PAPER alone, group 0 included: the policy keeps
	 * t_groups x s_groups queues, 2^22 at most, and as many again for each
	 * level at which tasks run graphs. 0 is as 1. */
	uint32_t t_groups;
	uint32_t s_groups;
	uint32_t binding; /* an enum usher_tasks_binding */
	uint32_t reserved; /* 0 */
	/* Of each worker's stack, 64 KiB at least; 0: 2 MiB. A task that waits, as it
	 * runs a graph, has other tasks on top of it: up to 16 that wait so, fewer
	 * where the stack has not 128 KiB for each, and what is nested in these. */
	size_t stack_bytes;
} usher_tasks_options;

/* Options for so many workers under the default policy; what it does not name
 * is 0, which is the default also of fields that later versions add. */
#define USHER_TASKS_OPTIONS_INIT(workers) \
	{ \
		sizeof(usher_tasks_options), (workers), \
			USHER_TASKS_POLICY_USHER, 0, 0, \
			USHER_TASKS_BINDING_LLC, 0, 0 \
	}

/* On how many CPUs this process may run: a fair number of workers. 1 where the
 * system does not say. */
USHER_TASKS_API uint32_t usher_tasks_cpus(void);

/*
 * Makes a runtime and starts its workers. Where options is NULL there is a
 * worker for each of usher_tasks_cpus(), and the default policy.
 *
 * Options with a size beyond this version's, from a newer header, are taken
 * where all that is beyond is 0.
 *
 * Errors: NULL, OPTIONS, WORKERS, THREAD; GROUPS for too many queues; MEMORY where
 * there is none for them, or there are 4,096 runtimes already.
 */
USHER_TASKS_API int usher_tasks_runtime_new(const usher_tasks_options *options,
					    usher_tasks_runtime **runtime);

/*
 * Ends a runtime: refuses what other threads ask of it from now on, waits until
 * their calls have returned, lets all tasks run that are ready or become so by
 * them, drops those that still wait, ends the workers and frees all. NULL does
 * nothing.
 *
 * It must be the last that other threads than tasks do with the runtime. Calls may
 * be under way, or just begin: those that come too late get ENDED, before and after
 * this has returned, as long as no other runtime has been made in its place. To skip
 * what is ready, call usher_tasks_cancel() first.
 *
 * Errors, after which the runtime is as before: INSIDE in one of its own tasks,
 * DEADLOCK. ENDED where another thread destroys it or has done so, and in the child
 * of a fork().
 */
USHER_TASKS_API int usher_tasks_runtime_destroy(usher_tasks_runtime *runtime);

/* How many workers a runtime has; 0 where it is NULL or being destroyed. */
USHER_TASKS_API uint32_t
usher_tasks_workers(const usher_tasks_runtime *runtime);

/* The runtime whose task calls this; NULL where no task does. */
USHER_TASKS_API usher_tasks_runtime *usher_tasks_current(void);

/* ---- Tasks by token ---- */

/*
 * Files a task that runs when it has been resolved count times, with resolves
 * that came before; with 0, at once. The token is the caller's choice. It is
 * the task's until that has run, and then free for another.
 *
 * Errors: NULL, REGISTERED, RESOLVED_TOO_OFTEN (before this call; the resolves
 * stay), GROUPS, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_register(usher_tasks_runtime *runtime,
					 uint64_t token, uint32_t count,
					 usher_tasks_entry entry, void *arg,
					 uint32_t t, uint32_t s);

/*
 * The same, and the argument is the task's: where the task never runs, as the
 * runtime is cancelled or destroyed before, discard(arg) is called instead, once
 * and as if by a task: one that calls usher_tasks_fail() is told by the next
 * usher_tasks_wait() as a task that failed, but while the runtime is destroyed, when
 * nobody can be told. Where this function fails the argument is the caller's, and
 * discard is not called.
 */
USHER_TASKS_API int
usher_tasks_register_owned(usher_tasks_runtime *runtime, uint64_t token,
			   uint32_t count, usher_tasks_entry entry, void *arg,
			   usher_tasks_entry discard, uint32_t t, uint32_t s);

/*
 * Takes one off what a task waits for. The task may be registered later.
 *
 * Errors: NULL, RESOLVED_TOO_OFTEN (the task waits for nothing any more, or was
 * resolved 2^32 - 1 times and not registered), MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_resolve(usher_tasks_runtime *runtime,
					uint64_t token);

/* What tasks by token that have no groups are taken to have in common. */
enum usher_tasks_common {
	/* Nobody asks: the policy does not look for groups. */
	USHER_TASKS_COMMON_UNASKED = 0,
	/* The time at which they were registered. */
	USHER_TASKS_COMMON_TIME = 1,
	/* The region of memory in which their arguments point. */
	USHER_TASKS_COMMON_DATA = 2,
	/* Nothing. */
	USHER_TASKS_COMMON_NOTHING = 3
};

/*
 * Into *together, as an enum usher_tasks_common, what tasks by token that have no
 * groups are taken to have in common at present. It is tried in turns how they run
 * fastest, so that it may change at any time.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_together(usher_tasks_runtime *runtime,
					 uint32_t *together);

/* What was not well; see below. */
typedef struct usher_tasks_report usher_tasks_report;

/*
 * Waits until no registered task is ready or runs.
 *
 * EACH FAILURE IS TOLD ONCE: where several threads wait, one of them gets it, and
 * the others may get OK. What is not resolved or not registered all of them get.
 *
 * Errors: LEFT where tasks wait that nobody has resolved, tokens were resolved
 * that nobody has registered, or tasks failed since the last call. All are named
 * in *report, which is the caller's to destroy; report may be NULL. What is left
 * stays: it may be resolved or registered yet. MEMORY in place of LEFT where there
 * is none to name what is left: usher_tasks_last_error() says how many failed and
 * how many are left, *report is NULL, and the next call tells those that failed.
 * NULL, ENDED; INSIDE in a task of this runtime, DEADLOCK.
 */
USHER_TASKS_API int usher_tasks_wait(usher_tasks_runtime *runtime,
				     usher_tasks_report **report);

/*
 * Drops the registered tasks that have not begun, and all that are registered
 * from now on when they become ready. Graphs are not touched. Into *dropped, if
 * that is not NULL, how many tokens waited, registered or not.
 *
 * Errors: NULL, ENDED.
 */
USHER_TASKS_API int usher_tasks_cancel(usher_tasks_runtime *runtime,
				       size_t *dropped);

/*
 * The calling task has failed, and says why (NULL: it does not): it is in the
 * report of usher_tasks_wait() or usher_tasks_run(). It goes on until it
 * returns; what depends on it in a graph is then not run. Of several messages
 * of a task the first counts.
 *
 * Errors: OUTSIDE where the caller is no task.
 */
USHER_TASKS_API int usher_tasks_fail(const char *message);

/* ---- Reports ---- */

/* What is wrong with a task. */
enum usher_tasks_left_kind {
	/* It failed. */
	USHER_TASKS_LEFT_FAILED = 1,
	/* It was registered, and not resolved often enough. */
	USHER_TASKS_LEFT_UNRESOLVED = 2,
	/* It was resolved, and not registered. */
	USHER_TASKS_LEFT_UNREGISTERED = 3,
	/* It is part of a circle. */
	USHER_TASKS_LEFT_CYCLE = 4
};

/* A line of a report. */
typedef struct usher_tasks_left {
	uint64_t task; /* its token, or its number in the graph */
	const char *message; /* FAILED: why, as long as the report; else NULL */
	uint32_t kind; /* an enum usher_tasks_left_kind */
	uint32_t missing; /* UNRESOLVED: how many resolves; else 0 */
} usher_tasks_left;

/* How many lines a report has; 0 where it is NULL. */
USHER_TASKS_API size_t
usher_tasks_report_count(const usher_tasks_report *report);

/*
 * A line, from 0: those that failed in the order in which they did, then
 * unresolved, then unregistered ones, by token; of a circle, each task after the
 * one that it waits for, and the first after the last.
 *
 * Errors: NULL, RANGE.
 */
USHER_TASKS_API int usher_tasks_report_at(const usher_tasks_report *report,
					  size_t line, usher_tasks_left *left);

/* How many tasks of a graph were not run, as others had failed before. */
USHER_TASKS_API uint64_t
usher_tasks_report_skipped(const usher_tasks_report *report);

/* Frees a report. NULL does nothing. */
USHER_TASKS_API void usher_tasks_report_destroy(usher_tasks_report *report);

/* ---- Graphs ---- */

/* Tasks and who waits for whom, before they can be run. */
typedef struct usher_tasks_builder usher_tasks_builder;

/* Tasks that can be run, as often as wanted. */
typedef struct usher_tasks_graph usher_tasks_graph;

/* An empty builder. Errors: NULL. */
USHER_TASKS_API int usher_tasks_builder_new(usher_tasks_builder **builder);

/*
 * One more task. Into *task, if that is not NULL, its number: they count from 0.
 * Declare tasks in the order in which a sequential program would run them: where
 * nothing else is known, the runtime keeps close to it.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_task(usher_tasks_builder *builder,
					     usher_tasks_entry entry, void *arg,
					     uint32_t t, uint32_t s,
					     size_t *task);

/*
 * Task `task` runs after task `before` has. Said twice it is as said once. Either
 * may be declared later.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_tasks_builder_after(usher_tasks_builder *builder,
					      size_t task, size_t before);

/*
 * Makes a graph. The builder stays as it is, for more or to be destroyed.
 *
 * Errors: NULL, MEMORY, TOO_LARGE; RANGE where a dependency names a task that
 * there is not; CYCLE, with one circle in *report, if report is not NULL.
 */
USHER_TASKS_API int
usher_tasks_builder_build(const usher_tasks_builder *builder,
			  usher_tasks_graph **graph,
			  usher_tasks_report **report);

/* Frees a builder. NULL does nothing. */
USHER_TASKS_API void usher_tasks_builder_destroy(usher_tasks_builder *builder);

/* How many tasks a graph has; 0 where it is NULL. */
USHER_TASKS_API size_t usher_tasks_graph_tasks(const usher_tasks_graph *graph);

/*
 * Runs a graph, and returns when all of its tasks have run. A task may call this
 * too, with another graph, on its own runtime or on another. One graph may be run
 * on different runtimes, one at a time.
 *
 * Errors: FAILED where tasks failed; they are in *report, which is the caller's to
 * destroy (report may be NULL), and those that had not begun by then were not run.
 * *report is NULL where there is no memory for one.
 * Before anything is run: NULL, GROUPS, BUSY, ENDED, DEADLOCK; MEMORY where a task
 * calls, and there is none for the queues of one level more.
 */
USHER_TASKS_API int usher_tasks_run(usher_tasks_runtime *runtime,
				    usher_tasks_graph *graph,
				    usher_tasks_report **report);

/* Frees a graph. NULL does nothing. Errors, and the graph stays: BUSY. */
USHER_TASKS_API int usher_tasks_graph_destroy(usher_tasks_graph *graph);

/*
 * In which order the tasks of a graph are preferred, and how others did, as a table
 * in words: into text at most `bytes` bytes, the 0 at the end included. The length of
 * all of it, as snprintf() has it; 0 where the graph is NULL or being run.
 */
USHER_TASKS_API size_t usher_tasks_graph_explain(const usher_tasks_graph *graph,
						 char *text, size_t bytes);

/* ---- Seeing what runs ---- */

/* What a trace can be written as. */
enum usher_tasks_format {
	/* JSON for ui.perfetto.dev and chrome://tracing. */
	USHER_TASKS_FORMAT_CHROME = 0,
	/* A picture, workers against time: tasks coloured by temporal group... */
	USHER_TASKS_FORMAT_SVG_BY_T = 1,
	/* ... and by spatial group. */
	USHER_TASKS_FORMAT_SVG_BY_S = 2
};

/*
 * Writes down from now on which worker runs which task, from when to when: the last
 * so many of each worker, at 32 bytes each and for one more, until the runtime ends;
 * a later call with more makes room for twice as many as there were, at least, and
 * the former room stays. What was written down before is forgotten. It costs some
 * nanoseconds a task.
 *
 * Errors: NULL, MEMORY, ENDED; what was begun before goes on.
 */
USHER_TASKS_API int usher_tasks_trace_start(usher_tasks_runtime *runtime,
					    size_t tasks_per_worker);

/* Writes nothing down any more. Errors: NULL, ENDED. */
USHER_TASKS_API int usher_tasks_trace_stop(usher_tasks_runtime *runtime);

/*
 * Writes what has been written down so far into a file, as an enum
 * usher_tasks_format.
 *
 * Errors: NULL, RANGE, FILE, MEMORY, ENDED.
 */
USHER_TASKS_API int usher_tasks_trace_write(usher_tasks_runtime *runtime,
					    int format, const char *path);

/* What a worker has done since the runtime was made. Later versions may add
 * fields at the end. */
typedef struct usher_tasks_counters {
	size_t size; /* sizeof(usher_tasks_counters), from the caller */
	uint64_t tasks; /* that it ran */
	/* Chains of tasks that it took from others: of the same last-level cache,
	 * of the same package, from elsewhere. */
	uint64_t steals_llc;
	uint64_t steals_package;
	uint64_t steals_machine;
	uint64_t outside; /* times that it took what had come from outside */
	uint64_t sent; /* tasks, to the owners of their spatial groups */
	uint64_t group_moves; /* spatial groups that were another's */
	uint64_t sleeps; /* times that it fell asleep */
	uint64_t asleep_ns;
} usher_tasks_counters;

/*
 * Reads the counters of a worker, from 0, into *counters, whose size the caller has
 * set; fields that this version does not know are 0.
 *
 * Errors: NULL, OPTIONS for a size that cannot be, RANGE, ENDED.
 */
USHER_TASKS_API int usher_tasks_counters_of(usher_tasks_runtime *runtime,
					    uint32_t worker,
					    usher_tasks_counters *counters);

/* ---- Coloured blocks ---- */

/*
 * Blocks of a power of two of bytes, aligned to that, whose header is found from
 * any pointer into the block: by masking, as the kernel finds the task structure
 * below a stack. The headers of such blocks fall into the same few cache sets.
 * Coloured ones do not: each is shifted by whole cache lines, by a hash of the
 * block's address, so that it can still be computed. Half of them stand near the
 * start of their blocks and half near the end, so that pages of a block share them,
 * too.
 */

/* Bytes of a cache line, by which headers are shifted. */
#define USHER_COLORING_LINE_BYTES 64

/* Where headers stand in blocks. */
typedef struct usher_coloring {
	size_t block_bytes; /* a power of two, 64 at least */
	size_t header_bytes; /* 1 at least */
	size_t colors; /* places of a header; 1 is no colouring */
} usher_coloring;

/*
 * Whether headers of all colours lie in their blocks, and masking works.
 *
 * Errors: NULL, COLORING.
 */
USHER_TASKS_API int usher_coloring_check(const usher_coloring *coloring);

/* The block that an address lies in; NULL for a colouring that cannot be. */
USHER_TASKS_API void *usher_coloring_base(const usher_coloring *coloring,
					  const void *inside);

/* By how many bytes the header of the block that starts there is shifted; 0 for a
 * colouring that cannot be. */
USHER_TASKS_API size_t usher_coloring_shift(const usher_coloring *coloring,
					    const void *base);

/* The header of the block that an address lies in; NULL for a colouring that
 * cannot be. */
USHER_TASKS_API void *usher_coloring_header(const usher_coloring *coloring,
					    const void *inside);

/*
 * The same three on numbers, to be compiled in: for a colouring that
 * usher_coloring_check() has found good, best with sizes that are constants.
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
	size_t in_by = color / 2 * USHER_COLORING_LINE_BYTES;
	size_t last = (coloring->block_bytes - coloring->header_bytes) /
		      USHER_COLORING_LINE_BYTES * USHER_COLORING_LINE_BYTES;

	return color % 2 ? last - in_by : in_by;
}

static inline uintptr_t
usher_coloring_inline_header(const usher_coloring *coloring, uintptr_t inside)
{
	uintptr_t base = usher_coloring_inline_base(coloring, inside);

	return base + usher_coloring_inline_shift(coloring, base);
}

/* Blocks with coloured headers, from the system in chunks and kept until the
 * end. */
typedef struct usher_blocks usher_blocks;

/* None yet. Errors: NULL, COLORING. */
USHER_TASKS_API int usher_blocks_new(const usher_coloring *coloring,
				     usher_blocks **blocks);

/*
 * A block that nobody else has: into *header a pointer to its header. What is in
 * it is what was in it.
 *
 * Errors: NULL, MEMORY.
 */
USHER_TASKS_API int usher_blocks_take(usher_blocks *blocks, void **header);

/*
 * Gives a block back, by any pointer into it. It must have come from these blocks
 * and not be used any more. NULL does nothing.
 *
 * Errors: NULL where blocks is and the pointer is not.
 */
USHER_TASKS_API int usher_blocks_give_back(usher_blocks *blocks, void *inside);

/* Frees all blocks, whoever has them. NULL does nothing. */
USHER_TASKS_API void usher_blocks_destroy(usher_blocks *blocks);

#ifdef __cplusplus
}
#endif

#endif
