#include "cli/eval/item.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/input.h"

#define TEXT_MAX ((size_t)256 << 20) /* bytes */

void soq__eval_item_done(struct soq__eval_item *item)
{
    soq__free(item->tokens);
    *item = (struct soq__eval_item){0};
}

static int encode(const struct soq__tokenizer *tokenizer, const char *text, size_t n, struct soq__ids *ids,
                  struct soq_error *err)
{
    return soq__tokenizer_encode(tokenizer, &(struct soq__encode_args){.text = text, .n = n, .flags = SOQ_TOK_BOS}, ids, err);
}

/* ---- Stories */

/* passkey or recall with so many sentences */
struct kind {
    bool recall;
    uint64_t seed;
    uint32_t depth;
};

static void tell(const struct kind *kind, uint32_t n_sentences, struct soq__eval_story *out)
{
    *out = (struct soq__eval_story)SOQ__EVAL_STORY_INIT;
    if (kind->recall)
        soq__eval_recall(kind->seed, n_sentences, out);
    else
        soq__eval_passkey(kind->seed, n_sentences, kind->depth, out);
}

/* Tokens up to the first answer. */
static int prompt_tokens(const struct soq__tokenizer *tokenizer, const struct kind *kind, uint32_t n_sentences, size_t *out,
                         struct soq_error *err)
{
    struct soq__eval_story story;
    struct soq__ids ids = {0};
    int rc;

    tell(kind, n_sentences, &story);
    soq__buf_puts(&story.text, soq__buf_str(&story.asks[0]));
    if (soq__buf_ok(&story.text))
        rc = encode(tokenizer, soq__buf_str(&story.text), story.text.len, &ids, err);
    else
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    *out = ids.n;
    soq__ids_done(&ids);
    soq__eval_story_done(&story);
    return rc;
}

/* The most sentences that fit, by halving. */
static int fit(const struct soq__tokenizer *tokenizer, const struct kind *kind, uint32_t length, uint32_t *out,
               struct soq_error *err)
{
    uint32_t low = 0, high = length; /* a sentence has more than one token */
    size_t n;
    int rc = prompt_tokens(tokenizer, kind, 0, &n, err);

    if (!rc && n > length)
        return soq__fail(err, SOQ_EINVAL, "--lengths %u: the question alone has %zu tokens", length, n);
    while (!rc && high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        rc = prompt_tokens(tokenizer, kind, middle, &n, err);
        *(n <= length ? &low : &high) = middle;
    }
    *out = low;
    return rc;
}

/* Tokens that text[0, n) and the whole text begin with alike: where a tokenizer merges across the border, a little before it.
 */
static int border(const struct soq__tokenizer *tokenizer, const struct soq_buf *text, size_t n, const struct soq__ids *whole,
                  uint32_t *out, struct soq_error *err)
{
    struct soq__ids ids = {0};
    uint32_t same = 0;
    int rc = encode(tokenizer, soq__buf_str(text), n, &ids, err);

    while (!rc && same < ids.n && same < whole->n && ids.data[same] == whole->data[same])
        same++;
    *out = same;
    soq__ids_done(&ids);
    return rc;
}

static int tokenize(const struct soq__tokenizer *tokenizer, struct soq__eval_story *story, struct soq__eval_item *item,
                    struct soq_error *err)
{
    size_t ends[2 * SOQ__EVAL_TURNS_MAX];
    struct soq__ids whole = {0};
    int rc = 0;

    for (uint32_t t = 0; t < story->n_turns; t++) {
        soq__buf_puts(&story->text, soq__buf_str(&story->asks[t]));
        ends[2 * t] = story->text.len;
        soq__buf_puts(&story->text, story->answers[t]);
        ends[2 * t + 1] = story->text.len;
    }
    if (!soq__buf_ok(&story->text))
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    rc = encode(tokenizer, soq__buf_str(&story->text), story->text.len, &whole, err);
    for (uint32_t t = 0; !rc && t < story->n_turns; t++) {
        rc = border(tokenizer, &story->text, ends[2 * t], &whole, &item->turns[t].ask, err);
        if (!rc)
            rc = border(tokenizer, &story->text, ends[2 * t + 1], &whole, &item->turns[t].end, err);
    }
    item->tokens = whole.data;
    item->n_tokens = (uint32_t)whole.n;
    item->n_turns = story->n_turns;
    return rc;
}

static int make_story(const struct soq__tokenizer *tokenizer, const struct kind *kind, uint32_t length,
                      struct soq__eval_item *out, struct soq_error *err)
{
    struct soq__eval_item item = {.n_turns = 0};
    struct soq__eval_story story;
    uint32_t n = 0;
    int rc = fit(tokenizer, kind, length, &n, err);

    if (rc)
        return rc;
    tell(kind, n, &story);
    rc = tokenize(tokenizer, &story, &item, err);
    soq__eval_story_done(&story);
    if (rc)
        soq__eval_item_done(&item);
    else
        *out = item;
    return rc;
}

int soq__eval_item_passkey(const struct soq__tokenizer *tokenizer, uint64_t seed, uint32_t length, uint32_t depth,
                           struct soq__eval_item *out, struct soq_error *err)
{
    return make_story(tokenizer, &(struct kind){false, seed, depth}, length, out, err);
}

int soq__eval_item_recall(const struct soq__tokenizer *tokenizer, uint64_t seed, uint32_t length, struct soq__eval_item *out,
                          struct soq_error *err)
{
    return make_story(tokenizer, &(struct kind){true, seed, 0}, length, out, err);
}

/* ---- Texts */

static int load(const char *path, uint64_t seed, size_t n_tokens, struct soq_buf *out, struct soq_error *err)
{
    if (path)
        return soq__file_read(path, TEXT_MAX, out, err);
    if (n_tokens > UINT32_MAX / 8)
        return soq__fail(err, SOQ_ELIMIT, "a text of %zu tokens is too long", n_tokens);
    soq__eval_filler(seed, (uint32_t)(n_tokens / 4 + 8), out); /* a sentence has more than four */
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");
}

int soq__eval_text_read(const struct soq__tokenizer *tokenizer, const char *path, uint64_t seed, size_t n_tokens,
                        struct soq__eval_text *out, struct soq_error *err)
{
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path ? path : "built-in";
    struct soq_buf text = SOQ_BUF_INIT;
    struct soq__ids ids = {0};
    struct soq__hash hash;
    int rc = load(path, seed, n_tokens, &text, err);

    if (!rc)
        rc = encode(tokenizer, soq__buf_str(&text), text.len, &ids, err);
    soq__buf_done(&text);
    if (!rc && ids.n < n_tokens)
        rc = soq__fail(err, SOQ_EINVAL,
                       "%s: %zu tokens, but the items take %zu; give a longer text, or smaller --lengths, --items or "
                       "--scored",
                       name, ids.n, n_tokens);
    if (rc) {
        soq__ids_done(&ids);
        return rc;
    }
    hash = soq__hash(ids.data, ids.n * sizeof *ids.data);
    *out = (struct soq__eval_text){.ids = ids};
    snprintf(out->name, sizeof out->name, "%.60s %02x%02x%02x%02x", name, hash.bytes[0], hash.bytes[1], hash.bytes[2],
             hash.bytes[3]);
    return 0;
}

void soq__eval_text_done(struct soq__eval_text *text)
{
    soq__ids_done(&text->ids);
}

int soq__eval_item_text(const struct soq__tokenizer *tokenizer, const struct soq__eval_text *text,
                        const struct soq__eval_cut *cut, struct soq__eval_item *out, struct soq_error *err)
{
    size_t room = text->ids.n - cut->longest - cut->n_scored, gaps = cut->n_items > 1 ? cut->n_items - 1 : 1;
    size_t ask = cut->longest + room * cut->index / gaps, n = (size_t)cut->length + cut->n_scored;
    int32_t *tokens = soq__alloc_array(n, sizeof *tokens);

    if (!tokens)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    memcpy(tokens, text->ids.data + ask - cut->length, n * sizeof *tokens);
    soq__input_begin_chunk(tokenizer, tokens);
    *out =
        (struct soq__eval_item){.tokens = tokens, .n_tokens = (uint32_t)n, .n_turns = 1, .turns = {{cut->length, (uint32_t)n}}};
    return 0;
}
