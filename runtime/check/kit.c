/* Verdicts and guarded memory. */
#include "check/kit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 64, SLOT_PAGES = 2, LATER = 64, LATER_BYTE = 0xa5, SLACK_BYTE = 0xb9 };

/* ---- Verdicts */

/* Nothing runs on the way out: what the plugin left behind is no longer of interest. */
static _Noreturn void finish(struct soq__kit *kit, enum soq__verdict verdict, const char *at, const char *fmt, va_list args)
{
    struct soq__kit_shared *shared = kit->shared;
    int n = snprintf(shared->reason, sizeof shared->reason, "%s%s", at, *at ? ": " : "");

    vsnprintf(shared->reason + n, sizeof shared->reason - (size_t)n, fmt, args);
    shared->verdict = (int)verdict;
    _exit(0);
}

void soq__kit_fail(struct soq__kit *kit, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    finish(kit, SOQ__FAIL, kit->shared->at, fmt, args);
}

void soq__kit_skip(struct soq__kit *kit, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    finish(kit, SOQ__SKIP, "", fmt, args);
}

void soq__kit_pass(struct soq__kit *kit)
{
    kit->shared->verdict = SOQ__PASS;
    _exit(0);
}

void soq__kit_at(struct soq__kit *kit, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(kit->shared->at, sizeof kit->shared->at, fmt, args);
    va_end(args);
}

void soq__kit_ok(struct soq__kit *kit, const char *what, int rc, const struct soq_error *err)
{
    SOQ__EXPECT(kit, rc == 0, "%s failed: %d (%s), %.*s", what, rc, soq__error_text(rc), (int)sizeof err->text - 1, err->text);
}

void soq__kit_refused(struct soq__kit *kit, const char *what, int rc, int code, const struct soq_error *err)
{
    SOQ__EXPECT(kit, rc != 0, "%s succeeded and must fail%s%s", what, code ? ": " : "", code ? soq__error_text(code) : "");
    SOQ__EXPECT(kit, rc < 0 && rc >= -SOQ_EINTERNAL, "%s returned %d, which is no code of the ABI", what, rc);
    SOQ__EXPECT(kit, !code || rc == code, "%s failed with %d (%s) and must with %d (%s)", what, rc, soq__error_text(rc), code,
                soq__error_text(code));
    SOQ__EXPECT(kit, err->code == rc, "%s returned %d, but left code %d in the error", what, rc, err->code);
    SOQ__EXPECT(kit, memchr(err->text, 0, sizeof err->text), "%s left a message that has no end", what);
    SOQ__EXPECT(kit, *err->text, "%s failed with %d (%s) and no message", what, rc, soq__error_text(rc));
}

/* ---- Memory */

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static unsigned char *map(struct soq__kit *kit, size_t pages)
{
    void *p = mmap(NULL, pages * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    SOQ__EXPECT(kit, p != MAP_FAILED, "the kit is out of memory: %zu pages", pages);
    return p;
}

/* The data ends where the last page begins. */
void *soq__kit_guard(struct soq__kit *kit, size_t bytes, size_t align)
{
    size_t space = (bytes + align - 1) / align * align, pages = (space + page() - 1) / page();
    unsigned char *raw = map(kit, pages + 2), *end = raw + (pages + 1) * page();

    SOQ__EXPECT(kit, !pages || mprotect(raw + page(), pages * page(), PROT_READ | PROT_WRITE) == 0, "the kit is out of memory");
    memset(raw + page(), SLACK_BYTE, pages * page() - space);
    return end - space;
}

void soq__kit_guard_intact(struct soq__kit *kit, const void *p, const char *what)
{
    const unsigned char *data = p;

    for (const unsigned char *at = data; ((uintptr_t)at & (page() - 1)) != 0;)
        SOQ__EXPECT(kit, *--at == SLACK_BYTE, "wrote %td bytes in front of %s", data - at, what);
}

/* The ring of boxes. */
static struct {
    unsigned char *raw;
    unsigned next;
} ring;

static unsigned char *next_slot_end(struct soq__kit *kit)
{
    unsigned char *slot;

    if (!ring.raw)
        ring.raw = map(kit, SLOTS * (SLOT_PAGES + 1));
    slot = ring.raw + (size_t)(ring.next++ % SLOTS) * (SLOT_PAGES + 1) * page();
    SOQ__EXPECT(kit, mprotect(slot, SLOT_PAGES * page(), PROT_READ | PROT_WRITE) == 0, "the kit is out of memory");
    return slot + SLOT_PAGES * page();
}

void *soq__kit_box(struct soq__kit *kit, const void *src, size_t size)
{
    size_t later = kit->newer || kit->relaxed ? LATER : 0;
    unsigned char *box = next_slot_end(kit) - size - later;
    uint32_t struct_size = (uint32_t)(size + (kit->newer ? later : 0));

    memcpy(box, src, size);
    memcpy(box, &struct_size, sizeof struct_size);
    memset(box + size, LATER_BYTE, later);
    return box;
}

void soq__kit_unbox(struct soq__kit *kit, void *box, void *dst, size_t size)
{
    size_t later = kit->newer ? LATER : 0;
    uint32_t struct_size, original = (uint32_t)size;

    memcpy(&struct_size, box, sizeof struct_size);
    SOQ__EXPECT(kit, struct_size == size + later, "changed a struct_size from %zu to %u", size + later, struct_size);
    for (size_t i = 0; i < later; i++)
        SOQ__EXPECT(kit, ((unsigned char *)box)[size + i] == LATER_BYTE, "wrote to a field of later headers, at byte %zu",
                    size + i);
    if (dst) {
        memcpy(dst, box, size);
        memcpy(dst, &original, sizeof original);
    }
    memset(box, LATER_BYTE, size);
}

struct soq_error *soq__kit_error(struct soq__kit *kit)
{
    static const struct soq_error empty;

    return soq__kit_box(kit, &empty, sizeof empty);
}

/* ---- Threads */

struct start {
    void (*fn)(void *arg, uint32_t index);
    void *arg;
    uint32_t index;
};

static void *run_thread(void *arg)
{
    const struct start *start = arg;

    start->fn(start->arg, start->index);
    return NULL;
}

void soq__kit_threads(struct soq__kit *kit, uint32_t n, void (*fn)(void *arg, uint32_t index), void *arg)
{
    pthread_t threads[16];
    struct start starts[SOQ__COUNT(threads)];

    for (uint32_t i = 0; i < n; i++) {
        starts[i] = (struct start){fn, arg, i};
        SOQ__EXPECT(kit, pthread_create(&threads[i], NULL, run_thread, &starts[i]) == 0, "the kit cannot start a thread");
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}
