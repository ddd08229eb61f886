#include "arena.h"

#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, ARENA_BYTES = 32 << 20 };

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static struct cpu_arena *create(const struct soq_host *host, uint64_t bytes)
{
    struct cpu_arena *arena = host->alloc(host->ctx, sizeof *arena, 64);

    if (!arena)
        return NULL;
    *arena = (struct cpu_arena){.size = bytes > ARENA_BYTES ? round_up(bytes, HUGE_PAGE) : ARENA_BYTES};
    arena->base = host->alloc(host->ctx, arena->size, HUGE_PAGE);
    if (!arena->base) {
        host->free(host->ctx, arena);
        return NULL;
    }
    madvise(arena->base, arena->size, MADV_HUGEPAGE); /* a wish: small pages do as well */
    return arena;
}

uint8_t *cpu_arena_alloc(const struct soq_host *host, struct cpu_arena **current, uint64_t bytes)
{
    struct cpu_arena *arena = *current;
    uint8_t *p;

    bytes = round_up(bytes, 64);
    if (!arena || arena->size - arena->used < bytes) {
        arena = create(host, bytes);
        if (!arena)
            return NULL;
        *current = arena;
    }
    p = arena->base + arena->used;
    arena->used += bytes;
    arena->live++;
    return p;
}

void cpu_arena_free(const struct soq_host *host, struct cpu_arena **current, struct cpu_arena *arena)
{
    if (--arena->live)
        return;
    if (*current == arena)
        *current = NULL;
    host->free(host->ctx, arena->base);
    host->free(host->ctx, arena);
}
