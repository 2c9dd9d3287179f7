// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Computes a tree of sums by tasks that are lambdas and depend on one another by tokens. The
// function `submit` below is useful for any C++ program that passes lambdas to the library.
//
//     c++ -O2 lambdas.cpp $(pkg-config --cflags --libs usher-tasks) -o lambdas
//
// To build without an installed library, run these commands in the root of the source tree:
//
//     cargo build --release --package usher-tasks-capi
//     c++ -O2 -I crates/tasks-capi/include examples/tasks/lambdas.cpp
//         target/release/libusher_tasks_capi.a -lpthread -lm -ldl -o lambdas
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "usher_tasks.h"

namespace
{

// Throws an exception if a call of the library has failed.
void check(int error)
{
	if (error != USHER_TASKS_OK)
		throw std::runtime_error(usher_tasks_last_error());
}

struct Destroy {
	void operator()(usher_tasks_runtime *runtime) const
	{
		usher_tasks_runtime_destroy(runtime);
	}
};

using Runtime = std::unique_ptr<usher_tasks_runtime, Destroy>;

Runtime start(unsigned workers)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(workers);
	usher_tasks_runtime *runtime;

	check(usher_tasks_runtime_new(&options, &runtime));
	return Runtime(runtime);
}

// Registers a lambda that runs when `token` has been resolved `count` times. A copy of the lambda
// is passed to the library as the argument of the task. It is freed after the task has run, or if
// the runtime is cancelled before. Exceptions of the lambda must not enter the library. They are
// caught here, and usher_tasks_wait() reports them.
template <typename F>
void submit(const Runtime &runtime, uint64_t token, uint32_t count, F &&body)
{
	using Body = std::decay_t<F>;
	auto own = std::make_unique<Body>(std::forward<F>(body));
	auto run = [](void *arg) {
		std::unique_ptr<Body> body(static_cast<Body *>(arg));
		try {
			(*body)();
		} catch (const std::exception &e) {
			usher_tasks_fail(e.what());
		} catch (...) {
			usher_tasks_fail("something that is no std::exception");
		}
	};
	auto discard = [](void *arg) { delete static_cast<Body *>(arg); };

	check(usher_tasks_register_owned(runtime.get(), token, count, run,
					 own.get(), discard, 0, 0));
	own.release();
}

// Computes the sum of the squares below `end` in pieces: node 1 is the root, the nodes below node n
// are 2n and 2n + 1, and the pieces are the leaves.
uint64_t sum_of_squares(const Runtime &runtime, uint64_t end, uint64_t leaves)
{
	std::vector<uint64_t> sums(2 * leaves);
	uint64_t piece = end / leaves;

	for (uint64_t node = 1; node < leaves; node++)
		submit(runtime, node, 2, [&, node] {
			sums[node] = sums[2 * node] + sums[2 * node + 1];
			if (node > 1)
				check(usher_tasks_resolve(usher_tasks_current(),
							  node / 2));
		});
	for (uint64_t node = leaves; node < 2 * leaves; node++)
		submit(runtime, node, 0, [&, node] {
			uint64_t first = (node - leaves) * piece;
			for (uint64_t i = first; i < first + piece; i++)
				sums[node] += i * i;
			check(usher_tasks_resolve(usher_tasks_current(),
						  node / 2));
		});
	check(usher_tasks_wait(runtime.get(), nullptr));
	return sums[1];
}

// Waits for a task that throws an exception and a task that is never resolved, and prints the
// report of the library.
void show_failure(const Runtime &runtime)
{
	submit(runtime, 8, 1, [] { std::puts("this is never printed"); });
	submit(runtime, 7, 0, [] {
		std::string name = "frame 12";
		throw std::runtime_error("no such file: " + name);
	});
	if (usher_tasks_wait(runtime.get(), nullptr) ==
	    USHER_TASKS_ERROR_UNFINISHED)
		std::printf("%s\n", usher_tasks_last_error());
}

// Returns the number of workers: by default one per CPU.
unsigned workers_of(int argc, char **argv)
{
	if (argc < 2)
		return usher_tasks_cpus();
	std::string word = argv[argc - 1];
	bool is_number = word.size() <= 4 &&
			 word.find_first_not_of("0123456789") == word.npos;
	unsigned workers = is_number && !word.empty()
				   ? static_cast<unsigned>(std::stoi(word))
				   : 0;
	if (argc > 2 || workers < 1 || workers > 1024)
		throw std::invalid_argument(
			"usage: lambdas [WORKERS], 1 to 1024: not " + word);
	return workers;
}

} // namespace

int main(int argc, char **argv)
{
	try {
		Runtime runtime = start(workers_of(argc, argv));

		std::printf("squares below 1048576: %" PRIu64 "\n",
			    sum_of_squares(runtime, 1048576, 256));
		show_failure(runtime);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "lambdas: %s\n", e.what());
		return 1;
	}
}
