/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common code of the test programs in C: error checks, and a limit of the
 * memory that the process may allocate. Define _DEFAULT_SOURCE before any
 * include.
 */
#ifndef USHER_TASKS_TESTS_PROGRAMS_H
#define USHER_TASKS_TESTS_PROGRAMS_H

#include "usher_tasks.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Allows `more` bytes of memory in addition to those in use. */
static inline int limit_memory(rlim_t more)
{
	FILE *usage = fopen("/proc/self/statm", "r");
	struct rlimit limit;
	unsigned long pages = 0;

	if (!usage || fscanf(usage, "%lu", &pages) != 1 || fclose(usage) != 0)
		return -1;
	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
	return setrlimit(RLIMIT_AS, &limit);
}

static inline int limit_no_memory(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_AS, &limit);
}

static inline usher_tasks_graph *graph_of_one(usher_tasks_entry entry,
					      void *arg)
{
	usher_tasks_builder *builder;
	usher_tasks_graph *graph = NULL;

	if (usher_tasks_builder_new(&builder) != USHER_TASKS_OK)
		return NULL;
	usher_tasks_builder_task(builder, entry, arg, 0, 0, NULL);
	usher_tasks_builder_build(builder, &graph, NULL);
	usher_tasks_builder_destroy(builder);
	return graph;
}

#endif
