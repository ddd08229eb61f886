#include "cli/eval/plot.h"

/* Without custom properties, which not every viewer knows. */
static const char style[] = "<style>\n"
                            "  svg { color-scheme: light dark; }\n"
                            "  text { font: 12px system-ui, sans-serif; fill: #5f656d; }\n"
                            "  .title { font-size: 16px; fill: #1c1e21; }\n"
                            "  .name { fill: #1c1e21; }\n"
                            "  .inverse, .paper { fill: #fff; }\n"
                            "  .small { font-size: 10px; }\n"
                            "  .cell { fill: #e4e7eb; }\n"
                            "  .heat { fill: #1a5fb4; }\n"
                            "  .grid { stroke: #e4e7eb; fill: none; }\n"
                            "  .axis { stroke: #5f656d; fill: none; }\n"
                            "  .front { stroke: #b4531a; stroke-width: 1.5; fill: none; }\n"
                            "  .point { fill: #1a5fb4; stroke: #fff; }\n"
                            "  .best { fill: #b4531a; stroke: #fff; }\n"
                            "  @media (prefers-color-scheme: dark) {\n"
                            "    text { fill: #a3a9b1; }\n"
                            "    .title, .name { fill: #e8eaed; }\n"
                            "    .inverse, .paper { fill: #16181c; }\n"
                            "    .cell { fill: #2a2e35; }\n"
                            "    .heat { fill: #78aeed; }\n"
                            "    .grid { stroke: #2a2e35; }\n"
                            "    .axis { stroke: #a3a9b1; }\n"
                            "    .front { stroke: #eda878; }\n"
                            "    .point { fill: #78aeed; stroke: #16181c; }\n"
                            "    .best { fill: #eda878; stroke: #16181c; }\n"
                            "  }\n"
                            "</style>\n";

static void put_escaped(struct soq_buf *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            soq__buf_puts(out, "&amp;");
            break;
        case '<':
            soq__buf_puts(out, "&lt;");
            break;
        case '>':
            soq__buf_puts(out, "&gt;");
            break;
        default:
            soq__buf_putc(out, *text);
        }
}

void soq__plot_text(struct soq_buf *out, double x, double y, const char *anchor, const char *class, const char *text)
{
    soq__buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, class);
    put_escaped(out, text);
    soq__buf_puts(out, "</text>\n");
}

void soq__plot_begin(struct soq_buf *out, double width, double height, const char *title)
{
    soq__buf_printf(out,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
                    width, height, width, height);
    soq__buf_puts(out, style);
    soq__buf_printf(out, "<rect class=\"paper\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
    soq__plot_text(out, 20, 28, "start", "title", title);
}

void soq__plot_end(struct soq_buf *out)
{
    soq__buf_puts(out, "</svg>\n");
}
