#include "cli/trace_svg.h"

#include <inttypes.h>

#include "base/size.h"

/* In pixels. */
enum { WIDTH = 1000, LEFT = 84, RIGHT = 20, TOP = 56, BOTTOM = 44, GAP = 3 /* between layers */ };

/* Plain colours, which the dark ones replace where a viewer knows of them: many know neither variables nor @media. */
static const char style[] = "<style>\n"
                            "  text { font: 12px system-ui, sans-serif; fill: #6b7078; }\n"
                            "  .title { font-size: 16px; fill: #1c1e21; }\n"
                            "  .right { text-anchor: end; }\n"
                            "  .mid { text-anchor: middle; }\n"
                            "  .paper { fill: #fff; }\n"
                            "  .row { fill: #eceef1; }\n"
                            "  .kept { stroke: #1a5fb4; }\n"
                            "  .axis { stroke: #6b7078; }\n"
                            "  @media (prefers-color-scheme: dark) {\n"
                            "    text { fill: #9aa0a8; }\n"
                            "    .title { fill: #e8eaed; }\n"
                            "    .paper { fill: #16181c; }\n"
                            "    .row { fill: #23262c; }\n"
                            "    .kept { stroke: #78aeed; }\n"
                            "    .axis { stroke: #9aa0a8; }\n"
                            "  }\n"
                            "</style>\n";

struct picture {
    const struct soq__trace_event *event;
    struct soq_buf *out;
    uint32_t n;      /* positions */
    double row, bar; /* heights of a line and of what is drawn of it */
    double scale;    /* pixels for each position */
    double height;   /* of all lines */
};

/* Few lines get more room than many. */
static double row_height(size_t n)
{
    return n <= 24 ? 20 : n <= 120 ? 7 : 4;
}

static bool begins_layer(const struct picture *p, size_t i)
{
    return i == 0 || p->event->lines[i].layer != p->event->lines[i - 1].layer;
}

static double y_of(const struct picture *p, size_t i)
{
    double y = TOP;

    for (size_t k = 0; k < i; k++)
        y += p->row + (begins_layer(p, k + 1) ? GAP : 0);
    return y;
}

static void draw_title(const struct picture *p)
{
    const struct soq__trace_line *lines = p->event->lines;
    uint64_t kept = 0, bytes = 0;
    char size[32];

    for (size_t i = 0; i < p->event->n_lines; i++) {
        kept += lines[i].n_kept;
        bytes += lines[i].bytes;
    }
    soq__buf_printf(p->out,
                    "<text class=\"title\" x=\"%d\" y=\"26\">Sequence %" PRIu64 " after %u tokens: %.4g of %u entries kept by "
                    "each KV head on average, %s</text>\n",
                    LEFT, lines->sequence, p->n, (double)kept / (double)p->event->n_lines, p->n,
                    soq__size_text(bytes, size, sizeof size));
}

/* The distance of two ticks: 1, 2 or 5 times a power of ten, so that there are at most ten. */
static uint32_t tick_of(uint32_t n)
{
    static const uint32_t steps[] = {1, 2, 5};

    for (uint32_t power = 1;; power *= 10)
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
            if (n / (steps[i] * power) <= 10)
                return steps[i] * power;
}

static void draw_axis(const struct picture *p)
{
    uint32_t tick = tick_of(p->n);
    double y = TOP + p->height + 6;

    soq__buf_printf(p->out, "<path class=\"axis\" d=\"M%d %.1fH%d", LEFT, y, WIDTH - RIGHT);
    for (uint32_t x = 0; x <= p->n; x += tick)
        soq__buf_printf(p->out, "M%.2f %.1fv5", LEFT + x * p->scale, y);
    soq__buf_printf(p->out, "\"/>\n");
    for (uint32_t x = 0; x <= p->n; x += tick)
        soq__buf_printf(p->out, "<text class=\"mid\" x=\"%.2f\" y=\"%.1f\">%u</text>\n", LEFT + x * p->scale, y + 19, x);
}

/* Runs of neighbours are one dash. In positions and relative to the one before, which is exact and short. */
static void draw_line(const struct picture *p, size_t i, double y)
{
    const struct soq__trace_line *line = &p->event->lines[i];
    uint32_t at = 0;

    soq__buf_printf(p->out, "<rect class=\"row\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>\n", LEFT, y,
                    WIDTH - LEFT - RIGHT, p->bar);
    soq__buf_printf(p->out,
                    "<path class=\"kept\" transform=\"translate(%d %.1f) scale(%.8g 1)\" stroke-width=\"%.1f\" d=\"M0 0", LEFT,
                    y + p->bar / 2, p->scale, p->bar);
    for (uint32_t k = 0, last; k < line->n_kept; k = last) {
        for (last = k + 1; last < line->n_kept && line->kept[last] == line->kept[last - 1] + 1;)
            last++;
        soq__buf_printf(p->out, "m%u 0h%u", line->kept[k] - at, last - k);
        at = line->kept[last - 1] + 1;
    }
    soq__buf_printf(p->out, "\"><title>layer %u, head %u: %u kept</title></path>\n", line->layer, line->head, line->n_kept);
}

static void draw_lines(const struct picture *p)
{
    double label_y = -100;

    for (size_t i = 0; i < p->event->n_lines; i++) {
        double y = y_of(p, i);

        if (begins_layer(p, i) && y - label_y >= 13) {
            label_y = y;
            soq__buf_printf(p->out, "<text class=\"right\" x=\"%d\" y=\"%.1f\">layer %u</text>\n", LEFT - 8, y + 10,
                            p->event->lines[i].layer);
        }
        draw_line(p, i, y);
    }
}

void soq__trace_svg(const struct soq__trace_event *event, struct soq_buf *out)
{
    struct picture p = {.event = event, .out = out, .n = event->lines->position, .row = row_height(event->n_lines)};
    double height;

    p.bar = p.row - (p.row > 4 ? 2 : 1);
    p.scale = (double)(WIDTH - LEFT - RIGHT) / (p.n ? p.n : 1);
    p.height = y_of(&p, event->n_lines - 1) + p.row - TOP;
    height = TOP + p.height + BOTTOM;
    soq__buf_printf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\">\n",
                    WIDTH, height, WIDTH, height);
    soq__buf_puts(out, style);
    soq__buf_printf(out, "<rect class=\"paper\" width=\"%d\" height=\"%.0f\"/>\n", WIDTH, height);
    draw_title(&p);
    draw_lines(&p);
    draw_axis(&p);
    soq__buf_puts(out, "</svg>\n");
}
