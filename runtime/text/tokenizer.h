/* Text to token ids and back: byte-level BPE ("gpt2") and SentencePiece-style BPE with byte fallback ("llama").
 *
 * A tokenizer is built once from a plain description (model/vocab_gguf.h fills it from a file), copies what it keeps and is
 * read-only afterwards: any number of threads may use it at once. Nothing here knows files, chat templates or models.
 *
 * Who may write a control token? Only the caller, with SOQ_TOK_SPECIAL, and never inside an untrusted span: there, and in a
 * text encoded without the flag, "<|im_end|>" is a string like any other. Bytes are never lost: whatever is no valid UTF-8 goes
 * through the vocabulary's bytes. */
#ifndef SOQ_TEXT_TOKENIZER_H
#define SOQ_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "text/span.h"

struct soq__text {
    const char *data; /* any bytes, not NUL-terminated; may be NULL if len is 0 */
    size_t len;
};

/* Values as in tokenizer.ggml.token_type. */
enum soq__token_type {
    SOQ_TOKEN_UNDEFINED = 0, /* handled as normal */
    SOQ_TOKEN_NORMAL = 1,
    SOQ_TOKEN_UNKNOWN = 2,
    SOQ_TOKEN_CONTROL = 3,
    SOQ_TOKEN_USER_DEFINED = 4,
    SOQ_TOKEN_UNUSED = 5,
    SOQ_TOKEN_BYTE = 6,
};

/* X(name, key): ids that have a role. The misspelt key is the format's. */
#define SOQ__TOKEN_ROLES(X)                                                                                                    \
    X(SOQ_ROLE_BOS, "tokenizer.ggml.bos_token_id")                                                                             \
    X(SOQ_ROLE_EOS, "tokenizer.ggml.eos_token_id")                                                                             \
    X(SOQ_ROLE_EOT, "tokenizer.ggml.eot_token_id")                                                                             \
    X(SOQ_ROLE_EOM, "tokenizer.ggml.eom_token_id")                                                                             \
    X(SOQ_ROLE_UNK, "tokenizer.ggml.unknown_token_id")                                                                         \
    X(SOQ_ROLE_SEP, "tokenizer.ggml.seperator_token_id")                                                                       \
    X(SOQ_ROLE_PAD, "tokenizer.ggml.padding_token_id")                                                                         \
    X(SOQ_ROLE_MASK, "tokenizer.ggml.mask_token_id")

enum soq__token_role {
#define SOQ__ROLE_ENUM(name, key) name,
    SOQ__TOKEN_ROLES(SOQ__ROLE_ENUM)
#undef SOQ__ROLE_ENUM
        SOQ_ROLE_COUNT
};

const char *soq__token_role_key(enum soq__token_role role);

/* Everything is borrowed for the call only. Flags: -1 not given (the family's default), 0, 1. */
struct soq__vocab_desc {
    const char *model; /* "gpt2" or "llama" */
    const char *pre;   /* pre-tokenizer of gpt2 vocabularies; NULL = "default" */
    uint32_t n_tokens;
    const struct soq__text *tokens; /* [n_tokens] */
    const float *scores;            /* [n_tokens], needed by llama; NULL if absent */
    const int32_t *types;           /* [n_tokens] enum soq__token_type; NULL = all normal */
    uint32_t n_merges;
    const struct soq__text *merges; /* [n_merges] "left right", best first, needed by gpt2 */
    int32_t roles[SOQ_ROLE_COUNT];  /* ids, -1 = none */
    int add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
};

/* A description without tokens: roles and flags not given. */
void soq__vocab_desc_init(struct soq__vocab_desc *desc);

struct soq__tokenizer;

/* Refuses, with the key, the value and what is supported: unknown models and pre-tokenizers, missing merges or scores, ids and
 * types out of range. */
int soq__tokenizer_create(const struct soq__vocab_desc *desc, struct soq__tokenizer **tok_out, struct soq_error *err);
void soq__tokenizer_free(struct soq__tokenizer *tok);

/* Growable array of ids. */
struct soq__ids {
    int32_t *data; /* owned */
    size_t n, cap;
};

int soq__ids_push(struct soq__ids *ids, int32_t id, struct soq_error *err);
void soq__ids_done(struct soq__ids *ids); /* frees and resets */

enum soq__encode_flags {
    SOQ_TOK_BOS = 1 << 0,     /* begin with BOS if the vocabulary asks for it; never doubled */
    SOQ_TOK_EOS = 1 << 1,     /* end with EOS if the vocabulary asks for it; never doubled */
    SOQ_TOK_SPECIAL = 1 << 2, /* recognise control tokens outside the untrusted spans */
};

struct soq__encode_args {
    const char *text; /* [n] any bytes */
    size_t n;
    unsigned flags;                    /* enum soq__encode_flags */
    const struct soq__span *untrusted; /* [n_untrusted] ascending, not overlapping, within the text */
    size_t n_untrusted;
};

/* Appends the ids; on failure ids is as before. Time O(n log n). */
int soq__tokenizer_encode(const struct soq__tokenizer *tok, const struct soq__encode_args *args, struct soq__ids *ids,
                          struct soq_error *err);

/* The token's bytes, valid as long as the tokenizer; empty if id is out of range, or if it is a control or unknown token and
 * `special` is false. A piece may be part of a code point. */
struct soq__text soq__tokenizer_piece(const struct soq__tokenizer *tok, int32_t id, bool special);
/* The token's text as the vocabulary writes it ("\xC4\xA0the", "<0x0A>"). */
struct soq__text soq__tokenizer_text(const struct soq__tokenizer *tok, int32_t id);
/* Appends the text of ids[0..n), which are the beginning of a text. */
int soq__tokenizer_decode(const struct soq__tokenizer *tok, const int32_t *ids, size_t n, bool special, struct soq_buf *out,
                          struct soq_error *err);

int32_t soq__tokenizer_n_tokens(const struct soq__tokenizer *tok);
int32_t soq__tokenizer_find(const struct soq__tokenizer *tok, const char *text, size_t n); /* by vocabulary text; -1 if none */
int32_t soq__tokenizer_role(const struct soq__tokenizer *tok, enum soq__token_role role);  /* -1 if none */
/* As used, which may differ from the description: tokens that end a generation are always control tokens. */
enum soq__token_type soq__tokenizer_type(const struct soq__tokenizer *tok, int32_t id);
bool soq__tokenizer_is_eog(const struct soq__tokenizer *tok, int32_t id); /* does generation end with it? */
bool soq__tokenizer_adds_bos(const struct soq__tokenizer *tok);

/* Streaming: emits text as far as it is complete. */
struct soq__detok {
    const struct soq__tokenizer *tok;
    bool special;    /* control tokens are written too */
    bool strip;      /* the next piece begins the text: it loses the space that the encoder put there */
    unsigned n;      /* bytes kept back */
    char pending[4]; /* [n] the beginning of a code point */
};

/* at_start: the ids begin a text (true for a whole text, false for what continues a prompt). */
void soq__detok_init(struct soq__detok *d, const struct soq__tokenizer *tok, bool special, bool at_start);
/* Appends the longest text that later tokens cannot change. Bytes that can no longer become a code point come out as they are.
 * On failure neither d nor out has changed. */
int soq__detok_push(struct soq__detok *d, int32_t id, struct soq_buf *out, struct soq_error *err);
/* Appends what is left, for the end of the text. */
int soq__detok_flush(struct soq__detok *d, struct soq_buf *out, struct soq_error *err);

#endif
