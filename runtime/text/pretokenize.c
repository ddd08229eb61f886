/* Pre-tokenizers: patterns of published tokenizers, one table row per family, compiled with PCRE2 (JIT where the machine has
 * it).
 *
 * A row's patterns are applied one after another, each within the words that the previous one left; what no pattern matches
 * between two matches is a word too. Bytes that are no valid UTF-8 are cut out first: each run of them is a word of its own,
 * and the patterns see what lies between as separate texts. (PCRE2_MATCH_INVALID_UTF would do the same, but without JIT it
 * checks the whole rest of the text again for every match, which is quadratic.)
 *
 * \s is PCRE2's: it differs from Unicode's White_Space in U+180E only. Patterns never match the empty string. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/nearest.h"
#include "base/utf8.h"

#define PATTERNS_MAX 6
#define NAMES_MAX 12

/* A bound on backtracking: a megabyte of spaces needs a few million steps. */
#define MATCH_LIMIT 100000000
#define HEAP_LIMIT_KIB 262144

#define CONTRACTIONS "'(?i:[sdmt]|ll|ve|re)"
#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define BREAKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Llama 3 and Qwen differ in how many digits make a word. */
#define LLAMA3(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BREAKS
/* Words split where lower case turns into upper case. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(upper, lower, suffix)                                                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" suffix
/* The same classes without Chinese characters: complements of what a Unicode category partition leaves. */
#define UPPER_NOT_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER_NOT_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define OPTIONAL_CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define KIMI                                                                                                                   \
    "\\p{sc:Han}+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN,                                                                        \
                          OPTIONAL_CONTRACTION) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BREAKS
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
#define DEEPSEEK_HAN "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
/* Cased letters as DeepSeek's first tokenizer lists them, in numbers because some of them do not survive normalisation. */
#define DEEPSEEK_LETTERS                                                                                                       \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                     \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}"                     \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"           \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                          \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}"                          \
    "\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"                  \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"                 \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                           \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}"         \
    "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"         \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                           \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                          \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"                    \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

struct row {
    const char *names[NAMES_MAX]; /* values of tokenizer.ggml.pre, NULL-terminated */
    const char *patterns[PATTERNS_MAX];
    bool whole_words, add_bos;
};

static const struct row rows[] = {
    {.names = {"default"}, .patterns = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9]{3}"}},
    {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "mellum"},
     .patterns = {GPT2}},
    {.names = {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"},
     .patterns = {"\\p{N}", GPT2}},
    {.names = {"falcon"}, .patterns = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}"}},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     .patterns = {LLAMA3("\\p{N}{1,3}")},
     .whole_words = true,
     .add_bos = true},
    {.names = {"dbrx", "smaug-bpe", "chatglm-bpe"}, .patterns = {LLAMA3("\\p{N}{1,3}")}},
    {.names = {"glm4"}, .patterns = {LLAMA3("\\p{N}{1,3}")}, .whole_words = true},
    {.names = {"qwen2", "stablelm2", "hunyuan", "megrez", "deepseek-r1-qwen", "grok-2", "solar-open"},
     .patterns = {LLAMA3("\\p{N}")}},
    {.names = {"qwen35"},
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BREAKS}},
    {.names = {"seed-coder"},
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" BREAKS}},
    {.names = {"bailingmoe", "bailingmoe2", "llada-moe"},
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]"
                               "|\\s+(?!\\S)|\\s+"}},
    {.names = {"gpt-4o", "llama4", "kanana2", "minimax-m2"},
     .patterns = {CASED(UPPER, LOWER, OPTIONAL_CONTRACTION) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BREAKS}},
    {.names = {"tekken"},
     .patterns = {CASED(UPPER, LOWER, "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BREAKS},
     .whole_words = true,
     .add_bos = true},
    {.names = {"kimi-k2"}, .patterns = {KIMI}},
    {.names = {"deepseek-llm"},
     .patterns = {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
                  "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
                  "(?<!\\s)\\s++\\z", DEEPSEEK_HAN, "\\p{N}+"}},
    {.names = {"deepseek-coder"}, .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_HAN, "\\p{N}"}},
    {.names = {"deepseek-v3", "hunyuan-dense"},
     .patterns = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                  "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" BREAKS}},
    {.names = {"bloom", "poro-chat", "gpt3-finnish"}, .patterns = {BLOOM}},
    {.names = {"viking"}, .patterns = {BLOOM, "\\p{N}"}},
};

struct soq__pretok {
    const struct row *row;
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *codes[PATTERNS_MAX]; /* owned; NULL after the last */
};

static void *pcre_alloc(size_t size, void *ctx)
{
    (void)ctx;
    return soq__alloc(size);
}

static void pcre_free(void *p, void *ctx)
{
    (void)ctx;
    soq__free(p);
}

const char *soq__pretok_name(size_t i)
{
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (size_t n = 0; n < NAMES_MAX && rows[k].names[n]; n++)
            if (!i--)
                return rows[k].names[n];
    return NULL;
}

static int unknown_name(const char *name, struct soq_error *err)
{
    const char *all[sizeof rows / sizeof rows[0] * NAMES_MAX + 1], *near;
    struct soq_buf list = SOQ_BUF_INIT;
    size_t n = 0;
    int rc;

    for (; (all[n] = soq__pretok_name(n)) != NULL; n++)
        soq__buf_printf(&list, "%s%s", n ? ", " : "", all[n]);
    near = soq__nearest(name, all, n);
    rc = soq__fail(err, SOQ_EUNSUPPORTED, "tokenizer.ggml.pre = \"%.100s\" is not supported%s%s%s; supported: %s", name,
                   near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "", soq__buf_str(&list));
    soq__buf_done(&list);
    return rc;
}

static const struct row *find_row(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < NAMES_MAX && rows[i].names[k]; k++)
            if (!strcmp(rows[i].names[k], name))
                return &rows[i];
    return NULL;
}

static int compile(struct soq__pretok *p, pcre2_compile_context *ctx, struct soq_error *err)
{
    for (size_t i = 0; i < PATTERNS_MAX && p->row->patterns[i]; i++) {
        char text[120] = "";
        PCRE2_SIZE at;
        int code;

        p->codes[i] =
            pcre2_compile((PCRE2_SPTR)p->row->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, ctx);
        if (!p->codes[i]) {
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            return soq__fail(err, code == PCRE2_ERROR_HEAP_FAILED ? SOQ_ENOMEM : SOQ_EUNSUPPORTED,
                             "pattern %zu of tokenizer.ggml.pre = \"%s\" does not compile with PCRE2 %d.%d: %s", i + 1,
                             p->row->names[0], PCRE2_MAJOR, PCRE2_MINOR, text);
        }
        /* No JIT on this machine, or no executable memory: the interpreter does the same, more slowly. */
        (void)pcre2_jit_compile(p->codes[i], PCRE2_JIT_COMPLETE);
    }
    return 0;
}

int soq__pretok_create(const char *name, struct soq__pretok **out, struct soq_error *err)
{
    const struct row *row = find_row(name);
    pcre2_compile_context *ctx = NULL;
    struct soq__pretok *p;
    int rc;

    if (!row)
        return unknown_name(name, err);
    p = soq__alloc_zero(1, sizeof *p);
    if (p) {
        p->row = row;
        p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    }
    if (p && p->memory) {
        ctx = pcre2_compile_context_create(p->memory);
        p->limits = pcre2_match_context_create(p->memory);
    }
    if (ctx && p->limits) {
        pcre2_set_match_limit(p->limits, MATCH_LIMIT);
        pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
        rc = compile(p, ctx, err);
    } else {
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory while preparing the pre-tokenizer");
    }
    pcre2_compile_context_free(ctx);
    if (rc)
        soq__pretok_free(p);
    else
        *out = p;
    return rc;
}

void soq__pretok_free(struct soq__pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < PATTERNS_MAX; i++)
        pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->limits);
    pcre2_general_context_free(p->memory);
    soq__free(p);
}

bool soq__pretok_whole_words(const struct soq__pretok *p)
{
    return p->row->whole_words;
}

bool soq__pretok_add_bos(const struct soq__pretok *p)
{
    return p->row->add_bos;
}

void soq__cuts_done(struct soq__cuts *c)
{
    soq__free(c->ends);
    *c = (struct soq__cuts){0};
}

static int cut(struct soq__cuts *c, size_t end, struct soq_error *err)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        uint32_t *ends = soq__realloc_array(c->ends, cap, sizeof *ends);

        if (!ends)
            return soq__fail(err, SOQ_ENOMEM, "out of memory while splitting a text into words");
        c->ends = ends;
        c->cap = cap;
    }
    c->ends[c->n++] = (uint32_t)end;
    return 0;
}

/* Cuts between valid UTF-8 and runs of other bytes. */
static int cut_invalid(const char *text, size_t n, struct soq__cuts *cuts, struct soq_error *err)
{
    bool valid = true;
    uint32_t cp;
    int rc;

    cuts->n = 0;
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        len = soq__utf8_decode(text + i, n - i, &cp);
        if ((len > 0) != valid && i && (rc = cut(cuts, i, err)))
            return rc;
        valid = len > 0;
    }
    return n ? cut(cuts, n, err) : 0;
}

/* One word, or a text that no pattern has cut yet. */
struct chunk {
    const char *text;
    size_t start, end;
};

/* The first match in c; 0 = none. The JIT's small stack may not do for a pattern with groups: then the interpreter decides. */
static int match(const pcre2_code *code, struct chunk c, size_t from, pcre2_match_data *data, pcre2_match_context *limits)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)c.text + c.start;
    int rc = pcre2_match(code, subject, c.end - c.start, from, options, data, limits);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, subject, c.end - c.start, from, options | PCRE2_NO_JIT, data, limits);
    return rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
}

static int match_failed(const struct soq__pretok *p, int code, struct soq_error *err)
{
    char text[120] = "";

    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return soq__fail(err, code == PCRE2_ERROR_NOMEMORY ? SOQ_ENOMEM : SOQ_ELIMIT,
                     "the text cannot be split into words by tokenizer.ggml.pre = \"%s\" (%s); split it into shorter texts",
                     p->row->names[0], text);
}

/* Cuts at both ends of every match. */
static int cut_chunk(const struct soq__pretok *p, const pcre2_code *code, struct chunk c, pcre2_match_data *data,
                     struct soq__cuts *out, struct soq_error *err)
{
    const PCRE2_SIZE *m = pcre2_get_ovector_pointer(data);
    size_t done = 0; /* cut up to here, from the chunk's start */
    int found, rc;

    while (done < c.end - c.start && (found = match(code, c, done, data, p->limits)) != 0) {
        if (found < 0)
            return match_failed(p, found, err);
        if (m[0] > done && (rc = cut(out, c.start + m[0], err)))
            return rc;
        done = m[1];
        if ((rc = cut(out, c.start + done, err)))
            return rc;
    }
    return done < c.end - c.start ? cut(out, c.end, err) : 0;
}

static int apply(const struct soq__pretok *p, const pcre2_code *code, const char *text, const struct soq__cuts *in,
                 struct soq__cuts *out, struct soq_error *err)
{
    pcre2_match_data *data = pcre2_match_data_create(1, p->memory);
    int rc = data ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory while splitting a text into words");
    uint32_t cp;

    out->n = 0;
    for (size_t i = 0, start = 0; i < in->n && !rc; start = in->ends[i++]) {
        struct chunk c = {text, start, in->ends[i]};

        rc = soq__utf8_decode(text + start, c.end - start, &cp) ? cut_chunk(p, code, c, data, out, err) : cut(out, c.end, err);
    }
    pcre2_match_data_free(data);
    return rc;
}

int soq__pretok_split(const struct soq__pretok *p, const char *text, size_t n, struct soq__cuts *cuts, struct soq_error *err)
{
    struct soq__cuts next = {0}, swap;
    int rc = cut_invalid(text, n, cuts, err);

    for (size_t i = 0; i < PATTERNS_MAX && p->codes[i] && !rc; i++) {
        rc = apply(p, p->codes[i], text, cuts, &next, err);
        swap = *cuts;
        *cuts = next;
        next = swap;
    }
    soq__cuts_done(&next);
    return rc;
}
