/* A grid of panels: lengths from left to right, depths from top to bottom, the more keys were found, the stronger the colour.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/eval/plot.h"

/* In pixels. */
enum { COLUMNS = 4, CELL_W = 44, CELL_H = 24, LEFT = 48, TOP = 52, HEAD = 22, FOOT = 34, GAP = 2, LETTER = 7, TITLE = 720 };

static void draw_cell(struct soq_buf *out, double x, double y, double score)
{
    char text[8];

    if (isnan(score))
        return;
    soq__buf_printf(out, "<rect class=\"cell\" x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\"/>\n", x, y, CELL_W - GAP,
                    CELL_H - GAP);
    soq__buf_printf(out, "<rect class=\"heat\" x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill-opacity=\"%.2f\"/>\n", x,
                    y, CELL_W - GAP, CELL_H - GAP, score);
    snprintf(text, sizeof text, "%.0f", 100 * score);
    soq__plot_text(out, x + (CELL_W - GAP) / 2.0, y + 15, "middle", score > 0.5 ? "small inverse" : "small name", text);
}

/* Of a configuration's; its lengths follow in order. */
static const struct soq__eval_row *first_row(const struct soq__eval_summary *s, uint32_t config)
{
    return &s->rows[config * (s->eval->plan->n_lengths + (s->eval->plan->n_lengths > 1))];
}

static void draw_panel(const struct soq__eval_summary *s, uint32_t config, double x, double y, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    char text[32];

    soq__plot_text(out, x + LEFT, y + 14, "start", "name", s->eval->configs->items[config].label);
    for (size_t d = 0; d < plan->n_depths; d++) {
        snprintf(text, sizeof text, "%d %%", (int)plan->depths[d]);
        soq__plot_text(out, x + LEFT - 6, y + HEAD + (double)d * CELL_H + 15, "end", "small", text);
        for (size_t l = 0; l < plan->n_lengths; l++)
            draw_cell(out, x + LEFT + (double)l * CELL_W, y + HEAD + (double)d * CELL_H, first_row(s, config)[l].passkey_at[d]);
    }
    for (size_t l = 0; l < plan->n_lengths; l++) {
        snprintf(text, sizeof text, "%d", (int)plan->lengths[l]);
        soq__plot_text(out, x + LEFT + (double)l * CELL_W + (CELL_W - GAP) / 2.0,
                       y + HEAD + (double)plan->n_depths * CELL_H + 12, "middle", "small", text);
    }
}

static bool was_measured(const struct soq__eval_summary *s, uint32_t config)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    const struct soq__eval_row *row = first_row(s, config);

    for (size_t l = 0; l < plan->n_lengths; l++)
        if (row[l].passkey.n)
            return true;
    return false;
}

void soq__eval_plot_heat(const struct soq__eval_summary *s, struct soq_buf *out)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    double panel_w = LEFT + (double)plan->n_lengths * CELL_W + 12, panel_h = HEAD + (double)plan->n_depths * CELL_H + FOOT;
    uint32_t n = 0, at = 0;
    char title[256];

    for (uint32_t c = 0; c < s->eval->configs->n; c++) {
        panel_w = fmax(panel_w, LEFT + LETTER * (double)(strlen(s->eval->configs->items[c].label) + 1));
        n += was_measured(s, c);
    }
    snprintf(title, sizeof title, "%s: pass keys found, %%, by length of the prompt and depth of the key", s->eval->model);
    soq__plot_begin(out, fmax(panel_w * COLUMNS + 20, TITLE), TOP + panel_h * ((n + COLUMNS - 1) / COLUMNS), title);
    for (uint32_t c = 0; c < s->eval->configs->n; c++) {
        if (!was_measured(s, c))
            continue;
        draw_panel(s, c, at % COLUMNS * panel_w, TOP + at / COLUMNS * panel_h, out);
        at++;
    }
    soq__plot_end(out);
}
