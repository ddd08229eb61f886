/* The placement is built as JSON: an array with one object for each backend and run of layers that are placed alike; the table
 * prints the same objects. */
#include "cli/placement.h"

#include <string.h>

#include "base/buf.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "config/settings.h"

enum { ITEMS_MAX = SOQ__N_OPS + SOQ__N_LAYER_TENSORS };

/* An op, or a weight and with it the op that uses it. */
struct item {
    const char *name;
    bool is_weight;
    uint32_t at; /* instance */
};

struct part {
    struct item items[ITEMS_MAX];
    size_t n;
};

/* ---- What there is to place ---------------------------------------------------------------------------------------------- */

static void add_ops(struct part *p, const struct soq__op_places *places)
{
    for (uint32_t op = 0; op < SOQ__N_OPS; op++)
        if (places->placed >> op & 1)
            p->items[p->n++] = (struct item){.name = soq__op_name(op), .at = places->at[op]};
}

static void add_weight(struct part *p, const char *name, struct soq__weight w)
{
    p->items[p->n++] = (struct item){.name = name, .is_weight = true, .at = w.at};
}

static struct part layer_part(const struct soq__net *net, uint32_t l)
{
    struct part p = {.n = 0};

    add_ops(&p, &net->layers[l].places);
    for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
        if (net->model->layers[l].tensors[i])
            add_weight(&p, soq__layer_tensors[i].suffix, net->layers[l].weights[i]);
    return p;
}

/* Before the first layer, or after the last. */
static struct part end_part(const struct soq__net *net, bool output)
{
    struct soq__op_places places = net->places;
    struct part p = {.n = 0};

    places.placed &= output ? ~(1u << SOQ_OP_ROPE_TABLE) : 1u << SOQ_OP_ROPE_TABLE;
    add_ops(&p, &places);
    if (output) {
        add_weight(&p, "output_norm.weight", net->output_norm);
        add_weight(&p, net->model->output ? "output.weight" : "token_embd.weight", net->output);
    } else {
        add_weight(&p, "token_embd.weight", net->embd);
    }
    return p;
}

static bool are_alike(const struct part *a, const struct part *b)
{
    bool alike = a->n == b->n;

    for (size_t i = 0; alike && i < a->n; i++)
        alike = strcmp(a->items[i].name, b->items[i].name) == 0 && a->items[i].at == b->items[i].at;
    return alike;
}

/* ---- As JSON ------------------------------------------------------------------------------------------------------------- */

static json_t *names_at(const struct part *p, uint32_t at, bool weights)
{
    json_t *names = json_array();

    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].at == at && p->items[i].is_weight == weights)
            json_array_append_new(names, json_string(p->items[i].name));
    return names;
}

/* An object for each instance that has something in this part of the model. */
static int append_part(json_t *all, const struct soq__exec *x, const char *layers, const struct part *p)
{
    int rc = 0;

    for (uint32_t i = 0; !rc && i < x->n_instances; i++) {
        json_t *ops = names_at(p, i, false), *weights = names_at(p, i, true);

        if (json_array_size(ops) + json_array_size(weights))
            rc = json_array_append_new(all, json_pack("{ss ss sO sO}", "layers", layers, "backend", x->choices[i].plugin->id,
                                                      "ops", ops, "weights", weights));
        json_decref(ops);
        json_decref(weights);
    }
    return rc;
}

static int append_layers(json_t *all, const struct soq__net *net)
{
    uint32_t n = net->model->hparams.n_layers, last;
    int rc = 0;

    for (uint32_t first = 0; !rc && first < n; first = last + 1) {
        struct part p = layer_part(net, first), next;
        char text[32];

        for (last = first; last + 1 < n; last++) {
            next = layer_part(net, last + 1);
            if (!are_alike(&p, &next))
                break;
        }
        snprintf(text, sizeof text, first == last ? "%u" : "%u-%u", first, last);
        rc = append_part(all, net->exec, text, &p);
    }
    return rc;
}

static json_t *build(const struct soq__net *net)
{
    struct part input = end_part(net, false), output = end_part(net, true);
    json_t *all = json_array();

    if (append_part(all, net->exec, "input", &input) || append_layers(all, net) ||
        append_part(all, net->exec, "output", &output)) {
        json_decref(all);
        return NULL;
    }
    return all;
}

/* ---- As a table ---------------------------------------------------------------------------------------------------------- */

static void append_names(const json_t *names, struct soq_buf *out)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        size_t n = strlen(name), suffix = strlen(".weight");

        soq__buf_printf(out, " %.*s", (int)(n > suffix && strcmp(name + n - suffix, ".weight") == 0 ? n - suffix : n), name);
    }
}

static void print_table(const json_t *all)
{
    struct soq_buf what = SOQ_BUF_INIT;

    soq__out_printf("%-8s  %-16s  %s\n", "LAYERS", "BACKEND", "OPS; WEIGHTS");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *o = json_array_get(all, i);

        soq__buf_clear(&what);
        append_names(json_object_get(o, "ops"), &what);
        if (json_array_size(json_object_get(o, "weights")))
            soq__buf_puts(&what, what.len ? ";" : "");
        append_names(json_object_get(o, "weights"), &what);
        soq__out_printf("%-8s  %-16s %s\n", json_string_value(json_object_get(o, "layers")),
                        json_string_value(json_object_get(o, "backend")), soq__buf_str(&what));
    }
    soq__buf_done(&what);
}

/* ---- The whole ----------------------------------------------------------------------------------------------------------- */

static int print(const struct soq__engine *engine, bool json, struct soq_error *err)
{
    json_t *all = build(&engine->net);

    if (!all)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (json)
        return soq__json_line(all) && !soq__out_lost() ? soq__fail(err, SOQ_ENOMEM, "out of memory") : 0;
    print_table(all);
    json_decref(all);
    return 0;
}

static int open_and_print(struct soq_runtime *rt, const char *model_path, bool json, struct soq_error *err)
{
    struct soq__engine_params params = {.registry = rt->registry, .settings = rt->settings, .place_only = true};
    struct soq__engine *engine = NULL;
    struct soq__model *model = NULL;
    const char *path;
    int rc = model_path ? soq__settings_set(rt->settings, "model", "path", model_path, err) : 0;

    if (!rc)
        rc = soq__cli_model_path(rt, &path, err);
    if (!rc)
        rc = soq__model_load(path, soq__settings_string(rt->settings, "model", "template"), &model, err);
    params.model = model;
    if (!rc)
        rc = soq__engine_create(&params, &engine, err);
    if (!rc)
        rc = print(engine, json, err);
    soq__engine_free(engine);
    soq__model_free(model);
    return rc;
}

int soq__print_placement(const struct soq__cli_globals *globals, const char *model, bool json)
{
    const struct soq__args args = {.command = "config", .globals = *globals};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = NULL;
    int rc = soq__cli_runtime(&args, &rt, &err);

    if (!rc)
        rc = open_and_print(rt, model, json, &err);
    soq_runtime_free(rt);
    return soq__out_finish("config", rc ? soq__cli_fail("config", rc, &err) : SOQ_EXIT_OK);
}
