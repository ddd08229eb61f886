/* The table of the core's own keys. A key arrives here together with what it configures; etc/soquete.ini lists the same keys
 * with the same defaults, which a test compares. */
#include "config/schema.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* A block is cut into tiles whose token count kernels shift and mask by. */
static const char *block_tokens_problem(const char *text)
{
    long n = strtol(text, NULL, 10);

    return n > 0 && (n & (n - 1)) == 0 ? NULL : "not a power of two; expected 8, 16, 32, 64, 128 or 256";
}

/* NAME, NAME/VARIANT, either with a final `!`, between commas. */
static const char *backends_problem(const char *text)
{
    static const char name_bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

    if (!*text)
        return "no backend is named; expected at least one";
    for (;;) {
        size_t n = strspn(text += strspn(text, " \t"), name_bytes), variant;

        if (n && text[n] == '/' && (variant = strspn(text + n + 1, name_bytes)))
            n += 1 + variant;
        if (!n)
            break;
        text += n + (text[n] == '!');
        text += strspn(text, " \t");
        if (!*text)
            return NULL;
        if (*text++ != ',')
            break;
    }
    return "not a list of backends; expected NAME, NAME! (required) or NAME/VARIANT, with commas between";
}

#define OPTION(type_, key_, default_, ...)                                                                                     \
    .option = {.struct_size = sizeof(struct soq_option), .type = type_, .key = key_, .default_value = default_, __VA_ARGS__}

const struct soq__core_key soq__core_keys[] = {
    {"runtime",
     {OPTION(SOQ_OPT_PATH, "plugin_dir", "", .help = "Directories to search for plugins before the built-in one."),
      .list = true}},
    {"runtime",
     {OPTION(SOQ_OPT_ENUM, "log_level", "warn", .choices = "error|warn|info|debug",
             .help = "The least important messages that are still shown.")}},

    {"model", {OPTION(SOQ_OPT_PATH, "path", "", .help = "The model, a GGUF file.")}},
    {"model",
     {OPTION(SOQ_OPT_INT, "context", "0", .min = 0, .max = 1 << 24,
             .help = "Tokens that one sequence may hold, prompt and answer together; 0: as many as the model was made for.")}},
    {"model",
     {OPTION(SOQ_OPT_PATH, "template", "", .help = "A file with a Jinja chat template that replaces the model's own.")}},

    {"engine",
     {OPTION(SOQ_OPT_INT, "step_tokens", "512", .min = 1, .max = 1 << 16,
             .help =
                 "Tokens that one step computes: prompts get what sequences that decode leave of them, but at least half.")}},
    {"engine",
     {OPTION(SOQ_OPT_INT, "max_sequences", "16", .min = 1, .max = 4096, .help = "Sessions that may exist at the same time.")}},
    {"engine",
     {OPTION(SOQ_OPT_INT, "chunk", "512", .min = 1, .max = 1 << 16,
             .help = "Prompt tokens of one sequence that one step may compute.")}},
    {"engine",
     {OPTION(SOQ_OPT_INT, "max_tokens", "512", .min = -1, .max = 1 << 24,
             .help = "Tokens that an answer may have when the request does not say; -1: as many as the context holds.")}},

    {"backend",
     {OPTION(SOQ_OPT_STRING, "use", "cpu",
             .help = "Backends in order of preference: the first with a device computes, the rest help out; NAME! is "
                     "required, NAME/VARIANT forces a variant."),
      .list = true, .problem = backends_problem}},

    {"backend",
     {OPTION(SOQ_OPT_STRING, "split", "",
             .help =
                 "Layers and the backend that they go to, BACKEND:FIRST-LAST, with commas between; layers that are not named "
                 "go to the first backend."),
      .list = true}},
    {"backend",
     {OPTION(SOQ_OPT_STRING, "place", "",
             .help = "Ops or tensors, by name with * and ?, and the backend that they go to, PATTERN:BACKEND, with commas "
                     "between."),
      .list = true}},

    {"kv", {OPTION(SOQ_OPT_STRING, "policy", "full", .help = "The plugin that decides which cache entries stay.")}},
    {"kv", {OPTION(SOQ_OPT_STRING, "codec", "f16", .help = "The plugin that stores keys and values.")}},
    {"kv", {OPTION(SOQ_OPT_STRING, "codec_k", "", .help = "The plugin that stores keys, in place of codec.")}},
    {"kv", {OPTION(SOQ_OPT_STRING, "codec_v", "", .help = "The plugin that stores values, in place of codec.")}},
    {"kv",
     {OPTION(SOQ_OPT_INT, "pack_grid", "128", .min = 8, .max = 65536,
             .help = "Codecs that pack blocks do so at positions that are multiples of it, where they do not say themselves; "
                     "rounded up to whole blocks.")}},
    {"kv",
     {OPTION(SOQ_OPT_INT, "residual", "0", .min = 0, .max = 1 << 24,
             .help = "Tokens before such a position that stay plain, at least; rounded up to whole blocks.")}},
    {"kv",
     {OPTION(SOQ_OPT_INT, "block_tokens", "32", .min = 8, .max = 256, .help = "Tokens in a cache block, a power of two."),
      .problem = block_tokens_problem}},
    {"kv",
     {OPTION(SOQ_OPT_SIZE, "memory", "0", .max = -1,
             .help = "Bytes that the cache may take in all; 0: derived from the memory that is free.")}},
    {"kv",
     {OPTION(SOQ_OPT_PATH, "trace", "",
             .help =
                 "A file that is written anew: which entries each layer and KV head keeps, as JSON lines for soquete trace.")}},
    {"kv",
     {OPTION(SOQ_OPT_ENUM, "prefix_cache", "auto", .choices = "auto|on|off",
             .help = "Whether what one prompt has computed serves the next that begins alike; auto: where the policy keeps "
                     "everything, since the memory that others free would be held.")}},
    {"kv",
     {OPTION(SOQ_OPT_SIZE, "prefix_memory", "0", .max = -1,
             .help = "Bytes of the cache that prefixes may take beyond their sequences, a hard limit; they give way to "
                     "sequences. 0: a quarter of memory.")}},
    {"kv",
     {OPTION(SOQ_OPT_INT, "prefix_ttl", "3600", .min = 0, .max = 1 << 30,
             .help = "Seconds after its last use that a prefix is forgotten; 0: never.")}},
    {"kv",
     {OPTION(SOQ_OPT_PATH, "prefix_pin", "",
             .help = "A text file with the system message of many conversations: computed when the model is loaded, and never "
                     "forgotten. It serves sessions without a salt; for others a program calls soq_session_pin().")}},
    {"kv",
     {OPTION(SOQ_OPT_ENUM, "preempt", "auto", .choices = "auto|swap|recompute|off",
             .help = "What happens to idle sequences, and to those of lower priority, when another needs their memory: swapped "
                     "out to swap_memory, or computed again later; auto: swapped out as long as there is room.")}},
    {"kv",
     {OPTION(SOQ_OPT_SIZE, "swap_memory", "1073741824", .max = -1,
             .help = "Bytes of the host's memory for sequences that are swapped out, a hard limit; 0: none is.")}},

    {"decoding",
     {OPTION(SOQ_OPT_STRING, "sampler", "standard", .help = "The plugin that chooses the next token from the logits.")}},
    {"decoding",
     {OPTION(SOQ_OPT_ENUM, "drafter", "none", .choices = "none|self",
             .help =
                 "Who proposes tokens that the model then checks several at a time: self, the model with the lossy view of the "
                 "cache that [draft] describes. The answer is that of the cache that [kv] describes.")}},
    {"decoding",
     {OPTION(SOQ_OPT_INT, "draft_tokens", "0", .min = 0, .max = 16,
             .help =
                 "Tokens that are proposed at a time; 0: 1 to 8, following how many were right, and none as long as the lossy "
                 "view is hardly smaller.")}},
    {"decoding",
     {OPTION(SOQ_OPT_ENUM, "draft_accept", "ratio", .choices = "ratio|equal",
             .help = "When a proposal counts beyond temperature 0: by the ratio of its probabilities, which keeps their "
                     "distribution, or where it is the token that would have come anyway, which keeps the tokens.")}},

    {"draft",
     {OPTION(SOQ_OPT_STRING, "policy", "snapkv", .help = "The plugin that decides which entries of the lossy view stay.")}},
    {"draft", {OPTION(SOQ_OPT_STRING, "codec", "f16", .help = "The plugin that stores keys and values of the lossy view.")}},
    {"draft", {OPTION(SOQ_OPT_STRING, "codec_k", "", .help = "The plugin that stores its keys, in place of codec.")}},
    {"draft", {OPTION(SOQ_OPT_STRING, "codec_v", "", .help = "The plugin that stores its values, in place of codec.")}},
};
const size_t soq__core_key_count = COUNT(soq__core_keys);

const char *const soq__plugin_families[] = {"backend", "kv", "decoding"};
const size_t soq__plugin_family_count = COUNT(soq__plugin_families);

const char *const soq__free_sections[] = {"kv.layers"};
const size_t soq__free_section_count = COUNT(soq__free_sections);
