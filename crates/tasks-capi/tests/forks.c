/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Test program: a runtime in the child of a fork, and one that the child makes. */
#define _DEFAULT_SOURCE
#include "common/programs.h"

#include <string.h>
#include <sys/wait.h>

static void count(void *arg)
{
	++*(int *)arg;
}

static void tell(const char *what, int error)
{
	char words[64];

	snprintf(words, sizeof(words), "made by process %d, from which",
		 (int)getppid());
	printf("%s: %d, %s\n", what, error == USHER_TASKS_ERROR_ENDED,
	       strstr(usher_tasks_last_error(), words) ? "named" : "not");
}

static int in_child(usher_tasks_runtime *runtime, usher_tasks_graph *graph)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(2);
	usher_tasks_report *report;

	tell("wait", usher_tasks_wait(runtime, &report));
	tell("run", usher_tasks_run(runtime, graph, &report));
	tell("destroy", usher_tasks_runtime_destroy(runtime));
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
