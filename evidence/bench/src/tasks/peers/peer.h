/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common code of the C++ programs: counters of dependencies, for runtimes without task graphs or
 * with slow task graphs. The thread that resolves the last dependency of a task either submits the
 * task to the runtime, which determines the order (`First::spawn`). Or it runs the first task that
 * becomes ready itself, and submits only the other ready tasks (`First::run`), as the fastest
 * programs do.
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

/* Whether the first task that becomes ready runs on the same thread at once, or is submitted. */
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

	/*
	 * Runs a task. Tasks that become ready by the task are passed to `spawn`. With
	 * `First::run`, this thread runs the first of them itself instead, and continues with
	 * its successors.
	 */
	template <First first, class Spawn>
	void run_from(uint32_t task, Spawn &&spawn)
	{
		while (task != none) {
			workload_task(task);
			/*
			 * The counter is reset for the next frame. No other thread uses it
			 * before then.
			 */
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
	/*
	 * Counts a finished predecessor; returns whether it was the last. A thread that reads 1
	 * counts the last predecessor and need not write the counter.
	 */
	bool resolve(uint32_t task)
	{
		return pending[task].load(std::memory_order_acquire) == 1 ||
		       pending[task].fetch_sub(1, std::memory_order_acq_rel) ==
			       1;
	}

	const workload &work;
	std::unique_ptr<std::atomic<uint32_t>[]> pending;
};

/* The only task without predecessors. */
constexpr uint32_t source = 0;

/* Measures a function that runs a frame. Returns the exit status of the program. */
template <class Frame> int measure(Frame &&frame)
{
	auto call = [](void *context) -> uint64_t {
		return (*static_cast<std::remove_reference_t<Frame> *>(
			context))();
	};
	return workload_measure(call, nullptr, &frame);
}

/*
 * Returns whether the command line is `version`, which requests the name and version of the
 * runtime.
 */
inline bool asks_version(int argc, char **argv)
{
	return argc == 2 && std::strcmp(argv[1], "version") == 0;
}

/* Reports an unknown form. Returns the exit status of the program. */
inline int unknown(const char *form)
{
	std::fprintf(stderr, "there is no form '%s'\n", form);
	return 2;
}

} // namespace peer

#endif
