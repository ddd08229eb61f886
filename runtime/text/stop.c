/* Stop strings over a stream of pieces. */
#include "text/stop.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

int soq__stop_init(struct soq__stop *stop, const char *const *strings, struct soq_error *err)
{
    size_t n = 0;

    *stop = (struct soq__stop){0};
    while (strings && strings[n])
        n++;
    if (!n)
        return 0;
    stop->strings = soq__alloc_zero(n, sizeof *stop->strings);
    if (!stop->strings)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for stop strings");
    for (; stop->n < n; stop->n++) {
        const char *s = strings[stop->n];
        int rc = 0;

        if (!s[0] || !soq__utf8_valid(s, strlen(s)))
            rc = soq__fail(err, SOQ_EINVAL, "stop string %zu is empty or not valid UTF-8", stop->n + 1);
        else if (!(stop->strings[stop->n] = soq__strdup(s)))
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory for stop strings");
        if (rc) {
            soq__stop_done(stop);
            return rc;
        }
    }
    return 0;
}

void soq__stop_done(struct soq__stop *stop)
{
    for (size_t i = 0; i < stop->n; i++)
        soq__free(stop->strings[i]);
    soq__free(stop->strings);
    soq__buf_done(&stop->held);
    *stop = (struct soq__stop){0};
}

/* Where the stop string that is complete first begins in text, or n; of several that end together the longest. Which one that
 * is does not depend on how the text was cut into pieces: one that merely began earlier may never have been completed. */
static size_t find_first(const struct soq__stop *stop, const char *text, size_t n)
{
    size_t first = n, end = n + 1;

    for (size_t i = 0; i < stop->n; i++) {
        size_t len = strlen(stop->strings[i]);
        const char *at = memmem(text, n, stop->strings[i], len);
        size_t start = at ? (size_t)(at - text) : n;

        if (at && (start + len < end || (start + len == end && start < first))) {
            first = start;
            end = start + len;
        }
    }
    return first;
}

/* Where the longest end of text that begins a stop string starts, or n. */
static size_t find_open(const struct soq__stop *stop, const char *text, size_t n)
{
    size_t open = n;

    for (size_t i = 0; i < stop->n; i++) {
        size_t longest = strlen(stop->strings[i]) - 1;

        for (size_t k = longest < n ? longest : n; k > n - open; k--)
            if (memcmp(text + n - k, stop->strings[i], k) == 0)
                open = n - k;
    }
    return open;
}

int soq__stop_push(struct soq__stop *stop, const char *text, size_t n, struct soq_buf *out, bool *matched_out,
                   struct soq_error *err)
{
    size_t shown;

    *matched_out = false;
    soq__buf_append(&stop->held, text, n);
    if (!soq__buf_ok(&stop->held))
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the answer's text");
    shown = find_first(stop, stop->held.data, stop->held.len);
    if (shown < stop->held.len)
        *matched_out = true;
    else
        shown = find_open(stop, stop->held.data, stop->held.len);
    soq__buf_append(out, stop->held.data, shown);
    if (!soq__buf_ok(out))
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the answer's text");
    soq__buf_drop_front(&stop->held, *matched_out ? stop->held.len : shown);
    return 0;
}

int soq__stop_flush(struct soq__stop *stop, struct soq_buf *out, struct soq_error *err)
{
    soq__buf_append(out, soq__buf_str(&stop->held), stop->held.len);
    soq__buf_clear(&stop->held);
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for the answer's text");
}
