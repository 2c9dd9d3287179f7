/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the workload on Taskflow: the wavefront by asynchronous tasks with counters of
 * dependencies, and by a static graph; fib by asynchronous tasks of a runtime task.
 */
#include "peer.h"

#include <string_view>
#include <vector>

#include <taskflow/taskflow.hpp>

namespace
{

template <peer::First first> class Async
{
      public:
	Async(const workload &work, tf::Runtime &runtime)
	    : counters(work), runtime(runtime)
	{
	}

	uint64_t operator()()
	{
		spawn(peer::source);
		runtime.corun_all();
		return 0;
	}

      private:
	void spawn(uint32_t task)
	{
		runtime.silent_async([this, task] {
			counters.run_from<first>(
				task, [this](uint32_t ready) { spawn(ready); });
		});
	}

	peer::Counters counters;
	tf::Runtime &runtime;
};

class Static
{
      public:
	Static(const workload &work, tf::Runtime &runtime) : runtime(runtime)
	{
		std::vector<tf::Task> tasks;

		for (uint32_t task = 0; task < work.tasks; task++)
			tasks.push_back(
				graph.emplace([task] { workload_task(task); }));
		for (uint32_t task = 0; task < work.tasks; task++)
			for (uint32_t i = work.first[task];
			     i < work.first[task + 1]; i++)
				tasks[task].precede(tasks[work.successors[i]]);
	}

	uint64_t operator()()
	{
		runtime.corun(graph);
		return 0;
	}

      private:
	tf::Taskflow graph;
	tf::Runtime &runtime;
};

uint64_t fib(uint32_t n, tf::Runtime &runtime)
{
	if (n < 2)
		return n;
	uint64_t a, b;
	runtime.silent_async(
		[&a, n](tf::Runtime &own) { a = fib(n - 1, own); });
	b = fib(n - 2, runtime);
	runtime.corun_all();
	return a + b;
}

/* The measurement runs on a worker, so that the time of a frame contains no wake-up of a thread. */
int measure(const workload &work, std::string_view form, tf::Runtime &runtime)
{
	if (form == "counters" && !work.fib)
		return peer::measure(Async<peer::First::run>(work, runtime));
	if (form == "spawn" && !work.fib)
		return peer::measure(Async<peer::First::spawn>(work, runtime));
	if (form == "graph" && !work.fib)
		return peer::measure(Static(work, runtime));
	if (form == "async" && work.fib)
		return peer::measure([&] { return fib(work.fib, runtime); });
	return peer::unknown(form.data());
}

} // namespace

int main(int argc, char **argv)
{
	if (peer::asks_version(argc, argv))
		return std::printf("Taskflow %s\n", tf::version()) < 0;
	const workload *work = workload_begin(argc - 2, argv + 2);
	if (!work)
		return 2;
	tf::Executor executor(work->threads);
	int status = 1;
	executor.async([&](tf::Runtime &runtime) {
			status = measure(*work, argv[1], runtime);
		})
		.wait();
	return status;
}
