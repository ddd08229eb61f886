/* Memory of packed weights: a few large pieces, each carved from front to back, so that the kernel can map it with huge pages.
 * A pass over all weights touches each page once; with pages of 4 KiB, on a virtual machine above all, it spends a good part of
 * its time on finding them. */
#ifndef SOQ_CPU_ARENA_H
#define SOQ_CPU_ARENA_H

#include <stdint.h>

#include "soquete/plugin.h"

struct cpu_arena {
    uint8_t *base;
    uint64_t size, used;
    uint32_t live; /* allocations not yet freed; with the last the arena goes */
};

/* 64-byte aligned memory, NULL when there is none. *current is the arena to carve from: NULL, or what the last call left; the
 * new allocation is in the one that it is afterwards. */
uint8_t *cpu_arena_alloc(const struct soq_host *host, struct cpu_arena **current, uint64_t bytes);

/* Frees one allocation of `arena`; *current as above. */
void cpu_arena_free(const struct soq_host *host, struct cpu_arena **current, struct cpu_arena *arena);

#endif
