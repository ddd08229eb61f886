/* Positions by slot, over whole models: keys that are turned to the places of what was kept are the keys that RoPE would have
 * put there, re-rotate(prune(K)) = RoPE(prune(K before RoPE)), with each way to scale RoPE and on every backend.
 *
 * In a model of which only the last layer adds attention to its input, a key before RoPE depends on its own token alone. There
 * what is left of the cache of a long text is the cache of a short one, its first and its last tokens, and what follows must
 * find no difference. */
#include <math.h>

#include "base/file.h"
#include "model/gguf.h"
#include "tests/unit/engine_fixture.h"
#include "tests/unit/tiny_model.h"

enum { N = 100, SINKS = 4, CAPACITY = 24, BEHIND = 5 };

static int32_t ids[N + BEHIND];

/* ---- The model ----------------------------------------------------------------------------------------------------------- */

static const struct soq__gguf_tensor *attention_of(const struct soq__gguf *g, uint32_t layer)
{
    char name[64];

    snprintf(name, sizeof name, "blk.%u.attn_output.weight", layer);
    return soq__gguf_tensor_find(g, name);
}

/* A copy of the file in which no layer but the last adds attention to its input. Free the path, unlink the file. */
static char *last_layer_attends(const char *path)
{
    struct soq_buf copy = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    uint32_t l = 0;
    char *result;

    cr_assert_eq(soq__file_read(soq__test_data(path), 1 << 20, &copy, &err), 0, "%s", err.text);
    cr_assert_eq(soq__gguf_open_memory(copy.data, copy.len, path, &g, &err), 0, "%s", err.text);
    for (; attention_of(g, l + 1); l++) {
        const struct soq__gguf_tensor *t = attention_of(g, l);

        memset(copy.data + t->offset, 0, t->bytes);
    }
    cr_assert_gt(l, 0, "%s has one layer", path);
    soq__gguf_close(g);
    result = tiny_file(copy.data, copy.len);
    soq__buf_done(&copy);
    return result;
}

/* ---- Two ways to the same logits ----------------------------------------------------------------------------------------- */

/* The tokens that the row at `position` sees, itself included, if those behind the sinks are the last ones before `end`, and
 * what came since. */
static uint32_t shorten(uint32_t end, uint32_t position, int32_t *out)
{
    uint32_t n = SINKS;

    memcpy(out, ids, SINKS * sizeof *out);
    for (uint32_t i = end - (CAPACITY - SINKS); i <= position; i++)
        out[n++] = ids[i];
    return n;
}

/* The largest difference between the logits of an answer to the long text, whose middle is gone, and those behind the short one
 * that is left. */
static float difference(const char *model, const char *use, const char *when, const char *positions)
{
    char when_setting[64], positions_setting[64];
    struct fixture full = open_model(model, (const char *[]){REFERENCE_SETTINGS, use, "kv.prefix_cache=off", NULL}), f;
    struct collected got = {.from = N, .rows = BEHIND};
    struct soq__sequence *seq;
    float worst = 0;

    snprintf(when_setting, sizeof when_setting, "kv.streaming.when=%s", when);
    snprintf(positions_setting, sizeof positions_setting, "kv.streaming.positions=%s", positions);
    f = open_model(model, (const char *[]){REFERENCE_SETTINGS, use, when_setting, positions_setting, "kv.policy=streaming",
                                           "kv.streaming.sinks=4", "kv.streaming.capacity=24", "kv.streaming.every=1",
                                           "kv.block_tokens=8", NULL});
    seq = new_sequence(&f);
    cr_assert_eq(run_ids(seq, ids, N, BEHIND + 1, &got, NULL), 0);
    memcpy(ids + N, seq->tokens + N, BEHIND * sizeof *ids);
    soq__sequence_free(seq);
    for (uint32_t i = 0; i < BEHIND; i++) {
        uint32_t end = strcmp(when, "always") == 0 ? N + i + 1 : strcmp(when, "decode") == 0 ? N + i : N, n;
        int32_t few[CAPACITY + BEHIND];
        struct collected want = {.rows = 1};

        n = shorten(end, N + i, few);
        want.from = n - 1;
        seq = new_sequence(&full);
        cr_assert_eq(run_ids(seq, few, n, 0, &want, NULL), 0);
        for (uint32_t t = 0; t < got.n_vocab; t++)
            worst = fmaxf(worst, fabsf(got.logits[(size_t)i * got.n_vocab + t] - want.logits[t]));
        soq__free(want.logits);
        soq__sequence_free(seq);
    }
    soq__free(got.logits);
    close_model(&f);
    close_model(&full);
    return worst;
}

static char *file;

static void compare(const char *use)
{
    static const char *const whens[] = {"prompt", "decode", "always"};

    for (size_t i = 0; i < 3; i++) {
        float by_slot = difference(file, use, whens[i], "slot"), original = difference(file, use, whens[i], "original");

        cr_expect_leq(by_slot, 1e-4f, "%s, when = %s: logits differ by %g", use, whens[i], (double)by_slot);
        cr_expect_gt(original, 1e-2f, "%s, when = %s: at their original positions they differ by %g only", use, whens[i],
                     (double)original);
    }
}

static void each_backend(const char *model)
{
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (int32_t)(3 + (i * 37 + i * i % 13) % 250);
    file = last_layer_attends(model);
    cr_expect_gt(for_each_backend(compare), 0);
    unlink(file);
    free(file);
}

Test(kv_rotation, plain, .timeout = 120)
{
    each_backend("golden/llama/model.gguf");
}

Test(kv_rotation, linear, .timeout = 120)
{
    each_backend("golden/llama_rope_linear/model.gguf");
}

Test(kv_rotation, llama3, .timeout = 120)
{
    each_backend("golden/llama_rope_llama3/model.gguf");
}

Test(kv_rotation, yarn, .timeout = 120)
{
    each_backend("golden/llama_rope_yarn/model.gguf");
}
