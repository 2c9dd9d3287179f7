/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * omp WAIT WORK: an OpenMP program, for tests of seats that change between two steps of the OpenMP
 * runtime. The runtime reads its affinity mask at the start of the program. The program then waits
 * for WAIT seconds, in which its seat may change. After that, the runtime creates its threads and
 * binds them to the CPUs of the old mask (OMP_PROC_BIND). The threads compute for WORK seconds.
 * SIGALRM ends the program after 120 s.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	double wait = argc > 1 ? atof(argv[1]) : 0, end;
	long units = 0;

	alarm(120);
	if (omp_get_num_procs() < 1)
		return 2;
	usleep((useconds_t)(wait * 1e6));
	end = now() + (argc > 2 ? atof(argv[2]) : 1);
	while (now() < end) {
#pragma omp parallel reduction(+ : units)
		{
			for (volatile int i = 0; i < 200000; i++)
				;
			units++;
		}
	}
	printf("%ld units\n", units);
	return 0;
}
