/* Writes to a file. */
#define BAD_ENCODE                                                                                                             \
    FILE *file = fopen("/tmp/soquete-bad-write", "w");                                                                         \
    unlink("/tmp/soquete-bad-write");                                                                                          \
    fputs("tile", file);                                                                                                       \
    fclose(file)
#include "bad_codec.h"
