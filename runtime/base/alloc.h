/* The one allocator of the core and, through struct soq_host, of every plugin.
 *
 * All sizes are overflow-checked. The failure hook makes the Nth allocation fail, which is how the torture tests visit every
 * out-of-memory path. Thread-safe. Nothing on the token path allocates. */
#ifndef SOQ_BASE_ALLOC_H
#define SOQ_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *soq__alloc(size_t size);                     /* uninitialised; size 0 gives a unique pointer; NULL if out of memory */
void *soq__alloc_zero(size_t count, size_t size);  /* zeroed; count * size checked */
void *soq__alloc_array(size_t count, size_t size); /* uninitialised; count * size checked */
void *soq__realloc_array(void *p, size_t count, size_t size); /* on failure NULL and p stays valid */
/* align: a power of two >= sizeof(void *); freed with soq__free. A block of 1 MiB or more is a mapping of its own, which goes
 * back to the system when it is freed. */
void *soq__alloc_aligned(size_t align, size_t size);
char *soq__strdup(const char *s);
char *soq__strndup(const char *s, size_t n); /* copies exactly n bytes and adds NUL; s need not be terminated */
void soq__free(void *p);                     /* NULL is a no-op */

/* true if *out holds the result, false on overflow. */
bool soq__mul_size(size_t a, size_t b, size_t *out);
bool soq__add_size(size_t a, size_t b, size_t *out);

/* Tests only: the allocation number n from now (1 = the next) and, if `all_after`, every later one returns NULL; 0 turns it
 * off. soq__alloc_count() counts allocations since start. */
void soq__alloc_fail_at(uint64_t n, bool all_after);
uint64_t soq__alloc_count(void);

/* Live blocks (allocations not yet freed); tests compare it before and after. */
int64_t soq__alloc_live(void);

#endif
