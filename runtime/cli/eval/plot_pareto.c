/* Bytes from left to right, as a logarithm; quality upwards. Points are numbered and named beside the picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/eval/plot.h"

/* In pixels. */
enum { LEFT = 70, TOP = 56, PLOT_W = 560, PLOT_H = 420, NAMES = 60, LETTER = 7, BOTTOM = 56, LINE = 17, RADIUS = 8 };

struct point {
    const char *name;
    double share;   /* of the full cache's bytes */
    double quality; /* as drawn: the more, the better */
    bool best;
};

struct chart {
    struct point *points; /* [n] by bytes */
    uint32_t n;
    bool log_y;    /* quality is -log10(KL) */
    double x0, x1; /* log2 of shares */
    double y0, y1; /* of qualities */
};

static double x_of(const struct chart *c, double share)
{
    return LEFT + PLOT_W * (log2(share) - c->x0) / (c->x1 - c->x0);
}

static double y_of(const struct chart *c, double quality)
{
    return TOP + PLOT_H * (c->y1 - quality) / (c->y1 - c->y0);
}

static int by_share(const void *a, const void *b)
{
    const struct point *p = a, *q = b;

    if (p->share < q->share || p->share > q->share)
        return p->share < q->share ? -1 : 1;
    return p->quality > q->quality ? -1 : p->quality < q->quality;
}

/* ---- What is drawn */

/* Infinite where there is no divergence. */
static double quality_of(const struct soq__eval_row *row, enum soq__eval_quality by)
{
    if (by == SOQ__EVAL_BY_KL)
        return row->kl.n ? -log10(row->kl.mean) : NAN;
    return row->passkey.n ? 100 * row->passkey.mean : NAN;
}

/* No divergence is drawn where the decade of the least one ends. */
static void bound(struct chart *c)
{
    double most = 0;

    for (uint32_t i = 0; i < c->n; i++)
        most = isfinite(c->points[i].quality) ? fmax(most, c->points[i].quality) : most;
    for (uint32_t i = 0; i < c->n; i++)
        c->points[i].quality = fmin(c->points[i].quality, ceil(most));
}

/* What no axis can show, a share of nothing and a divergence without end, is left out. */
static void fill(const struct soq__eval_summary *s, enum soq__eval_quality by, struct chart *c)
{
    const struct soq__eval_plan *plan = s->eval->plan;
    size_t longest = 0, each = plan->n_lengths + (plan->n_lengths > 1);
    double best = -INFINITY, full;

    for (size_t l = 1; l < plan->n_lengths; l++)
        longest = plan->lengths[l] > plan->lengths[longest] ? l : longest;
    full = s->rows[longest].kv_bytes;
    for (uint32_t i = 0; i < s->eval->configs->n; i++) {
        const struct soq__eval_row *row = &s->rows[i * each];
        double share = row[longest].kv_bytes / full, quality = quality_of(&row[each - 1], by);

        if (share > 0 && isfinite(share) && quality > -INFINITY)
            c->points[c->n++] = (struct point){row->config, share, quality, false};
    }
    bound(c);
    qsort(c->points, c->n, sizeof *c->points, by_share);
    for (uint32_t i = 0; i < c->n; i++) {
        c->points[i].best = c->points[i].quality > best;
        best = fmax(best, c->points[i].quality);
    }
}

static void set_ranges(struct chart *c)
{
    double low = INFINITY, high = -INFINITY;

    c->x0 = -1;
    c->x1 = 0.15;
    for (uint32_t i = 0; i < c->n; i++) {
        c->x0 = fmin(c->x0, floor(log2(c->points[i].share)));
        low = fmin(low, c->points[i].quality);
        high = fmax(high, c->points[i].quality);
    }
    c->x0 -= 0.15;
    c->y0 = c->log_y ? floor(low) : -3;
    c->y1 = c->log_y ? ceil(high) + (ceil(high) <= floor(low)) + 0.1 : 103;
}

static void draw_axes(const struct chart *c, const char *x_title, const char *y_title, struct soq_buf *out)
{
    char text[32];

    for (double e = ceil(c->x0); e <= 0; e++) {
        double x = x_of(c, exp2(e));

        soq__buf_printf(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", x, TOP, TOP + PLOT_H);
        snprintf(text, sizeof text, "%.3g %%", 100 * exp2(e));
        soq__plot_text(out, x, TOP + PLOT_H + 18, "middle", "", text);
    }
    for (double v = ceil(c->y0); v <= c->y1; v++) {
        if (!c->log_y && (v < 0 || fmod(v, 20) > 0.5))
            continue;
        soq__buf_printf(out, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n", LEFT, y_of(c, v), PLOT_W);
        snprintf(text, sizeof text, "%.4g", c->log_y ? pow(10, -v) : v);
        soq__plot_text(out, LEFT - 8, y_of(c, v) + 4, "end", "", text);
    }
    soq__buf_printf(out, "<path class=\"axis\" d=\"M%d %dv%dh%d\"/>\n", LEFT, TOP, PLOT_H, PLOT_W);
    soq__plot_text(out, LEFT + PLOT_W / 2.0, TOP + PLOT_H + 40, "middle", "", x_title);
    soq__plot_text(out, LEFT - 50, TOP - 10, "start", "", y_title);
}

static void draw_front(const struct chart *c, struct soq_buf *out)
{
    bool first = true;

    soq__buf_puts(out, "<path class=\"front\" d=\"");
    for (uint32_t i = 0; i < c->n; i++) {
        if (!c->points[i].best)
            continue;
        if (first)
            soq__buf_printf(out, "M%.1f %.1f", x_of(c, c->points[i].share), y_of(c, c->points[i].quality));
        else
            soq__buf_printf(out, "H%.1fV%.1f", x_of(c, c->points[i].share), y_of(c, c->points[i].quality));
        first = false;
    }
    soq__buf_puts(out, "\"/>\n");
}

static void draw_points(const struct chart *c, struct soq_buf *out)
{
    struct soq_buf name = SOQ_BUF_INIT;
    char number[16];

    for (uint32_t i = 0; i < c->n; i++) {
        const struct point *p = &c->points[i];
        double x = x_of(c, p->share), y = y_of(c, p->quality), line = TOP + 6 + (double)i * LINE;
        const char *class = p->best ? "best" : "point";

        soq__buf_printf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", class, x, y, RADIUS);
        snprintf(number, sizeof number, "%u", i + 1);
        soq__plot_text(out, x, y + 3.5, "middle", "small inverse", number);
        soq__buf_printf(out, "<circle class=\"%s\" cx=\"%d\" cy=\"%.1f\" r=\"%d\"/>\n", class, LEFT + PLOT_W + 30, line,
                        RADIUS);
        soq__plot_text(out, LEFT + PLOT_W + 30, line + 3.5, "middle", "small inverse", number);
        name.len = 0;
        soq__buf_printf(&name, "%s, %.3g %%", p->name, 100 * p->share);
        soq__plot_text(out, LEFT + PLOT_W + 44, line + 4, "start", "name", soq__buf_str(&name));
    }
    out->failed |= name.failed;
    soq__buf_done(&name);
}

void soq__eval_plot_pareto(const struct soq__eval_summary *s, enum soq__eval_quality by, struct soq_buf *out)
{
    struct chart c = {.log_y = by == SOQ__EVAL_BY_KL};
    double lines, names = 0;
    char title[256];

    c.points = soq__alloc_zero(s->eval->configs->n, sizeof *c.points);
    if (!c.points) {
        out->failed = true;
        return;
    }
    fill(s, by, &c);
    set_ranges(&c);
    lines = TOP + (double)c.n * LINE + 10;
    for (uint32_t i = 0; i < c.n; i++)
        names = fmax(names, LETTER * (double)(strlen(c.points[i].name) + sizeof ", 12.5 %"));
    snprintf(title, sizeof title, "%s: %s against bytes of the KV cache", s->eval->model,
             c.log_y ? "KL divergence from the full cache" : "pass keys found");
    soq__plot_begin(out, LEFT + PLOT_W + NAMES + names, fmax(TOP + PLOT_H + BOTTOM, lines), title);
    draw_axes(&c, "bytes that a sequence holds behind its prompt, of the full f32 cache's",
              c.log_y ? "KL, nats (up is better)" : "found, %", out);
    draw_front(&c, out);
    draw_points(&c, out);
    soq__plot_end(out);
    soq__free(c.points);
}
