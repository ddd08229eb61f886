/* `soquete eval kv` without a model: configurations as words, generated texts, statistics, logits, records, what is drawn. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/eval/config.h"
#include "cli/eval/generate.h"
#include "cli/eval/logits.h"
#include "cli/eval/paired.h"
#include "cli/eval/plot.h"
#include "cli/eval/random.h"
#include "cli/eval/report.h"

/* ---- Random numbers and statistics */

Test(eval, splitmix)
{
    struct soq__random r = {1234567}; /* figures of the reference implementation */
    uint32_t counts[6] = {0};

    cr_expect_eq(soq__random_next(&r), 6457827717110365317u);
    cr_expect_eq(soq__random_next(&r), 3203168211198807973u);
    cr_expect_eq(soq__random_next(&r), 9817491932198370423u);
    for (int i = 0; i < 60000; i++)
        counts[soq__random_below(&r, 6)]++;
    for (int i = 0; i < 6; i++)
        cr_expect(counts[i] > 9600 && counts[i] < 10400, "%u", counts[i]);
}

Test(eval, intervals)
{
    double same[5] = {2, 2, 2, 2, 2}, coins[400], one[1] = {7};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__interval a, b;
    double sigma = 0.5 / sqrt(400); /* of the mean of 400 coins */

    for (int i = 0; i < 400; i++)
        coins[i] = i % 2;
    cr_assert_eq(soq__interval_of(same, 5, &a, &err), 0);
    cr_expect(a.n == 5 && a.mean == 2 && a.low == 2 && a.high == 2);
    cr_assert_eq(soq__interval_of(one, 1, &a, &err), 0);
    cr_expect(a.n == 1 && a.mean == 7 && a.low == 7 && a.high == 7);
    cr_assert_eq(soq__interval_of(NULL, 0, &a, &err), 0);
    cr_expect_eq(a.n, 0);
    cr_assert_eq(soq__interval_of(coins, 400, &a, &err), 0);
    cr_expect(fabs(a.mean - 0.5) < 1e-12 && fabs(a.high - a.mean - 1.96 * sigma) < 0.15 * sigma &&
                  fabs(a.mean - a.low - 1.96 * sigma) < 0.15 * sigma,
              "%g [%g, %g]", a.mean, a.low, a.high);
    cr_assert_eq(soq__interval_of(coins, 400, &b, &err), 0);
    cr_expect(a.low == b.low && a.high == b.high, "the same items give the same interval");
}

/* ---- Configurations */

static const char *settings_of(const struct soq__eval_config *c)
{
    static char text[512];

    text[0] = '\0';
    for (uint32_t i = 0; i < c->n_settings; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", c->settings[i]);
    return text;
}

Test(eval, words)
{
    static const struct {
        char *word;
        const char *settings;
        double budget;
    } cases[] = {
        {"snapkv", "kv.policy=snapkv", 0},
        {"snapkv@256", "kv.policy=snapkv", 256},
        {"streaming:sinks=0:when=prompt@0.25", "kv.policy=streaming kv.streaming.sinks=0 kv.streaming.when=prompt", 0.25},
        {"full/int8", "kv.policy=full kv.codec_k=int8 kv.codec_v=int8", 0},
        {"full/kivi:bits=4+int8", "kv.policy=full kv.codec_k=kivi kv.kivi.bits=4 kv.codec_v=int8", 0},
        {"h2o:kv.block_tokens=16/f32@64", "kv.policy=h2o kv.block_tokens=16 kv.codec_k=f32 kv.codec_v=f32", 64},
    };
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__eval_configs all;

        cr_assert_eq(soq__eval_configs_init(&all, &(struct soq__eval_lists){NULL, NULL, NULL}, &cases[i].word, 1, &err), 0,
                     "%s", err.text);
        cr_assert_eq(all.n, 2);
        cr_expect_str_eq(all.items[0].label, "full/f32");
        cr_expect_str_eq(all.items[1].label, cases[i].word);
        cr_expect_str_eq(settings_of(&all.items[1]), cases[i].settings);
        cr_expect_eq(all.items[1].budget, cases[i].budget);
        soq__eval_configs_done(&all);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

/* Names of files are as long as they are. */
Test(eval, long_words)
{
    char path[2000] = "", word[2100], setting[2100], *words[] = {word};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__eval_configs all;

    for (int i = 0; i < 199; i++)
        strcat(path, "/and/more/");
    snprintf(word, sizeof word, "full/kvquant:calibration=%s", path);
    snprintf(setting, sizeof setting, "kv.kvquant.calibration=%s", path);
    cr_assert_eq(soq__eval_configs_init(&all, &(struct soq__eval_lists){NULL, NULL, NULL}, words, 1, &err), 0, "%s", err.text);
    cr_assert_eq(all.items[1].n_settings, 4);
    cr_expect_str_eq(all.items[1].settings[3], setting);
    soq__eval_configs_done(&all);
}

Test(eval, wrong_words)
{
    char *words[] = {"",          "/int8",      "full/",    "full/int8+", "snapkv@",       "snapkv@0",
                     "snapkv@-1", "snapkv@1.5", "snapkv@x", "snapkv@2e9", "snapkv:window", "snapkv:=3"};
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__eval_configs all;

        cr_expect_eq(soq__eval_configs_init(&all, &(struct soq__eval_lists){NULL, NULL, NULL}, &words[i], 1, &err), -SOQ_EINVAL,
                     "%s", words[i]);
        cr_expect(strstr(err.text, words[i]), "%s", err.text);
        soq__eval_configs_done(&all);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

Test(eval, combinations)
{
    struct soq__eval_lists lists = {"full,snapkv:window=8", "f16,int8", "64,0.5"};
    static const char *const labels[] = {"full/f32",
                                         "full/f16",
                                         "full/int8",
                                         "snapkv:window=8/f16@64",
                                         "snapkv:window=8/f16@0.5",
                                         "snapkv:window=8/int8@64",
                                         "snapkv:window=8/int8@0.5",
                                         "tova"};
    char *words[] = {"full/int8", "tova"}; /* one that is there already */
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__eval_configs all;

    cr_assert_eq(soq__eval_configs_init(&all, &lists, words, 2, &err), 0, "%s", err.text);
    cr_assert_eq(all.n, sizeof labels / sizeof labels[0]);
    for (uint32_t i = 0; i < all.n; i++)
        cr_expect_str_eq(all.items[i].label, labels[i]);
    cr_expect_eq(soq__eval_capacity(&all.items[0], 1000), 0);
    cr_expect_eq(soq__eval_capacity(&all.items[3], 1000), 64);
    cr_expect_eq(soq__eval_capacity(&all.items[4], 1001), 501);
    soq__eval_configs_done(&all);
}

/* ---- Texts */

static uint32_t count(const char *text, const char *word)
{
    uint32_t n = 0;

    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

/* The text without the sentences that say a number. */
static void without_keys(const char *text, char *out)
{
    const char *key = strstr(text, "Remember this: "), *end = key ? strstr(key, ". ") : NULL;

    end = strstr(end + 2, ". ") + 2;
    memcpy(out, text, (size_t)(key - text));
    snprintf(out + (key - text), 65536, "%s", end);
}

Test(eval, passkey)
{
    static char bare[2][65536];
    int64_t live = soq__alloc_live();
    uint32_t depths[] = {0, 50, 100};
    double places[3];

    for (int i = 0; i < 3; i++) {
        struct soq__eval_story story = SOQ__EVAL_STORY_INIT, again = SOQ__EVAL_STORY_INIT;
        const char *text;

        soq__eval_passkey(5, 100, depths[i], &story);
        soq__eval_passkey(5, 100, depths[i], &again);
        text = soq__buf_str(&story.text);
        cr_expect_str_eq(text, soq__buf_str(&again.text));
        cr_expect_eq(story.n_turns, 1);
        cr_expect_eq(strlen(story.answers[0]), 6);
        cr_expect_eq(count(text, story.answers[0]), 2);
        places[i] = (double)(strstr(text, "Remember this") - text) / (double)story.text.len;
        without_keys(text, bare[i > 0]);
        cr_expect(i == 0 || strcmp(bare[0], bare[1]) == 0, "the rest depends on the depth");
        soq__eval_story_done(&story);
        soq__eval_story_done(&again);
    }
    cr_expect(places[0] < 0.05 && fabs(places[1] - 0.5) < 0.05 && places[2] > 0.95, "%g %g %g", places[0], places[1],
              places[2]);
    cr_expect_eq(soq__alloc_live(), live);
}

/* A longer text begins like a shorter one, another seed gives another text and another key. */
Test(eval, seeds)
{
    struct soq__eval_story a = SOQ__EVAL_STORY_INIT, b = SOQ__EVAL_STORY_INIT, c = SOQ__EVAL_STORY_INIT;
    struct soq_buf filler = SOQ_BUF_INIT, longer = SOQ_BUF_INIT;

    soq__eval_passkey(1, 20, 0, &a);
    soq__eval_passkey(1, 40, 0, &b);
    soq__eval_passkey(2, 20, 0, &c);
    cr_expect_eq(strncmp(soq__buf_str(&a.text), soq__buf_str(&b.text), a.text.len), 0);
    cr_expect_str_eq(a.answers[0], b.answers[0]);
    cr_expect_str_neq(a.answers[0], c.answers[0]);
    cr_expect_str_neq(soq__buf_str(&a.text), soq__buf_str(&c.text));
    soq__eval_filler(3, 10, &filler);
    soq__eval_filler(3, 30, &longer);
    cr_expect_eq(strncmp(soq__buf_str(&filler), soq__buf_str(&longer), filler.len), 0);
    cr_expect_eq(count(soq__buf_str(&filler), "."), 10);
    soq__eval_story_done(&a);
    soq__eval_story_done(&b);
    soq__eval_story_done(&c);
    soq__buf_done(&filler);
    soq__buf_done(&longer);
}

Test(eval, recall)
{
    struct soq__eval_story story = SOQ__EVAL_STORY_INIT;
    const char *text;

    soq__eval_recall(9, 80, &story);
    text = soq__buf_str(&story.text);
    cr_assert_eq(story.n_turns, SOQ__EVAL_TURNS_MAX);
    cr_expect_eq(count(text, "Remember this"), SOQ__EVAL_TURNS_MAX);
    for (uint32_t t = 0; t < story.n_turns; t++) {
        const char *ask = strstr(soq__buf_str(&story.asks[t]), "The number of ");
        char said[128];

        cr_assert(ask != NULL);
        snprintf(said, sizeof said, "%s%s.", ask, story.answers[t]);
        cr_expect_eq(count(text, said), 1, "%s", said); /* as it is asked, so it was said */
    }
    soq__eval_story_done(&story);
}

/* ---- Logits */

Test(eval, divergence)
{
    float p[3] = {logf(0.5f), logf(0.5f), -100}, q[3] = {logf(0.9f) + 3, logf(0.1f) + 3, -97}; /* a constant changes nothing */
    struct soq__row_summary a = soq__row_summary(p, 3), b = soq__row_summary(q, 3);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__row_store store;

    cr_expect_eq(a.top, 0);
    cr_expect_float_eq(soq__row_surprise(&a, p, 1), log(2), 1e-6);
    cr_expect_float_eq(soq__row_surprise(&b, q, 1), -log(0.1), 1e-6);
    cr_assert_eq(soq__row_store_init(&store, 2, 3, &err), 0, "%s", err.text);
    soq__row_store_put(&store, 1, p, &a);
    cr_expect_eq(soq__row_store_divergence(&store, 1, p, &a), 0);
    cr_expect_float_eq(soq__row_store_divergence(&store, 1, q, &b), 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1), 1e-6);
    soq__row_store_done(&store);
}

/* Logits of -infinity: what neither can say costs nothing, what only the other cannot say costs everything. */
Test(eval, divergence_of_what_cannot_be)
{
    float p[3] = {0, 0, -INFINITY}, q[3] = {0, -INFINITY, 0}, far[3] = {0, 0, -1e4f}, odd[3] = {0, NAN, 0};
    struct soq__row_summary a = soq__row_summary(p, 3), b = soq__row_summary(q, 3), c = soq__row_summary(far, 3),
                            d = soq__row_summary(odd, 3);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__row_store store;

    cr_assert_eq(soq__row_store_init(&store, 2, 3, &err), 0, "%s", err.text);
    soq__row_store_put(&store, 0, p, &a);
    soq__row_store_put(&store, 1, far, &c);
    cr_expect_eq(soq__row_store_divergence(&store, 0, p, &a), 0);
    cr_expect_eq(soq__row_store_divergence(&store, 0, far, &c), 0);
    cr_expect_eq(soq__row_store_divergence(&store, 0, q, &b), INFINITY);
    cr_expect_eq(soq__row_store_divergence(&store, 1, p, &a), INFINITY, "less than a float can say is not nothing");
    cr_expect_eq(soq__row_store_divergence(&store, 0, odd, &d), INFINITY);
    soq__row_store_done(&store);
}

/* ---- Records */

static char work[] = "/tmp/test_eval_XXXXXX";

static void make_file(const char *text)
{
    FILE *file;

    close(mkstemp(work));
    file = fopen(work, "w");
    fputs(text, file);
    fclose(file);
}

static struct soq__eval_record text_record(const char *config, uint32_t index, double nll, double kl)
{
    struct soq__eval_record r = {.key = {"m.gguf", "f0", config, "t", SOQ__EVAL_TEXT, 64, 0, index}, .kv_bytes = 1000, .n = 4};

    r.nll = soq__alloc_zero(4, sizeof *r.nll);
    r.kl = soq__alloc_zero(4, sizeof *r.kl);
    for (int i = 0; i < 4; i++) {
        r.nll[i] = (float)nll;
        r.kl[i] = (float)(kl * (i + 1));
    }
    r.n_same_top = 3;
    return r;
}

Test(eval, records)
{
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__eval_records records;
    struct soq__eval_record r = text_record("full/f32", 1, 2.5, 0.125);
    struct soq__eval_record speed = {
        .key = {"m.gguf", "f0", "a&b", "s", SOQ__EVAL_SPEED, 64, 0, 0}, .tok_s = 12.5, .kv_peak = 77};
    const struct soq__eval_record *found;
    FILE *file;

    make_file("");
    cr_assert_eq(soq__eval_records_open(&records, work, &err), 0, "%s", err.text);
    cr_assert_eq(soq__eval_records_add(&records, &r, &err), 0, "%s", err.text);
    cr_assert_eq(soq__eval_records_add(&records, &speed, &err), 0, "%s", err.text);
    soq__eval_records_done(&records);
    file = fopen(work, "a");
    fputs("{\"model\":\"m.gguf\",\"conf", file); /* the machine went off */
    fclose(file);
    cr_assert_eq(soq__eval_records_open(&records, work, &err), 0, "%s", err.text);
    cr_assert_eq(records.n, 2);
    found =
        soq__eval_records_find(&records, &(struct soq__eval_key){"m.gguf", "f0", "full/f32", "t", SOQ__EVAL_TEXT, 64, 0, 1});
    cr_assert(found != NULL);
    cr_expect(found->n == 4 && found->nll[3] == 2.5 && found->kl[1] == 0.25 && found->n_same_top == 3 &&
              found->kv_bytes == 1000);
    found = soq__eval_records_find(&records, &speed.key);
    cr_assert(found != NULL);
    cr_expect(found->tok_s == 12.5 && found->kv_peak == 77 && !found->nll);
    cr_expect_null(
        soq__eval_records_find(&records, &(struct soq__eval_key){"m.gguf", "f0", "full/f32", "t", SOQ__EVAL_TEXT, 64, 0, 2}));
    cr_expect_null(
        soq__eval_records_find(&records, &(struct soq__eval_key){"n.gguf", "f0", "full/f32", "t", SOQ__EVAL_TEXT, 64, 0, 1}));
    speed.key.index = 1;
    cr_assert_eq(soq__eval_records_add(&records, &speed, &err), 0, "%s", err.text);
    soq__eval_records_done(&records);
    cr_assert_eq(soq__eval_records_open(&records, work, &err), 0, "%s", err.text);
    cr_expect_eq(records.n, 3, "what was torn is gone, what came behind it is there");
    soq__eval_records_done(&records);
    unlink(work);
    cr_expect_eq(soq__alloc_live(), live);
}

#define RECORD(task)                                                                                                           \
    "{\"model\":\"m\",\"config\":\"c\",\"task\":\"" task "\",\"items\":\"i\",\"length\":8,\"depth\":0,\"index\":0,"            \
    "\"kv_bytes\":1,"
#define GOOD RECORD("recall") "\"nll\":[1]}\n"

Test(eval, wrong_records)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"what\n", ":1: no JSON object"},
        {"what", "the last line has no end"},
        {GOOD "[]\n", ":2: no JSON object"},
        {GOOD "{\"model\":\"m\",\"task\":\"poem\"}\n", ":2: \"task\" is missing or wrong"},
        {"{\"model\":\"m\",\"config\":\"c\",\"task\":\"recall\",\"items\":\"i\",\"length\":-8}\n",
         ":1: \"length\" is missing or wrong"},
        {RECORD("text") "\"nll\":[1,2],\"kl\":[1]}\n", ":1: \"kl\" is missing or wrong"},
        {RECORD("text") "\"kl\":[1,2]}\n", ":1: \"nll\" is missing or wrong"},
        {RECORD("text") "\"nll\":[],\"kl\":[0,0,0,0]}\n", ":1: \"nll\" is missing or wrong"},
        {RECORD("text") "\"nll\":[1,2],\"kl\":[]}\n", ":1: \"kl\" is missing or wrong"},
        {RECORD("text") "\"nll\":[1,2]}\n", ":1: \"kl\" is missing or wrong"},
        {RECORD("recall") "\"score\":1}\n", ":1: \"nll\" is missing or wrong"},
    };
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__eval_records records;
        char before[512] = "", *text = before;
        FILE *file;

        strcpy(work + strlen(work) - 6, "XXXXXX");
        make_file(cases[i].text);
        cr_expect_eq(soq__eval_records_open(&records, work, &err), -SOQ_ECORRUPT, "%s", cases[i].text);
        cr_expect(strstr(err.text, cases[i].message), "%s", err.text);
        soq__eval_records_done(&records);
        file = fopen(work, "r");
        cr_assert_eq(fread(text, 1, sizeof before - 1, file), strlen(cases[i].text));
        fclose(file);
        cr_expect_str_eq(before, cases[i].text, "somebody else's file was changed");
        unlink(work);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

/* ---- Summaries, tables and pictures */

struct made {
    struct soq__eval_plan plan;
    struct soq__eval_configs configs;
    struct soq__eval_records records;
    struct soq__eval eval;
    struct soq__eval_summary summary;
};

/* Two texts and two keys for each of two configurations; the second is worse by known amounts. */
static void make_with(struct made *m, char *word)
{
    struct soq_error err = SOQ_ERROR_INIT;

    *m = (struct made){
        .plan = {.lengths = {64}, .n_lengths = 1, .depths = {0, 100}, .n_depths = 2, .n_items = 2, .n_scored = 4}};
    m->plan.tasks[SOQ__EVAL_TEXT] = m->plan.tasks[SOQ__EVAL_PASSKEY] = true;
    cr_assert_eq(soq__eval_configs_init(&m->configs, &(struct soq__eval_lists){NULL, NULL, NULL}, &word, 1, &err), 0);
    m->eval = (struct soq__eval){.plan = &m->plan, .configs = &m->configs, .records = &m->records};
    strcpy(m->eval.model, "m.gguf");
    strcpy(m->eval.fingerprint, "f0");
    for (int t = 0; t < SOQ__EVAL_TASKS; t++)
        strcpy(m->eval.items[t], "t");
    for (uint32_t c = 0; c < 2; c++)
        for (uint32_t i = 0; i < 2; i++) {
            struct soq__eval_record r = text_record(m->configs.items[c].label, i, 2 + i + 0.25 * c, 0.01 * c);

            cr_assert_eq(soq__eval_records_add(&m->records, &r, &err), 0);
            for (uint32_t depth = 0; depth <= 100; depth += 100) {
                struct soq__eval_record key = {.key = soq__eval_key(&m->eval, c, SOQ__EVAL_PASSKEY, 64, depth, i),
                                               .score = c == 0 || depth == 100};

                cr_assert_eq(soq__eval_records_add(&m->records, &key, &err), 0);
            }
        }
    cr_assert_eq(soq__eval_summary_init(&m->summary, &m->eval, &err), 0);
}

static void make(struct made *m)
{
    make_with(m, "a<b@8");
}

static void unmake(struct made *m)
{
    soq__eval_summary_done(&m->summary);
    soq__eval_records_done(&m->records);
    soq__eval_configs_done(&m->configs);
}

Test(eval, summary)
{
    int64_t live = soq__alloc_live();
    const struct soq__eval_row *full, *other;
    struct made m;

    make(&m);
    cr_assert_eq(m.summary.n, 2);
    full = soq__eval_summary_row(&m.summary, "full/f32", 64);
    other = soq__eval_summary_row(&m.summary, "a<b@8", 64);
    cr_assert(full && other);
    cr_expect_float_eq(full->ppl, exp(2.5), 1e-9);
    cr_expect(full->log_ppl.n == 2 && full->log_ppl.mean == 0 && full->log_ppl.high == 0);
    cr_expect(other->log_ppl.mean == 0.25 && other->log_ppl.low == 0.25 && other->log_ppl.high == 0.25, "items are paired");
    cr_expect_float_eq(other->kl.mean, 0.025, 1e-8);
    for (int b = 0; b < SOQ__EVAL_BINS; b++)
        cr_expect_float_eq(other->kl_by_position[b], 0.01 * (b + 1), 1e-8);
    cr_expect_float_eq(other->same_top, 0.75, 1e-12);
    cr_expect(full->passkey.mean == 1 && other->passkey.n == 4 && other->passkey.mean == 0.5 &&
              other->passkey_difference.mean == -0.5);
    cr_expect(other->recall.n == 0 && other->tok_s.n == 0 && isnan(other->kv_peak));
    cr_expect(full->passkey_at[0] == 1 && other->passkey_at[0] == 0 && other->passkey_at[1] == 1, "by depth");
    unmake(&m);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(eval, reports)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct made m;

    make(&m);
    soq__eval_report(&m.summary, SOQ__EVAL_CSV, &text);
    cr_expect(strstr(soq__buf_str(&text), "\nm.gguf,a<b@8,64,2,15.6426319,0.25,0.25,0.25,0.02"), "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), ",kv_bytes,kv_peak_bytes,passkey_at_0,passkey_at_100\n"), "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), ",0,1\n"), "%s", soq__buf_str(&text));
    soq__buf_clear(&text);
    soq__eval_report(&m.summary, SOQ__EVAL_MD, &text);
    cr_expect(strstr(soq__buf_str(&text),
                     "| a<b@8 | 64 | 15.64 | +28.40 [+28.40, +28.40] | 0.0250 [0.0250, 0.0250] | 75.0 | 50 (-50 "),
              "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), "| config | length | pass key, %, at 0 % | at 100 % |"), "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), "| a<b@8 | 64 | 0 | 100 |"), "%s", soq__buf_str(&text));
    soq__buf_clear(&text);
    soq__eval_report(&m.summary, SOQ__EVAL_JSON, &text);
    cr_expect(strstr(soq__buf_str(&text), "\"recall_low\": null"), "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), "\"passkey_by_depth\": [\n    0.0,\n    1.0\n   ]"), "%s", soq__buf_str(&text));
    soq__buf_clear(&text);
    soq__eval_report(&m.summary, SOQ__EVAL_TABLE, &text);
    cr_expect(strstr(soq__buf_str(&text), "\na<b@8     "), "%s", soq__buf_str(&text));
    soq__buf_done(&text);
    unmake(&m);
}

/* What a name has in it ends no cell. */
Test(eval, names_with_separators)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct made m;

    make_with(&m, "full/q:file=a,b|\"c\"");
    soq__eval_report(&m.summary, SOQ__EVAL_CSV, &text);
    cr_expect(strstr(soq__buf_str(&text), "\nm.gguf,\"full/q:file=a,b|\"\"c\"\"\",64,2,15.64"), "%s", soq__buf_str(&text));
    cr_expect(strstr(soq__buf_str(&text), "\nm.gguf,full/f32,64,2,"), "%s", soq__buf_str(&text));
    soq__buf_clear(&text);
    soq__eval_report(&m.summary, SOQ__EVAL_MD, &text);
    cr_expect_eq(count(soq__buf_str(&text), "| full/q:file=a,b\\|\"c\" | 64 | "), 3, "%s", soq__buf_str(&text));
    soq__buf_clear(&text);
    soq__eval_report(&m.summary, SOQ__EVAL_TABLE, &text);
    cr_expect_eq(count(soq__buf_str(&text), "full/q:file=a,b|\"c\"  "), 3, "%s", soq__buf_str(&text));
    soq__buf_done(&text);
    unmake(&m);
}

/* A name is said in full, however long. */
Test(eval, long_names)
{
    struct soq_buf text = SOQ_BUF_INIT, word = SOQ_BUF_INIT;
    int64_t live = soq__alloc_live();
    char table[1600], plot[1600];
    struct made m;

    soq__buf_puts(&word, "full/kvquant:calibration=");
    for (int i = 0; i < 150; i++)
        soq__buf_puts(&word, "/and/more");
    make_with(&m, word.data);
    snprintf(table, sizeof table, "\n%s  ", word.data);
    snprintf(plot, sizeof plot, ">%s, 100 %%</text>", word.data);
    soq__eval_report(&m.summary, SOQ__EVAL_TABLE, &text);
    cr_expect_eq(count(soq__buf_str(&text), table), 3);
    soq__buf_clear(&text);
    soq__eval_plot_pareto(&m.summary, SOQ__EVAL_BY_KL, &text);
    cr_expect_eq(count(soq__buf_str(&text), plot), 1);
    unmake(&m);
    soq__buf_done(&word);
    soq__buf_done(&text);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(eval, pictures)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct made m;

    make(&m);
    soq__eval_plot_heat(&m.summary, &text);
    cr_expect(strstr(soq__buf_str(&text), ">a&lt;b@8</text>"), "%s", soq__buf_str(&text));
    cr_expect_eq(count(soq__buf_str(&text), "class=\"heat\""), 4); /* a cell for each depth of each configuration */
    cr_expect_eq(count(soq__buf_str(&text), "fill-opacity=\"0.00\""), 1);
    soq__buf_clear(&text);
    for (int by = SOQ__EVAL_BY_KL; by <= SOQ__EVAL_BY_PASSKEY; by++) {
        soq__eval_plot_pareto(&m.summary, (enum soq__eval_quality)by, &text);
        cr_expect_eq(count(soq__buf_str(&text), "<circle"), 4); /* each point, and its name */
        cr_expect_eq(count(soq__buf_str(&text), "class=\"best\""), 2, "as many bytes, but worse");
        cr_expect_eq(count(soq__buf_str(&text), "nan"), 0);
        cr_expect_eq(count(soq__buf_str(&text), ">-"), 0, "no share is negative");
        soq__buf_clear(&text);
    }
    soq__buf_done(&text);
    unmake(&m);
}

/* What no axis can show, a divergence without end and a share of nothing, is not in the picture, and the axes end. */
Test(eval, pictures_of_what_has_no_place)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct made m;

    make(&m);
    m.summary.rows[1].kl.mean = INFINITY;
    soq__eval_plot_pareto(&m.summary, SOQ__EVAL_BY_KL, &text);
    cr_expect_eq(count(soq__buf_str(&text), "<circle"), 2); /* the full cache, and its name */
    soq__buf_clear(&text);
    m.summary.rows[1].kv_bytes = 0;
    soq__eval_plot_pareto(&m.summary, SOQ__EVAL_BY_PASSKEY, &text);
    cr_expect_eq(count(soq__buf_str(&text), "<circle"), 2);
    soq__buf_clear(&text);
    m.summary.rows[0].kv_bytes = 0;
    for (int by = SOQ__EVAL_BY_KL; by <= SOQ__EVAL_BY_PASSKEY; by++)
        soq__eval_plot_pareto(&m.summary, (enum soq__eval_quality)by, &text);
    cr_expect_eq(count(soq__buf_str(&text), "<circle"), 0);
    cr_expect_eq(count(soq__buf_str(&text), "nan") + count(soq__buf_str(&text), "inf"), 0);
    soq__buf_done(&text);
    unmake(&m);
}
