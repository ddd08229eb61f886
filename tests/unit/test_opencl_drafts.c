/* Drafts with an OpenCL device: the lossy view there and the full one in host memory, the other way round, and both there.
 * Tokens and logits are those of the full cache alone where it lies, to the last bit. */
#include "tests/unit/told.h"

#define GQA "kv-golden/models/gqa.gguf"
#define LLAMA256 "golden/llama256/model-q4_k.gguf" /* heads of 32 numbers */

/* Where the views lie. */
static const struct {
    const char *use, *full, *drafts, *what;
} places[] = {
    {"backend.use=cpu, opencl", "backend.place=attention:cpu", "backend.place=lossy.attention:opencl, attention:cpu",
     "full view in host memory"},
    {"backend.use=cpu, opencl", "backend.place=attention:opencl", "backend.place=lossy.attention:cpu, attention:opencl",
     "full view on the device"},
    {"backend.use=opencl, cpu", "backend.place=attention:cpu", "backend.place=lossy.attention:opencl, attention:cpu",
     "weights and lossy view on the device"},
    {"backend.use=opencl", "kv.block_tokens=8", "kv.block_tokens=8", "everything on the device"},
};
enum { N_PLACES = sizeof places / sizeof places[0] };

static const char *const lossy[][3] = {
    {"draft.policy=snapkv capacity:48 window:16"},
    {"draft.policy=streaming capacity:48 when:always"},
    {"draft.policy=h2o capacity:48 recent:16 when:always every:16"},
    {"draft.policy=adakv capacity:48 window:8 when:always every:12"},
    {"draft.policy=full", "draft.codec=int4", "kv.pack_grid=32"},
    {"draft.policy=snapkv capacity:64 window:16", "draft.codec=int8", "kv.codec=int8"},
};
enum { N_LOSSY = sizeof lossy / sizeof lossy[0] };

/* drafts: with the lossy view. */
static struct fixture open_views(const char *model, size_t place, size_t how, bool drafts, const char *n_drafts)
{
    const char *all[16] = {places[place].use, "kv.block_tokens=8", "engine.chunk=24", "kv.preempt=swap", "kv.prefix_cache=off"};
    size_t n = 5;

    all[n++] = drafts ? places[place].drafts : places[place].full;
    for (size_t i = 0; i < 3 && lossy[how][i]; i++)
        if (drafts || strncmp(lossy[how][i], "kv.", 3) == 0)
            all[n++] = lossy[how][i];
    if (drafts) {
        all[n++] = "decoding.drafter=self";
        all[n++] = n_drafts;
    }
    return open_model(model, all);
}

static struct soq__job told_by(struct fixture *f, struct told *t)
{
    struct soq__sequence *seq = new_sequence(f);
    struct soq__job job;
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    job = run(seq, ids, N_PROMPT, t);
    soq__sequence_free(seq);
    cr_expect_eq(f->model->engine->kv.budget.used, 0, "everything is given back");
    close_model(f);
    return job;
}

/* Whose memory holds the blocks of a view's last layer. */
static const char *holder(const struct fixture *f, enum soq__kv_view view)
{
    const struct soq__engine *e = f->model->engine;

    return e->exec.instances[e->net.layers[e->layout.n_layers - 1].views[view].at].choice->plugin->id;
}

Test(opencl_drafts, tokens_are_the_full_caches, .timeout = 480)
{
    static const char *const lengths[] = {"decoding.draft_tokens=1", "decoding.draft_tokens=3", "decoding.draft_tokens=7"};
    uint32_t n_drafted = 0, n_accepted = 0;

    skip_without_device("opencl");
    for (size_t place = 0; place < N_PLACES; place++)
        for (size_t how = place % 2; how < N_LOSSY; how += 2) {
            const char *model = how < 4 ? GQA : LLAMA256;
            struct fixture plain = open_views(model, place, how, false, NULL), f;
            struct told full = {0}, drafted = {0}, swapped = {.preempt_every = 12};
            struct soq__job job;

            told_by(&plain, &full);
            f = open_views(model, place, how, true, lengths[(place + how) % 3]);
            if (place < 3)
                cr_expect(strcmp(holder(&f, SOQ__KV_FULL), holder(&f, SOQ__KV_LOSSY)) != 0, "%s", places[place].what);
            job = told_by(&f, &drafted);
            cr_expect_gt(job.n_drafted, 0);
            n_drafted += job.n_drafted;
            n_accepted += job.n_accepted;
            expect_same(&full, &drafted, places[place].what);
            if (how < 2)
                continue;
            f = open_views(model, place, how, true, lengths[(place + how) % 3]);
            told_by(&f, &swapped);
            cr_expect_gt(swapped.n_preempted, 0);
            expect_same(&full, &swapped, places[place].what);
        }
    cr_expect(n_accepted > 0 && n_accepted < n_drafted, "%u of %u drafts were accepted", n_accepted, n_drafted);
}
