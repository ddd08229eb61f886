/* Token ids to text, one at a time. At most three bytes are ever kept back: the beginning of a code point whose end may still
 * come. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_impl.h"

void soq__detok_init(struct soq__detok *d, const struct soq__tokenizer *tok, bool special, bool at_start)
{
    *d = (struct soq__detok){.tok = tok, .special = special, .strip = at_start && tok->spm.space_prefix};
}

int soq__detok_push(struct soq__detok *d, int32_t id, struct soq_buf *out, struct soq_error *err)
{
    struct soq__text piece = soq__tokenizer_piece(d->tok, id, d->special);
    size_t from = out->len, whole;

    if (!piece.len)
        return 0;
    if (!soq__buf_reserve(out, d->n + piece.len))
        return soq__fail(err, SOQ_ENOMEM, "out of memory while decoding token %d", (int)id);
    if (d->strip && piece.data[0] == ' ')
        piece = (struct soq__text){piece.data + 1, piece.len - 1};
    d->strip = false;
    soq__buf_append(out, d->pending, d->n);
    soq__buf_append(out, piece.data, piece.len);
    whole = soq__utf8_complete(out->data + from, out->len - from);
    d->n = (unsigned)(out->len - from - whole);
    memcpy(d->pending, out->data + from + whole, d->n);
    out->len = from + whole;
    out->data[out->len] = '\0';
    return 0;
}

int soq__detok_flush(struct soq__detok *d, struct soq_buf *out, struct soq_error *err)
{
    if (!soq__buf_reserve(out, d->n))
        return soq__fail(err, SOQ_ENOMEM, "out of memory while decoding");
    soq__buf_append(out, d->pending, d->n);
    d->n = 0;
    return 0;
}

int soq__tokenizer_decode(const struct soq__tokenizer *tok, const int32_t *ids, size_t n, bool special, struct soq_buf *out,
                          struct soq_error *err)
{
    struct soq__detok d;
    int rc = 0;

    soq__detok_init(&d, tok, special, true);
    for (size_t i = 0; i < n && !rc; i++)
        rc = soq__detok_push(&d, ids[i], out, err);
    return rc ? rc : soq__detok_flush(&d, out, err);
}
