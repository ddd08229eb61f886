/* One parallel region for all recorded ops. */
#include "cpu.h"
#include "weights.h"

/* All threads decide alike: thread 0 looks before it arrives at the barrier and names the op to stop before. A thread that
 * reads the name late, after thread 0 has gone on to the next barrier, sees a later op there and goes on too. */
static void run_ops(void *arg, const struct soq_worker *worker)
{
    struct cpu *cpu = arg;
    uint32_t splits = 0;
    struct cpu_thread thread = {
        .index = worker->index,
        .count = worker->count,
        .barrier = &cpu->barrier,
        .scratch = cpu->scratch + worker->index * cpu->scratch_bytes,
        .splits = &splits,
    };

    for (uint32_t i = 0; i < cpu->n_ops; i++) {
        const struct cpu_op *op = &cpu->ops[i];

        if (op->sync) {
            if (worker->index == 0 && cpu->host->cancelled(cpu->host->ctx))
                atomic_store(&cpu->stop_at, i);
            cpu_barrier_wait(&cpu->barrier, thread.count);
            if (i >= atomic_load(&cpu->stop_at))
                return;
        }
        op->run(cpu, op, &thread);
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
