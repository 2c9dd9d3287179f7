/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The workload that all task runtimes of the benchmark run: a video frame as a wavefront of
 * macroblocks in several stages, or fib, or loops, or a Cholesky factorisation (cholesky.h).
 *
 * 1. A frame in mode CHECK verifies that each task runs once and after the tasks that it waits for.
 * 2. For each case, frames run until the given number of frames and milliseconds is reached, and
 *    each frame is timed. In a case, each task is empty (EMPTY), computes (COMPUTE), or reads and
 *    writes the state of its macroblock (MEMORY).
 * 3. After each case, the state is compared with the expected state.
 * 4. A second frame in mode CHECK follows after the last case.
 *
 * In a case of a loop, each item has a byte of state, to which each frame adds a value that depends
 * on the item. A state that differs from (number of frames x value) shows that an item was left out
 * or ran twice. A case that adds up values checks the sum of each frame.
 */

#include "workload.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_BYTES 64
#define PAGE_BYTES 4096
#define LINE_WORDS (LINE_BYTES / sizeof(uint64_t))

/*
 * Knuth's linear congruential generator, as the arithmetic of mode COMPUTE. No compiler shortens
 * the chain of multiplications, but `lcg_after` computes the result of many steps directly.
 */
#define LCG_FACTOR 6364136223846793005u
#define LCG_SUMMAND 1442695040888963407u

enum mode { EMPTY, COMPUTE, MEMORY, CHECK };

struct task_case {
	const char *word;
	enum mode mode;
	/* COMPUTE: number of steps of a task; MEMORY: bytes of the state of a macroblock. */
	uint32_t size;
};

uint32_t workload_mode = EMPTY;

static struct workload work;
static uint32_t least_ms, least_frames;
static struct task_case *cases;
static int case_count;

/* State of the present case: `block_words` words for each macroblock. */
static uint64_t *state;
static size_t block_words;
static uint32_t steps;

/* For each task, the number of the last check in which it ran. */
static _Atomic uint32_t *stamps;
static uint32_t check;
static _Atomic uint32_t too_early, twice;

uint32_t workload_predecessors(uint32_t task, uint32_t before[4])
{
	uint32_t row = work.columns * work.stages;
	uint32_t x = task / work.stages % work.columns;
	uint32_t count = 0;

	if (task % work.stages > 0)
		before[count++] = task - 1;
	if (x > 0)
		before[count++] = task - work.stages;
	if (task >= row) {
		before[count++] = task - row;
		if (x + 1 < work.columns)
			before[count++] = task - row + work.stages;
	}
	return count;
}

/*
 * Computes the number of predecessors and the list of successors of each task. Returns false if
 * there is not enough memory.
 */
static bool make_graph(void)
{
	uint32_t *waits = calloc(work.tasks, sizeof(*waits));
	uint32_t *first = calloc((size_t)work.tasks + 1, sizeof(*first));
	uint32_t *successors = calloc(work.tasks, 4 * sizeof(*successors));
	uint32_t *filled = calloc(work.tasks, sizeof(*filled));
	uint32_t before[4];

	stamps = calloc(work.tasks, sizeof(*stamps));
	if (!waits || !first || !successors || !filled || !stamps)
		return false;
	for (uint32_t task = 0; task < work.tasks; task++) {
		waits[task] = workload_predecessors(task, before);
		for (uint32_t i = 0; i < waits[task]; i++)
			first[before[i] + 1]++;
	}
	for (uint32_t task = 0; task < work.tasks; task++)
		first[task + 1] += first[task];
	for (uint32_t task = 0; task < work.tasks; task++) {
		workload_predecessors(task, before);
		for (uint32_t i = 0; i < waits[task]; i++) {
			uint32_t from = before[i];
			successors[first[from] + filled[from]++] = task;
		}
	}
	free(filled);
	work.waits = waits;
	work.first = first;
	work.successors = successors;
	return true;
}

/* How the costs of the items of a loop differ. */
enum costs { EQUAL, RAMP, CLUSTER };

/* The last CLUSTER_SHAREth of the items of a cluster has half of the work. */
#define CLUSTER_SHARE 64u

struct loop_case {
	const char *word;
	enum costs costs;
	bool reduces;
	/* Mean number of steps of an item. */
	uint32_t steps;
};

uint32_t workload_reduces;

static struct loop_case *loops;
static const struct loop_case *loop;
/* A byte for each item. */
static uint8_t *item_states;

static uint32_t steps_of(uint32_t item)
{
	switch (loop->costs) {
	case RAMP:
		return (uint32_t)((uint64_t)item * 2 * loop->steps /
				  work.items);
	case CLUSTER:
		return item >= work.items - work.items / CLUSTER_SHARE
			       ? loop->steps * CLUSTER_SHARE / 2
			       : loop->steps / 2;
	default:
		return loop->steps;
	}
}

static inline uint64_t value_of(uint32_t item)
{
	uint64_t x = item;

	for (uint32_t i = steps_of(item); i > 0; i--)
		x = x * LCG_FACTOR + LCG_SUMMAND;
	return x;
}

/* Returns the odd number that a frame adds to the state of an item with this value. */
static uint8_t added(uint64_t value)
{
	return (uint8_t)(value >> 56) | 1;
}

static inline void run_item(uint32_t item)
{
	item_states[item] += added(value_of(item));
}

uint64_t workload_value(uint32_t item)
{
	return value_of(item);
}

void workload_item(uint32_t item)
{
	run_item(item);
}

void workload_items(uint32_t begin, uint32_t end)
{
	for (uint32_t item = begin; item < end; item++)
		run_item(item);
}

uint64_t workload_values(uint32_t begin, uint32_t end)
{
	uint64_t sum = 0;

	for (uint32_t item = begin; item < end; item++)
		sum += value_of(item);
	return sum;
}

static void check_task(uint32_t task)
{
	uint32_t before[4];
	uint32_t count = workload_predecessors(task, before);

	for (uint32_t i = 0; i < count; i++)
		if (atomic_load(&stamps[before[i]]) != check)
			atomic_fetch_add(&too_early, 1);
	if (atomic_exchange(&stamps[task], check) == check)
		atomic_fetch_add(&twice, 1);
}

void workload_do(uint32_t task)
{
	uint64_t *block;

	if (workload_mode == CHECK) {
		check_task(task);
		return;
	}
	block = state + task / work.stages * block_words;
	if (workload_mode == COMPUTE) {
		uint64_t x = *block;

		for (uint32_t i = 0; i < steps; i++)
			x = x * LCG_FACTOR + LCG_SUMMAND;
		*block = x;
		return;
	}
	for (size_t i = 0; i < block_words; i += LINE_WORDS)
		block[i]++;
}

/*
 * Runs a frame in mode CHECK. Returns whether each task ran exactly once and after the tasks
 * that it waits for; otherwise prints the numbers of wrong tasks.
 */
static bool check_frame(workload_frame *frame, void *context)
{
	uint32_t missing = 0;

	check++;
	too_early = 0;
	twice = 0;
	workload_mode = CHECK;
	frame(context);
	workload_mode = EMPTY;
	for (uint32_t task = 0; task < work.tasks; task++)
		missing += atomic_load(&stamps[task]) != check;
	if (missing == 0 && too_early == 0 && twice == 0)
		return true;
	fprintf(stderr,
		"wrong result: %u tasks did not run, %u tasks ran twice, "
		"%u tasks ran before a task that they wait for\n",
		missing, twice, too_early);
	return false;
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t fib_of(uint32_t n)
{
	uint64_t a = 0, b = 1;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t sum = a + b;

		a = b;
		b = sum;
	}
	return a;
}

/* The functions of a runtime that run frames, with their context. */
struct runner {
	workload_frame *frame;
	workload_settled *settled;
	void *context;
};

/*
 * Runs frames without timing until the runtime has settled. Returns their number, or 0 if a
 * frame returned a wrong value.
 */
static uint64_t warm_up(const struct runner *run, uint64_t value)
{
	uint32_t frames = 0;

	do {
		if (run->frame(run->context) != value)
			return 0;
		frames++;
	} while (run->settled && !run->settled(run->context, frames));
	return frames;
}

/*
 * Runs and times frames until `least_frames` frames and `least_ms` milliseconds are reached, and
 * prints the times. Each frame must return `value`. Returns the number of frames including the warm-up frames, or 0 if a frame
 * returned a wrong value or memory was missing.
 */
static uint64_t time_frames(const char *name, uint64_t tasks, uint64_t value,
			    const struct runner *run)
{
	size_t room = 1024, count = 0;
	uint64_t *times = malloc(room * sizeof(*times));
	uint64_t untimed = warm_up(run, value);
	bool right = untimed > 0;
	uint64_t begun = now_ns(), before = begun, now = begun;

	while (times &&
	       (count < least_frames || now - begun < least_ms * 1000000ull)) {
		right &= run->frame(run->context) == value;
		now = now_ns();
		if (count == room)
			times = realloc(times, (room *= 2) * sizeof(*times));
		if (times)
			times[count++] = now - before;
		before = now;
	}
	if (!times || !right) {
		fprintf(stderr, "%s: %s\n", name,
			right ? "no memory"
			      : "wrong result: not the expected number");
		free(times);
		return 0;
	}
	qsort(times, count, sizeof(*times), by_size);
	printf("%s %llu %zu %llu %llu\n", name, (unsigned long long)tasks,
	       count,
	       (unsigned long long)(times[(count - 1) / 2] + times[count / 2]) /
		       2,
	       (unsigned long long)times[0]);
	fflush(stdout);
	free(times);
	return count + untimed;
}

/* Returns the number that follows x after count steps of the linear congruential generator. */
static uint64_t lcg_after(uint64_t x, uint64_t count)
{
	uint64_t factor = LCG_FACTOR, summand = LCG_SUMMAND;

	for (; count > 0; count >>= 1) {
		if (count & 1)
			x = x * factor + summand;
		summand *= factor + 1;
		factor *= factor;
	}
	return x;
}

/* Returns whether the state is that after `frames` correct frames. */
static bool is_right(enum mode mode, uint64_t frames)
{
	uint64_t runs = frames * work.stages;

	for (uint32_t block = 0; block < work.columns * work.rows; block++) {
		const uint64_t *words = state + block * block_words;

		if (mode == COMPUTE &&
		    words[0] != lcg_after(block, runs * steps))
			return false;
		for (size_t i = 0; mode == MEMORY && i < block_words;
		     i += LINE_WORDS)
			if (words[i] != runs)
				return false;
	}
	return true;
}

static bool time_case(const struct task_case *one, const struct runner *run)
{
	size_t bytes = one->mode == MEMORY ? one->size : LINE_BYTES;
	uint32_t blocks = work.columns * work.rows;
	size_t all =
		(blocks * bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	uint64_t frames;
	bool right;

	steps = one->size;
	block_words = bytes / sizeof(uint64_t);
	state = aligned_alloc(PAGE_BYTES, all);
	if (!state) {
		fprintf(stderr, "%s: no memory for %zu bytes\n", one->word,
			all);
		return false;
	}
	memset(state, 0, all);
	for (uint32_t block = 0; one->mode == COMPUTE && block < blocks;
	     block++)
		state[block * block_words] = block;
	workload_mode = one->mode;
	frames = time_frames(one->word, work.tasks, 0, run);
	workload_mode = EMPTY;
	right = frames > 0 && is_right(one->mode, frames);
	if (frames > 0 && !right)
		fprintf(stderr,
			"%s: wrong result: a task ran twice, not at all, or "
			"beside another task of its macroblock\n",
			one->word);
	free(state);
	return right;
}

/* Returns the value of an item, without its steps. */
static uint64_t expected_value(uint32_t item)
{
	return lcg_after(item, steps_of(item));
}

static bool time_loop(const struct runner *run)
{
	uint64_t frames, sum = 0;
	bool right = true;

	item_states = calloc(work.items, 1);
	if (!item_states) {
		fprintf(stderr, "%s: no memory for %u bytes\n", loop->word,
			work.items);
		return false;
	}
	workload_reduces = loop->reduces;
	for (uint32_t item = 0; loop->reduces && item < work.items; item++)
		sum += expected_value(item);
	frames = time_frames(loop->word, work.items, sum, run);
	for (uint32_t item = 0; !loop->reduces && item < work.items; item++)
		right &= item_states[item] ==
			 (uint8_t)(frames * added(expected_value(item)));
	free(item_states);
	if (frames > 0 && !right)
		fprintf(stderr,
			"%s: wrong result: an item ran twice or not at all\n",
			loop->word);
	return frames > 0 && right;
}

static bool read_number(const char *word, uint32_t least, uint32_t *into)
{
	char *end;
	unsigned long number = strtoul(word, &end, 10);

	*into = (uint32_t)number;
	return *word >= '0' && *word <= '9' && *end == '\0' &&
	       number >= least && number <= INT32_MAX;
}

#include "cholesky.h"

int workload_measure(workload_frame *frame, workload_settled *settled,
		     void *context)
{
	const struct runner run = {frame, settled, context};

	if (work.tiles > 0)
		return !time_cholesky(&run);

	if (work.fib > 0) {
		char name[32];

		/* Each call with n >= 2 is a fork: fib(n + 1) - 1 forks in total. */
		snprintf(name, sizeof(name), "fib:%u", work.fib);
		return time_frames(name, fib_of(work.fib + 1) - 1,
				   fib_of(work.fib), &run) == 0;
	}
	if (work.items > 0) {
		for (loop = loops; loop < loops + case_count; loop++)
			if (!time_loop(&run))
				return 1;
		return 0;
	}
	if (!check_frame(frame, context))
		return 1;
	for (int i = 0; i < case_count; i++)
		if (!time_case(&cases[i], &run))
			return 1;
	return !check_frame(frame, context);
}

static bool read_case(char *word, struct task_case *one)
{
	one->word = word;
	one->size = 0;
	if (strcmp(word, "empty") == 0) {
		one->mode = EMPTY;
		return true;
	}
	one->mode = strncmp(word, "memory:", 7) == 0 ? MEMORY : COMPUTE;
	if (one->mode == COMPUTE && strncmp(word, "compute:", 8) != 0)
		return false;
	return read_number(strchr(word, ':') + 1, 1, &one->size) &&
	       (one->mode == COMPUTE || one->size % LINE_BYTES == 0);
}

static bool read_wavefront(int count, char **words)
{
	if (count < 4 || !read_number(words[0], 1, &work.columns) ||
	    !read_number(words[1], 1, &work.rows) ||
	    !read_number(words[2], 1, &work.stages))
		return false;
	if ((uint64_t)work.columns * work.rows * work.stages > 1u << 28)
		return false;
	work.tasks = work.columns * work.rows * work.stages;
	case_count = count - 3;
	cases = calloc((size_t)case_count, sizeof(*cases));
	for (int i = 0; i < case_count; i++)
		if (!cases || !read_case(words[3 + i], &cases[i]))
			return false;
	return make_graph();
}

static bool read_loop_case(const char *word, struct loop_case *one)
{
	static const char *const costs[] = {"equal:", "ramp:", "cluster:"};

	one->word = word;
	one->reduces = strncmp(word, "sum-", 4) == 0;
	if (!one->reduces && strncmp(word, "for-", 4) != 0)
		return false;
	for (int i = EQUAL; i <= CLUSTER; i++) {
		size_t length = strlen(costs[i]);

		one->costs = (enum costs)i;
		if (strncmp(word + 4, costs[i], length) == 0)
			return read_number(word + 4 + length, 1, &one->steps) &&
			       one->steps <= UINT16_MAX;
	}
	return false;
}

static bool read_loop(int count, char **words)
{
	if (count < 2 || !read_number(words[0], 1, &work.items))
		return false;
	case_count = count - 1;
	loops = calloc((size_t)case_count, sizeof(*loops));
	for (int i = 0; i < case_count; i++)
		if (!loops || !read_loop_case(words[1 + i], &loops[i]))
			return false;
	return true;
}

const struct workload *workload_begin(int count, char **words)
{
	bool read = count >= 5 && read_number(words[0], 1, &work.threads) &&
		    read_number(words[1], 0, &least_ms) &&
		    read_number(words[2], 1, &least_frames);

	if (read && strcmp(words[3], "fib") == 0)
		read = read_number(words[4], 2, &work.fib) && work.fib < 60;
	else if (read && strcmp(words[3], "loop") == 0)
		read = read_loop(count - 4, words + 4);
	else if (read && strcmp(words[3], "cholesky") == 0)
		read = read_cholesky(count - 4, words + 4);
	else
		read = read && strcmp(words[3], "wavefront") == 0 &&
		       read_wavefront(count - 4, words + 4);
	if (read)
		return &work;
	fprintf(stderr, "expected: FORM THREADS MS FRAMES (fib N | wavefront "
			"COLUMNS ROWS STAGES CASE... | loop ITEMS CASE... | "
			"cholesky TILES SIDE), "
			"CASE: empty, compute:STEPS or memory:BYTES; of a "
			"loop: (for|sum)-(equal|ramp|cluster):STEPS\n");
	return NULL;
}
