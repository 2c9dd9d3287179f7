/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the workload on oneTBB: the wavefront by a task_group with counters of dependencies (in
 * an array, or found through a concurrent_hash_map), and by a flow graph; fib by task_group and by parallel_invoke; loops by parallel_for and
 * parallel_reduce, with three partitioners.
 */
#include "peer.h"

#include <deque>
#include <functional>
#include <string_view>

#include <tbb/concurrent_hash_map.h>
#include <tbb/flow_graph.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_invoke.h>
#include <tbb/parallel_reduce.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <tbb/version.h>

namespace
{

template <peer::First first> class Grouped
{
      public:
	explicit Grouped(const workload &work) : counters(work)
	{
	}

	uint64_t operator()()
	{
		spawn(peer::source);
		group.wait();
		return 0;
	}

      private:
	void spawn(uint32_t task)
	{
		group.run([this, task] {
			counters.run_from<first>(
				task, [this](uint32_t ready) { spawn(ready); });
		});
	}

	peer::Counters counters;
	tbb::task_group group;
};

/*
 * The wavefront with counters that are found by the number of a task, as programs do whose tasks
 * have no numbers in a known range. Each frame inserts all counters. The last predecessor of a task
 * erases its counter, and runs the first task that becomes ready itself.
 */
class Mapped
{
      public:
	explicit Mapped(const workload &work) : work(work)
	{
	}

	uint64_t operator()()
	{
		for (uint32_t task = 0; task < work.tasks; task++)
			if (task != peer::source)
				pending.insert({task, work.waits[task]});
		spawn(peer::source);
		group.wait();
		return 0;
	}

      private:
	using Map = tbb::concurrent_hash_map<uint32_t, uint32_t>;

	void spawn(uint32_t task)
	{
		group.run([this, task] { run_from(task); });
	}

	void run_from(uint32_t task)
	{
		while (task != peer::none) {
			workload_task(task);
			uint32_t next = peer::none;
			for (uint32_t i = work.first[task];
			     i < work.first[task + 1]; i++) {
				uint32_t successor = work.successors[i];
				if (!resolve(successor))
					continue;
				if (next == peer::none)
					next = successor;
				else
					spawn(successor);
			}
			task = next;
		}
	}

	/* Counts a finished predecessor; returns whether it was the last. */
	bool resolve(uint32_t task)
	{
		Map::accessor counter;

		pending.find(counter, task);
		if (--counter->second > 0)
			return false;
		pending.erase(counter);
		return true;
	}

	const workload &work;
	Map pending;
	tbb::task_group group;
};

class Flow
{
      public:
	explicit Flow(const workload &work)
	{
		for (uint32_t task = 0; task < work.tasks; task++)
			nodes.emplace_back(graph,
					   [task](const Message &message) {
						   workload_task(task);
						   return message;
					   });
		for (uint32_t task = 0; task < work.tasks; task++)
			for (uint32_t i = work.first[task];
			     i < work.first[task + 1]; i++)
				tbb::flow::make_edge(nodes[task],
						     nodes[work.successors[i]]);
	}

	uint64_t operator()()
	{
		nodes[peer::source].try_put(Message());
		graph.wait_for_all();
		return 0;
	}

      private:
	using Message = tbb::flow::continue_msg;

	tbb::flow::graph graph;
	std::deque<tbb::flow::continue_node<Message>> nodes;
};

uint64_t fib_group(uint32_t n)
{
	if (n < 2)
		return n;
	uint64_t a, b;
	tbb::task_group group;
	group.run([&a, n] { a = fib_group(n - 1); });
	b = fib_group(n - 2);
	group.wait();
	return a + b;
}

uint64_t fib_invoke(uint32_t n)
{
	if (n < 2)
		return n;
	uint64_t a, b;
	tbb::parallel_invoke([&a, n] { a = fib_invoke(n - 1); },
			     [&b, n] { b = fib_invoke(n - 2); });
	return a + b;
}

/* Measures loops. A partitioner may keep the placement of the parts from frame to frame. */
template <class Partitioner> int measure_loops(const workload &work)
{
	using Items = tbb::blocked_range<uint32_t>;
	Partitioner partitioner;

	return peer::measure([&]() -> uint64_t {
		const Items all(0, work.items);

		if (workload_reduces)
			return tbb::parallel_reduce(
				all, uint64_t(0),
				[](const Items &items, uint64_t sum) {
					return sum +
					       workload_values(items.begin(),
							       items.end());
				},
				std::plus<uint64_t>(), partitioner);
		tbb::parallel_for(
			all,
			[](const Items &items) {
				workload_items(items.begin(), items.end());
			},
			partitioner);
		return 0;
	});
}

int measure(const workload &work, std::string_view form)
{
	if (form == "loop-auto" && work.items)
		return measure_loops<tbb::auto_partitioner>(work);
	if (form == "loop-affinity" && work.items)
		return measure_loops<tbb::affinity_partitioner>(work);
	if (form == "loop-static" && work.items)
		return measure_loops<tbb::static_partitioner>(work);
	if (work.items)
		return peer::unknown(form.data());
	if (form == "counters" && !work.fib)
		return peer::measure(Grouped<peer::First::run>(work));
	if (form == "spawn" && !work.fib)
		return peer::measure(Grouped<peer::First::spawn>(work));
	if (form == "map" && !work.fib)
		return peer::measure(Mapped(work));
	if (form == "flow" && !work.fib)
		return peer::measure(Flow(work));
	if (form == "group" && work.fib)
		return peer::measure([&work] { return fib_group(work.fib); });
	if (form == "invoke" && work.fib)
		return peer::measure([&work] { return fib_invoke(work.fib); });
	return peer::unknown(form.data());
}

} // namespace

int main(int argc, char **argv)
{
	if (peer::asks_version(argc, argv))
		return std::printf("oneTBB %s\n", TBB_runtime_version()) < 0;
	const workload *work = workload_begin(argc - 2, argv + 2);
	if (!work)
		return 2;
	tbb::global_control most(tbb::global_control::max_allowed_parallelism,
				 work->threads);
	tbb::task_arena arena(static_cast<int>(work->threads));
	return arena.execute([&] { return measure(*work, argv[1]); });
}
