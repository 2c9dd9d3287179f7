// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes OpenEXR (3.1 or newer) use the workers of a runtime instead of threads of its own:
//
//     IlmThread::ThreadPool::globalThreadPool().setThreadProvider(
//         new usher::openexr_threads(runtime));
//
// OpenEXR owns the provider. The runtime must exist until OpenEXR has deleted the provider: when
// another provider is set, and otherwise when the program ends. Files may be read and written by
// any thread, and by tasks of any runtime. Imf::setGlobalThreadCount(0) replaces the provider.
#ifndef USHER_TASKS_OPENEXR_HPP
#define USHER_TASKS_OPENEXR_HPP

#include <condition_variable>
#include <mutex>

#include <unistd.h>

#include <IlmThreadPool.h>
#include <usher_tasks.h>

namespace usher
{

// Runs the tasks of OpenEXR as submitted tasks of a runtime.
class openexr_threads : public IlmThread::ThreadPoolProvider
{
      public:
	explicit openexr_threads(usher_tasks_runtime *runtime)
	    : runtime_(runtime)
	{
	}

	~openexr_threads() override
	{
		wait();
	}

	// Returns the number of workers; 0 if the runtime is NULL.
	int numThreads() const override
	{
		return static_cast<int>(usher_tasks_workers(runtime_));
	}

	// Has no effect: the number of workers is an option of the runtime.
	void setNumThreads(int) override
	{
	}

	// Submits the task. On a worker of the runtime, the task runs at once in the calling thread:
	// OpenEXR waits for its tasks without running other tasks, and if all workers waited, none
	// would run a task. The same applies if the runtime is NULL or accepts no task, and
	// in the child of a fork(), which has no workers. If usher_tasks_cancel() drops the task, the
	// thread that drops it runs it.
	void addTask(IlmThread::Task *task) override
	{
		if (usher_tasks_worker_index(runtime_) >= 0 ||
		    getpid() != process_)
			return run(task);
		auto *const submitted = new submission{*this, task};
		count(1);
		if (usher_tasks_submit_owned(runtime_, run_submitted, submitted,
					     run_submitted, 0,
					     0) != USHER_TASKS_OK)
			run_submitted(submitted);
	}

	// Waits until all tasks have ended.
	void finish() override
	{
		wait();
	}

      private:
	struct submission {
		openexr_threads &threads;
		IlmThread::Task *task;
	};

	static void run(IlmThread::Task *task)
	{
		IlmThread::TaskGroup *const group = task->group();

		task->execute();
		delete task;
		if (group)
			group->finishOneTask();
	}

	static void run_submitted(void *arg)
	{
		auto *const submitted = static_cast<submission *>(arg);
		openexr_threads &threads = submitted->threads;

		run(submitted->task);
		delete submitted;
		threads.count(-1);
	}

	// Counts tasks that have begun or ended.
	void count(int change)
	{
		const std::lock_guard<std::mutex> lock(mutex_);

		unfinished_ += change;
		// Under the lock, because the waiting thread may then delete this object.
		if (unfinished_ == 0)
			ended_.notify_all();
	}

	// Waits until all tasks have ended. In the child of a fork(), tasks of the parent never end.
	void wait()
	{
		if (getpid() != process_)
			return;
		std::unique_lock<std::mutex> lock(mutex_);

		ended_.wait(lock, [this] { return unfinished_ == 0; });
	}

	usher_tasks_runtime *const runtime_;
	const pid_t process_ = getpid();
	std::mutex mutex_;
	std::condition_variable ended_;
	int unfinished_ = 0;
};

} // namespace usher

#endif
