/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program: checks that a runtime returns ENDED in the child of a fork, and
 * that the child can create and use a runtime of its own.
 */
#define _DEFAULT_SOURCE
#include "common/programs.h"

#include <string.h>
#include <sys/wait.h>

static void count(void *arg)
{
	++*(int *)arg;
}

static void count_block(uint64_t begin, uint64_t end, void *arg)
{
	*(int *)arg += (int)(end - begin);
}

static void *add_one(void *arg)
{
	++*(int *)arg;
	return arg;
}

static void print_result(const char *what, int error)
{
	char text[64];

	snprintf(text, sizeof(text), "process %d created the runtime",
		 (int)getppid());
	printf("%s: %d, %s\n", what, error == USHER_TASKS_ERROR_ENDED,
	       strstr(usher_tasks_last_error(), text) ? "named" : "not");
}

static int in_child(usher_tasks_runtime *runtime, usher_tasks_graph *graph)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(2);
	usher_tasks_report *report;
	usher_tasks_slot *slot;
	int items = 0;

	print_result("wait", usher_tasks_wait(runtime, &report));
	print_result("run", usher_tasks_run(runtime, graph, &report));
	print_result("for",
		     usher_tasks_for(runtime, 0, 9, count_block, &items));
	usher_tasks_submit_slot(runtime, add_one, &items, NULL, 0, 0, &slot);
	print_result("slot", usher_tasks_slot_wait(slot, NULL));
	print_result("destroy", usher_tasks_runtime_destroy(runtime));
	if (usher_tasks_runtime_new(&options, &runtime) != USHER_TASKS_OK)
		return 2;
	puts(usher_tasks_strerror(usher_tasks_run(runtime, graph, NULL)));
	return usher_tasks_runtime_destroy(runtime);
}

int main(void)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(2);
	usher_tasks_runtime *runtime;
	usher_tasks_graph *graph;
	int ran = 0, status = -1;
	pid_t child;

	graph = graph_of_one(count, &ran);
	if (!graph ||
	    usher_tasks_runtime_new(&options, &runtime) != USHER_TASKS_OK ||
	    usher_tasks_run(runtime, graph, NULL) != USHER_TASKS_OK)
		return 2;
	child = fork();
	if (child == 0)
		return in_child(runtime, graph);
	waitpid(child, &status, 0);
	printf("child: %d\n", status);
	usher_tasks_run(runtime, graph, NULL);
	printf("%d ran\n", ran);
	usher_tasks_graph_destroy(graph);
	return usher_tasks_runtime_destroy(runtime);
}
