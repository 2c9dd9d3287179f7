// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Lambdas as tasks with results: a parallel sort by futures, a set of tasks, and exceptions that
// reach the caller.
//
//     c++ -O2 -std=c++17 futures.cpp $(pkg-config --cflags --libs usher-tasks) -o futures
//
// To build without an installed library, run these commands in the root of the source tree:
//
//     cargo build --release --package usher-tasks-capi
//     c++ -O2 -std=c++17 -I crates/tasks-capi/include examples/tasks/futures.cpp
//         target/release/libusher_tasks_capi.a -lpthread -lm -ldl -o futures
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <usher_tasks.hpp>

namespace
{

using Iterator = std::vector<uint32_t>::iterator;

// Sorts a range: a task sorts the first half while the caller sorts the second half.
void sort(usher::runtime_ref runtime, Iterator begin, Iterator end)
{
	if (end - begin < 10000)
		return std::sort(begin, end);
	Iterator middle = begin + (end - begin) / 2;
	auto first = runtime.async([=] { sort(runtime, begin, middle); });
	sort(runtime, middle, end);
	first.get();
	std::inplace_merge(begin, middle, end);
}

// Returns numbers in a random order.
std::vector<uint32_t> numbers(size_t count)
{
	std::vector<uint32_t> all(count);
	uint32_t state = 1;

	for (uint32_t &number : all)
		number = state = state * 1664525 + 1013904223;
	return all;
}

// A type of the program, which is no std::exception.
struct MissingFrame {
	unsigned number;
};

unsigned decode(unsigned number)
{
	if (number == 12)
		throw MissingFrame{number};
	return number * number;
}

// Decodes frames in parallel. The exception of a task is thrown here.
unsigned decode_all(usher::runtime_ref runtime, unsigned frames)
{
	std::vector<usher::future<unsigned>> decoded;
	unsigned sum = 0;

	for (unsigned frame = 0; frame < frames; frame++)
		decoded.push_back(
			runtime.async([frame] { return decode(frame); }));
	usher::wait_all(decoded);
	for (auto &frame : decoded)
		sum += frame.get();
	return sum;
}

} // namespace

int main(int argc, char **argv)
{
	try {
		unsigned workers =
			argc > 1 ? std::stoul(argv[1]) : usher_tasks_cpus();
		usher::runtime runtime(workers);
		std::vector<uint32_t> sorted = numbers(1000000);

		sort(runtime, sorted.begin(), sorted.end());
		std::printf("sorted: %d\n",
			    std::is_sorted(sorted.begin(), sorted.end()));
		std::printf("10 frames: %u\n", decode_all(runtime, 10));
		decode_all(runtime, 20);
	} catch (const MissingFrame &missing) {
		std::printf("frame %u is missing\n", missing.number);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "futures: %s\n", e.what());
		return 1;
	}
}
