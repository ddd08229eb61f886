/* Saved sessions: for every policy, codec and placement the continuation is the same bit for bit, and whatever is wrong with a
 * file is said and changes nothing. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cursor.h"
#include "base/file.h"
#include "base/hash.h"
#include "engine/admit.h"
#include "engine/session.h"
#include "tests/unit/calibrated.h"
#include "tests/unit/policy_cases.h"

#define LLAMA "golden/llama/model.gguf"
#define GEMMA "golden/gemma3/model.gguf"
#define N_PROMPT 90u

static char folder[] = "/tmp/soquete-session-XXXXXX";
static char path[64];

static void make_folder(void)
{
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
}

static void drop_folder(void)
{
    unlink(path);
    cr_expect_eq(rmdir(folder), 0, "a temporary file was left behind");
}

struct heard {
    int32_t ids[64];
    uint32_t n;
};

static int hear(void *ctx, const struct soq_event *event)
{
    struct heard *h = ctx;

    if (event->token >= 0)
        h->ids[h->n++] = event->token;
    return 0;
}

/* n tokens more; warm sampling, so that the sampler's state counts too. */
static void ask(struct soq_session *s, const int32_t *ids, uint32_t n, struct heard *h)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_sampling sampling = {.struct_size = sizeof sampling};

    cr_assert_eq(soq_sampling_defaults(s->model, &sampling, &err), 0);
    sampling.temperature = 1;
    sampling.seed = 7;
    *h = (struct heard){.n = 0};
    req.ids = ids;
    req.n_ids = n;
    req.max_tokens = 40;
    req.ignore_eog = 1;
    req.sampling = &sampling;
    req.on_event = hear;
    req.ctx = h;
    cr_assert_eq(soq_generate(s, &req, NULL, &err), 0, "%s", err.text);
}

static struct soq_session *session_of(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    cr_assert_eq(soq_session_create(f->model, &s, &err), 0, "%s", err.text);
    return s;
}

/* Saved behind a first answer, in the pool or swapped out; loaded by another process, as it were; both go on alike. */
static void goes_on(struct fixture f, struct fixture g, bool out)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = session_of(&f), *t = NULL;
    struct heard first, a, b;
    int32_t ids[N_PROMPT + 40 + 30];
    size_t n_note;
    const void *note;

    make_ids(ids, N_PROMPT + 70, 3);
    ask(s, ids, N_PROMPT, &first);
    memcpy(ids + N_PROMPT, first.ids, sizeof *ids * 40);
    if (out)
        cr_assert_eq(soq__preempt(s->seq, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_save(s, path, "a note", 6, &err), 0, "%s", err.text);
    cr_assert_eq(soq_session_load(g.model, NULL, path, &t, &err), 0, "%s", err.text);
    note = soq_session_note(t, &n_note);
    cr_expect(n_note == 6 && memcmp(note, "a note", 6) == 0);
    cr_expect_eq(soq_session_length(t), N_PROMPT + 39);
    cr_expect(memcmp(s->seq->tokens, t->seq->tokens, (N_PROMPT + 40) * sizeof *ids) == 0);
    ask(s, ids, N_PROMPT + 70, &a);
    ask(t, ids, N_PROMPT + 70, &b);
    cr_expect(memcmp(a.ids, b.ids, sizeof a.ids) == 0, "other tokens after the session was loaded");
    cr_expect_eq(s->seq->kv.groups[0].base, t->seq->kv.groups[0].base);
    cr_expect_eq(soq__kv_seq_bytes(&s->seq->kv), soq__kv_seq_bytes(&t->seq->kv));
    soq_session_free(s);
    soq_session_free(t);
    close_model(&f);
    close_model(&g);
}

Test(session, goes_on_with_every_policy, .timeout = 120)
{
    int64_t live = soq__alloc_live();

    make_folder();
    for (size_t i = 0; i < N_POLICIES; i++)
        goes_on(open_with(LLAMA, policies[i], NULL), open_with(LLAMA, policies[i], NULL), i % 2);
    drop_folder();
    cr_expect_eq(soq__alloc_live(), live);
}

Test(session, goes_on_with_every_store, .timeout = 120)
{
    static const char *const more[][3] = {
        {"kv.codec_k=f32", "kv.codec_v=f32"}, {"kv.codec_k=f16", "kv.codec_v=f32"}, {"kv.memory=64MiB"}};

    make_folder();
    for (size_t i = 0; i < 3; i++) {
        goes_on(open_with(LLAMA, NULL, more[i]), open_with(LLAMA, NULL, more[i]), false);
        goes_on(open_with(GEMMA, NULL, more[i]), open_with(GEMMA, NULL, more[i]), true);
    }
    drop_folder();
}

/* What a preemption dropped is computed again by whoever loads it, who is not told. */
Test(session, goes_on_from_what_was_dropped, .timeout = 120)
{
    static const char *const recompute[] = {"kv.preempt=recompute", NULL};

    make_folder();
    goes_on(open_with(LLAMA, NULL, recompute), open_with(LLAMA, NULL, NULL), true);
    goes_on(open_with(GEMMA, NULL, recompute), open_with(GEMMA, NULL, NULL), true);
    drop_folder();
}

/* Half of the layers on a backend whose memory is not the host's. */
Test(session, goes_on_with_layers_apart, .timeout = 120)
{
    const char *const mixed[] = {mixed_plugins(), "backend.use=cpu,twin", "backend.split=twin:0-2", NULL};

    make_folder();
    goes_on(open_with(GEMMA, NULL, mixed), open_with(GEMMA, NULL, mixed), false);
    drop_folder();
}

/* ---- What is refused ---------------------------------------------------------------------------------------------------- */

static struct soq_buf saved_file(struct fixture *f)
{
    struct soq_buf bytes = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = session_of(f);
    struct heard h;
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 3);
    ask(s, ids, N_PROMPT, &h);
    cr_assert_eq(soq_session_save(s, path, NULL, 0, &err), 0, "%s", err.text);
    cr_assert_eq(soq__file_read(path, SIZE_MAX, &bytes, &err), 0, "%s", err.text);
    soq_session_free(s);
    return bytes;
}

static void write_file(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* The checksum is made right again, so that what lies behind it is looked at. */
static void sign(struct soq_buf *file)
{
    struct soq__hash sum = soq__hash(file->data + 40, file->len - 40);

    soq__put_number((unsigned char *)file->data + 16, file->len, 8);
    memcpy(file->data + 24, sum.bytes, sizeof sum.bytes);
}

static void expect_refused(struct fixture *f, int code, const char *says)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;
    int rc = soq_session_load(f->model, NULL, path, &s, &err);

    cr_expect_eq(rc, code, "%d: %s", rc, err.text);
    cr_expect(strstr(err.text, says) && strstr(err.text, path), "\"%s\" does not say %s", err.text, says);
    cr_expect_null(s);
}

Test(session, damaged_files, .timeout = 120)
{
    struct fixture f;
    struct soq_buf good, bad = SOQ_BUF_INIT;
    uint64_t used;

    make_folder();
    f = open_with(LLAMA, policies[4], NULL);
    good = saved_file(&f);
    used = f.model->engine->kv.budget.used;
    for (size_t n = 0; n < good.len; n += n < 60 ? 1 : 1 + good.len / 40) {
        write_file(good.data, n);
        expect_refused(&f, -SOQ_ECORRUPT, n < 8 ? "no session file" : "cut off");
    }
    for (size_t at = 0; at < good.len; at += at < 60 ? 1 : 1 + good.len / 40) {
        good.data[at] ^= 4;
        write_file(good.data, good.len);
        if (at < 8)
            expect_refused(&f, -SOQ_ECORRUPT, "no session file");
        else if (at < 12)
            expect_refused(&f, -SOQ_EUNSUPPORTED, "version");
        else
            expect_refused(&f, -SOQ_ECORRUPT, at >= 16 && at < 24 ? "cut off or continued" : "damaged");
        good.data[at] ^= 4;
    }
    /* Rightly signed, with any bit of the head's parts wrong: refused, or a session that answers. */
    for (size_t at = 40; at < good.len && at < 6000; at += at < 400 ? 1 : 37) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_session *s = NULL;

        soq__buf_clear(&bad);
        soq__buf_append(&bad, good.data, good.len);
        bad.data[at] ^= (char)(1 << at % 8);
        sign(&bad);
        write_file(bad.data, bad.len);
        if (soq_session_load(f.model, NULL, path, &s, &err))
            cr_assert(strstr(err.text, path), "%s", err.text);
        else
            cr_assert_leq(soq_session_length(s), s->seq->n_tokens);
        soq_session_free(s);
        cr_assert_eq(f.model->engine->kv.budget.used, used);
    }
    unlink(path);
    expect_refused(&f, -SOQ_ENOTFOUND, "No such file");
    soq__buf_done(&good);
    soq__buf_done(&bad);
    close_model(&f);
    drop_folder();
}

Test(session, files_of_others)
{
    static const struct {
        const char *model;
        const char *settings[6], *says;
    } others[] = {
        {LLAMA, {"kv.block_tokens=8", "kv.policy=window", "kv.window.capacity=48", NULL}, "policy = window"},
        {LLAMA, {"kv.block_tokens=8", "kv.policy=snapkv", "kv.snapkv.capacity=49", "kv.snapkv.window=16", NULL}, "capacity=48"},
        {LLAMA,
         {"kv.block_tokens=16", "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", NULL},
         "block_tokens"},
        {LLAMA,
         {"kv.block_tokens=8", "kv.codec_k=f32", "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", NULL},
         "codec_k = f16"},
        {LLAMA,
         {"kv.block_tokens=8", "kv.codec=turboquant", "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", NULL},
         "saved with \"codec_k = f16\", but now it is \"codec_k = turboquant"},
        {"golden/llama/model-q8_0.gguf",
         {"kv.block_tokens=8", "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16", NULL},
         "model = "},
    };
    struct fixture f;
    struct soq_buf file;

    make_folder();
    f = open_with(LLAMA, policies[4], NULL);
    file = saved_file(&f);
    close_model(&f);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        f = open_model(others[i].model, others[i].settings);
        expect_refused(&f, -SOQ_EINVAL, others[i].says);
        cr_expect_eq(f.model->engine->kv.budget.used, 0);
        close_model(&f);
    }
    f = open_with(LLAMA, policies[4], (const char *[]){"model.context=64", NULL});
    expect_refused(&f, -SOQ_ELIMIT, "[model] context");
    close_model(&f);
    soq__buf_done(&file);
    drop_folder();
}

/* A calibration file counts by what is in it, and as it was when the model was loaded. */
Test(session, of_another_calibration)
{
    char table[80], setting[120], moved[120];
    struct fixture f, g, h;
    struct soq_buf file;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s = NULL;

    make_folder();
    snprintf(table, sizeof table, "%s/calibration", folder);
    snprintf(setting, sizeof setting, "kv.kvquant.calibration=%s", table);
    snprintf(moved, sizeof moved, "kv.kvquant.calibration=%s/moved", folder);
    calibrate_model(LLAMA, table, 2);
    f = open_model(LLAMA, (const char *[]){"kv.codec=kvquant", "kv.pack_grid=32", setting, NULL});
    calibrate_model(LLAMA, table, 3);
    file = saved_file(&f);
    cr_expect_eq(soq_session_load(f.model, NULL, path, &s, &err), 0, "%s", err.text);
    soq_session_free(s);
    g = open_model(LLAMA, (const char *[]){"kv.codec=kvquant", "kv.pack_grid=32", setting, NULL});
    expect_refused(&g, -SOQ_EINVAL, " calibration=");
    cr_expect(strcmp(soq__buf_str(&f.model->engine->identity), soq__buf_str(&g.model->engine->identity)) != 0,
              "nor are blocks of the one found by the other");
    calibrate_model(LLAMA, moved + strlen("kv.kvquant.calibration="), 2);
    h = open_model(LLAMA, (const char *[]){"kv.codec=kvquant", "kv.pack_grid=32", moved, NULL});
    cr_expect_eq(soq_session_load(h.model, NULL, path, &s, &err), 0, "%s", err.text);
    soq_session_free(s);
    close_model(&f);
    close_model(&g);
    close_model(&h);
    soq__buf_done(&file);
    unlink(table);
    unlink(moved + strlen("kv.kvquant.calibration="));
    drop_folder();
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

Test(session, a_failed_save_leaves_the_old_file)
{
    struct fixture f;
    struct soq_buf file;
    struct soq_session *s;
    struct soq_error err = SOQ_ERROR_INIT;
    struct stat before, after;
    uint32_t n_failed = 0;

    make_folder();
    f = open_with(LLAMA, policies[4], NULL);
    file = saved_file(&f);
    s = session_of(&f);
    cr_assert_eq(stat(path, &before), 0);
    for (uint64_t at = 1; at < 40; at++) {
        int64_t live = soq__alloc_live();

        soq__alloc_fail_at(at, true);
        n_failed += soq_session_save(s, path, "x", 1, NULL) != 0;
        soq__alloc_fail_at(0, false);
        cr_expect_eq(soq__alloc_live(), live);
        cr_assert_eq(stat(path, &after), 0);
        if (before.st_ino != after.st_ino)
            break;
        cr_expect_eq(before.st_size, after.st_size);
    }
    cr_expect_gt(n_failed, 3);
    cr_expect_eq(soq_session_save(s, "/nonexistent/session", NULL, 0, &err), -SOQ_EIO);
    cr_expect(strstr(err.text, "/nonexistent/session"), "%s", err.text);
    soq_session_free(s);
    soq__buf_done(&file);
    close_model(&f);
    drop_folder();
}

Test(session, allocations_fail_while_loading)
{
    struct fixture f;
    struct soq_buf file;
    uint32_t n_failed = 0;

    make_folder();
    f = open_with(LLAMA, policies[3], NULL);
    file = saved_file(&f);
    for (uint64_t at = 1; at < 200; at++) {
        int64_t live = soq__alloc_live();
        struct soq_session *s = NULL;
        int rc;

        soq__alloc_fail_at(at, true);
        rc = soq_session_load(f.model, NULL, path, &s, NULL);
        soq__alloc_fail_at(0, false);
        cr_expect(rc == 0 || rc == -SOQ_ENOMEM, "%d", rc);
        cr_expect_eq(rc == 0, s != NULL);
        n_failed += rc != 0;
        soq_session_free(s);
        cr_expect_eq(f.model->engine->kv.budget.used, 0);
        cr_expect_eq(soq__alloc_live() - live <= 1, true, "allocation %llu",
                     (unsigned long long)at); /* the step's edits grow */
        if (rc == 0)
            break;
    }
    cr_expect_gt(n_failed, 10);
    soq__buf_done(&file);
    close_model(&f);
    drop_folder();
}

/* ---- Saving while others go on ------------------------------------------------------------------------------------------ */

/* A disk that is slow to give a file: as long as `held`, and 30 s at most. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held, reached, late;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void wait_for(bool *flag, bool value)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 30;
    while (*flag != value && !disk.late)
        disk.late = pthread_cond_timedwait(&disk.changed, &disk.lock, &end) != 0;
}

/* Stands for the C library's, which is the first that saving asks of the file system. */
int mkostemp(char *template, int flags)
{
    pthread_mutex_lock(&disk.lock);
    if (disk.held) {
        disk.reached = true;
        pthread_cond_broadcast(&disk.changed);
        wait_for(&disk.held, false);
    }
    pthread_mutex_unlock(&disk.lock);
    return mkostemps(template, 0, flags);
}

static void hold_disk(bool held)
{
    pthread_mutex_lock(&disk.lock);
    disk.held = held;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

static void *save(void *arg)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq_session_save(arg, path, NULL, 0, &err), 0, "%s", err.text);
    return NULL;
}

/* What is written is what was there when saving began: sessions are computed on meanwhile, the saved one too. */
Test(session, nobody_waits_for_the_disk, .timeout = 120)
{
    struct fixture f;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_session *s, *other, *loaded = NULL;
    struct heard first, of_other, of_saved, of_loaded;
    int32_t ids[N_PROMPT + 40 + 30];
    pthread_t saver;

    make_folder();
    f = open_with(LLAMA, policies[4], NULL);
    s = session_of(&f);
    other = session_of(&f);
    make_ids(ids, N_PROMPT + 70, 3);
    ask(s, ids, N_PROMPT, &first);
    memcpy(ids + N_PROMPT, first.ids, sizeof *ids * 40);
    hold_disk(true);
    cr_assert_eq(pthread_create(&saver, NULL, save, s), 0);
    pthread_mutex_lock(&disk.lock);
    wait_for(&disk.reached, true);
    pthread_mutex_unlock(&disk.lock);
    ask(other, ids, N_PROMPT, &of_other);
    ask(s, ids, N_PROMPT + 70, &of_saved);
    hold_disk(false);
    pthread_join(saver, NULL);
    cr_expect(!disk.late, "saving never came to the file, or others waited for it");
    cr_expect(memcmp(first.ids, of_other.ids, sizeof first.ids) == 0);
    cr_assert_eq(soq_session_load(f.model, NULL, path, &loaded, &err), 0, "%s", err.text);
    cr_expect_eq(soq_session_length(loaded), N_PROMPT + 39);
    ask(loaded, ids, N_PROMPT + 70, &of_loaded);
    cr_expect(memcmp(of_saved.ids, of_loaded.ids, sizeof of_saved.ids) == 0);
    soq_session_free(s);
    soq_session_free(other);
    soq_session_free(loaded);
    close_model(&f);
    drop_folder();
}

/* ---- What cannot be saved ----------------------------------------------------------------------------------------------- */

/* A policy whose bytes cannot be saved says so. */
Test(session, what_cannot_be_saved)
{
    struct fixture f;
    struct soq_session *s;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_policy_ops ops;

    make_folder();
    f = open_with(LLAMA, NULL, NULL);
    s = session_of(&f);
    ops = *f.model->engine->policies.kv[0].ops;
    ops.traits |= SOQ_POLICY_NO_SAVE;
    f.model->engine->policies.kv[0].ops = &ops;
    cr_expect_eq(soq_session_save(s, path, NULL, 0, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "full"), "%s", err.text);
    soq_session_free(s);
    close_model(&f);
    drop_folder();
}
