/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The thread queue of the HEVC encoder kvazaar, on usher-tasks. Replaces
 * src/threadqueue.c of kvazaar 2.3.2.
 *
 * A job counts what it waits for: its submission and its dependencies. When the
 * count is 0, the job is submitted to the runtime as a task without a token. A
 * job has reference counts, because the encoder and the dependencies of the job
 * have pointers to it.
 */
#include "global.h"

#include "threadqueue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <usher_tasks.h>

#include "threads.h"

struct threadqueue_queue_t {
	/* NULL if there are no threads: submitted jobs then run at once. */
	usher_tasks_runtime *runtime;
};

struct threadqueue_job_t {
	void (*fptr)(void *arg);
	void *arg;
	int32_t references;
	int32_t missing; /* unfinished dependencies, and 1 until submitted */

	pthread_mutex_t lock; /* of the following fields */
	pthread_cond_t ended;
	bool has_ended;
	threadqueue_job_t **successors;
	int successor_count;
	int successor_capacity;
};

/* The policy by which the comparison of README.md runs. */
static uint32_t policy(void)
{
	const char *name = getenv("USHER_MEDIA_POLICY");

	return name && strcmp(name, "fcfs") == 0 ? USHER_TASKS_POLICY_FCFS
						 : USHER_TASKS_POLICY_USHER;
}

static void drop_job(void *arg)
{
	threadqueue_job_t *job = arg;

	kvz_threadqueue_free_job(&job);
}

static void run_job(void *arg);

/* Counts a dependency or the submission as done. */
static void count_down(usher_tasks_runtime *runtime, threadqueue_job_t *job)
{
	if (KVZ_ATOMIC_DEC(&job->missing) > 0)
		return;
	kvz_threadqueue_copy_ref(job);
	if (usher_tasks_submit_owned(runtime, run_job, job, drop_job, 0, 0) !=
	    USHER_TASKS_OK) {
		/* The encoder does not check for errors. */
		fprintf(stderr, "threadqueue: %s\n", usher_tasks_last_error());
		abort();
	}
}

/* Runs a job and drops a reference to it. */
static void run_job(void *arg)
{
	threadqueue_job_t *job = arg;
	usher_tasks_runtime *runtime = usher_tasks_current();

	job->fptr(job->arg);
	/* From here on, kvz_threadqueue_job_dep_add() adds no successors. */
	pthread_mutex_lock(&job->lock);
	job->has_ended = true;
	pthread_cond_broadcast(&job->ended);
	pthread_mutex_unlock(&job->lock);
	for (int i = 0; i < job->successor_count; i++) {
		if (runtime)
			count_down(runtime, job->successors[i]);
		kvz_threadqueue_free_job(&job->successors[i]);
	}
	job->successor_count = 0;
	kvz_threadqueue_free_job(&job);
}

threadqueue_queue_t *kvz_threadqueue_init(int thread_count)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(thread_count);
	threadqueue_queue_t *queue = calloc(1, sizeof(*queue));

	options.policy = policy();
	if (!queue || thread_count == 0)
		return queue;
	if (usher_tasks_runtime_new(&options, &queue->runtime) !=
	    USHER_TASKS_OK) {
		fprintf(stderr, "threadqueue: %s\n", usher_tasks_last_error());
		FREE_POINTER(queue);
	}
	return queue;
}

threadqueue_job_t *kvz_threadqueue_job_create(void (*fptr)(void *arg),
					      void *arg)
{
	threadqueue_job_t *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->fptr = fptr;
	job->arg = arg;
	job->references = 1;
	job->missing = 1;
	pthread_mutex_init(&job->lock, NULL);
	pthread_cond_init(&job->ended, NULL);
	return job;
}

int kvz_threadqueue_submit(threadqueue_queue_t *queue, threadqueue_job_t *job)
{
	if (queue->runtime)
		count_down(queue->runtime, job);
	else
		run_job(kvz_threadqueue_copy_ref(job));
	return 1;
}

int kvz_threadqueue_job_dep_add(threadqueue_job_t *job,
				threadqueue_job_t *dependency)
{
	int done = 1;

	pthread_mutex_lock(&dependency->lock);
	if (!dependency->has_ended) {
		int count = dependency->successor_count;

		if (count == dependency->successor_capacity) {
			int capacity = 2 * count + 4;
			void *more = realloc(dependency->successors,
					     capacity * sizeof(job));

			done = more != NULL;
			if (done) {
				dependency->successors = more;
				dependency->successor_capacity = capacity;
			}
		}
		if (done) {
			KVZ_ATOMIC_INC(&job->missing);
			dependency->successors[count] =
				kvz_threadqueue_copy_ref(job);
			dependency->successor_count++;
		}
	}
	pthread_mutex_unlock(&dependency->lock);
	return done;
}

threadqueue_job_t *kvz_threadqueue_copy_ref(threadqueue_job_t *job)
{
	KVZ_ATOMIC_INC(&job->references);
	return job;
}

void kvz_threadqueue_free_job(threadqueue_job_t **job_ptr)
{
	threadqueue_job_t *job = *job_ptr;

	*job_ptr = NULL;
	if (!job || KVZ_ATOMIC_DEC(&job->references) > 0)
		return;
	for (int i = 0; i < job->successor_count; i++)
		kvz_threadqueue_free_job(&job->successors[i]);
	free(job->successors);
	pthread_mutex_destroy(&job->lock);
	pthread_cond_destroy(&job->ended);
	free(job);
}

int kvz_threadqueue_waitfor(threadqueue_queue_t *queue, threadqueue_job_t *job)
{
	(void)queue;
	pthread_mutex_lock(&job->lock);
	while (!job->has_ended)
		pthread_cond_wait(&job->ended, &job->lock);
	pthread_mutex_unlock(&job->lock);
	return 1;
}

/* Waits for running jobs and drops the others. */
int kvz_threadqueue_stop(threadqueue_queue_t *queue)
{
	usher_tasks_cancel(queue->runtime, NULL);
	usher_tasks_runtime_destroy(queue->runtime);
	queue->runtime = NULL;
	return 1;
}

void kvz_threadqueue_free(threadqueue_queue_t *queue)
{
	if (!queue)
		return;
	kvz_threadqueue_stop(queue);
	free(queue);
}
