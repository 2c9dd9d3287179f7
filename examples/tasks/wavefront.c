/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Computes how many letters must be changed, inserted or deleted to convert one
 * text into another (their edit distance). Each cell of a table depends on its
 * neighbours above and to the left. The table is cut into blocks, and one task
 * computes each block. The blocks that are ready at the same time form a
 * diagonal, the wavefront.
 *
 *     cc -O2 wavefront.c $(pkg-config --cflags --libs usher-tasks) -o wavefront
 *
 * To build without an installed library, run these commands in the root of the
 * source tree:
 *
 *     cargo build --release --package usher-tasks-capi
 *     cc -O2 -I crates/tasks-capi/include examples/tasks/wavefront.c \
 *         target/release/libusher_tasks_capi.a -lpthread -lm -ldl -o wavefront
 *     ./wavefront 2
 */
#include <stdio.h>
#include <stdlib.h>

#include "usher_tasks.h"

#define LETTERS 2048u
#define BLOCK 64u
#define BLOCKS (LETTERS / BLOCK)
#define TEXTS 3

static char one[LETTERS];
static char other[LETTERS];
static unsigned short table[LETTERS + 1][LETTERS + 1];

/* The block that a task computes. */
struct block {
	unsigned row;
	unsigned column;
};

static void make_text(char *text, unsigned seed)
{
	for (unsigned i = 0; i < LETTERS; i++) {
		seed = seed * 1103515245u + 12345u;
		text[i] = "acgt"[seed >> 30];
	}
}

static unsigned least(unsigned a, unsigned b, unsigned c)
{
	unsigned ab = a < b ? a : b;

	return ab < c ? ab : c;
}

/* Computes the cells of rows and columns from..to, inclusive. */
static void compute(unsigned from_row, unsigned to_row, unsigned from_column,
		    unsigned to_column)
{
	for (unsigned y = from_row; y <= to_row; y++)
		for (unsigned x = from_column; x <= to_column; x++)
			table[y][x] = (unsigned short)least(
				table[y - 1][x] + 1u, table[y][x - 1] + 1u,
				table[y - 1][x - 1] +
					(unsigned)(one[y - 1] != other[x - 1]));
}

/* The function of a task: computes a block. */
static void compute_block(void *arg)
{
	const struct block *block = arg;

	compute(block->row * BLOCK + 1, (block->row + 1) * BLOCK,
		block->column * BLOCK + 1, (block->column + 1) * BLOCK);
}

/* Ends the program with a message if a call has failed. */
static void check(int error)
{
	if (error != USHER_TASKS_OK) {
		fprintf(stderr, "wavefront: %s\n", usher_tasks_last_error());
		exit(1);
	}
}

/*
 * Declares the blocks row by row. A block depends on the blocks above and to
 * the left; when both have run, the block diagonally above has run, too. A row
 * of blocks is a temporal group, because its piece of one text and the results
 * of the row above are still in the cache that the cores share. A column of
 * blocks is a spatial group: its piece of the other text stays in the cache of
 * one core.
 */
static usher_tasks_graph *declare(struct block *blocks)
{
	usher_tasks_builder *builder;
	usher_tasks_graph *graph;

	check(usher_tasks_builder_new(&builder));
	for (unsigned i = 0; i < BLOCKS * BLOCKS; i++) {
		struct block *block = &blocks[i];
		size_t task;

		block->row = i / BLOCKS;
		block->column = i % BLOCKS;
		check(usher_tasks_builder_task(builder, compute_block, block,
					       block->row + 1,
					       block->column + 1, &task));
		if (block->row > 0)
			check(usher_tasks_builder_after(builder, task,
							task - BLOCKS));
		if (block->column > 0)
			check(usher_tasks_builder_after(builder, task,
							task - 1));
	}
	check(usher_tasks_builder_build(builder, &graph, NULL));
	usher_tasks_builder_destroy(builder);
	return graph;
}

/* Returns the number of workers: by default one per CPU. */
static unsigned workers_of(int argc, char **argv)
{
	char *end;
	unsigned long workers;

	if (argc < 2)
		return usher_tasks_cpus();
	workers = strtoul(argv[1], &end, 10);
	if (argc > 2 || end == argv[1] || *end || workers < 1 ||
	    workers > 1024) {
		fprintf(stderr, "usage: %s [WORKERS], 1 to 1024: not %s\n",
			argv[0], argv[argc - 1]);
		exit(2);
	}
	return (unsigned)workers;
}

int main(int argc, char **argv)
{
	usher_tasks_options options =
		USHER_TASKS_OPTIONS_INIT(workers_of(argc, argv));
	static struct block blocks[BLOCKS * BLOCKS];
	usher_tasks_runtime *runtime;
	usher_tasks_graph *graph;

	check(usher_tasks_runtime_new(&options, &runtime));
	graph = declare(blocks);
	for (unsigned i = 0; i <= LETTERS; i++)
		table[i][0] = table[0][i] = (unsigned short)i;
	for (unsigned text = 0; text < TEXTS; text++) {
		unsigned distance;

		make_text(one, 2 * text + 1);
		make_text(other, 2 * text + 2);
		check(usher_tasks_run(runtime, graph, NULL));
		distance = table[LETTERS][LETTERS];
		compute(1, LETTERS, 1, LETTERS);
		printf("texts %u: distance %u of %u, sequential %u\n", text,
		       distance, LETTERS, (unsigned)table[LETTERS][LETTERS]);
	}
	check(usher_tasks_graph_destroy(graph));
	check(usher_tasks_runtime_destroy(runtime));
	return 0;
}
