/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program: queues of the policy `paper`, 128 MiB of them a level, where there is
 * memory for none, for one level, for all.
 */
#define _DEFAULT_SOURCE
#include "usher_tasks.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

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

/* So much more than there is; 0: no limit. */
static int limit_memory(rlim_t more)
{
	FILE *usage = fopen("/proc/self/statm", "r");
	struct rlimit limit;
	unsigned long pages = 0;

	if (!usage || fscanf(usage, "%lu", &pages) != 1 || fclose(usage) != 0)
		return -1;
	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = limit.rlim_max;
	if (more)
		limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
	return setrlimit(RLIMIT_AS, &limit);
}

static usher_tasks_graph *graph_of_one(void)
{
	usher_tasks_builder *builder;
	usher_tasks_graph *graph = NULL;

	if (usher_tasks_builder_new(&builder) != USHER_TASKS_OK)
		return NULL;
	usher_tasks_builder_task(builder, count, NULL, 0, 0, NULL);
	usher_tasks_builder_build(builder, &graph, NULL);
	usher_tasks_builder_destroy(builder);
	return graph;
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(1);
	usher_tasks_graph *graph = graph_of_one();
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
	limit_memory(0);
	usher_tasks_register(runtime, 1, 0, run, graph, 0, 0);
	usher_tasks_wait(runtime, NULL);
	usher_tasks_graph_destroy(graph);
	return usher_tasks_runtime_destroy(runtime);
}
