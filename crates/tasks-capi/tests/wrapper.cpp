// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Test program of usher_tasks.hpp. Prints one line for each check.
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <usher_tasks.hpp>

namespace
{

void expect(bool is_right, const char *what)
{
	std::printf("%s: %s\n", what, is_right ? "right" : "WRONG");
}

// A type that is no std::exception and cannot be copied cheaply.
struct foreign {
	std::string text;
};

uint64_t fib(unsigned n)
{
	if (n < 2)
		return n;
	auto runtime = usher::runtime_ref::current();
	auto left = runtime.async([n] { return fib(n - 1); });
	uint64_t right = fib(n - 2);
	return left.get() + right;
}

template <typename F> std::string thrown(F &&call)
{
	try {
		call();
	} catch (const usher::error &e) {
		return "error " + std::to_string(e.code());
	} catch (const std::exception &e) {
		return e.what();
	} catch (const foreign &e) {
		return "foreign " + e.text;
	} catch (int number) {
		return "int " + std::to_string(number);
	}
	return "nothing";
}

void futures(const usher::runtime &runtime)
{
	expect(runtime.async([] { return fib(16); }).get() == 987, "values");
	auto moved = runtime.async([p = std::make_unique<int>(7)] {
		return std::make_unique<int>(*p + 1);
	});
	expect(*moved.get() == 8, "values that are only moved");
	runtime.async([] {}).get();
	auto logic = runtime.async(
		[]() -> int { throw std::logic_error("no frame"); });
	logic.wait();
	expect(logic.status() == USHER_TASKS_STATUS_FAILED, "status");
	expect(thrown([&] { logic.get(); }) == "no frame", "std::exception");
	auto number = runtime.async([] { throw 7; });
	expect(thrown([&] { number.get(); }) == "int 7", "an int");
	auto other = runtime.async([] { throw foreign{"type"}; });
	expect(thrown([&] { other.get(); }) == "foreign type",
	       "a foreign type");
	auto nested = runtime.async([&] {
		return runtime.async([]() -> int { throw foreign{"inner"}; })
			.get();
	});
	expect(thrown([&] { nested.get(); }) == "foreign inner", "nested");
	std::vector<usher::future<int>> many;
	for (int i = 0; i < 100; i++)
		many.push_back(runtime.async([i] { return i; }));
	usher::wait_all(many);
	int sum = 0;
	for (auto &one : many)
		sum += one.get();
	expect(sum == 4950, "sets");
	expect(!many[0].valid() && !moved.valid(), "a future is used once");
}

void cancelled()
{
	usher::runtime runtime(1);
	std::atomic<bool> begun{false}, open{false};
	auto alive = std::make_shared<int>(0);
	auto blocker = runtime.async([&] {
		begun = true;
		while (!open)
			std::this_thread::yield();
	});
	while (!begun)
		std::this_thread::yield();
	auto waits = runtime.async([alive] { return 1; });
	auto lost = runtime.async([alive] { return 2; });
	expect(waits.cancel() && !waits.cancel() && !blocker.cancel(),
	       "cancel");
	expect(alive.use_count() == 2, "the lambda is freed");
	usher_tasks_cancel(runtime.handle(), nullptr);
	open = true;
	blocker.get();
	std::string expected =
		"error " + std::to_string(USHER_TASKS_ERROR_CANCELLED);
	expect(thrown([&] { waits.get(); }) == expected, "cancelled");
	expect(thrown([&] { lost.get(); }) == expected, "runtime cancelled");
	expect(alive.use_count() == 1, "all lambdas are freed");
}

// A graph that runs cannot be run or changed, and keeps its exception.
void graph_misuse(const usher::runtime &runtime)
{
	usher::graph graph;
	std::atomic<bool> begun{false}, open{false};
	graph.task([&] {
		begun = true;
		while (!open)
			std::this_thread::yield();
		throw foreign{"graph"};
	});
	std::string first;
	std::thread other([&] { first = thrown([&] { runtime.run(graph); }); });
	while (!begun)
		std::this_thread::yield();
	std::string busy = "error " + std::to_string(USHER_TASKS_ERROR_BUSY);
	expect(thrown([&] { runtime.run(graph); }) == busy, "a busy graph");
	expect(thrown([&] { graph.task([] {}); }) != "nothing", "a late task");
	expect(thrown([&] { graph.after(0, 0); }) != "nothing",
	       "a late dependency");
	open = true;
	other.join();
	expect(first == "foreign graph", "the exception of the first run");
	usher::graph own;
	std::string inner;
	own.task([&] { inner = thrown([&] { runtime.run(own); }); });
	runtime.run(own);
	expect(inner == busy, "a graph that runs itself");
}

// An error of a wait is not hidden by the exception of an earlier task.
void hidden_errors()
{
	usher::runtime runtime(1);
	std::vector<usher::future<void>> both;
	std::atomic<bool> begun{false}, open{false};
	both.push_back(runtime.async([&] {
		begun = true;
		while (!open)
			std::this_thread::yield();
		throw 1;
	}));
	while (!begun)
		std::this_thread::yield();
	both.push_back(runtime.async([] {}));
	expect(both[1].cancel(), "cancel the second task");
	open = true;
	expect(thrown([&] { usher::wait_all(both); }) ==
		       "error " + std::to_string(USHER_TASKS_ERROR_CANCELLED),
	       "wait_all throws the later error");
}

void parts(const usher::runtime &runtime)
{
	int one = 0, other = 0;
	runtime.join([&] { one = 1; }, [&] { other = 2; });
	expect(one + other == 3, "join");
	expect(thrown([&] {
		       runtime.join([] { throw 1; }, [&] { other = 3; });
	       }) == "int 1" &&
		       other == 3,
	       "join throws after both have ended");
	std::vector<uint64_t> squares(1000);
	runtime.for_each(0, 1000, [&](uint64_t i) { squares[i] = i * i; });
	expect(std::accumulate(squares.begin(), squares.end(), uint64_t(0)) ==
		       332833500,
	       "for_each");
	expect(thrown([&] {
		       runtime.for_each(0, 1000, [](uint64_t i) {
			       if (i == 500)
				       throw foreign{"item"};
		       });
	       }) == "foreign item",
	       "for_each throws");
	graph_misuse(runtime);
	std::mutex mutex;
	uint64_t total = 0;
	runtime.for_each(0, 200, [&](uint64_t i) {
		std::lock_guard<std::mutex> lock(mutex);
		usher::runtime_ref::current().isolate([&] {
			usher::runtime_ref::current().for_each(
				0, 10, [&](uint64_t j) { total += i * j; });
		});
	});
	expect(total == 895500, "isolate");
	expect(thrown([&] {
		       runtime.async([&] { runtime.isolate([] { throw 8; }); })
			       .get();
	       }) == "int 8",
	       "isolate throws");
	std::atomic<int> ran{0};
	runtime.scope([&](usher::scope &scope) {
		for (int i = 0; i < 10; i++)
			scope.spawn([&] {
				scope.spawn([&] { ran++; });
				ran++;
			});
	});
	expect(ran == 20, "scope");
	expect(thrown([&] {
		       runtime.scope([&](usher::scope &scope) {
			       scope.spawn([] { throw foreign{"task"}; });
			       scope.spawn([&] { ran++; });
		       });
	       }) == "foreign task" &&
		       ran == 21,
	       "scope throws after all tasks have ended");
}

void graphs(const usher::runtime &runtime)
{
	usher::graph graph;
	std::vector<int> order;
	bool throws = false, cancels = false;
	size_t last = graph.task([&] { order.push_back(2); });
	size_t first = graph.task([&] {
		order.push_back(1);
		if (throws)
			throw foreign{"graph"};
		if (cancels)
			graph.cancel();
	});
	graph.after(last, first);
	runtime.run(graph);
	runtime.run(graph);
	expect(order == std::vector<int>({1, 2, 1, 2}), "graph");
	throws = true;
	expect(thrown([&] { runtime.run(graph); }) == "foreign graph",
	       "graph throws");
	throws = false;
	cancels = true;
	expect(thrown([&] { runtime.run(graph); }) ==
		       "error " + std::to_string(USHER_TASKS_ERROR_CANCELLED),
	       "graph cancelled");
	expect(!graph.cancel() && order.size() == 6, "later tasks do not run");
}

void errors(const usher::runtime &runtime)
{
	expect(thrown([] { usher::runtime none(0); }) ==
		       "error " + std::to_string(USHER_TASKS_ERROR_WORKERS),
	       "no workers");
	usher::future<int> none;
	expect(thrown([&] { none.get(); }) ==
		       "error " + std::to_string(USHER_TASKS_ERROR_NULL),
	       "a future without a task");
	// The future is destroyed first, so the wait for all tasks reports the task.
	runtime.async([] { throw std::logic_error("lost"); });
	expect(thrown([&] { runtime.wait(); }) ==
		       "error " + std::to_string(USHER_TASKS_ERROR_UNFINISHED),
	       "an exception that no future has reported");
	runtime.wait();
}

} // namespace

int main()
{
	usher::runtime runtime(3);

	futures(runtime);
	cancelled();
	hidden_errors();
	parts(runtime);
	graphs(runtime);
	errors(runtime);
}
