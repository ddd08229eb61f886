/* What the files of the tokenizer share; nobody else includes this. */
#ifndef SOQ_TEXT_TOKENIZER_IMPL_H
#define SOQ_TEXT_TOKENIZER_IMPL_H

#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

#define SOQ__TOKENS_MAX (1u << 24) /* tokens and merges: ranks stay exact in a float */
#define SOQ__TOKEN_BYTES_MAX 65536 /* of one token's text */
#define SOQ__TEXT_MAX (1u << 30)   /* bytes to encode at once: three times as many still fit 32 bits */

enum soq__token_attr {
    SOQ__ATTR_TYPE = 0x0F,    /* enum soq__token_type */
    SOQ__ATTR_GUARDED = 0x40, /* recognised in trusted text only */
    SOQ__ATTR_EOG = 0x80,     /* generation ends with it */
};

struct soq__vocab_slot {
    uint32_t hash;
    uint32_t id; /* UINT32_MAX = free */
};

/* vocab.c: the tokens. */
struct soq__vocab {
    uint32_t n;
    bool byte_level;               /* texts are written with the GPT-2 byte map */
    char *texts, *pieces;          /* as the vocabulary writes them, and the bytes that they stand for, one after another */
    uint32_t *text_at, *piece_at;  /* [n + 1] where they begin */
    uint8_t *attrs;                /* [n] enum soq__token_attr */
    struct soq__vocab_slot *slots; /* [mask + 1] open addressing by text */
    uint32_t mask;                 /* a power of two, minus one */
    size_t longest;                /* bytes of the longest text */
    int32_t roles[SOQ_ROLE_COUNT]; /* ids, -1 = none */
    int32_t *specials;             /* [n_specials] control, unknown and user-defined tokens, by text */
    uint32_t n_specials, *special_first; /* [257] the first of them that begins with each byte */
};

int soq__vocab_init(struct soq__vocab *v, const struct soq__vocab_desc *desc, struct soq_error *err);
void soq__vocab_done(struct soq__vocab *v);
struct soq__text soq__vocab_text(const struct soq__vocab *v, uint32_t id);
int32_t soq__vocab_find(const struct soq__vocab *v, const char *text, size_t n);
/* The same, but only what ordinary text may become: -1 for control, unknown and byte tokens. */
int32_t soq__vocab_find_plain(const struct soq__vocab *v, const char *text, size_t n);
/* The longest special token that text[at..n) begins with, -1 if none; guarded ones must end by trusted_end. */
int32_t soq__vocab_special_at(const struct soq__vocab *v, const char *text, size_t n, size_t at, size_t trusted_end);
/* "<0x0A>" -> 10; -1 if the text is no such thing. */
int soq__vocab_byte_value(const char *text, size_t n);

static inline enum soq__token_type soq__vocab_type(const struct soq__vocab *v, uint32_t id)
{
    return (enum soq__token_type)(v->attrs[id] & SOQ__ATTR_TYPE);
}

/* bpe_byte.c: merges by rank. */
struct soq__merge_slot {
    uint32_t left, right; /* ids; left = UINT32_MAX: free */
    uint32_t rank;
    int32_t id; /* the merged token */
};

struct soq__byte_rules {
    struct soq__merge_slot *slots; /* [mask + 1] open addressing by the pair */
    uint32_t mask;
    struct soq__pretok *pretok;
    bool whole_words; /* a word that is a token needs no merges */
};

/* bpe_spm.c: merges by score. */
struct soq__spm_rules {
    float *scores;     /* [n] */
    bool space_prefix; /* a space is put in front of every stretch of text */
};

struct soq__tokenizer {
    struct soq__vocab vocab;
    struct soq__byte_rules byte; /* of the family in use; the other is zero */
    struct soq__spm_rules spm;
    int32_t byte_ids[256]; /* the token for each byte, -1 = none */
    bool add_bos, add_eos;
};

/* Buffers of one encode call. */
struct soq__encode_work {
    struct soq__bpe bpe;
    struct soq__cuts cuts;
    struct soq_buf text; /* spm: the text with its spaces replaced; byte-level: a word in the byte map */
};

int soq__byte_init(struct soq__tokenizer *tok, const struct soq__vocab_desc *desc, struct soq_error *err);
void soq__byte_done(struct soq__tokenizer *tok);
int soq__byte_encode(const struct soq__tokenizer *tok, struct soq__text text, struct soq__encode_work *work,
                     struct soq__ids *ids, struct soq_error *err);
/* The byte that a code point of the GPT-2 map stands for, -1 if it is not in the map. */
int soq__byte_from_char(uint32_t cp);

int soq__spm_init(struct soq__tokenizer *tok, const struct soq__vocab_desc *desc, struct soq_error *err);
void soq__spm_done(struct soq__tokenizer *tok);
int soq__spm_encode(const struct soq__tokenizer *tok, struct soq__text text, struct soq__encode_work *work,
                    struct soq__ids *ids, struct soq_error *err);

/* Appends the tokens of bytes that form no token of their own. */
int soq__emit_bytes(const struct soq__tokenizer *tok, const char *data, size_t n, struct soq__ids *ids, struct soq_error *err);

#endif
