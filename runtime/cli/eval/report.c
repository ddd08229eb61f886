#include "cli/eval/report.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "cli/eval/generate.h"
#include "cli/json_out.h"

static const char *const formats[SOQ__EVAL_FORMATS] = {"table", "md", "csv", "json"};

bool soq__eval_format_parse(const char *text, enum soq__eval_format *out)
{
    for (int i = 0; i < SOQ__EVAL_FORMATS; i++)
        if (strcmp(text, formats[i]) == 0) {
            *out = (enum soq__eval_format)i;
            return true;
        }
    return false;
}

/* ---- Figures for programs */

enum kind { NUMBER, BYTES, MEAN, LOW, HIGH, COUNT };

/* Of a row: a double, or a part of an interval. */
struct figure {
    const char *name;
    size_t offset;
    enum kind kind;
};

#define AT(field) offsetof(struct soq__eval_row, field)
#define RANGE(name, field)                                                                                                     \
    {name, AT(field), MEAN}, {name "_low", AT(field), LOW},                                                                    \
    {                                                                                                                          \
        name "_high", AT(field), HIGH                                                                                          \
    }

static const struct figure figures[] = {
    {"text_items", AT(kl), COUNT},
    {"ppl", AT(ppl), NUMBER},
    RANGE("log_ppl_difference", log_ppl),
    RANGE("kl", kl),
    {"kl_1", AT(kl_by_position[0]), NUMBER},
    {"kl_2", AT(kl_by_position[1]), NUMBER},
    {"kl_3", AT(kl_by_position[2]), NUMBER},
    {"kl_4", AT(kl_by_position[3]), NUMBER},
    {"same_top", AT(same_top), NUMBER},
    {"passkey_items", AT(passkey), COUNT},
    RANGE("passkey", passkey),
    RANGE("passkey_difference", passkey_difference),
    {"recall_items", AT(recall), COUNT},
    RANGE("recall", recall),
    RANGE("recall_difference", recall_difference),
    {"speed_tests", AT(tok_s), COUNT},
    RANGE("tok_s", tok_s),
    {"kv_bytes", AT(kv_bytes), BYTES},
    {"kv_peak_bytes", AT(kv_peak), BYTES},
};
#define N_FIGURES (sizeof figures / sizeof figures[0])

static double figure_of(const struct soq__eval_row *row, const struct figure *f)
{
    const struct soq__interval *range = (const void *)((const char *)row + f->offset);
    const double *number = (const void *)range;

    switch (f->kind) {
    case COUNT:
        return (double)range->n;
    case MEAN:
        return range->n ? range->mean : NAN;
    case LOW:
        return range->n ? range->low : NAN;
    case HIGH:
        return range->n ? range->high : NAN;
    case BYTES:
        return nearbyint(*number);
    default:
        return *number;
    }
}

static bool is_whole(enum kind kind)
{
    return kind == COUNT || kind == BYTES;
}

/* In quotes where it would not be one field without them (RFC 4180). */
static void csv_text(const char *text, struct soq_buf *out)
{
    bool quoted = text[strcspn(text, ",\"\r\n")];

    soq__buf_puts(out, quoted ? "\"" : "");
    for (; *text; text++)
        soq__buf_printf(out, *text == '"' ? "\"%c" : "%c", *text);
    soq__buf_puts(out, quoted ? "\"" : "");
}

static void csv_number(double value, enum kind kind, struct soq_buf *out)
{
    soq__buf_puts(out, ",");
    if (isfinite(value))
        soq__buf_printf(out, is_whole(kind) ? "%.0f" : "%.9g", value);
}

static void csv(const struct soq__eval_summary *s, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;

    soq__buf_puts(out, "model,config,length");
    for (size_t f = 0; f < N_FIGURES; f++)
        soq__buf_printf(out, ",%s", figures[f].name);
    for (size_t d = 0; d < plan->n_depths; d++)
        soq__buf_printf(out, ",passkey_at_%d", (int)plan->depths[d]);
    soq__buf_puts(out, "\n");
    for (size_t i = 0; i < s->n; i++) {
        csv_text(s->eval->model, out);
        soq__buf_puts(out, ",");
        csv_text(s->rows[i].config, out);
        soq__buf_printf(out, s->rows[i].length ? ",%u" : ",all", s->rows[i].length);
        for (size_t f = 0; f < N_FIGURES; f++)
            csv_number(figure_of(&s->rows[i], &figures[f]), figures[f].kind, out);
        for (size_t d = 0; d < plan->n_depths; d++)
            csv_number(s->rows[i].passkey_at[d], NUMBER, out);
        soq__buf_puts(out, "\n");
    }
}

static json_t *row_json(const struct soq__eval_summary *s, const struct soq__eval_row *row)
{
    json_t *json = json_object(), *by_depth = json_array();

    json_object_set_new(json, "config", json_string(row->config));
    json_object_set_new(json, "length", row->length ? json_integer(row->length) : json_null());
    for (size_t f = 0; f < N_FIGURES; f++) {
        double value = figure_of(row, &figures[f]);

        json_object_set_new(json, figures[f].name,
                            is_whole(figures[f].kind) && isfinite(value) ? json_integer((json_int_t)value)
                                                                         : soq__json_number(value));
    }
    for (size_t d = 0; d < s->eval->plan->n_depths; d++)
        json_array_append_new(by_depth, soq__json_number(row->passkey_at[d]));
    json_object_set_new(json, "passkey_by_depth", by_depth);
    return json;
}

static void json(const struct soq__eval_summary *s, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    json_t *rows = json_array(), *depths = json_array(), *root;
    char *text;

    for (size_t d = 0; d < plan->n_depths; d++)
        json_array_append_new(depths, json_integer(plan->depths[d]));
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(rows, row_json(s, &s->rows[i]));
    root = json_pack("{ss ss sI sI sI ss so so}", "model", s->eval->model, "text", s->eval->items[SOQ__EVAL_TEXT], "seed",
                     (json_int_t)plan->seed, "bootstrap_samples", (json_int_t)SOQ__BOOTSTRAP_SAMPLES, "bootstrap_seed",
                     (json_int_t)SOQ__BOOTSTRAP_SEED, "reference", s->eval->configs->items[0].label, "depths", depths, "rows",
                     rows);
    text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        soq__buf_printf(out, "%s\n", text);
    else
        out->failed = true;
    free(text);
    json_decref(root);
}

/* ---- Tables for people */

enum { COLUMNS_MAX = 2 + SOQ__EVAL_LIST_MAX /* one for each depth */ };

struct place {
    const struct soq__eval_row *row, *reference;
    unsigned part; /* of the column: which quarter, which depth */
};

/* Appends the text. */
typedef void cell_fn(const struct place *at, struct soq_buf *out);

static void dash(struct soq_buf *out)
{
    soq__buf_puts(out, "-");
}

static void range(struct soq_buf *out, const struct soq__interval *r, double scale, int digits)
{
    if (r->n)
        soq__buf_printf(out, "%.*f [%.*f, %.*f]", digits, scale * r->mean, digits, scale * r->low, digits, scale * r->high);
    else
        dash(out);
}

static void cell_config(const struct place *at, struct soq_buf *out)
{
    soq__buf_puts(out, at->row->config);
}

static void cell_length(const struct place *at, struct soq_buf *out)
{
    soq__buf_printf(out, at->row->length ? "%u" : "all", at->row->length);
}

static void cell_ppl(const struct place *at, struct soq_buf *out)
{
    if (at->row->kl.n)
        soq__buf_printf(out, "%.2f", at->row->ppl);
    else
        dash(out);
}

/* Per cent that perplexity is above the full cache's. */
static void cell_ppl_ratio(const struct place *at, struct soq_buf *out)
{
    const struct soq__interval *r = &at->row->log_ppl;

    if (r->n)
        soq__buf_printf(out, "%+.2f [%+.2f, %+.2f]", 100 * expm1(r->mean), 100 * expm1(r->low), 100 * expm1(r->high));
    else
        dash(out);
}

static void cell_kl(const struct place *at, struct soq_buf *out)
{
    range(out, &at->row->kl, 1, 4);
}

static void cell_top(const struct place *at, struct soq_buf *out)
{
    if (at->row->kl.n)
        soq__buf_printf(out, "%.1f", 100 * at->row->same_top);
    else
        dash(out);
}

static void score(const struct soq__interval *score_, const struct soq__interval *difference, struct soq_buf *out)
{
    if (score_->n)
        soq__buf_printf(out, "%.0f (%+.0f [%+.0f, %+.0f])", 100 * score_->mean, 100 * difference->mean, 100 * difference->low,
                        100 * difference->high);
    else
        dash(out);
}

static void cell_passkey(const struct place *at, struct soq_buf *out)
{
    score(&at->row->passkey, &at->row->passkey_difference, out);
}

static void cell_recall(const struct place *at, struct soq_buf *out)
{
    score(&at->row->recall, &at->row->recall_difference, out);
}

static void cell_speed(const struct place *at, struct soq_buf *out)
{
    range(out, &at->row->tok_s, 1, 1);
}

static void cell_bytes(const struct place *at, struct soq_buf *out)
{
    if (isnan(at->row->kv_bytes))
        dash(out);
    else
        soq__buf_puts(out, SOQ__SIZE((uint64_t)at->row->kv_bytes));
}

static void cell_share(const struct place *at, struct soq_buf *out)
{
    if (isnan(at->row->kv_bytes) || !(at->reference->kv_bytes > 0))
        dash(out);
    else
        soq__buf_printf(out, "%.1f", 100 * at->row->kv_bytes / at->reference->kv_bytes);
}

static void cell_peak(const struct place *at, struct soq_buf *out)
{
    if (isnan(at->row->kv_peak))
        dash(out);
    else
        soq__buf_puts(out, SOQ__SIZE((uint64_t)at->row->kv_peak));
}

static void cell_bin(const struct place *at, struct soq_buf *out)
{
    if (at->row->kl.n)
        soq__buf_printf(out, "%.4f", at->row->kl_by_position[at->part]);
    else
        dash(out);
}

static void cell_depth(const struct place *at, struct soq_buf *out)
{
    double found = at->row->passkey_at[at->part];

    if (isnan(found))
        dash(out);
    else
        soq__buf_printf(out, "%.0f", 100 * found);
}

#define NO_TASK SOQ__EVAL_TASKS

struct column {
    const char *title;
    enum soq__eval_task task; /* that it is about; NO_TASK: all */
    cell_fn *cell;
    unsigned part;
};

static const struct column main_columns[] = {
    {"config", NO_TASK, cell_config, 0},
    {"length", NO_TASK, cell_length, 0},
    {"PPL", SOQ__EVAL_TEXT, cell_ppl, 0},
    {"PPL, % above full", SOQ__EVAL_TEXT, cell_ppl_ratio, 0},
    {"KL, nats", SOQ__EVAL_TEXT, cell_kl, 0},
    {"same top, %", SOQ__EVAL_TEXT, cell_top, 0},
    {"pass key, % (difference)", SOQ__EVAL_PASSKEY, cell_passkey, 0},
    {"recall, % (difference)", SOQ__EVAL_RECALL, cell_recall, 0},
    {"tok/s", SOQ__EVAL_SPEED, cell_speed, 0},
    {"KV held", NO_TASK, cell_bytes, 0},
    {"of full f32, %", NO_TASK, cell_share, 0},
    {"KV peak", SOQ__EVAL_SPEED, cell_peak, 0},
};
static const struct column position_columns[] = {
    {"config", NO_TASK, cell_config, 0},
    {"length", NO_TASK, cell_length, 0},
    {"KL, 1st quarter", SOQ__EVAL_TEXT, cell_bin, 0},
    {"2nd", SOQ__EVAL_TEXT, cell_bin, 1},
    {"3rd", SOQ__EVAL_TEXT, cell_bin, 2},
    {"4th", SOQ__EVAL_TEXT, cell_bin, 3},
};

static bool is_shown(const struct soq__eval_summary *s, const struct column *c)
{
    return c->task == NO_TASK || s->eval->plan->tasks[c->task];
}

/* In place of what `out` holds. */
static void cell_at(const struct soq__eval_summary *s, const struct column *c, size_t row, struct soq_buf *out)
{
    const struct soq__eval_row *r = &s->rows[row];
    const struct place at = {r, soq__eval_summary_row(s, s->rows[0].config, r->length), c->part};

    out->len = 0;
    c->cell(&at, out);
}

/* In bytes. */
static int width_of(const struct soq__eval_summary *s, const struct column *c, struct soq_buf *cell)
{
    size_t width = strlen(c->title);

    for (size_t i = 0; i < s->n; i++) {
        cell_at(s, c, i, cell);
        width = cell->len > width ? cell->len : width;
    }
    return (int)width;
}

/* The first column to the left, all others to the right; Markdown aligns by itself. */
static void put_cell(struct soq_buf *out, const char *text, int width, bool first, bool md)
{
    if (!md) {
        soq__buf_printf(out, "%s%*s", first ? "" : "  ", first ? -width : width, text);
        return;
    }
    soq__buf_puts(out, first ? "| " : " | ");
    for (; *text; text++) {
        soq__buf_puts(out, *text == '|' ? "\\" : "");
        soq__buf_putc(out, *text);
    }
}

static void grid(const struct soq__eval_summary *s, const struct column *columns, size_t n_columns, bool md,
                 struct soq_buf *out)
{
    const char *end = md ? " |\n" : "\n";
    int widths[COLUMNS_MAX] = {0};
    struct soq_buf cell = SOQ_BUF_INIT;

    for (size_t c = 0; c < n_columns; c++) {
        if (!is_shown(s, &columns[c]))
            continue;
        widths[c] = md ? 0 : width_of(s, &columns[c], &cell);
        put_cell(out, columns[c].title, widths[c], c == 0, md);
    }
    soq__buf_puts(out, end);
    for (size_t c = 0; md && c < n_columns; c++)
        if (is_shown(s, &columns[c]))
            soq__buf_puts(out, c ? "---:|" : "|---|");
    soq__buf_puts(out, md ? "\n" : "");
    for (size_t i = 0; i < s->n; i++) {
        for (size_t c = 0; c < n_columns; c++) {
            if (!is_shown(s, &columns[c]))
                continue;
            cell_at(s, &columns[c], i, &cell);
            put_cell(out, soq__buf_str(&cell), widths[c], c == 0, md);
        }
        soq__buf_puts(out, end);
    }
    out->failed |= cell.failed;
    soq__buf_done(&cell);
}

static void depths_grid(const struct soq__eval_summary *s, bool md, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    struct column columns[COLUMNS_MAX] = {{"config", NO_TASK, cell_config, 0}, {"length", NO_TASK, cell_length, 0}};
    char titles[SOQ__EVAL_LIST_MAX][48];

    for (unsigned d = 0; d < plan->n_depths; d++) {
        snprintf(titles[d], sizeof titles[d], d ? "at %d %%" : "pass key, %%, at %d %%", (int)plan->depths[d]);
        columns[2 + d] = (struct column){titles[d], SOQ__EVAL_PASSKEY, cell_depth, d};
    }
    grid(s, columns, 2 + plan->n_depths, md, out);
}

static void note(const struct soq__eval_summary *s, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    const struct soq__eval_row *first = &s->rows[s->n ? s->eval->plan->n_lengths - (s->eval->plan->n_lengths == 1) : 0];

    soq__buf_printf(out, "\n%s, seed %llu; differences are to %s over the same items, 95 %% intervals by bootstrap",
                    s->eval->model, (unsigned long long)plan->seed, first->config);
    if (first->kl.n)
        soq__buf_printf(out, "; text: %zu items of %u tokens (%s)", first->kl.n, plan->n_scored,
                        s->eval->items[SOQ__EVAL_TEXT]);
    if (first->passkey.n)
        soq__buf_printf(out, "; pass key: %zu items", first->passkey.n);
    if (first->recall.n)
        soq__buf_printf(out, "; recall: %zu items of %d numbers", first->recall.n, SOQ__EVAL_TURNS_MAX);
    if (first->tok_s.n)
        soq__buf_printf(out, "; speed: %zu tests of %u tokens", first->tok_s.n, plan->n_timed);
    soq__buf_puts(out, ".\n");
}

void soq__eval_report(const struct soq__eval_summary *s, enum soq__eval_format format, struct soq_buf *out)
{
    bool md = format == SOQ__EVAL_MD;

    if (format == SOQ__EVAL_CSV) {
        csv(s, out);
    } else if (format == SOQ__EVAL_JSON) {
        json(s, out);
    } else {
        grid(s, main_columns, sizeof main_columns / sizeof main_columns[0], md, out);
        if (s->eval->plan->tasks[SOQ__EVAL_TEXT]) {
            soq__buf_puts(out, "\n");
            grid(s, position_columns, sizeof position_columns / sizeof position_columns[0], md, out);
        }
        if (s->eval->plan->tasks[SOQ__EVAL_PASSKEY] && s->eval->plan->n_depths > 1) {
            soq__buf_puts(out, "\n");
            depths_grid(s, md, out);
        }
        note(s, out);
    }
}
