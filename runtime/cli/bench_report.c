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

static const char *share_text(const struct soq__bench_test *t, char buf[16])
{
    if (t->share <= 0)
        return "-";
    snprintf(buf, 16, "%.0f %%", t->share * 100);
    return buf;
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
    soq__out_printf(",%s,%lld,%u,%.2f,%.2f,%.2f,%.4f\n", t->name, (long long)t->depth, t->parallel, mean(t), deviation(t),
                    best(t), t->share);
}

/* The keys of other engines' benchmarks, "fa" (flash attention) among them, and some more. */
static void print_json(const struct soq__bench_report *r, const struct soq__bench_test *t)
{
    json_t *rates = json_array();

    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(rates, soq__json_number(round(t->rates[i] * 100) / 100));
    soq__json_line(json_pack("{ss so ss sI ss so so so so sI ss so so so*}", "engine", "soquete", "model",
                             soq__json_text(r->model, strlen(r->model)), "test", t->name, "depth", (json_int_t)t->depth, "fa",
                             "on", "tok_s", rates, "best", soq__json_number(round(best(t) * 100) / 100), "mean",
                             soq__json_number(mean(t)), "sd", soq__json_number(deviation(t)), "parallel",
                             (json_int_t)t->parallel, "backend", r->backend, "memory_gb_s",
                             r->bandwidth > 0 ? soq__json_number(r->bandwidth / 1e9) : json_null(), "memory_share",
                             t->share > 0 ? soq__json_number(t->share) : json_null(), "profile",
                             t->profiled ? soq__profile_json(&t->profile, r->exec) : NULL));
}

static void print_context(const struct soq__bench_report *r)
{
    soq__out_printf("%s on %s", r->model, r->backend);
    if (r->bandwidth > 0)
        soq__out_printf(", memory %.1f GB/s", r->bandwidth / 1e9);
    soq__out_printf("\n\n");
}

void soq__bench_report_begin(const struct soq__bench_report *r)
{
    switch (r->format) {
    case SOQ__BENCH_TABLE:
        print_context(r);
        soq__out_printf("%-8s %6s %9s %12s %8s %10s %7s\n", "test", "depth", "parallel", "mean tok/s", "sd", "best", "memory");
        break;
    case SOQ__BENCH_MD:
        print_context(r);
        soq__out_printf("| test | depth | parallel | mean tok/s | sd | best | memory |\n"
                        "|---|---:|---:|---:|---:|---:|---:|\n");
        break;
    case SOQ__BENCH_CSV:
        soq__out_printf("engine,model,test,depth,parallel,mean,sd,best,memory_share\n");
        break;
    case SOQ__BENCH_JSON:
    case SOQ__BENCH_FORMATS:
        break;
    }
}

void soq__bench_report_test(const struct soq__bench_report *r, const struct soq__bench_test *t)
{
    char share[16];

    switch (r->format) {
    case SOQ__BENCH_TABLE:
        soq__out_printf("%-8s %6lld %9u %12.2f %8.2f %10.2f %7s\n", t->name, (long long)t->depth, t->parallel, mean(t),
                        deviation(t), best(t), share_text(t, share));
        break;
    case SOQ__BENCH_MD:
        soq__out_printf("| %s | %lld | %u | %.2f | %.2f | %.2f | %s |\n", t->name, (long long)t->depth, t->parallel, mean(t),
                        deviation(t), best(t), share_text(t, share));
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
    if (t->profiled && r->format != SOQ__BENCH_JSON) /* beside the table, so that it stays one */
        soq__profile_print(&t->profile, r->exec, stderr);
}
