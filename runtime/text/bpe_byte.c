/* Byte-level BPE (GPT-2): a text is split into words, a word starts as its bytes, and neighbours merge by the rank of their
 * pair. Vocabularies write bytes as printable characters; here that map is only needed to look texts up. */
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#define FREE UINT32_MAX

/* Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 ... in ascending order. */
static uint32_t byte_to_char(unsigned char b)
{
    if (b <= 32)
        return 256u + b;
    if (b >= 127 && b <= 160)
        return 256u + 33 + (b - 127u);
    return b == 173 ? 323 : b;
}

int soq__byte_from_char(uint32_t cp)
{
    if (cp < 256)
        return byte_to_char((unsigned char)cp) == cp ? (int)cp : -1;
    if (cp <= 288)
        return (int)cp - 256;
    if (cp <= 322)
        return (int)cp - 256 - 33 + 127;
    return cp == 323 ? 173 : -1;
}

static uint32_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;

    return (uint32_t)(h >> 32 ^ h >> 48);
}

/* The slot of a pair, or the free one where it belongs. */
static struct soq__merge_slot *find_slot(const struct soq__byte_rules *r, uint32_t left, uint32_t right)
{
    uint32_t i = pair_hash(left, right) & r->mask;

    while (r->slots[i].left != FREE && (r->slots[i].left != left || r->slots[i].right != right))
        i = (i + 1) & r->mask;
    return &r->slots[i];
}

static int bad_merge(struct soq__text merge, uint32_t rank, struct soq_error *err)
{
    return soq__fail(err, SOQ_ECORRUPT, "tokenizer.ggml.merges[%u] = \"%.*s\" is no pair of tokens that makes a token", rank,
                     (int)(merge.len < 100 ? merge.len : 100), merge.len ? merge.data : "");
}

/* joined: scratch. */
static int add_merge(struct soq__tokenizer *tok, struct soq__text merge, uint32_t rank, struct soq_buf *joined,
                     struct soq_error *err)
{
    const struct soq__vocab *v = &tok->vocab;
    const char *space = merge.len > 2 ? memchr(merge.data + 1, ' ', merge.len - 2) : NULL;
    size_t n = space ? (size_t)(space - merge.data) : 0; /* of the left one */
    struct soq__merge_slot *slot;
    int32_t left, right, id;

    if (!space)
        return bad_merge(merge, rank, err);
    soq__buf_clear(joined);
    soq__buf_append(joined, merge.data, n);
    soq__buf_append(joined, space + 1, merge.len - n - 1);
    if (!soq__buf_ok(joined))
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a merge");
    left = soq__vocab_find(v, joined->data, n);
    right = soq__vocab_find(v, joined->data + n, joined->len - n);
    id = soq__vocab_find(v, joined->data, joined->len);
    if (left < 0 || right < 0 || id < 0)
        return bad_merge(merge, rank, err);
    slot = find_slot(&tok->byte, (uint32_t)left, (uint32_t)right);
    /* The first of equal pairs counts; ordinary text never becomes a control token. */
    if (slot->left == FREE && soq__vocab_find_plain(v, joined->data, joined->len) >= 0)
        *slot = (struct soq__merge_slot){(uint32_t)left, (uint32_t)right, rank, id};
    return 0;
}

static int add_merges(struct soq__tokenizer *tok, const struct soq__vocab_desc *desc, struct soq_error *err)
{
    struct soq_buf joined = SOQ_BUF_INIT;
    uint32_t n_slots = 16;
    int rc = 0;

    if (!desc->merges)
        return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.merges is missing: tokenizer.ggml.model = \"gpt2\" needs it");
    if (desc->n_merges > SOQ__TOKENS_MAX)
        return soq__fail(err, SOQ_ELIMIT, "tokenizer.ggml.merges has %u entries; at most %u are supported", desc->n_merges,
                         SOQ__TOKENS_MAX);
    while (n_slots / 2 < desc->n_merges)
        n_slots *= 2;
    tok->byte.slots = soq__alloc_array(n_slots, sizeof *tok->byte.slots);
    if (!tok->byte.slots)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %u merges", desc->n_merges);
    tok->byte.mask = n_slots - 1;
    for (uint32_t i = 0; i < n_slots; i++)
        tok->byte.slots[i].left = FREE;
    for (uint32_t i = 0; i < desc->n_merges && !rc; i++)
        rc = add_merge(tok, desc->merges[i], i, &joined, err);
    soq__buf_done(&joined);
    return rc;
}

int soq__byte_init(struct soq__tokenizer *tok, const struct soq__vocab_desc *desc, struct soq_error *err)
{
    int rc = soq__pretok_create(desc->pre ? desc->pre : "default", &tok->byte.pretok, err);

    if (rc)
        return rc;
    tok->byte.whole_words = soq__pretok_whole_words(tok->byte.pretok);
    for (int b = 0; b < 256; b++) {
        char text[4];
        size_t n = soq__utf8_encode(byte_to_char((unsigned char)b), text);
        int32_t id = soq__vocab_find_plain(&tok->vocab, text, n);

        /* A user-defined "\xC3\xB5" is that letter, not the byte that the map writes so. */
        tok->byte_ids[b] = id >= 0 && soq__vocab_type(&tok->vocab, (uint32_t)id) != SOQ_TOKEN_USER_DEFINED ? id : -1;
    }
    return add_merges(tok, desc, err);
}

void soq__byte_done(struct soq__tokenizer *tok)
{
    soq__pretok_free(tok->byte.pretok);
    soq__free(tok->byte.slots);
}

static bool rule(const void *ctx, const struct soq__bpe_sym *left, const struct soq__bpe_sym *right, float *cost_out,
                 int32_t *id_out)
{
    const struct soq__merge_slot *slot;

    if (left->id < 0 || right->id < 0)
        return false;
    slot = find_slot(ctx, (uint32_t)left->id, (uint32_t)right->id);
    *cost_out = (float)slot->rank;
    *id_out = slot->id;
    return slot->left != FREE;
}

/* The token that is the whole word; -1 if none. */
static int32_t whole_word(const struct soq__tokenizer *tok, const char *word, size_t n, struct soq_buf *mapped)
{
    soq__buf_clear(mapped);
    if (n > tok->vocab.longest)
        return -1;
    for (size_t i = 0; i < n; i++) {
        char text[4];

        soq__buf_append(mapped, text, soq__utf8_encode(byte_to_char((unsigned char)word[i]), text));
    }
    return soq__vocab_find_plain(&tok->vocab, soq__buf_str(mapped), mapped->len);
}

static int encode_word(const struct soq__tokenizer *tok, struct soq__text word, struct soq__encode_work *work,
                       struct soq__ids *ids, struct soq_error *err)
{
    int32_t id = tok->byte.whole_words ? whole_word(tok, word.data, word.len, &work->text) : -1;
    int rc;

    if (!soq__buf_ok(&work->text))
        return soq__fail(err, SOQ_ENOMEM, "out of memory while encoding a word");
    if (id >= 0)
        return soq__ids_push(ids, id, err);
    if ((rc = soq__bpe_begin(&work->bpe, word.len, err)))
        return rc;
    for (size_t i = 0; i < word.len; i++)
        soq__bpe_add(&work->bpe, (uint32_t)i, 1, tok->byte_ids[(unsigned char)word.data[i]]);
    soq__bpe_merge(&work->bpe, rule, &tok->byte);
    for (uint32_t i = 0; i != SOQ__BPE_END && !rc; i = work->bpe.syms[i].next) {
        const struct soq__bpe_sym *s = &work->bpe.syms[i];

        rc = s->id >= 0 ? soq__ids_push(ids, s->id, err) : soq__emit_bytes(tok, word.data + s->start, s->len, ids, err);
    }
    return rc;
}

int soq__byte_encode(const struct soq__tokenizer *tok, struct soq__text text, struct soq__encode_work *work,
                     struct soq__ids *ids, struct soq_error *err)
{
    int rc = soq__pretok_split(tok->byte.pretok, text.data, text.len, &work->cuts, err);

    for (size_t i = 0, start = 0; i < work->cuts.n && !rc; start = work->cuts.ends[i++]) {
        struct soq__text word = {text.data + start, work->cuts.ends[i] - start};

        rc = encode_word(tok, word, work, ids, err);
    }
    return rc;
}
