/* UTF-8 decoding by the table of well-formed sequences (Unicode standard, table 3-7). */
#include "base/utf8.h"

/* Second-byte bounds by lead byte: they exclude overlong forms, surrogates and values beyond U+10FFFF. */
struct lead {
    unsigned char first, last, low, high, length;
};

static const struct lead leads[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
    {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

static const struct lead *lead_of(unsigned char c)
{
    for (size_t i = 0; i < sizeof leads / sizeof leads[0]; i++)
        if (c >= leads[i].first && c <= leads[i].last)
            return &leads[i];
    return NULL;
}

/* How many of the sequence's bytes are present and right in s[0..n), up to its length. */
static size_t good_bytes(const struct lead *l, const unsigned char *s, size_t n)
{
    size_t i = 1;

    if (n > 1 && s[1] >= l->low && s[1] <= l->high)
        for (i = 2; i < l->length && i < n && (s[i] & 0xC0) == 0x80; i++)
            ;
    return i;
}

size_t soq__utf8_decode(const char *str, size_t n, uint32_t *cp_out)
{
    const unsigned char *s = (const unsigned char *)str;
    const struct lead *l;
    uint32_t cp;

    if (s[0] < 0x80) {
        *cp_out = s[0];
        return 1;
    }
    l = lead_of(s[0]);
    if (!l || good_bytes(l, s, n) < l->length)
        return 0;
    cp = s[0] & (0x7Fu >> l->length);
    for (size_t i = 1; i < l->length; i++)
        cp = cp << 6 | (s[i] & 0x3Fu);
    *cp_out = cp;
    return l->length;
}

size_t soq__utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t soq__utf8_complete(const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;

    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const struct lead *l = lead_of(s[n - back]);

        if (l)
            return back < l->length && good_bytes(l, s + n - back, back) == back ? n - back : n;
        if ((s[n - back] & 0xC0) != 0x80)
            return n;
    }
    return n;
}

bool soq__utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = soq__utf8_decode(s + i, n - i, &cp);

        if (!len)
            return false;
        i += len;
    }
    return true;
}
