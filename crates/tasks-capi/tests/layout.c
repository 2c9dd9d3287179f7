/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program, compiled as C and as C++. With the argument `abi` it prints the
 * values, sizes and offsets of the header. With the argument `color` it reads
 * lines of a block size, a header size, a number of colours and an address, and
 * prints the results of the inline functions.
 */
#include "usher_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VALUE(name) printf(#name " %llu\n", (unsigned long long)(name))
#define OFFSET(type, field) \
	printf(#type "." #field " %zu+%zu\n", offsetof(type, field), \
	       sizeof(((type *)0)->field))

static void errors(void)
{
	VALUE(USHER_TASKS_OK);
	VALUE(USHER_TASKS_ERROR_NULL);
	VALUE(USHER_TASKS_ERROR_OPTIONS);
	VALUE(USHER_TASKS_ERROR_WORKERS);
	VALUE(USHER_TASKS_ERROR_THREAD);
	VALUE(USHER_TASKS_ERROR_MEMORY);
	VALUE(USHER_TASKS_ERROR_GROUPS);
	VALUE(USHER_TASKS_ERROR_REGISTERED);
	VALUE(USHER_TASKS_ERROR_RESOLVED_TOO_OFTEN);
	VALUE(USHER_TASKS_ERROR_UNFINISHED);
	VALUE(USHER_TASKS_ERROR_INSIDE);
	VALUE(USHER_TASKS_ERROR_DEADLOCK);
	VALUE(USHER_TASKS_ERROR_ENDED);
	VALUE(USHER_TASKS_ERROR_CYCLE);
	VALUE(USHER_TASKS_ERROR_RANGE);
	VALUE(USHER_TASKS_ERROR_TOO_LARGE);
	VALUE(USHER_TASKS_ERROR_FAILED);
	VALUE(USHER_TASKS_ERROR_BUSY);
	VALUE(USHER_TASKS_ERROR_OUTSIDE);
	VALUE(USHER_TASKS_ERROR_COLORING);
	VALUE(USHER_TASKS_ERROR_INTERNAL);
	VALUE(USHER_TASKS_ERROR_FILE);
	VALUE(USHER_TASKS_ERROR_CANCELLED);
	VALUE(USHER_TASKS_ERROR_TOO_LATE);
	VALUE(USHER_TASKS_ERROR_TOO_DEEP);
	VALUE(USHER_TASKS_ERROR_ISOLATED);
}

static void abi(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(3);

	VALUE(USHER_TASKS_VERSION);
	errors();
	VALUE(USHER_TASKS_POLICY_USHER);
	VALUE(USHER_TASKS_POLICY_PAPER);
	VALUE(USHER_TASKS_POLICY_FCFS);
	VALUE(USHER_TASKS_POLICY_LCFS);
	VALUE(USHER_TASKS_BINDING_LLC);
	VALUE(USHER_TASKS_BINDING_NONE);
	VALUE(USHER_TASKS_RUNNING_CPUS);
	VALUE(USHER_TASKS_RUNNING_ALL);
	VALUE(USHER_TASKS_PROGRESS_REPORTED);
	VALUE(USHER_TASKS_PROGRESS_NOT_REPORTED);
	VALUE(USHER_TASKS_UNFINISHED_FAILED);
	VALUE(USHER_TASKS_UNFINISHED_UNRESOLVED);
	VALUE(USHER_TASKS_UNFINISHED_UNREGISTERED);
	VALUE(USHER_TASKS_UNFINISHED_CYCLE);
	VALUE(USHER_TASKS_UNFINISHED_SUBMITTED_FAILED);
	VALUE(USHER_TASKS_STATUS_PENDING);
	VALUE(USHER_TASKS_STATUS_RUNNING);
	VALUE(USHER_TASKS_STATUS_READY);
	VALUE(USHER_TASKS_STATUS_FAILED);
	VALUE(USHER_TASKS_STATUS_CANCELLED);
	VALUE(USHER_COLORING_LINE_BYTES);
	VALUE(USHER_TASKS_PRIORITY_HIGH);
	VALUE(USHER_TASKS_PRIORITY_LOW);
	VALUE(sizeof(usher_tasks_options));
	OFFSET(usher_tasks_options, size);
	OFFSET(usher_tasks_options, workers);
	OFFSET(usher_tasks_options, policy);
	OFFSET(usher_tasks_options, t_groups);
	OFFSET(usher_tasks_options, s_groups);
	OFFSET(usher_tasks_options, binding);
	OFFSET(usher_tasks_options, running);
	OFFSET(usher_tasks_options, stack_bytes);
	OFFSET(usher_tasks_options, progress);
	OFFSET(usher_tasks_options, reserved);
	OFFSET(usher_tasks_options, dense_first);
	OFFSET(usher_tasks_options, dense_count);
	VALUE(options.size);
	VALUE(options.workers);
	VALUE(sizeof(usher_tasks_unfinished));
	OFFSET(usher_tasks_unfinished, task);
	OFFSET(usher_tasks_unfinished, message);
	OFFSET(usher_tasks_unfinished, kind);
	OFFSET(usher_tasks_unfinished, missing);
	VALUE(sizeof(usher_coloring));
	OFFSET(usher_coloring, block_bytes);
	OFFSET(usher_coloring, header_bytes);
	OFFSET(usher_coloring, colors);
	VALUE(USHER_TASKS_FORMAT_CHROME);
	VALUE(USHER_TASKS_FORMAT_SVG_BY_T);
	VALUE(USHER_TASKS_FORMAT_SVG_BY_S);
	VALUE(USHER_TASKS_GROUPING_NONE_REQUESTED);
	VALUE(USHER_TASKS_GROUPING_TIME);
	VALUE(USHER_TASKS_GROUPING_DATA);
	VALUE(USHER_TASKS_GROUPING_NONE);
	VALUE(sizeof(usher_tasks_counters));
	OFFSET(usher_tasks_counters, size);
	OFFSET(usher_tasks_counters, tasks);
	OFFSET(usher_tasks_counters, steals_llc);
	OFFSET(usher_tasks_counters, steals_package);
	OFFSET(usher_tasks_counters, steals_machine);
	OFFSET(usher_tasks_counters, outside);
	OFFSET(usher_tasks_counters, sent);
	OFFSET(usher_tasks_counters, group_moves);
	OFFSET(usher_tasks_counters, sleeps);
	OFFSET(usher_tasks_counters, asleep_ns);
}

static void color(void)
{
	usher_coloring c;
	uintptr_t at;

	while (scanf("%zu %zu %zu %" SCNuPTR, &c.block_bytes, &c.header_bytes,
		     &c.colors, &at) == 4) {
		uintptr_t base = usher_coloring_inline_base(&c, at);

		printf("%" PRIuPTR " %zu %" PRIuPTR "\n", base,
		       usher_coloring_inline_shift(&c, base),
		       usher_coloring_inline_header(&c, at));
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "abi") == 0)
		abi();
	else if (argc == 2 && strcmp(argv[1], "color") == 0)
		color();
	else
		return 2;
	return 0;
}
