/* Edit distance with transpositions over short names; three rolling rows on the stack. */
#include "base/nearest.h"

#include <ctype.h>
#include <string.h>

#define WORD_MAX 64

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

static int same(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][WORD_MAX + 1];
    size_t *before = rows[0], *prev = rows[1], *cur = rows[2];

    for (size_t j = 0; j <= nb; j++)
        prev[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *spare = before;

        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            cur[j] = min3(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + !same(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) && before[j - 2] + 1 < cur[j])
                cur[j] = before[j - 2] + 1;
        }
        before = prev;
        prev = cur;
        cur = spare;
    }
    return prev[nb];
}

const char *soq__nearest(const char *word, const char *const *names, size_t count)
{
    size_t n = strlen(word), best = (size_t)-1;
    const char *found = NULL;

    if (n == 0 || n > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(names[i]), longer = m > n ? m : n, d;

        if (m == 0 || m > WORD_MAX)
            continue;
        d = distance(word, n, names[i], m);
        if (d * 3 > longer + 2 && !(n >= 3 && strncmp(word, names[i], n) == 0))
            continue;
        if (d < best) {
            best = d;
            found = names[i];
        }
    }
    return found;
}
