/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Part of workload.c: the Cholesky factorisation of a symmetric matrix by square tiles. A task
 * works on one tile, and reads up to two others. The tasks are those of the right-looking algorithm
 * (POTRF, TRSM, SYRK and GEMM of LAPACK), in the order of the sequential program. Tiles are stored
 * by columns.
 *
 * Each frame factorises the same matrix, which it restores first. The time of a frame contains the
 * restoration. After the last frame, the factor is compared bit by bit with that of the sequential
 * program, because the order of the tasks of a tile is fixed.
 */

/* Returns the element in row i and column j of a tile. */
#define AT(tile, i, j) ((tile)[(size_t)(j)*side + (i)])

static uint32_t side;
/* The tiles before the factorisation. Only those on and below the diagonal are used. */
static double *matrix;
/* The tiles on which the tasks work. */
static double *factor;
/* The tiles after the factorisation by the sequential program. */
static double *expected;

static double *tile_of(double *of, uint32_t tile)
{
	return of + (size_t)tile * side * side;
}

/* column -= scale * other, for the rows from `from` on. */
static inline void subtract(double *restrict column,
			    const double *restrict other, double scale,
			    uint32_t from)
{
	for (uint32_t i = from; i < side; i++)
		column[i] -= other[i] * scale;
}

static void potrf(double *c)
{
	for (uint32_t j = 0; j < side; j++) {
		for (uint32_t k = 0; k < j; k++)
			subtract(&AT(c, 0, j), &AT(c, 0, k), AT(c, j, k), j);
		AT(c, j, j) = __builtin_sqrt(AT(c, j, j));
		for (uint32_t i = j + 1; i < side; i++)
			AT(c, i, j) /= AT(c, j, j);
	}
}

static void trsm(double *c, const double *a)
{
	for (uint32_t j = 0; j < side; j++) {
		for (uint32_t k = 0; k < j; k++)
			subtract(&AT(c, 0, j), &AT(c, 0, k), AT(a, j, k), 0);
		for (uint32_t i = 0; i < side; i++)
			AT(c, i, j) /= AT(a, j, j);
	}
}

/* c -= a x transposed b; SYRK if a and b are the same tile. */
static void gemm(double *c, const double *a, const double *b)
{
	for (uint32_t j = 0; j < side; j++)
		for (uint32_t k = 0; k < side; k++)
			subtract(&AT(c, 0, j), &AT(a, 0, k), AT(b, j, k), 0);
}

static void run_tile(double *of, const struct tile_task *task)
{
	double *c = tile_of(of, task->tile);

	if (task->kind == TILE_POTRF)
		potrf(c);
	else if (task->kind == TILE_TRSM)
		trsm(c, tile_of(of, task->reads[0]));
	else
		gemm(c, tile_of(of, task->reads[0]),
		     tile_of(of, task->reads[task->read_count - 1]));
}

void workload_tile(uint32_t task)
{
	run_tile(factor, &work.tile_tasks[task]);
}

static size_t matrix_bytes(void)
{
	return (size_t)work.tiles * work.tiles * side * side * sizeof(double);
}

/* Lists the tasks. Returns false if there is not enough memory. */
static bool list_tile_tasks(void)
{
	const uint32_t n = work.tiles;
	struct tile_task *tasks =
		calloc((size_t)n * (n + 1) * (n + 2) / 6, sizeof(*tasks));
	uint32_t count = 0;

	if (!tasks)
		return false;
	for (uint32_t k = 0; k < n; k++) {
		const uint32_t diagonal = k * n + k;

		tasks[count++] =
			(struct tile_task){TILE_POTRF, diagonal, {0}, 0};
		for (uint32_t i = k + 1; i < n; i++)
			tasks[count++] = (struct tile_task){
				TILE_TRSM, i * n + k, {diagonal}, 1};
		for (uint32_t i = k + 1; i < n; i++)
			for (uint32_t j = k + 1; j <= i; j++)
				tasks[count++] = (struct tile_task){
					TILE_GEMM,
					i * n + j,
					{i * n + k, j * n + k},
					i == j ? 1 : 2};
	}
	work.tile_tasks = tasks;
	work.tasks = count;
	return true;
}

/* Fills the matrix, whose diagonal dominates, and factorises a copy by the sequential program. */
static bool make_matrix(void)
{
	const uint32_t n = work.tiles, order = n * side;

	matrix = aligned_alloc(PAGE_BYTES, matrix_bytes());
	factor = aligned_alloc(PAGE_BYTES, matrix_bytes());
	expected = aligned_alloc(PAGE_BYTES, matrix_bytes());
	if (!matrix || !factor || !expected)
		return false;
	for (uint32_t row = 0; row < order; row++)
		for (uint32_t column = 0; column < order; column++) {
			double *tile =
				tile_of(matrix, row / side * n + column / side);
			uint32_t mixed = (row ^ column) * 2654435761u;

			AT(tile, row % side, column % side) =
				row == column ? order : mixed * 0x1p-32;
		}
	memcpy(expected, matrix, matrix_bytes());
	for (uint32_t task = 0; task < work.tasks; task++)
		run_tile(expected, &work.tile_tasks[task]);
	return true;
}

/* Restores the matrix and runs a frame. */
static uint64_t factorise(void *context)
{
	const struct runner *run = context;

	memcpy(factor, matrix, matrix_bytes());
	return run->frame(run->context);
}

static bool time_cholesky(const struct runner *run)
{
	struct runner restoring = {factorise, NULL, (void *)run};
	char name[32];

	if (!make_matrix()) {
		fprintf(stderr, "no memory for a matrix of %zu bytes\n",
			matrix_bytes());
		return false;
	}
	snprintf(name, sizeof(name), "cholesky:%u", side);
	if (time_frames(name, work.tasks, 0, &restoring) == 0)
		return false;
	if (memcmp(factor, expected, matrix_bytes()) == 0)
		return true;
	fprintf(stderr,
		"%s: wrong result: a task ran twice, not at all, or "
		"beside another task of its tiles\n",
		name);
	return false;
}

static bool read_cholesky(int count, char **words)
{
	return count == 2 && read_number(words[0], 1, &work.tiles) &&
	       read_number(words[1], 8, &side) && side % 8 == 0 &&
	       (uint64_t)work.tiles * side <= 1u << 14 && list_tile_tasks();
}
