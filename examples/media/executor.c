/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The executor of FFmpeg's VVC decoder, on usher-tasks. Replaces
 * libavcodec/executor.c of FFmpeg 9.0.2.
 *
 * The decoder counts the dependencies of a task itself and calls
 * ff_executor_execute() for a task that is ready, mostly from inside another
 * task. Each call therefore submits one task without a token. Every worker has a
 * local context, which FFmpeg's own executor gives to each of its threads.
 *
 * The decoder gives each task one of a few priorities, of which 0 is the highest.
 * The first becomes the high and the last the low priority of usher-tasks. If the
 * decoder requests no threads, one worker decodes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <usher_tasks.h>

#include "libavutil/macros.h"
#include "libavutil/mem.h"

#include "executor.h"

struct FFExecutor {
	FFTaskCallbacks cb;
	usher_tasks_runtime *runtime;
	uint8_t *local_contexts; /* one for each worker */
};

/* The policy by which the comparison of README.md runs. */
static uint32_t policy(void)
{
	const char *name = getenv("USHER_MEDIA_POLICY");

	return name && strcmp(name, "fcfs") == 0 ? USHER_TASKS_POLICY_FCFS
						 : USHER_TASKS_POLICY_USHER;
}

/* FFTask.next links the tasks of a queue in FFmpeg's own executor. Here it
 * contains the executor. */
static void run_task(void *arg)
{
	FFTask *t = arg;
	FFExecutor *e = (FFExecutor *)t->next;
	size_t worker = (size_t)usher_tasks_worker_index(e->runtime);

	e->cb.run(t, e->local_contexts + worker * e->cb.local_context_size,
		  e->cb.user_data);
}

static uint32_t priority(const FFExecutor *e, const FFTask *t)
{
	if (t->priority == 0)
		return USHER_TASKS_PRIORITY_HIGH;
	return t->priority == e->cb.priorities - 1 ? USHER_TASKS_PRIORITY_LOW
						   : 0;
}

FFExecutor *ff_executor_alloc(const FFTaskCallbacks *cb, int thread_count)
{
	usher_tasks_options options =
		USHER_TASKS_OPTIONS_INIT(FFMAX(thread_count, 1));
	FFExecutor *e;

	if (!cb || !cb->user_data || !cb->run || !cb->priorities)
		return NULL;
	e = av_mallocz(sizeof(*e));
	if (!e)
		return NULL;
	e->cb = *cb;
	options.policy = policy();
	e->local_contexts = av_calloc(options.workers, cb->local_context_size);
	if (!e->local_contexts ||
	    usher_tasks_runtime_new(&options, &e->runtime) != USHER_TASKS_OK)
		ff_executor_free(&e);
	return e;
}

void ff_executor_free(FFExecutor **e)
{
	if (!e || !*e)
		return;
	usher_tasks_runtime_destroy((*e)->runtime);
	av_free((*e)->local_contexts);
	av_freep(e);
}

void ff_executor_execute(FFExecutor *e, FFTask *t)
{
	if (!t)
		return;
	t->next = (FFTask *)e;
	if (usher_tasks_submit(e->runtime, run_task, t, priority(e, t), 0) !=
	    USHER_TASKS_OK) {
		/* The decoder cannot handle an error here. */
		fprintf(stderr, "executor: %s\n", usher_tasks_last_error());
		abort();
	}
}
