/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Simulates the spread of heat over a square plate, by parallel OpenMP loops
 * with a barrier after each loop. Usher's OMPT tool measures the useful and the
 * waiting time of the threads, without any change to the program. The OpenMP
 * runtime must support OMPT, as LLVM's runtime does; GCC's runtime does not.
 * From the root of the repository:
 *
 *     clang -O2 -fopenmp -o heat examples/openmp/heat.c
 *     OMP_NUM_THREADS=2 usher run -- ./heat 1000 2000
 */
#include <stdio.h>
#include <stdlib.h>

#define SIDE_MAX 20000

/*
 * Computes one time step from `from` to `to`. The edge of the plate keeps its
 * temperature.
 */
static void step(int size, const double *from, double *to)
{
#pragma omp parallel for
	for (int row = 1; row < size - 1; row++)
		for (int column = 1; column < size - 1; column++) {
			const double *at =
				from + (size_t)row * (size_t)size + column;

			to[at - from] =
				0.25 * (at[-size] + at[size] + at[-1] + at[1]);
		}
}

int main(int argc, char **argv)
{
	int size = argc > 1 ? atoi(argv[1]) : 1000;
	int steps = argc > 2 ? atoi(argv[2]) : 1000;
	size_t cells = (size_t)size * (size_t)size;
	double *plate[2];

	if (size < 3 || size > SIDE_MAX || steps < 1) {
		fprintf(stderr, "usage: heat [SIZE (3..%d) [STEPS (1..)]]\n",
			SIDE_MAX);
		return 2;
	}
	plate[0] = calloc(cells, sizeof(double));
	plate[1] = calloc(cells, sizeof(double));
	if (!plate[0] || !plate[1]) {
		fprintf(stderr, "heat: no memory for %zu cells\n", 2 * cells);
		return 1;
	}
	for (int column = 0; column < size; column++)
		plate[0][column] = plate[1][column] = 100.0;
	for (int done = 0; done < steps; done++)
		step(size, plate[done % 2], plate[(done + 1) % 2]);
	printf("%.6f degrees next to the hot edge\n",
	       plate[steps % 2][size + size / 2]);
	free(plate[0]);
	free(plate[1]);
	return 0;
}
