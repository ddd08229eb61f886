/* x86 features: one bit of a CPUID register each, and the register state that the operating system must save for them (XCR0).
 * Source: Intel SDM volume 2A, CPUID, and volume 1 section 13.2; AMD APM volume 3, appendix E; the levels: x86-64 psABI 1.0,
 * table 3.1. */
#include "plugin/cpuid.h"

#include <cpuid.h>
#include <stdint.h>
#include <string.h>

#include "plugin/manifest.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { EAX, EBX, ECX, EDX };

enum {
    STATE_NONE = 0,
    STATE_AVX = 0x6,     /* XMM, YMM */
    STATE_AVX512 = 0xe6, /* and opmask, upper ZMM, ZMM16-31 */
    STATE_AMX = 0x60000, /* tile configuration and data */
};

struct feature {
    const char *name;
    uint32_t leaf, subleaf;
    unsigned reg, bit;
    uint32_t state;
};

static const struct feature features[] = {
    {"sse3", 1, 0, ECX, 0, STATE_NONE},
    {"pclmul", 1, 0, ECX, 1, STATE_NONE},
    {"ssse3", 1, 0, ECX, 9, STATE_NONE},
    {"fma", 1, 0, ECX, 12, STATE_AVX},
    {"cx16", 1, 0, ECX, 13, STATE_NONE},
    {"sse4.1", 1, 0, ECX, 19, STATE_NONE},
    {"sse4.2", 1, 0, ECX, 20, STATE_NONE},
    {"movbe", 1, 0, ECX, 22, STATE_NONE},
    {"popcnt", 1, 0, ECX, 23, STATE_NONE},
    {"osxsave", 1, 0, ECX, 27, STATE_NONE},
    {"avx", 1, 0, ECX, 28, STATE_AVX},
    {"f16c", 1, 0, ECX, 29, STATE_AVX},
    {"sse2", 1, 0, EDX, 26, STATE_NONE},
    {"bmi", 7, 0, EBX, 3, STATE_NONE},
    {"avx2", 7, 0, EBX, 5, STATE_AVX},
    {"bmi2", 7, 0, EBX, 8, STATE_NONE},
    {"avx512f", 7, 0, EBX, 16, STATE_AVX512},
    {"avx512dq", 7, 0, EBX, 17, STATE_AVX512},
    {"avx512ifma", 7, 0, EBX, 21, STATE_AVX512},
    {"avx512cd", 7, 0, EBX, 28, STATE_AVX512},
    {"avx512bw", 7, 0, EBX, 30, STATE_AVX512},
    {"avx512vl", 7, 0, EBX, 31, STATE_AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, STATE_AVX512},
    {"avx512vbmi2", 7, 0, ECX, 6, STATE_AVX512},
    {"gfni", 7, 0, ECX, 8, STATE_NONE},
    {"avx512vnni", 7, 0, ECX, 11, STATE_AVX512},
    {"avx512bitalg", 7, 0, ECX, 12, STATE_AVX512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, STATE_AVX512},
    {"amx-bf16", 7, 0, EDX, 22, STATE_AMX},
    {"avx512fp16", 7, 0, EDX, 23, STATE_AVX512},
    {"amx-tile", 7, 0, EDX, 24, STATE_AMX},
    {"amx-int8", 7, 0, EDX, 25, STATE_AMX},
    {"avxvnni", 7, 1, EAX, 4, STATE_AVX},
    {"avx512bf16", 7, 1, EAX, 5, STATE_AVX512},
    {"avxvnniint8", 7, 1, EDX, 4, STATE_AVX},
    {"lahf", 0x80000001, 0, ECX, 0, STATE_NONE},
    {"lzcnt", 0x80000001, 0, ECX, 5, STATE_NONE},
};

#define LEVEL_2 "sse3, ssse3, sse4.1, sse4.2, popcnt, cx16, lahf"
#define LEVEL_3 LEVEL_2 ", avx, avx2, bmi, bmi2, f16c, fma, lzcnt, movbe, osxsave"
#define LEVEL_4 LEVEL_3 ", avx512f, avx512bw, avx512cd, avx512dq, avx512vl"

static const struct {
    const char *name;
    const char *features;
} levels[] = {
    {"x86-64-v2", LEVEL_2},
    {"x86-64-v3", LEVEL_3},
    {"x86-64-v4", LEVEL_4},
};

/* State components that the operating system saves; needs osxsave. */
static uint32_t saved_state(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool cpuid_bit(uint32_t leaf, uint32_t subleaf, unsigned reg, unsigned bit)
{
    unsigned r[4];

    return __get_cpuid_count(leaf, subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) && (r[reg] >> bit & 1);
}

static bool has_feature(const struct feature *f)
{
    if (!cpuid_bit(f->leaf, f->subleaf, f->reg, f->bit))
        return false;
    return !f->state || (cpuid_bit(1, 0, ECX, 27) && (saved_state() & f->state) == f->state);
}

static bool has_single(const char *name, size_t n)
{
    for (size_t i = 0; i < COUNT(features); i++) {
        if (strlen(features[i].name) == n && memcmp(features[i].name, name, n) == 0)
            return has_feature(&features[i]);
    }
    return false;
}

bool soq__cpu_has(const char *feature)
{
    const char *list = feature, *item;
    size_t n;

    for (size_t i = 0; i < COUNT(levels); i++) {
        if (strcmp(levels[i].name, feature) == 0)
            list = levels[i].features;
    }
    while (soq__list_next(&list, &item, &n)) {
        if (!has_single(item, n))
            return false;
    }
    return *feature != '\0';
}

const char *const *soq__cpu_features(size_t *count_out)
{
    static const char *names[COUNT(features) + COUNT(levels)];

    for (size_t i = 0; i < COUNT(features); i++)
        names[i] = features[i].name;
    for (size_t i = 0; i < COUNT(levels); i++)
        names[COUNT(features) + i] = levels[i].name;
    *count_out = COUNT(names);
    return names;
}
