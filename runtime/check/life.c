/* Checks of an instance's life: made, used, ended; again; several; never ended; and what each leaves behind. */
#include <malloc.h>
#include <stdlib.h>

#include "check/kit.h"
#include "check/table.h"

static void expect_nothing_live(struct soq__kit *kit, const char *when)
{
    SOQ__EXPECT(kit, kit->host.n_live == 0, "%lu allocations of the host are not freed %s", (unsigned long)kit->host.n_live,
                when);
}

static void use(struct soq__kit *kit, void *self)
{
    struct soq_error *err = soq__kit_error(kit);

    soq__kit_ok(kit, "work", soq__kit_work(kit, self, err), err);
}

/* ---- init, shutdown */

static void check_init(struct soq__kit *kit)
{
    void *self;

    kit->relaxed = true;
    soq__kit_open(kit);
    soq__kit_at(kit, "init");
    self = soq__kit_instance(kit);
    soq__kit_at(kit, "shutdown");
    soq__kit_shutdown(kit, self);
    expect_nothing_live(kit, "after shutdown");
}

static void check_work(struct soq__kit *kit)
{
    void *self;

    kit->relaxed = true;
    soq__kit_open(kit);
    self = soq__kit_instance(kit);
    soq__kit_at(kit, "work");
    use(kit, self);
    soq__kit_at(kit, "shutdown");
    soq__kit_shutdown(kit, self);
    expect_nothing_live(kit, "after work and shutdown");
}

static void check_again(struct soq__kit *kit)
{
    soq__kit_open(kit);
    for (int round = 1; round <= 3; round++) {
        void *self;

        soq__kit_at(kit, "round %d", round);
        self = soq__kit_instance(kit);
        use(kit, self);
        soq__kit_shutdown(kit, self);
        expect_nothing_live(kit, "after shutdown");
    }
}

static void check_two(struct soq__kit *kit)
{
    void *first, *second;

    soq__kit_open(kit);
    first = soq__kit_instance(kit);
    second = soq__kit_instance(kit);
    soq__kit_at(kit, "two instances");
    use(kit, first);
    use(kit, second);
    soq__kit_at(kit, "the first is shut down");
    soq__kit_shutdown(kit, first);
    use(kit, second);
    soq__kit_shutdown(kit, second);
    expect_nothing_live(kit, "after shutdown");
}

/* An instance is used from one thread at a time, but any: made here, used there. */
struct elsewhere {
    struct soq__kit *kit;
    void *self;
};

static void use_elsewhere(void *arg, uint32_t index)
{
    const struct elsewhere *e = arg;

    (void)index;
    use(e->kit, e->self);
}

static void check_threads(struct soq__kit *kit)
{
    struct elsewhere e = {.kit = kit};

    soq__kit_open(kit);
    e.self = soq__kit_instance(kit);
    soq__kit_at(kit, "used from another thread");
    soq__kit_threads(kit, 1, use_elsewhere, &e);
    soq__kit_at(kit, "and from the first");
    use(kit, e.self);
    soq__kit_shutdown(kit, e.self);
    expect_nothing_live(kit, "after shutdown");
}

static void check_exit(struct soq__kit *kit)
{
    soq__kit_open(kit);
    use(kit, soq__kit_instance(kit));
    soq__kit_at(kit, "exit without shutdown");
    kit->shared->verdict = SOQ__PASS;
    exit(0);
}

/* ---- Leaks beside the host's allocator: the C library's heap grows, round after round. What it keeps of freed blocks counts
 * as used, and blocks of many sizes take a while to find their places, so the least growth of many spans is looked at. */

enum { SPANS = 20, ROUNDS = 10, CHUNK = 32 /* the least that malloc takes */ };

static void live_rounds(struct soq__kit *kit)
{
    for (int round = 0; round < ROUNDS; round++) {
        void *self = soq__kit_instance(kit);

        use(kit, self);
        soq__kit_shutdown(kit, self);
    }
}

static void check_heap(struct soq__kit *kit)
{
    size_t least = SIZE_MAX;

    soq__kit_open(kit);
    if (kit->shared->facts.devices)
        soq__kit_skip(kit, "device drivers keep memory of their own");
    live_rounds(kit);
    for (int span = 0; span < SPANS && least >= ROUNDS * CHUNK; span++) {
        size_t before = mallinfo2().uordblks, after;

        live_rounds(kit);
        after = mallinfo2().uordblks;
        least = after < before ? 0 : after - before < least ? after - before : least;
    }
    SOQ__EXPECT(kit, least < ROUNDS * CHUNK, "%zu bytes of malloc are lost in each round of init, work, shutdown",
                least / ROUNDS);
}

static const struct soq__check first_checks[] = {
    {"life.init", SOQ__ROLE_EACH, "init succeeds with the defaults, shutdown frees everything", check_init, "load.descriptor"},
    {"life.work", SOQ__ROLE_EACH, "a little of all that the role does works and leaves nothing", check_work, "life.init"},
};
const struct soq__check_family soq__checks_first_life = SOQ__FAMILY(first_checks);

static const struct soq__check checks[] = {
    {"life.again", SOQ__ROLE_EACH, "init, work, shutdown; init, work, shutdown; ...", check_again, "skew.exact"},
    {"life.two", SOQ__ROLE_EACH, "two instances know nothing of each other", check_two, "life.again"},
    {"life.threads", SOQ__ROLE_EACH, "an instance can be used from another thread than made it", check_threads, "skew.exact"},
    {"life.exit", SOQ__ROLE_EACH, "the process can exit without a shutdown", check_exit, "skew.exact"},
    {"life.heap", SOQ__ROLE_EACH, "nothing is lost outside the host's allocator either", check_heap, "life.again"},
};
const struct soq__check_family soq__checks_life = SOQ__FAMILY(checks);
