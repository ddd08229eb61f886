/* NumPy files. */
#include "cli/npy.h"

#include <stdbool.h>
#include <string.h>

#define ALIGN 64  /* data begins at a multiple of it */
#define PREFIX 10 /* magic, version, header length */

static bool is_little_endian(void)
{
    const unsigned short one = 1;

    return *(const unsigned char *)&one == 1;
}

int soq__npy_begin(FILE *file, size_t rows, size_t cols)
{
    char header[256] = "\x93NUMPY\x01";
    int n =
        snprintf(header + PREFIX, sizeof header - PREFIX, "{'descr': '%cf4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                 is_little_endian() ? '<' : '>', rows, cols);
    size_t total = (PREFIX + (size_t)n + 1 + ALIGN - 1) / ALIGN * ALIGN, length = total - PREFIX;

    memset(header + PREFIX + n, ' ', total - PREFIX - (size_t)n);
    header[total - 1] = '\n';
    header[8] = (char)(length & 0xff);
    header[9] = (char)(length >> 8);
    return fwrite(header, 1, total, file) == total ? 0 : -1;
}

int soq__npy_row(FILE *file, const float *row, size_t cols)
{
    return fwrite(row, sizeof *row, cols, file) == cols ? 0 : -1;
}
