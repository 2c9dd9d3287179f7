// SPDX-License-Identifier: MIT OR Apache-2.0
// Test program: a task throws an exception. With the argument `caught` the task
// catches the exception, with `thrown` it does not.
#include "usher_tasks.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>

static void thrown(void *)
{
	throw std::runtime_error("no such frame");
}

static void caught(void *arg)
{
	try {
		thrown(arg);
	} catch (const std::exception &e) {
		usher_tasks_fail(e.what());
	}
}

int main(int argc, char **argv)
{
	bool is_caught = argc > 1 && std::strcmp(argv[1], "caught") == 0;
	usher_tasks_runtime *runtime;

	if (usher_tasks_runtime_new(nullptr, &runtime) != USHER_TASKS_OK)
		return 2;
	usher_tasks_register(runtime, 7, 0, is_caught ? caught : thrown,
			     nullptr, 0, 0);
	int error = usher_tasks_wait(runtime, nullptr);
	std::printf("%s: %s\n", usher_tasks_strerror(error),
		    usher_tasks_last_error());
	usher_tasks_runtime_destroy(runtime);
}
