/* Statistics of one answer. */
#include "cli/stats.h"

#include <sys/resource.h>

#include "base/size.h"
#include "cli/json_out.h"
#include "cli/term.h"

uint64_t soq__peak_memory(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

static double rate(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

/* Of the tokens that had to be computed. */
static double prefill_rate(const struct soq_result *r)
{
    return rate(r->prompt_tokens - r->cached_tokens, r->prefill_s);
}

/* The first token comes with the prompt's last. */
static double decode_rate(const struct soq_result *r)
{
    return rate(1, r->itl_s);
}

static void print_kept(const struct soq_model_info *m, FILE *stream)
{
    char used[32], limit[32];

    if (m->prefix_hits || m->prefix_evictions)
        fprintf(stream, "prefixes   %llu of %llu prompts, %llu tokens saved, %s of %s\n", (unsigned long long)m->prefix_hits,
                (unsigned long long)m->prefix_lookups, (unsigned long long)m->prefix_tokens,
                soq__size_text(m->prefix_used, used, sizeof used), soq__size_text(m->prefix_limit, limit, sizeof limit));
    if (m->swapped_out || m->dropped)
        fprintf(stream, "preempted  %llu swapped out, %llu in again, %llu dropped, %s of %s\n",
                (unsigned long long)m->swapped_out, (unsigned long long)m->swapped_in, (unsigned long long)m->dropped,
                soq__size_text(m->swap_used, used, sizeof used), soq__size_text(m->swap_limit, limit, sizeof limit));
}

void soq__stats_print(const struct soq_result *r, struct soq_model *model, FILE *stream)
{
    struct soq_model_info info = {.struct_size = sizeof info};
    char kv[32], peak[32], freed[32];

    fprintf(stream, "%sprompt     %6u tokens, %u cached  %8.1f tok/s  TTFT %.3f s\n", soq__term_dim(stream), r->prompt_tokens,
            r->cached_tokens, prefill_rate(r), r->ttft_s);
    fprintf(stream, "generated  %6u tokens, %-9s %8.1f tok/s  ITL %.2f ms\n", r->generated_tokens, soq_reason_text(r->reason),
            decode_rate(r), r->itl_s * 1e3);
    if (r->drafted_tokens)
        fprintf(stream, "drafts     %6u tokens, %u accepted, %.0f %%; %.2f tokens a step; lossy view %s\n", r->drafted_tokens,
                r->accepted_tokens, 100.0 * r->accepted_tokens / r->drafted_tokens, rate(r->generated_tokens, r->steps),
                soq__size_text(r->kv_draft_bytes, kv, sizeof kv));
    if (r->kv_evicted)
        fprintf(stream, "evicted    %llu entries, %s given back\n", (unsigned long long)r->kv_evicted,
                soq__size_text(r->kv_freed, freed, sizeof freed));
    if (!soq_model_info(model, &info, NULL))
        print_kept(&info, stream);
    fprintf(stream, "KV cache   %s, peak memory %s%s\n", soq__size_text(r->kv_bytes, kv, sizeof kv),
            soq__size_text(soq__peak_memory(), peak, sizeof peak), soq__term_reset(stream));
}

static json_t *kept_json(struct soq_model *model)
{
    struct soq_model_info m = {.struct_size = sizeof m};

    if (soq_model_info(model, &m, NULL))
        return NULL;
    return json_pack("{s{sI sI sI sI sI sI sI sI} s{sI sI sI sI sI sI}}", "prefix", "limit_bytes", (json_int_t)m.prefix_limit,
                     "used_bytes", (json_int_t)m.prefix_used, "pinned_bytes", (json_int_t)m.prefix_pinned, "entries",
                     (json_int_t)m.prefix_entries, "lookups", (json_int_t)m.prefix_lookups, "hits", (json_int_t)m.prefix_hits,
                     "tokens_saved", (json_int_t)m.prefix_tokens, "evictions", (json_int_t)m.prefix_evictions, "swap",
                     "limit_bytes", (json_int_t)m.swap_limit, "used_bytes", (json_int_t)m.swap_used, "peak_bytes",
                     (json_int_t)m.swap_peak, "out", (json_int_t)m.swapped_out, "in", (json_int_t)m.swapped_in, "dropped",
                     (json_int_t)m.dropped);
}

json_t *soq__stats_json(const struct soq_result *r, struct soq_model *model)
{
    json_t *stats = json_pack("{sI sI sI sI so so so so so so sI sI sI sI sI sI sI sI}", "prompt_tokens",
                              (json_int_t)r->prompt_tokens, "cached_tokens", (json_int_t)r->cached_tokens, "prefix_tokens",
                              (json_int_t)r->prefix_tokens, "generated_tokens", (json_int_t)r->generated_tokens, "ttft_s",
                              soq__json_number(r->ttft_s), "itl_s", soq__json_number(r->itl_s), "prefill_s",
                              soq__json_number(r->prefill_s), "decode_s", soq__json_number(r->decode_s), "prefill_tok_s",
                              soq__json_number(prefill_rate(r)), "decode_tok_s", soq__json_number(decode_rate(r)), "kv_bytes",
                              (json_int_t)r->kv_bytes, "kv_evicted", (json_int_t)r->kv_evicted, "kv_freed_bytes",
                              (json_int_t)r->kv_freed, "peak_memory_bytes", (json_int_t)soq__peak_memory(), "steps",
                              (json_int_t)r->steps, "drafted_tokens", (json_int_t)r->drafted_tokens, "accepted_tokens",
                              (json_int_t)r->accepted_tokens, "kv_draft_bytes", (json_int_t)r->kv_draft_bytes);
    json_t *kept = kept_json(model);

    json_object_update(stats, kept);
    json_decref(kept);
    return stats;
}
