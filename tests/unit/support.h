/* What unit tests share: where the data lies. */
#ifndef SOQ_TESTS_SUPPORT_H
#define SOQ_TESTS_SUPPORT_H

#include <stdio.h>
#include <stdlib.h>

/* Path of a file under tests/data; valid until the eighth next call. SOQ_TEST_DATA is set by the build. */
static inline const char *soq__test_data(const char *name)
{
    static char paths[8][4096];
    static unsigned next;
    const char *dir = getenv("SOQ_TEST_DATA");
    char *path = paths[next++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", dir ? dir : "tests/data", name);
    return path;
}

#endif
