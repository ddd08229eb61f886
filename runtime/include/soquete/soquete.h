/* Soquete: LLM inference for C programs. The embedding API.
 *
 *     struct soq_error err = SOQ_ERROR_INIT;
 *     struct soq_runtime *rt;
 *     struct soq_model *model;
 *     struct soq_session *session;
 *
 *     if (soq_runtime_create(NULL, &rt, &err) || soq_model_load(rt, "model.gguf", NULL, &model, &err) ||
 *         soq_session_create(model, &session, &err))
 *         die(err.text);
 *     struct soq_request req = SOQ_REQUEST_INIT;
 *     req.prompt = "Once upon a time";
 *     req.on_event = print_text;
 *     if (soq_generate(session, &req, NULL, &err))
 *         die(err.text);
 *
 * Objects: a runtime (configuration and plugins), models loaded in it, sessions of a model. Free them in reverse order;
 * free(NULL) is a no-op. Calls return 0 or -SOQ_E... and fill err, which may be NULL. The library prints nothing.
 *
 * Threads: different sessions of a model may be used from different threads at once, and their requests are then computed
 * together, in one batch. One session is used by one thread at a time, except soq_session_cancel. Loading and freeing a runtime
 * or a model must not overlap with other calls on it. A callback may not call into its own model.
 *
 * Every struct begins with struct_size, which SOQ_..._INIT sets; fields are only appended (see plugin.h for the rules). */
#ifndef SOQUETE_SOQUETE_H
#define SOQUETE_SOQUETE_H

#include <stddef.h>
#include <stdint.h>

#include "soquete/error.h"
#include "soquete/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOQ_API __attribute__((visibility("default")))

struct soq_runtime;
struct soq_model;
struct soq_session;

/* "0.1.0" */
SOQ_API const char *soq_version(void);
/* "out of memory", for a code of either sign */
SOQ_API const char *soq_error_text(int code);

/* ---- Runtime --------------------------------------------------------------------------------------------------------- */

struct soq_runtime_params {
    uint32_t struct_size;
    uint32_t reserved;
    const char *config;             /* INI file; NULL: the user's, else the system's, else defaults */
    const char *const *plugin_dirs; /* searched first; NULL-terminated; NULL: none */
    const char *const *settings;    /* "section.key=value", override the file; NULL-terminated; NULL: none */
    void (*log)(void *ctx, int level, const char *text); /* enum soq_log_level; any thread; NULL: silent */
    void *log_ctx;
};

#define SOQ_RUNTIME_PARAMS_INIT SOQ_SIZED(soq_runtime_params)

/* Reads configuration and manifests; loads no plugin yet. params NULL: defaults. */
SOQ_API int soq_runtime_create(const struct soq_runtime_params *params, struct soq_runtime **runtime_out,
                               struct soq_error *err);
SOQ_API void soq_runtime_free(struct soq_runtime *runtime);

/* ---- Model ----------------------------------------------------------------------------------------------------------- */

struct soq_model_params {
    uint32_t struct_size;
    uint32_t reserved;
    /* Called while weights are prepared; nonzero stops the loading (-SOQ_ECANCELLED). NULL: none. */
    int (*progress)(void *ctx, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_ctx;
};

#define SOQ_MODEL_PARAMS_INIT SOQ_SIZED(soq_model_params)

/* path NULL: [model] path. Chooses plugins by the configuration. */
SOQ_API int soq_model_load(struct soq_runtime *runtime, const char *path, const struct soq_model_params *params,
                           struct soq_model **model_out, struct soq_error *err);
SOQ_API void soq_model_free(struct soq_model *model);

struct soq_model_info {
    uint32_t struct_size;
    uint32_t n_vocab;
    uint32_t n_layers;
    uint32_t context; /* tokens a session may hold */
    uint64_t n_parameters;
    uint64_t weight_bytes;  /* held by the backend beside the file */
    uint64_t kv_limit;      /* bytes that all sessions may use together */
    uint64_t kv_used;       /* bytes at the moment */
    uint64_t kv_peak;       /* the most so far */
    const char *family;     /* "llama"; valid as long as the model */
    const char *backend;    /* "cpu/x86-64-v3" */
    int32_t has_template;   /* the file brings a chat template */
    int32_t has_vocabulary; /* text can be tokenized */
    uint64_t kv_evicted;    /* entries that policies selected away so far, all layers and kv heads counted */
    uint64_t kv_freed;      /* bytes of their blocks that went back to the pool */
    /* The prefix index; all 0 without one. */
    uint64_t prefix_limit, prefix_used; /* bytes; a part of kv_used, but for the entries */
    uint64_t prefix_pinned;             /* bytes of prefix_used */
    uint64_t prefix_entries;            /* blocks */
    uint64_t prefix_lookups;            /* prompts so far */
    uint64_t prefix_hits;               /* of which a part was found */
    uint64_t prefix_tokens;             /* that need not be computed for it */
    uint64_t prefix_evictions;          /* entries so far */
    /* Preemption. */
    uint64_t swap_limit, swap_used, swap_peak; /* bytes of the host's memory */
    uint64_t swapped_out, swapped_in;          /* sequences so far */
    uint64_t dropped;                          /* so far, to be computed again */
};

/* info->struct_size set by the caller. */
SOQ_API int soq_model_info(struct soq_model *model, struct soq_model_info *info, struct soq_error *err);

enum {
    SOQ_TOKENIZE_BOS = 1,     /* begin with BOS if the vocabulary asks for it */
    SOQ_TOKENIZE_SPECIAL = 2, /* control tokens in the text are recognised */
};

/* Writes at most `capacity` ids; *count_out is how many there are, so a first call with capacity 0 gives the size. */
SOQ_API int soq_tokenize(struct soq_model *model, const char *text, size_t n, uint32_t flags, int32_t *ids, size_t capacity,
                         size_t *count_out, struct soq_error *err);
/* Bytes of the ids' text, control tokens left out; like soq_tokenize; not NUL-terminated. */
SOQ_API int soq_detokenize(struct soq_model *model, const int32_t *ids, size_t count, char *text, size_t capacity,
                           size_t *n_out, struct soq_error *err);

/* ---- Session --------------------------------------------------------------------------------------------------------- */

struct soq_session_params {
    uint32_t struct_size;
    uint32_t reserved;
    const char *salt; /* what others have computed serves this session only if their salt is the same; NULL: none, "" */
};

#define SOQ_SESSION_PARAMS_INIT SOQ_SIZED(soq_session_params)

/* A sequence with its cache. It remembers the tokens that it has computed: a request whose prompt begins with them computes
 * only what is new, one that departs from them goes back to the common part. */
SOQ_API int soq_session_create(struct soq_model *model, struct soq_session **session_out, struct soq_error *err);
/* The same with parameters; NULL: none. */
SOQ_API int soq_session_open(struct soq_model *model, const struct soq_session_params *params, struct soq_session **session_out,
                             struct soq_error *err);
SOQ_API void soq_session_free(struct soq_session *session);
/* A second session with the same past; the cache is shared until either writes. */
SOQ_API int soq_session_fork(struct soq_session *session, struct soq_session **session_out, struct soq_error *err);
/* Forgets everything after the first n tokens of prompt and answer. */
SOQ_API int soq_session_rollback(struct soq_session *session, uint32_t n_tokens, struct soq_error *err);
/* Tokens computed so far: of an answer all but the last one. They count even while the session's memory is lent to others. */
SOQ_API uint32_t soq_session_length(struct soq_session *session);
/* Ends the request in hand with reason cancelled, soon. Any thread; async-signal-safe. A request that starts later is not
 * touched. */
SOQ_API void soq_session_cancel(struct soq_session *session);

/* Writes everything that the continuation depends on to a file, which is there as a whole or not at all; and a note, any n_note
 * bytes that the program wants to find again. What is written is copied first, between two steps: while the file is written,
 * requests go on, on this session too. -SOQ_EUNSUPPORTED where the policy cannot. */
SOQ_API int soq_session_save(struct soq_session *session, const char *path, const void *note, size_t n_note,
                             struct soq_error *err);
/* A session that goes on exactly where the saved one was. A file that is damaged (-SOQ_ECORRUPT), of another version
 * (-SOQ_EUNSUPPORTED), or of another model, codec, policy, block size, placement or sampler (-SOQ_EINVAL) is refused. The salt
 * is not in the file. Files are as trusted as models: the checksum finds damage, no malice. */
SOQ_API int soq_session_load(struct soq_model *model, const struct soq_session_params *params, const char *path,
                             struct soq_session **session_out, struct soq_error *err);
/* The note of the file that the session was loaded from, as long as the session; 0 bytes if there is none. */
SOQ_API const void *soq_session_note(const struct soq_session *session, size_t *n_out);

/* The whole blocks of the session's first n tokens stay in the prefix index, whatever else needs room, until unpinned as often;
 * *pinned_out, which may be NULL: how many tokens that are, 0 if there is no index. Sessions of the same salt share them, also
 * after this one is freed. */
SOQ_API int soq_session_pin(struct soq_session *session, uint32_t n_tokens, uint32_t *pinned_out, struct soq_error *err);
/* n_tokens: as in the call that pinned. Undoes the latest such call on this session, whatever it holds now; if there is none,
 * one of another session with the same salt and the same first n tokens. */
SOQ_API int soq_session_unpin(struct soq_session *session, uint32_t n_tokens, struct soq_error *err);

/* ---- Generation ------------------------------------------------------------------------------------------------------ */

/* New fields are appended: request.message_stride tells the library how long an element is. */
struct soq_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* never becomes a control token */
};

/* X(name, value, text) */
#define SOQ_REASONS(X)                                                                                                         \
    X(SOQ_REASON_EOG, 1, "stop") /* the model ended the answer */                                                              \
    X(SOQ_REASON_STOP, 2, "stop_string")                                                                                       \
    X(SOQ_REASON_LENGTH, 3, "length") /* max_tokens, or the context is full */                                                 \
    X(SOQ_REASON_CANCELLED, 4, "cancelled")

enum soq_reason {
#define SOQ_REASON_ENUM(name, value, text) name = value,
    SOQ_REASONS(SOQ_REASON_ENUM)
#undef SOQ_REASON_ENUM
};

struct soq_event {
    uint32_t struct_size;
    int32_t token;    /* id; -1: text that was held back, at the end */
    float logprob;    /* natural log of its probability under the model */
    uint32_t index;   /* 0, 1, ... of the token */
    const char *text; /* whole code points, but for bytes that cannot become any; empty while a stop string may be completed */
    size_t text_size; /* bytes; text is not NUL-terminated */
};

/* Exactly one of messages, prompt and ids. */
struct soq_request {
    uint32_t struct_size;
    uint32_t n_messages;
    const struct soq_message *messages; /* rendered with the model's chat template, generation prompt added */
    const char *prompt; /* text as it is: control tokens are not recognised, BOS is added if the vocabulary asks for it */
    const int32_t *ids; /* used exactly as they are */
    size_t n_ids;
    uint32_t message_stride; /* sizeof(struct soq_message); SOQ_REQUEST_INIT sets it */
    uint32_t reserved;
    int32_t max_tokens;                  /* -1: [engine] max_tokens */
    uint32_t ignore_eog;                 /* nonzero: end-of-generation tokens do not end it */
    const struct soq_sampling *sampling; /* NULL: the sampler's configured defaults */
    const char *const *stop;             /* strings that end the answer and are not part of it; NULL-terminated; NULL: none */
    int (*on_event)(void *ctx, const struct soq_event *event); /* on the caller's thread; nonzero cancels; NULL: none */
    void *ctx;
    int32_t priority; /* larger: admitted sooner, and preempted later, when memory is short */
    uint32_t reserved2;
};

#ifdef __cplusplus
inline struct soq_request soq_request_init()
{
    struct soq_request r = SOQ_SIZED(soq_request);

    r.message_stride = static_cast<uint32_t>(sizeof(struct soq_message));
    r.max_tokens = -1;
    return r;
}
#define SOQ_REQUEST_INIT soq_request_init()
#else
#define SOQ_REQUEST_INIT                                                                                                       \
    {                                                                                                                          \
        .struct_size = (uint32_t)sizeof(struct soq_request), .message_stride = (uint32_t)sizeof(struct soq_message),           \
        .max_tokens = -1                                                                                                       \
    }
#endif

struct soq_result {
    uint32_t struct_size;
    int32_t reason;         /* enum soq_reason */
    uint32_t prompt_tokens; /* of the prompt */
    uint32_t cached_tokens; /* of these, not computed: in the session's cache or in the prefix index */
    uint32_t generated_tokens;
    uint32_t prefix_tokens;     /* of cached_tokens, from the prefix index */
    double ttft_s;              /* from the call to the first token */
    double prefill_s, decode_s; /* from the call to the end of the prompt; from there to the last token */
    double itl_s;               /* mean time between tokens; 0 for fewer than two */
    uint64_t kv_bytes;          /* that the session holds now */
    uint64_t kv_evicted;        /* entries that the policy selected away during the answer, all layers and kv heads counted */
    uint64_t kv_freed;          /* bytes of their blocks that went back to the pool */
    uint32_t steps;             /* that gave tokens: one each, and with [decoding] drafter = self more */
    uint32_t drafted_tokens;    /* that the lossy view proposed */
    uint32_t accepted_tokens;   /* of these, those that became the answer's */
    uint32_t reserved;
    uint64_t kv_draft_bytes; /* of kv_bytes, those that only the lossy view needs */
};

#define SOQ_RESULT_INIT SOQ_SIZED(soq_result)

/* Blocks until the answer has ended. result may be NULL. A cancelled request succeeds with that reason. */
SOQ_API int soq_generate(struct soq_session *session, const struct soq_request *request, struct soq_result *result,
                         struct soq_error *err);
/* The sampler's configured defaults, to be changed and handed to soq_generate. sampling->struct_size set by the caller. */
SOQ_API int soq_sampling_defaults(struct soq_model *model, struct soq_sampling *sampling, struct soq_error *err);
/* "stop", "length", ... */
SOQ_API const char *soq_reason_text(int reason);

#ifdef __cplusplus
}
#endif
#endif
