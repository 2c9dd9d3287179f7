/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Makes libjxl (JPEG XL, 0.7 or newer) use the workers of a runtime instead of
 * threads of its own:
 *
 *     JxlEncoderSetParallelRunner(encoder, usher_tasks_jxl_run, runtime);
 *     JxlDecoderSetParallelRunner(decoder, usher_tasks_jxl_run, runtime);
 *
 * The runtime must exist until the encoder or decoder is destroyed. The calls
 * of libjxl may be made by any thread, and by tasks of any runtime.
 */
#ifndef USHER_TASKS_JXL_H
#define USHER_TASKS_JXL_H

#include <jxl/parallel_runner.h>
#include <usher_tasks.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function of libjxl that processes one number, and its argument. */
struct usher_tasks_jxl_loop {
	JxlParallelRunFunction function;
	void *arg;
};

/*
 * Calls the function for a block of numbers. libjxl has data for each thread
 * number. The function neither waits nor runs loops, and therefore at most
 * one call is in progress per worker.
 */
static inline void usher_tasks_jxl_block(uint64_t begin, uint64_t end,
					 void *arg)
{
	const struct usher_tasks_jxl_loop *loop =
		USHER_TASKS_CAST(struct usher_tasks_jxl_loop *, arg);
	int worker = usher_tasks_worker_index(usher_tasks_current());
	uint64_t value;

	for (value = begin; value < end; value++)
		loop->function(loop->arg, USHER_TASKS_CAST(uint32_t, value),
			       worker < 0 ? 0
					  : USHER_TASKS_CAST(size_t, worker));
}

/*
 * A JxlParallelRunner; pass a usher_tasks_runtime as its runner_opaque. If the
 * runtime is NULL or cannot run a loop, all numbers are processed in the
 * calling thread. Returns JXL_PARALLEL_RET_RUNNER_ERROR if start > end, and the
 * error of init if there is one; no number was processed then.
 */
static inline JxlParallelRetCode
usher_tasks_jxl_run(void *runner_opaque, void *jpegxl_opaque,
		    JxlParallelRunInit init, JxlParallelRunFunction function,
		    uint32_t start, uint32_t end)
{
	usher_tasks_runtime *runtime =
		USHER_TASKS_CAST(usher_tasks_runtime *, runner_opaque);
	struct usher_tasks_jxl_loop loop = {function, jpegxl_opaque};
	uint32_t workers = usher_tasks_workers(runtime);
	JxlParallelRetCode failed;
	uint32_t value;

	if (start > end)
		return JXL_PARALLEL_RET_RUNNER_ERROR;
	if (start == end)
		return 0;
	failed = init(jpegxl_opaque, workers ? workers : 1);
	if (failed)
		return failed;
	/* No number was processed if the loop is not possible. */
	if (usher_tasks_for(runtime, start, end, usher_tasks_jxl_block,
			    &loop) != USHER_TASKS_OK)
		for (value = start; value < end; value++)
			function(jpegxl_opaque, value, 0);
	return 0;
}

#ifdef __cplusplus
}
#endif

#endif
