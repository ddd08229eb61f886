/* Fuzzes plugin manifests. What is accepted must hold what the rest of the host relies on. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "plugin/cpuid.h"
#include "plugin/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__manifest m;
    const char *list, *item;
    size_t n;

    if (soq__manifest_parse("plugins/fuzz.ini", (const char *)data, size, &m, &err)) {
        expect(err.code < 0 && strstr(err.text, "plugins/fuzz.ini") == err.text);
    } else {
        expect(m.name[0] && !strchr(m.name, '/') && !strchr(m.variant, '/'));
        expect(m.library[0] && m.library[0] != '.' && !strchr(m.library, '/'));
        expect(m.roles && m.abi >= 0 && m.priority >= -SOQ_MANIFEST_PRIORITY_MAX && m.priority <= SOQ_MANIFEST_PRIORITY_MAX);
        for (list = m.requires_cpu; soq__list_next(&list, &item, &n);)
            expect(n && item[0] != ' ' && item[n - 1] != ' ' && !memchr(item, ',', n));
        for (list = m.requires_device; soq__list_next(&list, &item, &n);)
            expect(n > 5 && memcmp(item, "/dev/", 5) == 0 && !memmem(item, n, "..", 2));
        soq__cpu_has(m.requires_cpu);
        soq__manifest_done(&m);
    }
    expect(soq__alloc_live() == live);
    return 0;
}
