// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A C++17 wrapper of usher_tasks.h, in this header alone: runtimes, futures and
// graphs that free themselves, lambdas as tasks, and exceptions that reach the
// thread that waits.
//
//     #include <usher_tasks.hpp>
//
//     usher::runtime runtime(4);
//     auto left = runtime.async([] { return decode(0); });
//     auto right = runtime.async([] { return decode(1); });
//     int sum = left.get() + right.get();
//
// - An exception of any type that leaves a task, a function of a join, a loop, a
//   scope or a graph is carried to the caller that waits, which rethrows it. Of
//   several exceptions of one call, the caller gets the first. An exception that
//   comes from another language and that C++ cannot copy becomes a usher::error.
// - A failed call of the library throws a usher::error with the code of enum
//   usher_tasks_error and the text of usher_tasks_last_error(). Lack of memory for
//   an object of the wrapper throws std::bad_alloc.
// - The rules of usher_tasks.h for locks, waits and forks apply.
#ifndef USHER_TASKS_HPP
#define USHER_TASKS_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "usher_tasks.h"

namespace usher
{

// A failed call of the library.
class error : public std::runtime_error
{
      public:
	error(int code, const char *text)
	    : std::runtime_error(text), code_(code)
	{
	}

	// Returns the code, of enum usher_tasks_error.
	int code() const noexcept
	{
		return code_;
	}

      private:
	int code_;
};

// Throws a usher::error if a call of the library has failed.
inline void check(int code)
{
	if (code != USHER_TASKS_OK)
		throw error(code, usher_tasks_last_error());
}

// The groups of a task: hints on which tasks belong together. Instead of a
// temporal group, t may be USHER_TASKS_PRIORITY_HIGH or USHER_TASKS_PRIORITY_LOW.
struct groups {
	uint32_t t = 0;
	uint32_t s = 0;
};

namespace detail
{

// The first exception of several functions.
class first_exception
{
      public:
	// Calls a function, and keeps its exception. Marks the calling task as failed.
	template <typename F> void run(F &&function) noexcept
	{
		try {
			std::forward<F>(function)();
		} catch (const std::exception &e) {
			set(std::current_exception(), e.what());
		} catch (...) {
			set(std::current_exception(),
			    "an exception that is no std::exception");
		}
	}

	// Rethrows the exception, or throws a usher::error for the code of the call.
	void rethrow(int code)
	{
		if (exception_)
			std::rethrow_exception(exception_);
		check(code);
	}

      private:
	void set(std::exception_ptr exception, const char *message) noexcept
	{
		{
			std::lock_guard<std::mutex> lock(mutex_);
			if (!exception_)
				exception_ = std::move(exception);
		}
		usher_tasks_fail(message);
	}

	std::mutex mutex_;
	std::exception_ptr exception_;
};

// Stands for void where a value is stored.
struct none {
};

template <typename R>
using stored = std::conditional_t<std::is_void_v<R>, none, R>;

// The result of a task, which the task and its future share.
template <typename R> struct outcome {
	std::optional<stored<R>> value;
	first_exception exception;
};

// A function with the place of its result.
template <typename F, typename R> struct call {
	F function;
	std::shared_ptr<outcome<R>> to;

	static void *run(void *arg)
	{
		std::unique_ptr<call> own(static_cast<call *>(arg));
		own->to->exception.run([&] {
			if constexpr (std::is_void_v<R>) {
				own->function();
				own->to->value.emplace();
			} else {
				own->to->value.emplace(own->function());
			}
		});
		return nullptr;
	}

	static void discard(void *arg)
	{
		delete static_cast<call *>(arg);
	}
};

struct destroy {
	void operator()(usher_tasks_runtime *runtime) const
	{
		usher_tasks_runtime_destroy(runtime);
	}
	void operator()(usher_tasks_slot *slot) const
	{
		usher_tasks_slot_destroy(slot);
	}
	void operator()(usher_tasks_builder *builder) const
	{
		usher_tasks_builder_destroy(builder);
	}
	void operator()(usher_tasks_graph *graph) const
	{
		usher_tasks_graph_destroy(graph);
	}
};

template <typename T> using owner = std::unique_ptr<T, destroy>;

} // namespace detail

// The result of a task. A future can be moved, and waited for by one thread at a
// time. The task runs also if its future is destroyed.
template <typename R> class future
{
      public:
	future() = default;

	// Returns whether get() may be called.
	bool valid() const noexcept
	{
		return static_cast<bool>(slot_);
	}

	// Waits for the task. Does not throw the task's exception; throws if the wait
	// is rejected, or if the task was cancelled.
	void wait() const
	{
		int code = usher_tasks_slot_wait(slot_.get(), nullptr);
		if (code != USHER_TASKS_ERROR_FAILED)
			check(code);
	}

	// Waits for the task, and returns its result or rethrows its exception. May be
	// called once; after a rejected wait, again.
	R get()
	{
		int code = usher_tasks_slot_wait(slot_.get(), nullptr);
		if (code != USHER_TASKS_OK && code != USHER_TASKS_ERROR_FAILED)
			check(code);
		auto outcome = std::move(outcome_);
		slot_.reset();
		outcome->exception.rethrow(code);
		if constexpr (!std::is_void_v<R>)
			return std::move(*outcome->value);
	}

	// Returns the state of the task, of enum usher_tasks_status; -1 if the future
	// is not valid.
	int status() const noexcept
	{
		return usher_tasks_slot_status(slot_.get());
	}

	// Cancels the task if it has not begun, and returns whether it was cancelled.
	bool cancel() noexcept
	{
		return usher_tasks_slot_cancel(slot_.get()) == USHER_TASKS_OK;
	}

	// Returns the slot of usher_tasks_wait.h, which the future owns.
	usher_tasks_slot *slot() const noexcept
	{
		return slot_.get();
	}

      private:
	friend class runtime_ref;

	detail::owner<usher_tasks_slot> slot_;
	std::shared_ptr<detail::outcome<R>> outcome_;
};

// Waits for all tasks of a range of futures. Does not throw exceptions of tasks.
// Throws if a wait is rejected, or if a task was cancelled.
template <typename Futures> void wait_all(const Futures &futures)
{
	std::vector<usher_tasks_slot *> slots;

	for (const auto &future : futures)
		slots.push_back(future.slot());
	int code = usher_tasks_slot_wait_all(slots.data(), slots.size());
	if (code != USHER_TASKS_ERROR_FAILED)
		check(code);
	if (code == USHER_TASKS_OK)
		return;
	// The error of the first failed task hides the errors of later waits.
	for (const auto &future : futures)
		future.wait();
}

// Spawns tasks that end before runtime_ref::scope() returns.
class scope
{
      public:
	scope(const scope &) = delete;
	scope &operator=(const scope &) = delete;

	// Spawns a task, which may refer to variables that exist before the scope.
	template <typename F> void spawn(F &&function)
	{
		using Task = std::pair<scope *, std::decay_t<F>>;
		auto own =
			std::make_unique<Task>(this, std::forward<F>(function));
		auto run = [](usher_tasks_scope *, void *arg) {
			std::unique_ptr<Task> task(static_cast<Task *>(arg));
			task->first->exception_.run([&] { task->second(); });
		};
		check(usher_tasks_scope_spawn(handle_, run, own.get()));
		own.release();
	}

      private:
	friend class runtime_ref;

	scope() = default;

	usher_tasks_scope *handle_ = nullptr;
	detail::first_exception exception_;
};

class graph;

// A runtime that this object does not own.
class runtime_ref
{
      public:
	explicit runtime_ref(usher_tasks_runtime *handle) : handle_(handle)
	{
	}

	// Returns the runtime of the calling task; a null runtime outside tasks.
	static runtime_ref current()
	{
		return runtime_ref(usher_tasks_current());
	}

	usher_tasks_runtime *handle() const noexcept
	{
		return handle_;
	}

	unsigned workers() const noexcept
	{
		return usher_tasks_workers(handle_);
	}

	// Submits a task, and returns the future of its result.
	template <typename F> auto async(F &&function, groups of = {}) const
	{
		using Function = std::decay_t<F>;
		using R = std::invoke_result_t<Function &>;
		static_assert(!std::is_reference_v<R>,
			      "a task returns a value, not a reference");
		using Call = detail::call<Function, R>;
		future<R> result;
		usher_tasks_slot *slot;

		result.outcome_ = std::make_shared<detail::outcome<R>>();
		std::unique_ptr<Call> own(
			new Call{std::forward<F>(function), result.outcome_});
		check(usher_tasks_submit_slot(handle_, Call::run, own.get(),
					      Call::discard, of.t, of.s,
					      &slot));
		own.release();
		result.slot_.reset(slot);
		return result;
	}

	// Waits until no submitted task is ready or running. Throws a usher::error if
	// tasks have failed and no future has reported them.
	void wait() const
	{
		check(usher_tasks_wait(handle_, nullptr));
	}

	// Runs both functions, at the same time if a worker is idle.
	template <typename F, typename G> void join(F &&first, G &&second) const
	{
		using First = std::remove_reference_t<F>;
		using Second = std::remove_reference_t<G>;
		detail::first_exception exception;
		auto one = std::make_pair(&exception, &first);
		auto other = std::make_pair(&exception, &second);
		auto run_first = [](void *arg) {
			auto *to = static_cast<decltype(one) *>(arg);
			to->first->run([&] { (*to->second)(); });
		};
		auto run_second = [](void *arg) {
			auto *to = static_cast<decltype(other) *>(arg);
			to->first->run([&] { (*to->second)(); });
		};
		static_assert(std::is_invocable_v<First &> &&
			      std::is_invocable_v<Second &>);
		exception.rethrow(usher_tasks_join(handle_, run_first, &one,
						   run_second, &other));
	}

	// Calls body(begin, end) for blocks of the range, in parallel.
	template <typename F>
	void for_blocks(uint64_t begin, uint64_t end, F &&body) const
	{
		detail::first_exception exception;
		auto pair = std::make_pair(&exception, &body);
		auto run = [](uint64_t from, uint64_t to, void *arg) {
			auto *of = static_cast<decltype(pair) *>(arg);
			of->first->run([&] { (*of->second)(from, to); });
		};
		exception.rethrow(
			usher_tasks_for(handle_, begin, end, run, &pair));
	}

	// Calls body(item) for each item of the range, in parallel.
	template <typename F>
	void for_each(uint64_t begin, uint64_t end, F &&body) const
	{
		for_blocks(begin, end, [&](uint64_t from, uint64_t to) {
			for (uint64_t item = from; item < to; item++)
				body(item);
		});
	}

	// Opens a scope: calls body(scope), and returns after all tasks that were
	// spawned in the scope have ended.
	template <typename F> void scope(F &&body) const
	{
		usher::scope own;
		auto pair = std::make_pair(&own, &body);
		auto run = [](usher_tasks_scope *handle, void *arg) {
			auto *of = static_cast<decltype(pair) *>(arg);
			of->first->handle_ = handle;
			of->first->exception_.run(
				[&] { (*of->second)(*of->first); });
		};
		own.exception_.rethrow(
			usher_tasks_scope_run(handle_, run, &pair));
	}

	// Calls a function in an isolate region: nested waits in the region run only
	// tasks that were created in it, so a task may hold a lock over them.
	template <typename F> void isolate(F &&function) const
	{
		// Has a value if the function throws; of an exception of another language,
		// the value is null.
		std::optional<std::exception_ptr> exception;
		auto pair = std::make_pair(&exception, &function);
		auto run = [](void *arg) {
			auto *of = static_cast<decltype(pair) *>(arg);
			try {
				(*of->second)();
			} catch (...) {
				*of->first = std::current_exception();
			}
		};
		check(usher_tasks_isolate(handle_, run, &pair));
		if (exception && *exception)
			std::rethrow_exception(*exception);
		if (exception)
			throw error(USHER_TASKS_ERROR_FAILED,
				    "an exception of another language");
	}

	// Runs a graph, and returns when all its tasks have run. Throws a usher::error
	// with the code USHER_TASKS_ERROR_BUSY if the graph is being run.
	inline void run(graph &tasks) const;

      private:
	usher_tasks_runtime *handle_;
};

// Tasks with dependencies, which are declared once and can be run repeatedly. The
// destructor ends the process if the graph is being run.
class graph
{
      public:
	graph()
	{
		usher_tasks_builder *builder;

		check(usher_tasks_builder_new(&builder));
		builder_.reset(builder);
	}

	~graph()
	{
		if (is_running_)
			std::terminate();
	}

	graph(const graph &) = delete;
	graph &operator=(const graph &) = delete;

	// Declares a task, and returns its number. Throws std::logic_error after the
	// first run has begun.
	template <typename F> size_t task(F &&function, groups of = {})
	{
		size_t number;

		check_not_built();
		tasks_.push_back(task_of{this, std::forward<F>(function)});
		check(usher_tasks_builder_task(builder_.get(), call,
					       &tasks_.back(), of.t, of.s,
					       &number));
		return number;
	}

	// Declares that a task runs after another. Throws std::logic_error after the
	// first run has begun.
	void after(size_t task, size_t before)
	{
		check_not_built();
		check(usher_tasks_builder_after(builder_.get(), task, before));
	}

	// Cancels the run that is in progress. Any thread may call it after the first
	// run has begun. Returns whether the run was cancelled; run() then throws a
	// usher::error with the code USHER_TASKS_ERROR_CANCELLED.
	bool cancel() noexcept
	{
		return usher_tasks_graph_cancel(graph_.get()) == USHER_TASKS_OK;
	}

      private:
	friend class runtime_ref;

	struct task_of {
		graph *of;
		std::function<void()> function;
	};

	// Marks the graph as running until it is destroyed.
	class running
	{
	      public:
		explicit running(graph &of) : of_(of)
		{
			if (of_.is_running_.exchange(true))
				throw error(USHER_TASKS_ERROR_BUSY,
					    "the graph is being run");
		}

		~running()
		{
			of_.is_running_ = false;
		}

		running(const running &) = delete;
		running &operator=(const running &) = delete;

	      private:
		graph &of_;
	};

	static void call(void *arg)
	{
		auto *task = static_cast<task_of *>(arg);
		task->of->exception_->run([&] { task->function(); });
	}

	void check_not_built() const
	{
		if (graph_)
			throw std::logic_error("a graph cannot be changed "
					       "after its first run has begun");
	}

	void build()
	{
		usher_tasks_graph *built;

		if (graph_)
			return;
		check(usher_tasks_builder_build(builder_.get(), &built,
						nullptr));
		graph_.reset(built);
	}

	detail::owner<usher_tasks_builder> builder_;
	// The addresses of the tasks do not change.
	std::deque<task_of> tasks_;
	std::unique_ptr<detail::first_exception> exception_;
	detail::owner<usher_tasks_graph> graph_;
	std::atomic<bool> is_running_{false};
};

inline void runtime_ref::run(graph &tasks) const
{
	graph::running running(tasks);

	tasks.build();
	tasks.exception_ = std::make_unique<detail::first_exception>();
	tasks.exception_->rethrow(
		usher_tasks_run(handle_, tasks.graph_.get(), nullptr));
}

// The options of the library, with their defaults.
inline usher_tasks_options default_options(unsigned workers)
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(workers);
	return options;
}

// A runtime with workers. The destructor runs all ready tasks and ends the workers.
class runtime : public runtime_ref
{
      public:
	// Starts this number of workers; by default one per CPU.
	explicit runtime(unsigned workers = usher_tasks_cpus())
	    : runtime(default_options(workers))
	{
	}

	explicit runtime(const usher_tasks_options &options)
	    : runtime_ref(start(options)), own_(handle())
	{
	}

      private:
	static usher_tasks_runtime *start(const usher_tasks_options &options)
	{
		usher_tasks_runtime *handle;

		check(usher_tasks_runtime_new(&options, &handle));
		return handle;
	}

	detail::owner<usher_tasks_runtime> own_;
};

} // namespace usher

#endif
