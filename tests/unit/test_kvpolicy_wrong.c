/* Wrong values of every option of every KV policy, and options that cannot go together: each keeps a model from loading, with a
 * message that names section, key and value and says what to do. */
#include "tests/unit/engine_fixture.h"
#include "tests/unit/plugin_open.h"
#include "tests/unit/tiny_model.h"

#define MODEL "golden/llama/model.gguf" /* context 256, no window of its own */

static const char *const names[] = {"full",  "window", "streaming", "h2o",    "snapkv",   "pyramidkv",
                                    "adakv", "tova",   "keydiff",   "l2norm", "observed", "random"};
enum { N_NAMES = sizeof names / sizeof names[0] };

/* What is said when a model does not load with these settings, which end with NULL, or with those of a file. */
static const char *refusal(const char *const *settings, const char *config)
{
    static struct soq_error err;
    const char *dirs[] = {getenv("SOQ_TEST_PLUGINS"), NULL};
    struct soq_runtime_params p = SOQ_RUNTIME_PARAMS_INIT;
    struct soq_runtime *rt = NULL;
    struct soq_model *model = NULL;
    int rc;

    err = (struct soq_error)SOQ_ERROR_INIT;
    p.config = config;
    p.plugin_dirs = dirs;
    p.settings = settings;
    rc = soq_runtime_create(&p, &rt, &err);
    if (!rc)
        rc = soq_model_load(rt, soq__test_data(MODEL), NULL, &model, &err);
    cr_expect_lt(rc, 0, "%s loads", settings && settings[0] ? settings[0] : config);
    soq_model_free(model);
    soq_runtime_free(rt);
    return err.text;
}

static const struct soq_option *option_at(const struct soq_role_entry *entry, uint32_t i)
{
    return (const void *)((const char *)entry->options + (size_t)i * entry->option_stride);
}

/* ---- One value ----------------------------------------------------------------------------------------------------------- */

/* Numbers just outside the range, and what is none. */
static size_t wrong_values(const struct soq_option *o, char values[8][40])
{
    static const char *const no_number[] = {"", "many", "12x", "0x", "--1", "1 2"};
    size_t n = 0;

    if (o->type == SOQ_OPT_ENUM) {
        strcpy(values[n++], "");
        strcpy(values[n++], "nosuch");
        strcpy(values[n++], "prompt|always");
        return n;
    }
    if (o->type == SOQ_OPT_INT) {
        snprintf(values[n++], sizeof values[0], "%.0f", (double)o->min - 1);
        snprintf(values[n++], sizeof values[0], "%.0f", (double)o->max + 1);
        strcpy(values[n++], "1.5");
        strcpy(values[n++], "99999999999999999999");
    } else {
        snprintf(values[n++], sizeof values[0], "%g", (double)o->min - 0.01);
        snprintf(values[n++], sizeof values[0], "%g", (double)o->max + 0.01);
        strcpy(values[n++], "nan");
        strcpy(values[n++], "inf");
    }
    for (size_t i = 0; n < 8; i++)
        strcpy(values[n++], no_number[i]);
    return n;
}

/* What an option takes, as a message says it. */
static const char *expected(const struct soq_option *o)
{
    static char text[160];

    if (o->type == SOQ_OPT_ENUM)
        snprintf(text, sizeof text, "expected one of %s", o->choices);
    else if (o->type == SOQ_OPT_FLOAT)
        snprintf(text, sizeof text, "expected a number, %g to %g", (double)o->min, (double)o->max);
    else
        snprintf(text, sizeof text, "expected an integer, %.0f to %.0f", (double)o->min, (double)o->max);
    return text;
}

Test(kvpolicy_wrong, values, .timeout = 120)
{
    uint32_t n_tried = 0;

    for (int p = 0; p < N_NAMES; p++) {
        const struct soq_role_entry *entry = open_plugin(names[p], SOQ_ROLE_KV_POLICY);

        for (uint32_t i = 0; i < entry->n_options; i++) {
            const struct soq_option *o = option_at(entry, i);
            char policy[40], setting[400], values[8][40];
            size_t n = wrong_values(o, values);

            cr_expect(o->type == SOQ_OPT_INT || o->type == SOQ_OPT_FLOAT || o->type == SOQ_OPT_ENUM);
            for (size_t v = 0; v < n; v++, n_tried++) {
                const char *text;

                snprintf(policy, sizeof policy, "kv.policy=%s", names[p]);
                snprintf(setting, sizeof setting, "kv.%s.%s=%s", names[p], o->key, values[v]);
                text = refusal((const char *[]){policy, setting, NULL}, "/dev/null");
                cr_expect(strstr(text, setting) && strstr(text, expected(o)), "%s: %s", setting, text);
            }
        }
    }
    cr_expect_gt(n_tried, 300);
}

Test(kvpolicy_wrong, keys)
{
    for (int p = 0; p < N_NAMES; p++) {
        const struct soq_role_entry *entry = open_plugin(names[p], SOQ_ROLE_KV_POLICY);
        char policy[40], setting[100], known[40];
        const char *text;

        snprintf(policy, sizeof policy, "kv.policy=%s", names[p]);
        snprintf(setting, sizeof setting, "kv.%s.capcity=64", names[p]);
        snprintf(known, sizeof known, entry->n_options ? "did you mean 'capacity'?" : "[kv.%s] has: no keys", names[p]);
        text = refusal((const char *[]){policy, setting, NULL}, "/dev/null");
        cr_expect(strstr(text, setting) && strstr(text, "unknown key") && strstr(text, known), "%s: %s", setting, text);
        if (!entry->n_options)
            continue;
        snprintf(setting, sizeof setting, "kv.%s.entirely_else=64", names[p]);
        text = refusal((const char *[]){policy, setting, NULL}, "/dev/null");
        for (uint32_t i = 0; i < entry->n_options; i++)
            cr_expect(strstr(text, option_at(entry, i)->key), "%s: %s", setting, text);
    }
}

/* A file is named with the line. */
Test(kvpolicy_wrong, files)
{
    static const struct {
        const char *ini, *says[3];
    } cases[] = {
        {"[kv]\npolicy = snapkv\n[kv.snapkv]\nwindow = 8\ncapacity = 0\n",
         {":5: ", "[kv.snapkv] capacity = 0", "1 to 2147483647"}},
        {"[kv]\npolicy = h2o\n[kv.h2o]\nrecnt = 8\n", {":4: ", "[kv.h2o] recnt", "did you mean 'recent'?"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = tiny_file(cases[i].ini, strlen(cases[i].ini));
        const char *text = refusal(NULL, path);

        cr_expect(strstr(text, path), "%s", text);
        for (int s = 0; s < 3; s++)
            cr_expect(strstr(text, cases[i].says[s]), "%s: %s", cases[i].says[s], text);
        unlink(path);
        free(path);
    }
}

/* ---- Values that do not go together -------------------------------------------------------------------------------------- */

#define FEW(policy) "kv.policy=" policy, "kv." policy ".capacity=16"

Test(kvpolicy_wrong, together)
{
    static const struct {
        const char *settings[6], *says[3];
    } cases[] = {
        {{"kv.policy=window"}, {"[kv.window] capacity = 0", "model's own window", "set capacity"}},
        {{FEW("window"), "kv.window.sinks=16"}, {"[kv.window] capacity = 16", "sinks = 16", "set capacity to 17 or more"}},
        {{FEW("streaming"), "kv.streaming.sinks=16"},
         {"[kv.streaming] capacity = 16", "sinks = 16", "set capacity to 17 or more"}},
        {{FEW("h2o"), "kv.h2o.recent=17"},
         {"[kv.h2o] capacity = 16", "recent = 17", "set capacity to 17 or more, or recent to 16"}},
        {{"kv.policy=h2o", "kv.h2o.ratio=0.2", "kv.h2o.recent_ratio=0.3"},
         {"[kv.h2o] ratio = 0.2", "recent_ratio = 0.3", "set ratio to 0.3 or more, or recent_ratio to 0.2"}},
        {{FEW("snapkv"), "kv.snapkv.window=17"},
         {"[kv.snapkv] capacity = 16", "window = 17", "set capacity to 17 or more, or window to 16"}},
        {{FEW("pyramidkv"), "kv.pyramidkv.window=17"},
         {"[kv.pyramidkv] capacity = 16", "window = 17", "set capacity to 17 or more"}},
        {{FEW("adakv"), "kv.adakv.window=17"}, {"[kv.adakv] capacity = 16", "window = 17", "set capacity to 17 or more"}},
        {{FEW("snapkv"), "kv.snapkv.window=8", "kv.snapkv.kernel=2"}, {"[kv.snapkv] kernel = 2", "no middle", "1 or 3"}},
        {{FEW("pyramidkv"), "kv.pyramidkv.window=8", "kv.pyramidkv.kernel=4"},
         {"[kv.pyramidkv] kernel = 4", "no middle", "3 or 5"}},
        {{FEW("adakv"), "kv.adakv.window=8", "kv.adakv.kernel=254"}, {"[kv.adakv] kernel = 254", "no middle", "253 or 255"}},
        {{FEW("snapkv"), "kv.snapkv.window=8", "kv.snapkv.when=always", "kv.snapkv.every=7"},
         {"[kv.snapkv] every = 7", "window = 8", "set every to 8 or more, or window to 7"}},
        {{FEW("pyramidkv"), "kv.pyramidkv.window=8", "kv.pyramidkv.when=always", "kv.pyramidkv.every=7"},
         {"[kv.pyramidkv] every = 7", "window = 8", "set every to 8 or more"}},
        {{FEW("adakv"), "kv.adakv.window=8", "kv.adakv.when=always", "kv.adakv.every=7"},
         {"[kv.adakv] every = 7", "window = 8", "set every to 8 or more"}},
        {{FEW("h2o"), "kv.h2o.recent=8", "kv.prefix_cache=on"}, {"[kv] prefix_cache", "h2o", "auto"}},
        {{FEW("observed"), "kv.prefix_cache=on"}, {"[kv] prefix_cache", "observed", "auto"}},
        {{FEW("tova"), "kv.preempt=recompute"}, {"[kv] preempt = recompute", "tova", "swap"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = refusal(cases[i].settings, "/dev/null");

        for (int s = 0; s < 3; s++)
            cr_expect(strstr(text, cases[i].says[s]), "%s %s, \"%s\" is missing: %s", cases[i].settings[0],
                      cases[i].settings[1], cases[i].says[s], text);
    }
}
