/* Sizes of memory as people read them. */
#ifndef SOQ_BASE_SIZE_H
#define SOQ_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* "1.2 MiB" into buf, which is returned. */
const char *soq__size_text(uint64_t bytes, char *buf, size_t size);

enum { SOQ__SIZE_TEXT_MAX = 24 };
/* The same, valid in the block where it stands. */
#define SOQ__SIZE(bytes) soq__size_text((bytes), (char[SOQ__SIZE_TEXT_MAX]){0}, SOQ__SIZE_TEXT_MAX)

#endif
