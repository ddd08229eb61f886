/* The tokens: their texts, the bytes that they stand for, what kind they are, and how to find them. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#define FREE UINT32_MAX

static const char *const role_keys[SOQ_ROLE_COUNT] = {
#define KEY(name, key) [name] = key,
    SOQ__TOKEN_ROLES(KEY)
#undef KEY
};

/* Tokens that end a generation wherever they are control or user-defined tokens, whatever the file's ids say. */
static const struct {
    const char *text;
    const char *bos;    /* only in vocabularies whose BOS this is: "</s>" is struck-through text in Gemma's */
    const char *unless; /* not in vocabularies with this token: in Harmony "<|end|>" only ends one of several messages */
} end_texts[] = {
    {.text = "<|im_end|>"},         {.text = "<|eot_id|>"},
    {.text = "<|eom_id|>"},         {.text = "<|end_of_text|>"},
    {.text = "<|end_of_turn|>"},    {.text = "<end_of_turn>"},
    {.text = "<|endoftext|>"},      {.text = "<EOT>"},
    {.text = "</s>", .bos = "<s>"}, {.text = "<|end|>", .unless = "<|return|>"},
    {.text = "<|return|>"},         {.text = "<|call|>"},
};

const char *soq__token_role_key(enum soq__token_role role)
{
    return role_keys[role];
}

void soq__vocab_desc_init(struct soq__vocab_desc *desc)
{
    *desc = (struct soq__vocab_desc){.add_bos = -1, .add_eos = -1, .add_space_prefix = -1, .remove_extra_whitespaces = -1};
    for (int i = 0; i < SOQ_ROLE_COUNT; i++)
        desc->roles[i] = -1;
}

struct soq__text soq__vocab_text(const struct soq__vocab *v, uint32_t id)
{
    return (struct soq__text){v->texts + v->text_at[id], v->text_at[id + 1] - v->text_at[id]};
}

static bool is(struct soq__text text, const char *s)
{
    return text.len == strlen(s) && !memcmp(text.data, s, text.len);
}

static bool begins(struct soq__text text, const char *s)
{
    return text.len >= strlen(s) && !memcmp(text.data, s, strlen(s));
}

static bool ends(struct soq__text text, const char *s)
{
    return text.len >= strlen(s) && !memcmp(text.data + text.len - strlen(s), s, strlen(s));
}

/* FNV-1a. */
static uint32_t hash_of(const char *text, size_t n)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

/* The slot of a text, or the free one where it belongs. */
static struct soq__vocab_slot *find_slot(const struct soq__vocab *v, const char *text, size_t n, uint32_t hash)
{
    uint32_t i = (hash ^ hash >> 15) & v->mask;

    for (; v->slots[i].id != FREE; i = (i + 1) & v->mask) {
        struct soq__text at;

        if (v->slots[i].hash != hash)
            continue;
        at = soq__vocab_text(v, v->slots[i].id);
        if (at.len == n && !memcmp(at.data, text, n))
            break;
    }
    return &v->slots[i];
}

int32_t soq__vocab_find(const struct soq__vocab *v, const char *text, size_t n)
{
    const struct soq__vocab_slot *slot;

    if (!n || n > v->longest)
        return -1;
    slot = find_slot(v, text, n, hash_of(text, n));
    return slot->id == FREE ? -1 : (int32_t)slot->id;
}

int32_t soq__vocab_find_plain(const struct soq__vocab *v, const char *text, size_t n)
{
    int32_t id = soq__vocab_find(v, text, n);
    enum soq__token_type type = id < 0 ? SOQ_TOKEN_CONTROL : soq__vocab_type(v, (uint32_t)id);

    return type == SOQ_TOKEN_CONTROL || type == SOQ_TOKEN_UNKNOWN || type == SOQ_TOKEN_BYTE ? -1 : id;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int soq__vocab_byte_value(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) || text[5] != '>' || hex_value(text[3]) < 0 || hex_value(text[4]) < 0)
        return -1;
    return 16 * hex_value(text[3]) + hex_value(text[4]);
}

static int check(const struct soq__vocab_desc *d, struct soq_error *err)
{
    if (!d->n_tokens)
        return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.tokens is missing or empty");
    if (d->n_tokens > SOQ__TOKENS_MAX)
        return soq__fail(err, SOQ_ELIMIT, "tokenizer.ggml.tokens has %u entries; at most %u are supported", d->n_tokens,
                         SOQ__TOKENS_MAX);
    for (int i = 0; i < SOQ_ROLE_COUNT; i++)
        if (d->roles[i] < -1 || (d->roles[i] >= 0 && (uint32_t)d->roles[i] >= d->n_tokens))
            return soq__fail(err, SOQ_EINVAL, "%s = %d is out of range: the vocabulary has %u tokens", role_keys[i],
                             (int)d->roles[i], d->n_tokens);
    for (uint32_t i = 0; i < d->n_tokens; i++) {
        int32_t type = d->types ? d->types[i] : SOQ_TOKEN_NORMAL;

        if (type < SOQ_TOKEN_UNDEFINED || type > SOQ_TOKEN_BYTE)
            return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.token_type[%u] = %d; known are 0 to %d", i, (int)type,
                             SOQ_TOKEN_BYTE);
        if (d->tokens[i].len > SOQ__TOKEN_BYTES_MAX)
            return soq__fail(err, SOQ_ELIMIT, "tokenizer.ggml.tokens[%u] has %zu bytes; at most %d are supported", i,
                             d->tokens[i].len, SOQ__TOKEN_BYTES_MAX);
        if (type == SOQ_TOKEN_BYTE && soq__vocab_byte_value(d->tokens[i].data, d->tokens[i].len) < 0)
            return soq__fail(err, SOQ_ECORRUPT, "tokenizer.ggml.tokens[%u] = \"%.*s\" is a byte token but not like <0x0A>", i,
                             (int)(d->tokens[i].len < 100 ? d->tokens[i].len : 100), d->tokens[i].len ? d->tokens[i].data : "");
    }
    return 0;
}

static int reserve(struct soq__vocab *v, const struct soq__vocab_desc *d, struct soq_error *err)
{
    uint32_t n_slots = 16;
    size_t bytes = 0;

    for (uint32_t i = 0; i < d->n_tokens; i++)
        bytes += d->tokens[i].len;
    if (bytes >= UINT32_MAX)
        return soq__fail(err, SOQ_ELIMIT, "tokenizer.ggml.tokens has %zu bytes of text; 4 GiB are supported", bytes);
    while (n_slots / 2 < d->n_tokens)
        n_slots *= 2;
    v->n = d->n_tokens;
    v->mask = n_slots - 1;
    v->texts = soq__alloc(bytes);
    v->pieces = soq__alloc(bytes); /* a piece is never longer than its text */
    v->text_at = soq__alloc_array((size_t)v->n + 1, sizeof *v->text_at);
    v->piece_at = soq__alloc_array((size_t)v->n + 1, sizeof *v->piece_at);
    v->attrs = soq__alloc(v->n);
    v->slots = soq__alloc_array(n_slots, sizeof *v->slots);
    v->special_first = soq__alloc_zero(257, sizeof *v->special_first);
    if (!v->texts || !v->pieces || !v->text_at || !v->piece_at || !v->attrs || !v->slots || !v->special_first)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a vocabulary of %u tokens", v->n);
    for (uint32_t i = 0; i < n_slots; i++)
        v->slots[i].id = FREE;
    return 0;
}

/* Of equal texts the first is found. */
static void copy_texts(struct soq__vocab *v, const struct soq__vocab_desc *d)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < v->n; i++) {
        size_t n = d->tokens[i].len;
        struct soq__vocab_slot *slot;
        uint32_t hash;

        v->text_at[i] = at;
        v->attrs[i] = (uint8_t)(d->types ? d->types[i] : SOQ_TOKEN_NORMAL);
        v->longest = n > v->longest ? n : v->longest;
        if (!n)
            continue;
        memcpy(v->texts + at, d->tokens[i].data, n);
        at += (uint32_t)n;
        v->text_at[i + 1] = at;
        hash = hash_of(d->tokens[i].data, n);
        slot = find_slot(v, d->tokens[i].data, n, hash);
        if (slot->id == FREE)
            *slot = (struct soq__vocab_slot){hash, i};
    }
    v->text_at[v->n] = at;
}

/* Whatever ends a generation is a control token, even if the file calls it user-defined. */
static void mark_end(struct soq__vocab *v, int32_t id)
{
    if (id < 0)
        return;
    if (soq__vocab_type(v, (uint32_t)id) == SOQ_TOKEN_USER_DEFINED)
        v->attrs[id] = SOQ_TOKEN_CONTROL;
    v->attrs[id] |= SOQ__ATTR_EOG;
}

static void mark_ends(struct soq__vocab *v)
{
    int32_t bos = v->roles[SOQ_ROLE_BOS];

    mark_end(v, v->roles[SOQ_ROLE_EOS]);
    mark_end(v, v->roles[SOQ_ROLE_EOT]);
    mark_end(v, v->roles[SOQ_ROLE_EOM]);
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
        int32_t id = soq__vocab_find(v, end_texts[i].text, strlen(end_texts[i].text));
        enum soq__token_type type = id < 0 ? SOQ_TOKEN_NORMAL : soq__vocab_type(v, (uint32_t)id);

        if (type != SOQ_TOKEN_CONTROL && type != SOQ_TOKEN_USER_DEFINED)
            continue;
        if (end_texts[i].bos && (bos < 0 || !is(soq__vocab_text(v, (uint32_t)bos), end_texts[i].bos)))
            continue;
        if (end_texts[i].unless && soq__vocab_find(v, end_texts[i].unless, strlen(end_texts[i].unless)) >= 0)
            continue;
        mark_end(v, id);
    }
}

/* User-defined tokens are found in any text, as the tokenizers that models are trained with do: they are words like
 * "<table>" or a run of newlines. But some files list turn markers among them, and those a user must not write. */
static bool needs_trust(enum soq__token_type type, struct soq__text text)
{
    if (type == SOQ_TOKEN_CONTROL || type == SOQ_TOKEN_UNKNOWN)
        return true;
    return (begins(text, "<|") && ends(text, "|>")) || (begins(text, "<\xEF\xBD\x9C") && ends(text, "\xEF\xBD\x9C>"));
}

static size_t write_piece(const struct soq__vocab *v, enum soq__token_type type, struct soq__text text, char *out)
{
    size_t n = 0;
    uint32_t cp;

    if (type == SOQ_TOKEN_BYTE) {
        out[0] = (char)soq__vocab_byte_value(text.data, text.len);
        return 1;
    }
    for (size_t i = 0, len; i < text.len; i += len) {
        bool plain = type != SOQ_TOKEN_CONTROL && type != SOQ_TOKEN_UNKNOWN && type != SOQ_TOKEN_USER_DEFINED;
        int byte = -1;

        len = soq__utf8_decode(text.data + i, text.len - i, &cp);
        if (plain && len && v->byte_level)
            byte = soq__byte_from_char(cp);
        else if (plain && len && cp == 0x2581)
            byte = ' ';
        len = len ? len : 1;
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            memcpy(out + n, text.data + i, len);
            n += len;
        }
    }
    return n;
}

static void write_pieces(struct soq__vocab *v)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < v->n; i++) {
        v->piece_at[i] = at;
        at += (uint32_t)write_piece(v, soq__vocab_type(v, i), soq__vocab_text(v, i), v->pieces + at);
    }
    v->piece_at[v->n] = at;
}

static int by_text(const void *a, const void *b, void *vocab)
{
    struct soq__text x = soq__vocab_text(vocab, (uint32_t) * (const int32_t *)a);
    struct soq__text y = soq__vocab_text(vocab, (uint32_t) * (const int32_t *)b);
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);

    return order ? order : (x.len > y.len) - (x.len < y.len);
}

static int list_specials(struct soq__vocab *v, struct soq_error *err)
{
    v->specials = soq__alloc_array(v->n, sizeof *v->specials);
    if (!v->specials)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a vocabulary of %u tokens", v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        enum soq__token_type type = soq__vocab_type(v, i);
        struct soq__text text = soq__vocab_text(v, i);

        if (!text.len || (type != SOQ_TOKEN_CONTROL && type != SOQ_TOKEN_UNKNOWN && type != SOQ_TOKEN_USER_DEFINED))
            continue;
        if (needs_trust(type, text))
            v->attrs[i] |= SOQ__ATTR_GUARDED;
        v->specials[v->n_specials++] = (int32_t)i;
        v->special_first[(unsigned char)text.data[0] + 1]++;
    }
    for (int c = 0; c < 256; c++)
        v->special_first[c + 1] += v->special_first[c];
    qsort_r(v->specials, v->n_specials, sizeof *v->specials, by_text, v);
    return 0;
}

/* The first of specials[low..high), all of which agree up to byte `at` and are longer, whose byte there is at least c. */
static uint32_t lower_bound(const struct soq__vocab *v, uint32_t low, uint32_t high, size_t at, unsigned c)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if ((unsigned char)soq__vocab_text(v, (uint32_t)v->specials[mid]).data[at] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t soq__vocab_special_at(const struct soq__vocab *v, const char *text, size_t n, size_t at, size_t trusted_end)
{
    unsigned c = (unsigned char)text[at];
    uint32_t low = v->special_first[c], high = v->special_first[c + 1];
    int32_t best = -1;

    for (size_t len = 1; low < high; len++) {
        for (; low < high && soq__vocab_text(v, (uint32_t)v->specials[low]).len == len; low++)
            if (at + len <= trusted_end || !(v->attrs[v->specials[low]] & SOQ__ATTR_GUARDED))
                best = v->specials[low];
        if (at + len == n)
            break;
        c = (unsigned char)text[at + len];
        low = lower_bound(v, low, high, len, c);
        high = lower_bound(v, low, high, len, c + 1);
    }
    return best;
}

int soq__vocab_init(struct soq__vocab *v, const struct soq__vocab_desc *desc, struct soq_error *err)
{
    int rc = check(desc, err);

    if (!rc)
        rc = reserve(v, desc, err);
    if (rc)
        return rc;
    memcpy(v->roles, desc->roles, sizeof v->roles);
    copy_texts(v, desc);
    mark_ends(v);
    write_pieces(v);
    return list_specials(v, err);
}

void soq__vocab_done(struct soq__vocab *v)
{
    soq__free(v->texts);
    soq__free(v->pieces);
    soq__free(v->text_at);
    soq__free(v->piece_at);
    soq__free(v->attrs);
    soq__free(v->slots);
    soq__free(v->specials);
    soq__free(v->special_first);
    *v = (struct soq__vocab){0};
}
