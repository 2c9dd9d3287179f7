/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Makes FFTW (3.3.9 or newer) use the workers of a runtime instead of threads of
 * its own:
 *
 *     fftw_init_threads();
 *     fftw_threads_set_callback(usher_tasks_fftw_run, runtime);
 *     fftw_plan_with_nthreads(usher_tasks_workers(runtime));
 *
 * The same function serves the other precisions (fftwf_threads_set_callback
 * and so on). The runtime must exist until the callback is replaced. Plans may
 * be executed by any thread, and by tasks of any runtime.
 */
#ifndef USHER_TASKS_FFTW_H
#define USHER_TASKS_FFTW_H

#include <usher_tasks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The jobs of a parallel loop of FFTW: the function, and its arguments. */
struct usher_tasks_fftw_jobs {
	void *(*work)(char *);
	char *data;
	size_t bytes;
};

static inline void usher_tasks_fftw_block(uint64_t begin, uint64_t end,
					  void *arg)
{
	const struct usher_tasks_fftw_jobs *jobs =
		USHER_TASKS_CAST(struct usher_tasks_fftw_jobs *, arg);
	uint64_t job;

	for (job = begin; job < end; job++)
		jobs->work(jobs->data + job * jobs->bytes);
}

/*
 * The callback for fftw_threads_set_callback(); pass a usher_tasks_runtime as
 * its data. Calls work for each of the count jobs, and returns after all calls.
 * The argument of a job has bytes bytes. If the runtime is NULL or
 * cannot run a loop, the calling thread makes the calls.
 */
static inline void usher_tasks_fftw_run(void *(*work)(char *), char *data,
					size_t bytes, int count, void *runtime)
{
	struct usher_tasks_fftw_jobs jobs = {work, data, bytes};
	uint64_t end = count < 0 ? 0 : USHER_TASKS_CAST(uint64_t, count);

	/* No job has run if the loop is not possible. */
	if (usher_tasks_for(USHER_TASKS_CAST(usher_tasks_runtime *, runtime), 0,
			    end, usher_tasks_fftw_block,
			    &jobs) != USHER_TASKS_OK)
		usher_tasks_fftw_block(0, end, &jobs);
}

#ifdef __cplusplus
}
#endif

#endif
