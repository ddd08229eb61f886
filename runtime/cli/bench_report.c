/* Results as a table, CSV, Markdown or JSON lines; each test is printed when it is done. */
#include <math.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/json_out.h"
#include "cli/out.h"

static const char *const format_names[SOQ__BENCH_FORMATS] = {"table", "csv", "md", "json"};

bool soq__bench_format_parse(const char *text, enum soq__bench_format *out)
{
    for (int i = 0; i < SOQ__BENCH_FORMATS; i++) {
        if (strcmp(text, format_names[i]) == 0) {
            *out = (enum soq__bench_format)i;
            return true;
        }
    }
    return false;
}

/* ---- Statistics */

static double mean(const struct soq__bench_test *t)
{
    double sum = 0;

    for (size_t i = 0; i < t->n; i++)
        sum += t->rates[i];
    return sum / (double)t->n;
}

/* Of the sample; 0 for one repetition. */
static double deviation(const struct soq__bench_test *t)
{
    double m = mean(t), sum = 0;

    for (size_t i = 0; i < t->n; i++)
        sum += (t->rates[i] - m) * (t->rates[i] - m);
    return t->n > 1 ? sqrt(sum / (double)(t->n - 1)) : 0;
}

static double best(const struct soq__bench_test *t)
{
    double max = 0;

    for (size_t i = 0; i < t->n; i++)
        max = fmax(max, t->rates[i]);
    return max;
}

/* ---- Formats */

struct share {
    char text[16]; /* "85 %", "-" */
};

static struct share percent(double share)
{
    struct share s = {"-"};

    if (share > 0)
        snprintf(s.text, sizeof s.text, "%.0f %%", share * 100);
    return s;
}

static void print_csv_text(const char *text)
{
    soq__out_write("\"", 1);
    for (; *text; text++)
        soq__out_write(*text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    soq__out_write("\"", 1);
}

static void print_csv(const struct soq__bench_report *r, const struct soq__bench_test *t)
{
    soq__out_printf("soquete,");
    print_csv_text(r->model);
    soq__out_printf(",%s,%lld,%u,%.2f,%.2f,%.2f,%.4f,%.4f\n", t->name, (long long)t->depth, t->parallel, mean(t), deviation(t),
                    best(t), t->memory_share, t->matmul_share);
}

static json_t *known(double value)
{
    return value > 0 ? soq__json_number(value) : json_null();
}

/* The keys of other engines' benchmarks, "fa" (flash attention) among them, and some more. */
static void print_json(const struct soq__bench_report *r, const struct soq__bench_test *t)
{
    json_t *rates = json_array(), *line;

    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(rates, soq__json_number(round(t->rates[i] * 100) / 100));
    line =
        json_pack("{ss so ss sI ss so so so so sI ss so so so so so}", "engine", "soquete", "model",
                  soq__json_text(r->model, strlen(r->model)), "test", t->name, "depth", (json_int_t)t->depth, "fa", "on",
                  "tok_s", rates, "best", soq__json_number(round(best(t) * 100) / 100), "mean", soq__json_number(mean(t)), "sd",
                  soq__json_number(deviation(t)), "parallel", (json_int_t)t->parallel, "backend", r->backend, "memory_gb_s",
                  known(r->bandwidth / 1e9), "memory_share", known(t->memory_share), "int8_gop_s", known(r->peaks.int8 / 1e9),
                  "fp32_gflop_s", known(r->peaks.fp32 / 1e9), "matmul_share", known(t->matmul_share));
    if (t->drafted)
        json_object_set_new(line, "drafts",
                            json_pack("{sI sI sI}", "steps", (json_int_t)t->steps, "drafted", (json_int_t)t->drafted,
                                      "accepted", (json_int_t)t->accepted));
    if (t->profiled) {
        json_object_set_new(line, "profile", soq__profile_json(&t->profile, r->exec));
        json_object_set_new(line, "ops", soq__op_times_json(&t->ops));
    }
    soq__json_line(line);
}

static void print_context(const struct soq__bench_report *r)
{
    soq__out_printf("%s on %s", r->model, r->backend);
    if (r->bandwidth > 0)
        soq__out_printf("; memory %.1f GB/s, int8 %.0f GOP/s (%s), fp32 %.0f GFLOP/s (%s)", r->bandwidth / 1e9,
                        r->peaks.int8 / 1e9, r->peaks.int8_by, r->peaks.fp32 / 1e9, r->peaks.fp32_by);
    soq__out_printf("\n\n");
}

void soq__bench_report_begin(const struct soq__bench_report *r)
{
    switch (r->format) {
    case SOQ__BENCH_TABLE:
        print_context(r);
        soq__out_printf("%-8s %6s %9s %12s %8s %10s %7s %7s\n", "test", "depth", "parallel", "mean tok/s", "sd", "best",
                        "memory", "int8");
        break;
    case SOQ__BENCH_MD:
        print_context(r);
        soq__out_printf("| test | depth | parallel | mean tok/s | sd | best | memory | int8 |\n"
                        "|---|---:|---:|---:|---:|---:|---:|---:|\n");
        break;
    case SOQ__BENCH_CSV:
        soq__out_printf("engine,model,test,depth,parallel,mean,sd,best,memory_share,matmul_share\n");
        break;
    case SOQ__BENCH_JSON:
    case SOQ__BENCH_FORMATS:
        break;
    }
}

void soq__bench_report_test(const struct soq__bench_report *r, const struct soq__bench_test *t)
{
    struct share memory = percent(t->memory_share), int8 = percent(t->matmul_share);

    switch (r->format) {
    case SOQ__BENCH_TABLE:
        soq__out_printf("%-8s %6lld %9u %12.2f %8.2f %10.2f %7s %7s\n", t->name, (long long)t->depth, t->parallel, mean(t),
                        deviation(t), best(t), memory.text, int8.text);
        break;
    case SOQ__BENCH_MD:
        soq__out_printf("| %s | %lld | %u | %.2f | %.2f | %.2f | %s | %s |\n", t->name, (long long)t->depth, t->parallel,
                        mean(t), deviation(t), best(t), memory.text, int8.text);
        break;
    case SOQ__BENCH_CSV:
        print_csv(r, t);
        break;
    case SOQ__BENCH_JSON:
        print_json(r, t);
        break;
    case SOQ__BENCH_FORMATS:
        break;
    }
    if (t->drafted && r->format == SOQ__BENCH_TABLE)
        soq__out_printf("         of %llu drafts %.1f %% accepted, %.2f tokens a step\n", (unsigned long long)t->drafted,
                        100.0 * (double)t->accepted / (double)t->drafted, (double)(t->steps + t->accepted) / (double)t->steps);
    if (t->profiled && r->format != SOQ__BENCH_JSON) { /* beside the table, so that it stays one */
        soq__profile_print(&t->profile, r->exec, stderr);
        soq__op_times_print(&t->ops, stderr);
    }
}
