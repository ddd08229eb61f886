/* Everything with everything: policies, codecs of keys and of values, a layer apart, grids, residuals, the prefix index,
 * preemption and drafts, all with options drawn at random. What goes together gives the same tokens whatever happens to the
 * sequence; what does not is refused when the model is loaded, by a message that names the key. */
#include <stdarg.h>
#include <unistd.h>

#include "tests/unit/calibrated.h"
#include "tests/unit/combination.h"

#define N_DRAWS 64

static const char *const models[] = {"golden/llama/model.gguf", "golden/gemma3/model.gguf", "golden/llama256/model-q4_k.gguf"};
enum { N_MODELS = sizeof models / sizeof models[0] };
static char calibrations[N_MODELS][40]; /* paths */

/* "KEY=a|b|c": one of them is drawn. */
#define OPTIONS 7
struct plugin {
    const char *name, *options[OPTIONS];
};

static const struct plugin all_policies[] = {
    {"full", {NULL}},
    {"window", {"capacity=40|64", "sinks=0|4"}},
    {"streaming", {"capacity=40|64", "sinks=4", "positions=slot|original", "when=prompt|always|decode", "every=16|32"}},
    {"h2o", {"capacity=48|64", "recent=0|16", "when=prompt|always", "every=7|16"}},
    {"snapkv", {"capacity=48|64", "window=8|16", "when=prompt|always", "every=16|24", "kernel=1|5", "pool=avg|max"}},
    {"pyramidkv", {"capacity=48|64", "window=16", "when=prompt|always", "every=16", "beta=5|20", "formula=paper|kvpress"}},
    {"adakv", {"capacity=48|64", "window=8|16", "when=prompt|always", "every=16", "floor=0|0.2|1"}},
    {"tova", {"capacity=48|80", "when=prompt|always", "every=1|16"}},
    {"keydiff", {"capacity=48|80", "when=prompt|always", "every=16"}},
    {"l2norm", {"capacity=48|80", "when=prompt|always", "every=16"}},
    {"observed", {"capacity=48|80", "when=prompt|always", "every=16"}},
    {"random", {"capacity=48|80", "when=prompt|always", "every=9|16", "seed=0|3"}},
};

static const struct plugin all_codecs[] = {
    {"f32", {NULL}},
    {"f16", {NULL}},
    {"bf16", {NULL}},
    {"fp8", {NULL}},
    {"int8", {"rotation=auto|on"}},
    {"int4", {"format=q4_0|q4_1|q5_1", "rotation=auto|off"}},
    {"kivi", {"bits=2|4", "group=8|16", "residual=0|16", "metadata=f16|f32"}},
    {"turboquant", {"variant=mse|prod", "bits=1|2|3|4", "seed=0|7", "metadata=f16|f32"}},
    {"kvquant",
     {"calibration=", "bits=2|3|4", "outliers=0|1|5", "keys=pre_rope|post_rope", "thresholds=calibrated|tile", "weights=plain",
      "metadata=f16|f32"}},
    {"kvquant",
     {"calibration=FILE", "bits=2|3|4", "outliers=0|1|5", "keys=pre_rope|post_rope", "thresholds=calibrated|tile",
      "weights=plain|sensitivity", "metadata=f16|f32"}},
    {"odd", {"grid=0|32", "residual=0|8", "tail=f16|f32|bf16", "exact=no|yes"}},
};

/* ---- Drawing ------------------------------------------------------------------------------------------------------------- */

static uint32_t state;

static uint32_t roll(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

struct settings {
    char text[40][160], all[2400]; /* all: for messages */
    uint32_t n, model;
};

static void set(struct settings *s, const char *fmt, ...)
{
    va_list args;

    cr_assert_lt(s->n, 40);
    va_start(args, fmt);
    vsnprintf(s->text[s->n], sizeof s->text[0], fmt, args);
    va_end(args);
    snprintf(s->all + strlen(s->all), sizeof s->all - strlen(s->all), " %s", s->text[s->n++]);
}

/* The i-th of "a|b|c", i drawn. */
static void draw_value(const struct settings *s, const char *values, char *out, size_t size)
{
    uint32_t n = 1, i;

    for (const char *c = values; *c; c++)
        n += *c == '|';
    for (i = roll(n); i; i--)
        values = strchr(values, '|') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(values, "|"), values);
    if (strcmp(out, "FILE") == 0)
        snprintf(out, size, "%s", calibrations[s->model]);
}

/* As keys of [kv.NAME]. */
static void draw_options(struct settings *s, const struct plugin *p)
{
    for (size_t i = 0; i < OPTIONS && p->options[i]; i++) {
        int key = (int)strcspn(p->options[i], "=");
        char value[64];

        draw_value(s, p->options[i] + key + 1, value, sizeof value);
        set(s, "kv.%s.%.*s=%s", p->name, key, p->options[i], value);
    }
}

/* "NAME key:value ...": options of one place alone. */
static const char *draw_words(const struct settings *s, const struct plugin *p)
{
    static char text[120];

    snprintf(text, sizeof text, "%s", p->name);
    for (size_t i = 0; i < OPTIONS && p->options[i]; i++) {
        size_t key = strcspn(p->options[i], "="), n = strlen(text);
        char value[64];

        draw_value(s, p->options[i] + key + 1, value, sizeof value);
        if (*value)
            snprintf(text + n, sizeof text - n, " %.*s:%s", (int)key, p->options[i], value);
    }
    return text;
}

#define PICK(table) (&(table)[roll(sizeof(table) / sizeof(table)[0])])

/* What both runs of a combination have. */
static void draw(struct settings *s, bool drafts)
{
    const struct plugin *policy = drafts ? &all_policies[0] : PICK(all_policies);
    const struct plugin *key = PICK(all_codecs), *value = roll(2) ? key : PICK(all_codecs);

    *s = (struct settings){.model = roll(N_MODELS)};
    set(s, "%s", mixed_plugins());
    set(s, "kv.block_tokens=%u", 8u << roll(2));
    set(s, "kv.pack_grid=%u", 16u << roll(2));
    if (!roll(4))
        set(s, "kv.residual=%u", 8 * roll(4));
    draw_options(s, policy);
    set(s, "kv.policy=%s", policy->name);
    draw_options(s, key);
    if (value != key)
        draw_options(s, value);
    set(s, "kv.codec_k=%s", key->name);
    set(s, "kv.codec_v=%s", value->name);
    if (!roll(3))
        set(s, "kv.layers.0=codec:%s", draw_words(s, PICK(all_codecs)));
}

static void draw_drafts(struct settings *s)
{
    set(s, "decoding.drafter=self");
    set(s, "decoding.draft_tokens=%u", roll(7));
    set(s, "draft.policy=%s", draw_words(s, PICK(all_policies)));
    set(s, "draft.codec_k=%s", draw_words(s, PICK(all_codecs)));
    set(s, "draft.codec_v=%s", draw_words(s, PICK(all_codecs)));
}

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

/* With up to 3 settings more. False: refused, rightly and clearly. */
static bool try_open(const struct settings *s, const char *const *more, struct fixture *out)
{
    const char *settings[48] = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    size_t n = 0;
    int rc;

    for (uint32_t i = 0; i < s->n; i++)
        settings[n++] = s->text[i];
    for (size_t i = 0; more[i]; i++)
        settings[n++] = more[i];
    *out = (struct fixture){.rt = open_runtime(settings, &err)};
    cr_assert_not_null(out->rt, "%s:%s", err.text, s->all);
    rc = soq__model_open(out->rt, soq__test_data(models[s->model]), NULL, 64, &out->model, &err);
    if (!rc)
        return true;
    cr_assert(rc == -SOQ_EINVAL || rc == -SOQ_EUNSUPPORTED, "%d, %s:%s", rc, err.text, s->all);
    cr_assert(strchr(err.text, '[') && strchr(err.text, ':'), "no key and no advice in \"%s\":%s", err.text, s->all);
    soq_runtime_free(out->rt);
    return false;
}

static struct told calm(struct fixture *f, const int32_t *ids)
{
    struct soq__sequence *seq = new_sequence(f);
    struct told t = {0};

    run(seq, ids, N_PROMPT, &t);
    soq__sequence_free(seq);
    close_model(f);
    return t;
}

static bool any_selects(const struct fixture *f)
{
    const struct soq__policies *p = &f->model->engine->policies;
    bool selects = false;

    for (uint32_t i = 0; i < p->n; i++)
        selects = selects || (p->kv[i].view == SOQ__KV_FULL && soq__kv_selects(&p->kv[i]));
    return selects;
}

static void disturb(struct combination *c)
{
    c->selects = any_selects(&c->f);
    preempted(c, 3 + roll(17));
    found_again(c);
    went_astray(c, 20 + roll(70));
    forked(c, 20 + roll(70));
    saved_and_loaded(c, roll(2));
    close_model(&c->f);
}

/* Draws the second run's settings. The index is on if that is possible. */
static bool open_disturbed(const struct settings *s, struct fixture *out)
{
    static const char *const chunks[] = {"engine.chunk=1", "engine.chunk=11", "engine.chunk=16", "engine.chunk=512"};
    static const char *const preempts[] = {"kv.preempt=swap", "kv.preempt=auto"};
    const char *more[] = {chunks[roll(4)], preempts[roll(2)], "kv.prefix_cache=on", NULL};

    if (try_open(s, more, out))
        return true;
    more[2] = "kv.prefix_cache=auto";
    return try_open(s, more, out);
}

struct counts {
    uint32_t run, drafting, packing, selecting, indexed;
};

static void count(struct counts *n, const struct fixture *f)
{
    const struct soq__engine *e = f->model->engine;

    n->run++;
    n->drafting += e->drafting.on;
    n->packing += e->layout.grid > 0;
    n->selecting += any_selects(f);
    n->indexed += e->prefix.cache != NULL;
}

static void combine(struct counts *n)
{
    static const char *const plain[] = {"kv.prefix_cache=off", "engine.chunk=512", NULL};
    struct combination c = {.what = NULL};
    bool drafts = !roll(3);
    struct settings s;

    draw(&s, drafts);
    make_ids(c.ids, N_PROMPT, 1);
    if (!try_open(&s, plain, &c.f))
        return;
    c.what = s.all;
    c.calm = calm(&c.f, c.ids);
    if (drafts) /* other steps to the same tokens */
        draw_drafts(&s);
    if (!open_disturbed(&s, &c.f)) {
        cr_expect(drafts, "refused the second time:%s", s.all);
        return;
    }
    count(n, &c.f);
    disturb(&c);
}

static void make_calibrations(void)
{
    for (uint32_t m = 0; m < N_MODELS; m++) {
        snprintf(calibrations[m], sizeof calibrations[m], "/tmp/soquete-stacking-XXXXXX");
        close(mkstemp(calibrations[m]));
        calibrate_model(models[m], calibrations[m], 2);
    }
}

Test(stacking, whatever_goes_together, .timeout = 600)
{
    struct counts n = {0};
    int64_t live;

    make_calibrations();
    live = soq__alloc_live();
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        state = 1 + i * 7919;
        combine(&n);
    }
    for (uint32_t m = 0; m < N_MODELS; m++)
        unlink(calibrations[m]);
    cr_expect_eq(soq__alloc_live(), live);
    printf("of %u drawn: %u go together, %u drafting, %u packing, %u selecting, %u with a prefix index\n", N_DRAWS, n.run,
           n.drafting, n.packing, n.selecting, n.indexed);
    cr_expect(n.run > N_DRAWS / 2 && n.drafting > 9 && n.packing > 30 && n.selecting > 20 && n.indexed > 20);
}
