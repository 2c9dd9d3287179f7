/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tests usher_tasks_fftw.h: transforms on the workers are equal to those of one
 * thread with the same plan.
 */
#include <fftw3.h>
#include <stdatomic.h>
#include <string.h>
#include <usher_tasks_fftw.h>

#include "check.h"

#define SIDE 512
#define WORKERS 4

static atomic_int loops, jobs, outside;
static void *(*real_work)(char *);

static void *counted_work(char *job)
{
	atomic_fetch_add(&jobs, 1);
	if (!usher_tasks_current())
		atomic_fetch_add(&outside, 1);
	return real_work(job);
}

/* Counts the jobs, and whether they run on a worker. */
static void counted(void *(*work)(char *), char *data, size_t bytes, int count,
		    void *runtime)
{
	/* All plans of this test are executed by one thread at a time. */
	real_work = work;
	atomic_fetch_add(&loops, 1);
	usher_tasks_fftw_run(counted_work, data, bytes, count, runtime);
}

static void serial(void *(*work)(char *), char *data, size_t bytes, int count,
		   void *none)
{
	int job;

	(void)none;
	for (job = 0; job < count; job++)
		work(data + (size_t)job * bytes);
}

static void execute(void *plan)
{
	fftw_execute(plan);
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(WORKERS);
	const size_t bytes = SIDE * SIDE * sizeof(fftw_complex);
	fftw_complex *in = fftw_malloc(bytes), *out = fftw_malloc(bytes);
	fftw_complex *expected = fftw_malloc(bytes);
	usher_tasks_runtime *runtime;
	fftw_plan plan;
	size_t at;

	CHECK(in && out && expected);
	CHECK(usher_tasks_runtime_new(&options, &runtime) == USHER_TASKS_OK);
	CHECK(fftw_init_threads());
	fftw_plan_with_nthreads(WORKERS);
	plan = fftw_plan_dft_2d(SIDE, SIDE, in, out, FFTW_FORWARD,
				FFTW_ESTIMATE);
	CHECK(plan);
	for (at = 0; at < SIDE * SIDE; at++) {
		in[at][0] = (double)(at % 1009);
		in[at][1] = (double)(at % 31);
	}
	fftw_threads_set_callback(serial, NULL);
	fftw_execute(plan);
	memcpy(expected, out, bytes);

	/* From a thread outside, and as a task. */
	fftw_threads_set_callback(counted, runtime);
	memset(out, 0, bytes);
	fftw_execute(plan);
	CHECK(!memcmp(out, expected, bytes));
	CHECK(loops > 0 && jobs > loops && outside == 0);
	memset(out, 0, bytes);
	CHECK(usher_tasks_submit(runtime, execute, plan, 0, 0) ==
	      USHER_TASKS_OK);
	CHECK(usher_tasks_wait(runtime, NULL) == USHER_TASKS_OK);
	CHECK(!memcmp(out, expected, bytes) && outside == 0);

	/* Without a runtime, the calling thread runs the jobs. */
	fftw_threads_set_callback(counted, NULL);
	jobs = 0;
	memset(out, 0, bytes);
	fftw_execute(plan);
	CHECK(!memcmp(out, expected, bytes));
	CHECK(jobs > 0 && outside == jobs);

	fftw_destroy_plan(plan);
	fftw_threads_set_callback(NULL, NULL);
	fftw_cleanup_threads();
	fftw_free(in);
	fftw_free(out);
	fftw_free(expected);
	CHECK(usher_tasks_runtime_destroy(runtime) == USHER_TASKS_OK);
	return 0;
}
