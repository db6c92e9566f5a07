/* Open MPI: peer_mpi BYTES:RUNS... under mpirun. Lines "BYTES p50 p99" on stdout: microseconds of
 * an all-reduce of float32 in place. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(float *x, double *us, int runs, size_t bytes)
{
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = -runs / 8 - 1; i < runs; i++) {
        double began = MPI_Wtime();

        MPI_Allreduce(MPI_IN_PLACE, x, (int)(bytes / sizeof(*x)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        if (i >= 0)
            us[i] = (MPI_Wtime() - began) * 1e6;
    }
    qsort(us, (size_t)runs, sizeof(*us), by_value);
    if (rank == 0)
        printf("%zu %g %g\n", bytes, us[runs / 2], us[runs * 99 / 100]);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        size_t bytes = 0;
        int runs = 0;
        double *us;
        float *x;

        if (sscanf(argv[i], "%zu:%d", &bytes, &runs) != 2 || runs < 1)
            return 1;
        us = calloc((size_t)runs, sizeof(*us));
        x = calloc(1, bytes);
        if (!x || !us)
            return 1;
        measure(x, us, runs, bytes);
        free(x);
        free(us);
    }
    MPI_Finalize();
    return 0;
}
