/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common code of the peers in C++: explicit counters of dependencies, for runtimes
 * without graphs, or with slow ones. The thread that resolves the last dependency of
 * a task submits the task to the runtime, which chooses the order, or, as the
 * fastest programs do, runs the first such task itself at once.
 */
#ifndef USHER_BENCH_PEER_H
#define USHER_BENCH_PEER_H

#include "workload.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>

namespace peer
{

constexpr uint32_t none = UINT32_MAX;

/* What is done with the first task that becomes ready. */
enum class First { run, spawn };

class Counters
{
      public:
	explicit Counters(const workload &work)
	    : work(work), pending(new std::atomic<uint32_t>[work.tasks])
	{
		for (uint32_t task = 0; task < work.tasks; task++)
			pending[task].store(work.waits[task],
					    std::memory_order_relaxed);
	}

	/* Runs a task and, one after another, first ones that become ready by it;
	 * hands others that do to `spawn`. */
	template <First first, class Spawn>
	void run_from(uint32_t task, Spawn &&spawn)
	{
		while (task != none) {
			workload_task(task);
			/* No other thread uses the counter before the next frame. */
			pending[task].store(work.waits[task],
					    std::memory_order_relaxed);
			uint32_t next = none;
			for (uint32_t i = work.first[task];
			     i < work.first[task + 1]; i++) {
				uint32_t successor = work.successors[i];
				if (!resolve(successor))
					continue;
				if (first == First::run && next == none)
					next = successor;
				else
					spawn(successor);
			}
			task = next;
		}
	}

      private:
	/* The thread that reads 1 is the last, so it need not write. */
	bool resolve(uint32_t task)
	{
		return pending[task].load(std::memory_order_acquire) == 1 ||
		       pending[task].fetch_sub(1, std::memory_order_acq_rel) ==
			       1;
	}

	const workload &work;
	std::unique_ptr<std::atomic<uint32_t>[]> pending;
};

/* The one task that waits for nothing. */
constexpr uint32_t source = 0;

/* Times a function that runs a frame; the exit status. */
template <class Frame> int measure(Frame &&frame)
{
	auto call = [](void *context) -> uint64_t {
		return (*static_cast<std::remove_reference_t<Frame> *>(
			context))();
	};
	return workload_measure(call, nullptr, &frame);
}

/* Whether it is asked what it is. */
inline bool asks_version(int argc, char **argv)
{
	return argc == 2 && std::strcmp(argv[1], "version") == 0;
}

/* No such form; the exit status. */
inline int unknown(const char *form)
{
	std::fprintf(stderr, "there is no form '%s'\n", form);
	return 2;
}

} // namespace peer

#endif
