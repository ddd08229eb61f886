/* A half-open range of bytes in a text. */
#ifndef SOQ_TEXT_SPAN_H
#define SOQ_TEXT_SPAN_H

#include <stddef.h>

struct soq__span {
    size_t start, end; /* bytes [start, end) */
};

#endif
