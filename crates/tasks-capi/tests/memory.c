/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program: registers and submits tasks, builds graphs and takes blocks
 * until the limit of memory is reached. Checks that each lack of memory is an error, and that
 * waiting, cancelling and destroying still work afterwards.
 */
#define _DEFAULT_SOURCE
#include "common/programs.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

static atomic_int is_held;
static atomic_int may_end;

/* Occupies the only worker, so that submitted tasks stay in memory. */
static void hold(void *arg)
{
	(void)arg;
	atomic_store(&is_held, 1);
	while (!atomic_load(&may_end))
		sched_yield();
}

static void nothing(void *arg)
{
	(void)arg;
}

static int register_until_full(usher_tasks_runtime *runtime, uint64_t *token)
{
	int error = USHER_TASKS_OK;

	for (*token = 0; error == USHER_TASKS_OK; *token += 1)
		error = usher_tasks_register(runtime, *token, 1, nothing, NULL,
					     0, 0);
	*token -= 1;
	return error;
}

static int submit_until_full(usher_tasks_runtime *runtime)
{
	int error;

	do
		error = usher_tasks_submit(runtime, nothing, NULL, 0, 0);
	while (error == USHER_TASKS_OK);
	return error;
}

/* Submits tasks until there is no memory. Checks that all these tasks then run,
 * and that their memory can be used again. */
static void submit_when_full(usher_tasks_runtime *runtime)
{
	if (usher_tasks_submit(runtime, hold, NULL, 0, 0) != USHER_TASKS_OK) {
		puts("no holder");
		return;
	}
	while (!atomic_load(&is_held))
		sched_yield();
	limit_memory(1 << 24);
	puts(usher_tasks_strerror(submit_until_full(runtime)));
	puts(usher_tasks_last_error());
	atomic_store(&may_end, 1);
	puts(usher_tasks_strerror(usher_tasks_wait(runtime, NULL)));
	puts(usher_tasks_strerror(
		usher_tasks_submit(runtime, nothing, NULL, 0, 0)));
	limit_no_memory();
}

static int build_until_full(void)
{
	usher_tasks_builder *builder;
	usher_tasks_graph *graph;
	int error;

	if (usher_tasks_builder_new(&builder) != USHER_TASKS_OK)
		return -1;
	do
		error = usher_tasks_builder_task(builder, nothing, NULL, 0, 0,
						 NULL);
	while (error == USHER_TASKS_OK);
	if (error == USHER_TASKS_ERROR_MEMORY)
		error = usher_tasks_builder_build(builder, &graph, NULL);
	usher_tasks_builder_destroy(builder);
	return error;
}

static int take_until_full(size_t block_bytes)
{
	usher_coloring coloring = {block_bytes, 64, 16};
	usher_blocks *blocks;
	void *header;
	int error;

	if (usher_blocks_new(&coloring, &blocks) != USHER_TASKS_OK)
		return -1;
	do
		error = usher_blocks_take(blocks, &header);
	while (error == USHER_TASKS_OK);
	usher_blocks_destroy(blocks);
	return error;
}

static void fail(void *arg)
{
	usher_tasks_fail(arg);
}

/* Waits while there is no memory. Checks that the error contains the number of
 * tasks, or that the report lists all tasks. */
static void wait_when_full(usher_tasks_runtime *runtime, uint64_t tasks)
{
	usher_tasks_report *report;
	char text[96];
	int error = usher_tasks_wait(runtime, &report);

	snprintf(text, sizeof(text), "1 failed, %llu were never resolved",
		 (unsigned long long)tasks);
	if (error == USHER_TASKS_ERROR_MEMORY)
		puts(!report && strstr(usher_tasks_last_error(), text)
			     ? "counted"
			     : "not");
	else
		puts(usher_tasks_strerror(error));
	usher_tasks_report_destroy(report);
}

/* Waits after memory was freed. Checks that the report lists all tasks. */
static void wait_with_memory(usher_tasks_runtime *runtime, uint64_t tasks)
{
	usher_tasks_report *report;
	usher_tasks_unfinished line;
	int error = usher_tasks_wait(runtime, &report);

	puts(usher_tasks_strerror(error));
	puts(usher_tasks_report_count(report) == tasks + 1 ? "all" : "not");
	if (usher_tasks_report_at(report, 0, &line) == USHER_TASKS_OK)
		puts(line.message);
	usher_tasks_report_destroy(report);
}

static void cancel_when_full(usher_tasks_runtime *runtime, uint64_t tasks)
{
	size_t dropped;

	puts(usher_tasks_strerror(usher_tasks_cancel(runtime, &dropped)));
	puts(dropped == tasks ? "all" : "not");
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(1);
	usher_tasks_runtime *runtime;
	uint64_t token;
	char expected[64];
	int error;

	if (usher_tasks_runtime_new(&options, &runtime) != USHER_TASKS_OK)
		return 2;
	submit_when_full(runtime);
	if (usher_tasks_register(runtime, UINT64_MAX, 0, fail, "no frame", 0,
				 0) != USHER_TASKS_OK ||
	    limit_memory(1 << 24) != 0)
		return 2;
	error = register_until_full(runtime, &token);
	snprintf(expected, sizeof(expected),
		 "out of memory: task %llu cannot be stored",
		 (unsigned long long)token);
	puts(usher_tasks_strerror(error));
	puts(strcmp(usher_tasks_last_error(), expected) == 0 ? "named" : "not");
	wait_when_full(runtime, token);
	limit_no_memory();
	wait_with_memory(runtime, token);
	limit_memory(0);
	cancel_when_full(runtime, token);
	puts(usher_tasks_strerror(register_until_full(runtime, &token)));
	puts(usher_tasks_strerror(usher_tasks_runtime_destroy(runtime)));
	limit_memory(1 << 24);
	puts(usher_tasks_strerror(build_until_full()));
	puts(usher_tasks_strerror(take_until_full(1 << 16)));
	puts(usher_tasks_strerror(take_until_full((size_t)1 << 62)));
	return 0;
}
