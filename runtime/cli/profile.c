#include "cli/profile.h"

#include "base/size.h"
#include "cli/json_out.h"
#include "cli/term.h"

struct soq__profile soq__profile_since(const struct soq__exec *x, const struct soq__profile *before)
{
    static const struct soq__profile nothing;
    const struct soq__profile *b = before ? before : &nothing;
    struct soq__profile p = {
        .copies = {x->copies.n - b->copies.n, x->copies.bytes - b->copies.bytes, x->copies.seconds - b->copies.seconds}};

    for (uint32_t i = 0; i < x->n_instances; i++) {
        p.n_runs[i] = x->instances[i].n_runs - b->n_runs[i];
        p.seconds[i] = x->instances[i].seconds - b->seconds[i];
    }
    return p;
}

void soq__profile_print(const struct soq__profile *p, const struct soq__exec *x, FILE *stream)
{
    char bytes[32];

    fputs(soq__term_dim(stream), stream);
    for (uint32_t i = 0; i < x->n_instances; i++)
        if (p->n_runs[i])
            fprintf(stream, "%-16s %8.3f s in %llu runs\n", x->choices[i].plugin->id, p->seconds[i],
                    (unsigned long long)p->n_runs[i]);
    fprintf(stream, "%-16s %8.3f s for %llu, %s%s\n", "copies", p->copies.seconds, (unsigned long long)p->copies.n,
            soq__size_text(p->copies.bytes, bytes, sizeof bytes), soq__term_reset(stream));
}

json_t *soq__profile_json(const struct soq__profile *p, const struct soq__exec *x)
{
    json_t *backends = json_array();

    for (uint32_t i = 0; i < x->n_instances; i++)
        if (p->n_runs[i])
            json_array_append_new(backends, json_pack("{ss sI so}", "backend", x->choices[i].plugin->id, "runs",
                                                      (json_int_t)p->n_runs[i], "seconds", soq__json_number(p->seconds[i])));
    return json_pack("{so s{sI sI so}}", "backends", backends, "copies", "count", (json_int_t)p->copies.n, "bytes",
                     (json_int_t)p->copies.bytes, "seconds", soq__json_number(p->copies.seconds));
}

void soq__op_times_print(const struct soq__op_times *t, FILE *stream)
{
    fputs(soq__term_dim(stream), stream);
    for (uint32_t op = 0; op < SOQ__N_OPS; op++)
        if (t->n[op])
            fprintf(stream, "  %-14s %8.3f s in %llu calls\n", soq__op_name(op), t->seconds[op], (unsigned long long)t->n[op]);
    fputs(soq__term_reset(stream), stream);
}

json_t *soq__op_times_json(const struct soq__op_times *t)
{
    json_t *ops = json_array();

    for (uint32_t op = 0; op < SOQ__N_OPS; op++)
        if (t->n[op])
            json_array_append_new(ops, json_pack("{ss sI so}", "op", soq__op_name(op), "calls", (json_int_t)t->n[op], "seconds",
                                                 soq__json_number(t->seconds[op])));
    return ops;
}
