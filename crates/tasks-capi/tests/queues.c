/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program: the queues of the policy `paper` take 128 MiB per level. Checks
 * the errors of runtimes with memory for no level, for one level and for all
 * levels.
 */
#define _DEFAULT_SOURCE
#include "common/programs.h"

#define MIB ((rlim_t)1 << 20)

static int ran;

static void count(void *arg)
{
	(void)arg;
	ran++;
}

static void run(void *graph)
{
	int error = usher_tasks_run(usher_tasks_current(), graph, NULL);

	printf("%s, %d ran\n", usher_tasks_strerror(error), ran);
	if (error != USHER_TASKS_OK)
		puts(usher_tasks_last_error());
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(1);
	usher_tasks_graph *graph = graph_of_one(count, NULL);
	usher_tasks_runtime *runtime;

	options.policy = USHER_TASKS_POLICY_PAPER;
	options.t_groups = 1 << 11;
	options.s_groups = 1 << 11;
	if (!graph || limit_memory(100 * MIB) != 0)
		return 2;
	puts(usher_tasks_strerror(usher_tasks_runtime_new(&options, &runtime)));
	puts(usher_tasks_last_error());
	limit_memory(220 * MIB);
	puts(usher_tasks_strerror(usher_tasks_runtime_new(&options, &runtime)));
	usher_tasks_register(runtime, 1, 0, run, graph, 0, 0);
	usher_tasks_wait(runtime, NULL);
	limit_no_memory();
	usher_tasks_register(runtime, 1, 0, run, graph, 0, 0);
	usher_tasks_wait(runtime, NULL);
	usher_tasks_graph_destroy(graph);
	return usher_tasks_runtime_destroy(runtime);
}
