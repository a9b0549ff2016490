/* All-reduces of float32 by MPI: SIZE_BYTES ITERATIONS. Rank 0 prints each one's microseconds, those of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, count = atoi(argv[1]) / 4, iterations = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *own = malloc(4 * (size_t)count), *sum = malloc(4 * (size_t)count);
    double *took = calloc(iterations + 1, sizeof(double)), *slowest = calloc(iterations + 1, sizeof(double));
    for (int i = 0; i < count; i++) own[i] = (float)(rank + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i <= iterations; i++) { /* the first one connects, and is not printed */
        double began = MPI_Wtime();
        MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        took[i] = MPI_Wtime() - began;
    }
    MPI_Reduce(took, slowest, iterations + 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    for (int i = 1; rank == 0 && i <= iterations; i++) printf("took %.1f\n", 1e6 * slowest[i]);
    MPI_Finalize();
    return 0;
}
