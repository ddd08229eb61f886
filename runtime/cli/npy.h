/* Writing a two-dimensional float32 array as a NumPy file (format 1.0), row by row. */
#ifndef SOQ_CLI_NPY_H
#define SOQ_CLI_NPY_H

#include <stddef.h>
#include <stdio.h>

/* The header of a [rows, cols] array; the numbers follow in the machine's own order, which it states. 0, or -1 with errno. */
int soq__npy_begin(FILE *file, size_t rows, size_t cols);
int soq__npy_row(FILE *file, const float *row, size_t cols);

#endif
