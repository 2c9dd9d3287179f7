// SPDX-License-Identifier: MIT OR Apache-2.0
// Tests usher_tasks_openexr.hpp: OpenEXR writes and reads the same with the workers as without
// threads, and waits for its tasks when the provider changes.
#include <atomic>
#include <cstring>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <ImfRgbaFile.h>
#include <ImfThreading.h>
#include <usher_tasks_openexr.hpp>

#include "check.h"

namespace
{

constexpr int side = 500;
constexpr uint32_t workers = 4;

std::vector<Imf::Rgba> image()
{
	std::vector<Imf::Rgba> pixels(side * side);

	for (int at = 0; at < side * side; at++)
		pixels[at] = Imf::Rgba(at % 97 * 0.5f, at / side * 0.25f,
				       at % 7 * 1.0f);
	return pixels;
}

void write(const char *file, const std::vector<Imf::Rgba> &pixels)
{
	Imf::RgbaOutputFile out(file, side, side, Imf::WRITE_RGB);

	out.setFrameBuffer(pixels.data(), 1, side);
	out.writePixels(side);
}

std::vector<Imf::Rgba> read(const char *file)
{
	std::vector<Imf::Rgba> pixels(side * side);
	Imf::RgbaInputFile in(file);

	in.setFrameBuffer(pixels.data(), 1, side);
	in.readPixels(0, side - 1);
	return pixels;
}

std::vector<char> bytes_of(const char *file)
{
	std::FILE *in = std::fopen(file, "rb");
	std::vector<char> bytes(8 << 20);

	CHECK(in);
	bytes.resize(std::fread(bytes.data(), 1, bytes.size(), in));
	std::fclose(in);
	return bytes;
}

bool are_equal(const std::vector<Imf::Rgba> &a, const std::vector<Imf::Rgba> &b)
{
	return !std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0]));
}

// Counts where it runs.
class counted_task : public IlmThread::Task
{
      public:
	counted_task(IlmThread::TaskGroup *group, std::atomic<int> &inside,
		     std::atomic<int> &all)
	    : Task(group), inside_(inside), all_(all)
	{
	}

	void execute() override
	{
		inside_ += usher_tasks_current() != nullptr;
		all_++;
	}

      private:
	std::atomic<int> &inside_;
	std::atomic<int> &all_;
};

// Adds tasks, waits for them, and returns how many ran on workers.
int run_tasks(int count)
{
	std::atomic<int> inside{0}, all{0};
	{
		IlmThread::TaskGroup group;
		for (int at = 0; at < count; at++)
			IlmThread::ThreadPool::addGlobalTask(
				new counted_task(&group, inside, all));
		// The destructor waits for the tasks of the group.
	}
	CHECK(all == count);
	return inside;
}

void write_and_read(void *arg)
{
	const char *const file = static_cast<const char *>(arg);

	write(file, image());
	CHECK(are_equal(read(file), read("alone.exr")));
	CHECK(run_tasks(100) == 100);
}

} // namespace

int main()
{
	usher_tasks_options options = USHER_TASKS_OPTIONS_INIT(workers);
	IlmThread::ThreadPool &pool = IlmThread::ThreadPool::globalThreadPool();
	usher_tasks_runtime *runtime;

	Imf::setGlobalThreadCount(0);
	write("alone.exr", image());
	const std::vector<Imf::Rgba> alone = read("alone.exr");

	CHECK(usher_tasks_runtime_new(&options, &runtime) == USHER_TASKS_OK);
	pool.setThreadProvider(new usher::openexr_threads(runtime));
	CHECK(Imf::globalThreadCount() == static_cast<int>(workers));
	write("threads.exr", image());
	CHECK(bytes_of("threads.exr") == bytes_of("alone.exr"));
	CHECK(are_equal(read("threads.exr"), alone));
	CHECK(run_tasks(1000) == 1000);

	// As many tasks as workers write and read files at the same time.
	char files[workers][16];
	for (uint32_t at = 0; at < workers; at++) {
		std::snprintf(files[at], sizeof(files[at]), "task-%u.exr", at);
		CHECK(usher_tasks_submit(runtime, write_and_read, files[at], 0,
					 0) == USHER_TASKS_OK);
	}
	CHECK(usher_tasks_wait(runtime, nullptr) == USHER_TASKS_OK);
	for (const char *file : files)
		CHECK(bytes_of(file) == bytes_of("alone.exr"));

	// Tasks that are cancelled run, too, on the thread that drops them.
	CHECK(usher_tasks_cancel(runtime, nullptr) == USHER_TASKS_OK);
	CHECK(run_tasks(100) >= 0);
	write("cancelled.exr", image());
	CHECK(bytes_of("cancelled.exr") == bytes_of("alone.exr"));
	CHECK(usher_tasks_wait(runtime, nullptr) == USHER_TASKS_OK);

	// In the child of a fork, and without a runtime, the calling thread runs the tasks.
	const pid_t child = fork();
	if (child == 0)
		_exit(run_tasks(10) == 0 ? 0 : 1);
	int status = 1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	pool.setThreadProvider(new usher::openexr_threads(nullptr));
	CHECK(run_tasks(10) == 0);

	Imf::setGlobalThreadCount(0);
	CHECK(usher_tasks_runtime_destroy(runtime) == USHER_TASKS_OK);
	return 0;
}
