/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The header as a compiler sees it, in C and in C++: `abi` prints values, sizes and
 * offsets; `color` reads "block header colors address" and prints what the inline
 * functions make of it.
 */
#include "usher_tasks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VALUE(name) printf(#name " %llu\n", (unsigned long long)(name))
#define PLACE(type, field) \
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
	VALUE(USHER_TASKS_ERROR_LEFT);
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
	VALUE(USHER_TASKS_LEFT_FAILED);
	VALUE(USHER_TASKS_LEFT_UNRESOLVED);
	VALUE(USHER_TASKS_LEFT_UNREGISTERED);
	VALUE(USHER_TASKS_LEFT_CYCLE);
	VALUE(USHER_COLORING_LINE_BYTES);
	VALUE(sizeof(usher_tasks_options));
	PLACE(usher_tasks_options, size);
	PLACE(usher_tasks_options, workers);
	PLACE(usher_tasks_options, policy);
	PLACE(usher_tasks_options, t_groups);
	PLACE(usher_tasks_options, s_groups);
	PLACE(usher_tasks_options, binding);
	PLACE(usher_tasks_options, reserved);
	PLACE(usher_tasks_options, stack_bytes);
	VALUE(options.size);
	VALUE(options.workers);
	VALUE(sizeof(usher_tasks_left));
	PLACE(usher_tasks_left, task);
	PLACE(usher_tasks_left, message);
	PLACE(usher_tasks_left, kind);
	PLACE(usher_tasks_left, missing);
	VALUE(sizeof(usher_coloring));
	PLACE(usher_coloring, block_bytes);
	PLACE(usher_coloring, header_bytes);
	PLACE(usher_coloring, colors);
	VALUE(USHER_TASKS_FORMAT_CHROME);
	VALUE(USHER_TASKS_FORMAT_SVG_BY_T);
	VALUE(USHER_TASKS_FORMAT_SVG_BY_S);
	VALUE(USHER_TASKS_COMMON_UNASKED);
	VALUE(USHER_TASKS_COMMON_TIME);
	VALUE(USHER_TASKS_COMMON_DATA);
	VALUE(USHER_TASKS_COMMON_NOTHING);
	VALUE(sizeof(usher_tasks_counters));
	PLACE(usher_tasks_counters, size);
	PLACE(usher_tasks_counters, tasks);
	PLACE(usher_tasks_counters, steals_llc);
	PLACE(usher_tasks_counters, steals_package);
	PLACE(usher_tasks_counters, steals_machine);
	PLACE(usher_tasks_counters, outside);
	PLACE(usher_tasks_counters, sent);
	PLACE(usher_tasks_counters, group_moves);
	PLACE(usher_tasks_counters, sleeps);
	PLACE(usher_tasks_counters, asleep_ns);
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
