/* Buffers that grow, and sizes as people read them. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/size.h"

Test(base, a_buffer_takes_what_is_reserved)
{
    static const size_t sizes[] = {1, 31, 1000, (size_t)3 << 20, ((size_t)32 << 20) + 1};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct soq_buf b = SOQ_BUF_INIT;

        cr_assert(soq__buf_reserve(&b, sizes[i]));
        cr_expect(b.cap > sizes[i] && b.cap <= sizes[i] + 32, "%zu bytes take %zu", sizes[i], b.cap);
        soq__buf_done(&b);
    }
}

/* A session is reserved as a whole, and then is a little longer. */
Test(base, a_large_buffer_grows_by_little)
{
    struct soq_buf b = SOQ_BUF_INIT;
    size_t reserved = (size_t)24 << 20;

    cr_assert(soq__buf_reserve(&b, reserved));
    b.len = b.cap - 1;
    soq__buf_puts(&b, "more");
    cr_assert(soq__buf_ok(&b));
    cr_expect_leq(b.cap, reserved + reserved / 4);
    soq__buf_done(&b);
}

/* Each growth copies everything, so there must be few. */
Test(base, a_buffer_grows_seldom)
{
    struct soq_buf b = SOQ_BUF_INIT;
    unsigned n = 0;

    for (size_t cap = 0; b.len < (size_t)16 << 20; n += b.cap != cap, cap = b.cap)
        soq__buf_append(&b, "0123456789abcdef", 16);
    cr_assert(soq__buf_ok(&b));
    cr_expect_leq(n, 48, "%u times", n);
    cr_expect(memcmp(b.data + b.len - 16, "0123456789abcdef", 17) == 0, "text, and a NUL behind it");
    soq__buf_done(&b);
}

Test(base, sizes)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {50000, "48.8 KiB"},
        {(uint64_t)3 << 20, "3.0 MiB"},
        {(uint64_t)5 << 39, "2.5 TiB"},
        {UINT64_MAX, "16777216.0 TiB"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_str_eq(SOQ__SIZE(cases[i].bytes), cases[i].text);
}
