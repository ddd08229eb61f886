/* Checks under a host whose services fail, each in turn: a clean code and a message, nothing left behind, no crash. */
#include <stdio.h>

#include "check/kit.h"
#include "check/table.h"

enum { ALLOCS_MAX = 20000 };

/* Init, work, shutdown of a new instance; the first failure. */
static int whole_life(struct soq__kit *kit, struct soq_error *err)
{
    void *self = soq__kit_self(kit);
    int rc = soq__kit_init(kit, self, NULL, err);

    if (rc)
        return rc;
    rc = soq__kit_work(kit, self, err);
    soq__kit_shutdown(kit, self);
    return rc;
}

static void fail_at(struct soq__kit *kit, uint64_t n, bool for_good)
{
    kit->host.n_allocs = 0;
    kit->host.fail_at = n;
    kit->host.fails_for_good = for_good;
}

static void fail_each(struct soq__kit *kit, bool for_good)
{
    int rc = -1;

    for (uint64_t n = 1; rc; n++) {
        struct soq_error *err = soq__kit_error(kit);

        SOQ__EXPECT(kit, n < ALLOCS_MAX, "more than %d allocations", ALLOCS_MAX);
        soq__kit_at(kit, "allocation %lu%s fails", (unsigned long)n, for_good ? " and all after it" : "");
        fail_at(kit, n, for_good);
        rc = whole_life(kit, err);
        if (rc)
            soq__kit_refused(kit, "what ran out of memory", rc, -SOQ_ENOMEM, err);
        else
            SOQ__EXPECT(kit, kit->host.n_allocs < n, "it was ignored: the work succeeded");
        SOQ__EXPECT(kit, kit->host.n_live == 0, "%lu allocations are not freed", (unsigned long)kit->host.n_live);
    }
}

static void check_alloc(struct soq__kit *kit)
{
    soq__kit_open(kit);
    soq__kit_need_device(kit);
    fail_each(kit, false);
    fail_each(kit, true);
}

static void check_parallel(struct soq__kit *kit)
{
    static const int codes[] = {-SOQ_ENOMEM, -SOQ_ELIMIT};

    soq__kit_open(kit);
    soq__kit_need_device(kit);
    for (size_t i = 0; i < SOQ__COUNT(codes); i++) {
        struct soq_error *err = soq__kit_error(kit);
        int rc;

        soq__kit_at(kit, "parallel returns %d (%s)", codes[i], soq__error_text(codes[i]));
        kit->host.parallel_fails = codes[i];
        rc = whole_life(kit, err);
        if (rc)
            soq__kit_refused(kit, "what ran without threads", rc, codes[i], err);
        SOQ__EXPECT(kit, kit->host.n_live == 0, "%lu allocations are not freed", (unsigned long)kit->host.n_live);
        if (!rc)
            soq__kit_skip(kit, "does not use parallel");
    }
}

static void check_cpus(struct soq__kit *kit)
{
    static const uint32_t counts[] = {1, 3, 17};

    soq__kit_open(kit);
    soq__kit_need_device(kit);
    for (size_t i = 0; i < SOQ__COUNT(counts); i++) {
        struct soq_error *err = soq__kit_error(kit);

        soq__kit_at(kit, "%u processors", counts[i]);
        kit->host.cpu_count = counts[i];
        soq__kit_ok(kit, "work", whole_life(kit, err), err);
    }
}

static const struct soq__check checks[] = {
    {"fault.alloc", SOQ__ROLE_EACH, "each allocation that fails is reported, and nothing leaks", check_alloc, "life.again"},
    {"fault.parallel", SOQ__ROLE_EACH, "threads that cannot be had are reported", check_parallel, "life.again"},
    {"fault.cpus", SOQ__ROLE_EACH, "works on one processor, on three, on more than there are", check_cpus, "life.again"},
};
const struct soq__check_family soq__checks_fault = SOQ__FAMILY(checks);
