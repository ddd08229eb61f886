/* malloc with overflow checks, a count of live blocks and a failure hook for torture tests; large aligned blocks are
 * mapped instead, so that they go back to the system. */
#include "base/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_uint_fast64_t total;
static atomic_int_fast64_t live;
static atomic_uint_fast64_t fail_at; /* absolute allocation number, 0 = off */
static atomic_bool fail_all_after;

bool soq__mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool soq__add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

void soq__alloc_fail_at(uint64_t n, bool all_after)
{
    atomic_store(&fail_all_after, all_after);
    atomic_store(&fail_at, n ? atomic_load(&total) + n : 0);
}

uint64_t soq__alloc_count(void)
{
    return atomic_load(&total);
}

int64_t soq__alloc_live(void)
{
    return atomic_load(&live);
}

static bool must_fail(void)
{
    uint64_t number = atomic_fetch_add(&total, 1) + 1;
    uint64_t at = atomic_load(&fail_at);

    return at && (number == at || (number > at && atomic_load(&fail_all_after)));
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&live, 1);
    return p;
}

void *soq__alloc(size_t size)
{
    return must_fail() ? NULL : counted(malloc(size ? size : 1));
}

void *soq__alloc_zero(size_t count, size_t size)
{
    return must_fail() ? NULL : counted(calloc(count ? count : 1, size ? size : 1));
}

void *soq__alloc_array(size_t count, size_t size)
{
    size_t bytes;

    return soq__mul_size(count, size, &bytes) ? soq__alloc(bytes) : NULL;
}

void *soq__realloc_array(void *p, size_t count, size_t size)
{
    size_t bytes;
    void *q;

    if (!p)
        return soq__alloc_array(count, size);
    if (!soq__mul_size(count, size, &bytes) || must_fail())
        return NULL;
    q = realloc(p, bytes ? bytes : 1);
    return q;
}

/* ---- Large blocks -------------------------------------------------------------------------------------------------------- */

/* malloc raises its threshold for mappings whenever one is freed, takes slabs from its heap from then on, and keeps them there
 * when they are freed. */
struct mapping {
    struct mapping *next;
    char *p;
    size_t size; /* whole pages */
};

enum { LARGE = 1 << 20 };

static struct mapping *mappings; /* the newest first */
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* size: whole pages; align: a page or more, so that what is cut off at both ends is whole pages, too. */
static char *map_aligned(size_t align, size_t size)
{
    size_t span, before;
    char *p;

    if (!soq__add_size(size, align, &span))
        return NULL;
    p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)p & (align - 1);
    if (before)
        munmap(p, before);
    munmap(p + before + size, align - before);
    return p + before;
}

static void *map(size_t align, size_t size)
{
    size_t page = page_size(), padded;
    struct mapping *m = soq__add_size(size, page - 1, &padded) ? malloc(sizeof *m) : NULL;

    if (!m)
        return NULL;
    m->size = padded / page * page;
    m->p = map_aligned(align > page ? align : page, m->size);
    if (!m->p) {
        free(m);
        return NULL;
    }
    pthread_mutex_lock(&mappings_lock);
    m->next = mappings;
    mappings = m;
    pthread_mutex_unlock(&mappings_lock);
    return m->p;
}

/* false: p is malloc's. */
static bool unmap(const void *p)
{
    struct mapping **at = &mappings, *m;

    if ((uintptr_t)p % page_size())
        return false;
    pthread_mutex_lock(&mappings_lock);
    while (*at && (*at)->p != p)
        at = &(*at)->next;
    m = *at;
    if (m)
        *at = m->next;
    pthread_mutex_unlock(&mappings_lock);
    if (!m)
        return false;
    munmap(m->p, m->size);
    free(m);
    return true;
}

void *soq__alloc_aligned(size_t align, size_t size)
{
    void *p = NULL;

    if (must_fail())
        return NULL;
    if (size >= LARGE)
        return counted(map(align, size));
    return posix_memalign(&p, align, size ? size : 1) ? NULL : counted(p);
}

char *soq__strndup(const char *s, size_t n)
{
    size_t bytes;
    char *copy;

    if (!soq__add_size(n, 1, &bytes) || !(copy = soq__alloc(bytes)))
        return NULL;
    if (n)
        memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *soq__strdup(const char *s)
{
    return soq__strndup(s, strlen(s));
}

void soq__free(void *p)
{
    if (!p)
        return;
    atomic_fetch_sub(&live, 1);
    if (!unmap(p))
        free(p);
}
