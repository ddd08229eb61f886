/* Reads .npy files (format 1.0, little-endian, C order): float32, float64, int32, int64, int8 and uint8, one to three
 * dimensions. */
#ifndef SOQ_TESTS_NPY_H
#define SOQ_TESTS_NPY_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

struct npy {
    char type[4];      /* "<f4", "<f8", "<i4", "<i8", "|i1" or "|u1" */
    size_t rows, cols; /* cols: the last dimension; rows: those before it, multiplied */
    void *data;        /* [rows * cols]; NULL if the file cannot be read, with the reason on stderr */
};

static inline size_t npy_item_size(const struct npy *a)
{
    return (size_t)(a->type[2] - '0');
}

/* The dictionary of the header: {'descr': '<f4', 'fortran_order': False, 'shape': (8, 320), } */
static inline int npy_parse_header(const char *header, struct npy *out)
{
    const char *descr = strstr(header, "'descr': '"), *shape = strstr(header, "'shape': (");
    unsigned long long size[3] = {1, 1, 1};
    int n;

    if (!descr || !shape || !strstr(header, "'fortran_order': False"))
        return -1;
    memcpy(out->type, descr + 10, 3);
    if (!strstr("<f4 <f8 <i4 <i8 |i1 |u1", out->type))
        return -1;
    n = sscanf(shape + 10, "%llu, %llu, %llu", &size[0], &size[1], &size[2]);
    if (n < 1)
        return -1;
    out->cols = (size_t)size[n - 1];
    out->rows = (size_t)(size[0] * size[1] * size[2]) / (out->cols ? out->cols : 1);
    return 0;
}

static inline struct npy npy_read(const char *path)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_buf file = SOQ_BUF_INIT;
    struct npy a = {0};
    char header[1024] = "";
    size_t len = 0, bytes = 0;

    if (soq__file_read(path, 64 << 20, &file, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return a;
    }
    if (file.len > 10 && memcmp(file.data, "\x93NUMPY\1", 7) == 0)
        len = (unsigned char)file.data[8] | (size_t)(unsigned char)file.data[9] << 8;
    if (len > 0 && len < sizeof header && 10 + len <= file.len) {
        memcpy(header, file.data + 10, len);
        if (npy_parse_header(header, &a) == 0)
            bytes = a.rows * a.cols * npy_item_size(&a);
    }
    if (bytes > 0 && 10 + len + bytes == file.len) {
        a.data = soq__alloc(bytes);
        memcpy(a.data, file.data + 10 + len, bytes);
    } else {
        fprintf(stderr, "%s: not a .npy file that this reader knows\n", path);
    }
    soq__buf_done(&file);
    return a;
}

static inline void npy_done(struct npy *a)
{
    soq__free(a->data);
    *a = (struct npy){0};
}

#endif
