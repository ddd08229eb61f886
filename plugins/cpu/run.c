/* One parallel region for all recorded ops. */
#include "cpu.h"
#include "weights.h"

enum { AHEAD_BYTES = 128 << 10 }; /* of weights that are fetched in advance; the second-level cache holds several times that */

/* The thread's share of the weights of the first product from op i on. */
static struct cpu_ahead look_ahead(const struct cpu *cpu, uint32_t i, const struct cpu_thread *thread)
{
    const struct cpu_weight *weight;
    uint64_t first, last;

    while (i < cpu->n_ops && cpu->ops[i].op != SOQ_OP_MATMUL)
        i++;
    weight = i < cpu->n_ops ? cpu_weight(cpu->ops[i].args.matmul.weight) : NULL;
    if (!weight || !weight->packed)
        return (struct cpu_ahead){0};
    cpu_share(thread, ((uint64_t)weight->rows + CPU_LANES - 1) / CPU_LANES, &first, &last);
    first *= weight->group_bytes;
    last *= weight->group_bytes;
    return (struct cpu_ahead){weight->packed + first,
                              weight->packed + (last - first < AHEAD_BYTES ? last : first + AHEAD_BYTES)};
}

/* All threads decide alike: thread 0 looks before it arrives at the barrier and names the op to stop before. A thread that
 * reads the name late, after thread 0 has gone on to the next barrier, sees a later op there and goes on too. */
static void run_ops(void *arg, const struct soq_worker *worker)
{
    struct cpu *cpu = arg;
    struct cpu_ahead ahead;
    uint32_t splits = 0;
    struct cpu_thread thread = {
        .index = worker->index,
        .count = worker->count,
        .barrier = &cpu->barrier,
        .scratch = cpu->scratch + worker->index * cpu->scratch_bytes,
        .splits = &splits,
        .ahead = &ahead,
    };

    ahead = look_ahead(cpu, 0, &thread);
    for (uint32_t i = 0; i < cpu->n_ops; i++) {
        const struct cpu_op *op = &cpu->ops[i];

        if (op->sync) {
            if (worker->index == 0 && cpu->host->cancelled(cpu->host->ctx))
                atomic_store(&cpu->stop_at, i);
            cpu_barrier_wait(&cpu->barrier, thread.count, &ahead);
            if (i >= atomic_load(&cpu->stop_at))
                return;
        }
        if (op->op != SOQ_OP_MATMUL)
            cpu_fetch_ahead(&ahead);
        op->run(cpu, op, &thread);
        if (op->op == SOQ_OP_MATMUL)
            ahead = look_ahead(cpu, i + 1, &thread);
    }
}

int cpu_run(struct cpu *cpu)
{
    uint32_t stopped;
    int rc;

    if (cpu->failed)
        return cpu->failed;
    if (cpu->n_ops == 0)
        return 0;
    atomic_store(&cpu->stop_at, UINT32_MAX);
    rc = cpu->host->parallel(cpu->host->ctx, cpu->threads, run_ops, cpu);
    stopped = atomic_load(&cpu->stop_at);
    if (rc)
        cpu_refuse(cpu, cpu->ops[0].op, (enum soq_error_code) - rc, "the host has no %u threads for it", cpu->threads);
    else if (stopped != UINT32_MAX)
        cpu_refuse(cpu, cpu->ops[stopped].op, SOQ_ECANCELLED, "cancelled");
    else
        cpu->failed = cpu_codec_result(cpu, SOQ_OP_ATTENTION, &cpu->error);
    cpu->n_ops = 0;
    return cpu->failed;
}
