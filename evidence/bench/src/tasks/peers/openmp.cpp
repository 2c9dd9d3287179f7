/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the workload on OpenMP, with the runtimes of GCC and LLVM: the wavefront by tasks with
 * `depend`, and by tasks with counters of dependencies; fib by task and taskwait.
 *
 * With one thread, or if too many tasks wait, these runtimes run a new task at once on the stack of
 * the task that creates it. With counters, the depth of the stack can therefore reach the depth of
 * the graph. For this reason the stacks are large: OMP_STACKSIZE sets the stacks of the runtime's
 * threads, and this program creates the first thread with a large stack.
 */
#include "peer.h"

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <omp.h>
#include <pthread.h>
#include <unistd.h>

namespace
{

template <peer::First first> class Counted
{
      public:
	explicit Counted(const workload &work) : counters(work)
	{
	}

	uint64_t operator()()
	{
#pragma omp taskgroup
		go(peer::source);
		return 0;
	}

      private:
	void go(uint32_t task)
	{
		counters.run_from<first>(task, [this](uint32_t ready) {
#pragma omp task firstprivate(ready)
			go(ready);
		});
	}

	peer::Counters counters;
};

/*
 * Dependencies of OpenMP are addresses. Each task has one byte; the address of the byte stands for
 * the task.
 */
class Depending
{
      public:
	explicit Depending(const workload &work)
	    : work(work), bytes(work.tasks), before(work.tasks)
	{
		uint32_t tasks[4];

		for (uint32_t task = 0; task < work.tasks; task++) {
			uint32_t count = workload_predecessors(task, tasks);

			for (uint32_t i = 0; i < count; i++)
				before[task][i] = &bytes[tasks[i]];
		}
	}

	uint64_t operator()()
	{
#pragma omp taskgroup
		for (uint32_t task = 0; task < work.tasks; task++)
			spawn(task, &bytes[task], before[task].data());
		return 0;
	}

      private:
	/*
	 * Each task declares its exact number of dependencies. If tasks with fewer dependencies
	 * declared a common dummy address instead, GCC's runtime would walk the list of all
	 * tasks with that address for each new task.
	 */
	void spawn(uint32_t task, const char *out, const char *const *in)
	{
		/* clang-format off */
		switch (work.waits[task]) {
		case 0:
#pragma omp task firstprivate(task) depend(out: *out)
			workload_task(task);
			break;
		case 1:
#pragma omp task firstprivate(task) depend(in: *in[0]) depend(out: *out)
			workload_task(task);
			break;
		case 2:
#pragma omp task firstprivate(task) depend(in: *in[0], *in[1]) depend(out: *out)
			workload_task(task);
			break;
		case 3:
#pragma omp task firstprivate(task) depend(in: *in[0], *in[1], *in[2]) depend(out: *out)
			workload_task(task);
			break;
		default:
#pragma omp task firstprivate(task) depend(in: *in[0], *in[1], *in[2], *in[3]) depend(out: *out)
			workload_task(task);
		}
		/* clang-format on */
	}

	const workload &work;
	std::vector<char> bytes;
	std::vector<std::array<const char *, 4>> before;
};

/* The Cholesky factorisation by tasks with `depend`. A byte stands for each tile. */
class Cholesky
{
      public:
	explicit Cholesky(const workload &work)
	    : work(work), tiles(size_t(work.tiles) * work.tiles)
	{
	}

	uint64_t operator()()
	{
#pragma omp taskgroup
		for (uint32_t task = 0; task < work.tasks; task++)
			spawn(task, work.tile_tasks[task]);
		return 0;
	}

      private:
	void spawn(uint32_t task, const tile_task &of)
	{
		const char *const out = &tiles[of.tile];
		const char *const a = &tiles[of.reads[0]];
		const char *const b = &tiles[of.reads[1]];

		/* clang-format off */
		switch (of.read_count) {
		case 0:
#pragma omp task firstprivate(task) depend(inout: *out)
			workload_tile(task);
			break;
		case 1:
#pragma omp task firstprivate(task) depend(in: *a) depend(inout: *out)
			workload_tile(task);
			break;
		default:
#pragma omp task firstprivate(task) depend(in: *a, *b) depend(inout: *out)
			workload_tile(task);
		}
		/* clang-format on */
	}

	const workload &work;
	std::vector<char> tiles;
};

uint64_t fib(uint32_t n)
{
	if (n < 2)
		return n;
	uint64_t a, b;
#pragma omp task shared(a) firstprivate(n)
	a = fib(n - 1);
	b = fib(n - 2);
#pragma omp taskwait
	return a + b;
}

#ifdef __clang__
constexpr const char *version = "LLVM OpenMP, clang " __clang_version__;
#else
constexpr const char *version = "GCC OpenMP, g++ " __VERSION__;
#endif

struct call {
	const workload *work;
	const char *form;
	int status;
};

int measure(const workload &work, std::string_view form)
{
	if (form == "counters" && !work.fib)
		return peer::measure(Counted<peer::First::run>(work));
	if (form == "spawn" && !work.fib)
		return peer::measure(Counted<peer::First::spawn>(work));
	if (form == "depend" && work.tiles)
		return peer::measure(Cholesky(work));
	if (form == "depend" && !work.fib)
		return peer::measure(Depending(work));
	if (form == "task" && work.fib)
		return peer::measure([&work] { return fib(work.fib); });
	return peer::unknown(form.data());
}

void *on_large_stack(void *context)
{
	call &what = *static_cast<call *>(context);

#pragma omp parallel num_threads(what.work->threads)
#pragma omp single
	what.status = measure(*what.work, what.form);
	return nullptr;
}

} // namespace

int main(int argc, char **argv)
{
	const size_t stack_bytes = size_t(1) << 30;
	const workload *work;
	pthread_attr_t attributes;
	pthread_t thread;

	if (peer::asks_version(argc, argv))
		return std::printf("%s\n", version) < 0;
	/*
	 * The runtimes have read their environment before `main`. If OMP_STACKSIZE is missing,
	 * it must be set and the program executed again.
	 */
	if (!std::getenv("OMP_STACKSIZE")) {
		setenv("OMP_STACKSIZE", "1G", 1);
		execv("/proc/self/exe", argv);
	}
	work = workload_begin(argc - 2, argv + 2);
	if (!work)
		return 2;
	call what = {work, argv[1], 1};
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, stack_bytes);
	if (pthread_create(&thread, &attributes, on_large_stack, &what) != 0) {
		std::perror("a thread with a stack of 1 GiB");
		return 1;
	}
	pthread_join(thread, nullptr);
	return what.status;
}
