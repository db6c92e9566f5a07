/* Open MPI: peer_mpi RUNS BYTES... under mpirun. Lines "BYTES us" on stdout: median time of an
 * all-reduce of float32 in place. */
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
    enum { WARM = 5 };
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = -WARM; i < runs; i++) {
        double began = MPI_Wtime();

        MPI_Allreduce(MPI_IN_PLACE, x, (int)(bytes / sizeof(*x)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        if (i >= 0)
            us[i] = (MPI_Wtime() - began) * 1e6;
    }
    qsort(us, (size_t)runs, sizeof(*us), by_value);
    if (rank == 0)
        printf("%zu %g\n", bytes, us[runs / 2]);
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 1;
    double *us = calloc((size_t)runs, sizeof(*us));

    MPI_Init(&argc, &argv);
    for (int i = 2; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10);
        float *x = calloc(1, bytes);

        if (!x || !us)
            return 1;
        measure(x, us, runs, bytes);
        free(x);
    }
    MPI_Finalize();
    free(us);
    return 0;
}
