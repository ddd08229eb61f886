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

    soq__kit_open(kit);
    self = soq__kit_instance(kit);
    soq__kit_at(kit, "shutdown");
    soq__kit_shutdown(kit, self);
    expect_nothing_live(kit, "after shutdown");
}

static void check_work(struct soq__kit *kit)
{
    void *self;

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

/* ---- Leaks beside the host's allocator: the C library's heap grows by the same every round */

/* The C library keeps a few freed blocks of each size, which count as used: a dozen rounds fill that. */
enum { WARM_UP = 16, ROUNDS = 16 };

static void check_heap(struct soq__kit *kit)
{
    size_t before = 0, after;

    soq__kit_open(kit);
    if (kit->shared->facts.devices)
        soq__kit_skip(kit, "device drivers keep memory of their own");
    for (int round = 0; round < WARM_UP + ROUNDS; round++) {
        void *self;

        if (round == WARM_UP)
            before = mallinfo2().uordblks;
        soq__kit_at(kit, "round %d", round);
        self = soq__kit_instance(kit);
        use(kit, self);
        soq__kit_shutdown(kit, self);
    }
    soq__kit_at(kit, "%s", "");
    after = mallinfo2().uordblks;
    SOQ__EXPECT(kit, after < before + ROUNDS * sizeof(void *),
                "%zu bytes of malloc are lost in each round of init, work, shutdown", (after - before) / ROUNDS);
}

static const struct soq__check checks[] = {
    {"life.init", SOQ__ROLE_EACH, "init succeeds with the defaults, shutdown frees everything", check_init, "load.descriptor"},
    {"life.work", SOQ__ROLE_EACH, "a little of all that the role does works and leaves nothing", check_work, "life.init"},
    {"life.again", SOQ__ROLE_EACH, "init, work, shutdown; init, work, shutdown; ...", check_again, "life.work"},
    {"life.two", SOQ__ROLE_EACH, "two instances know nothing of each other", check_two, "life.work"},
    {"life.threads", SOQ__ROLE_EACH, "an instance can be used from another thread than made it", check_threads, "life.work"},
    {"life.exit", SOQ__ROLE_EACH, "the process can exit without a shutdown", check_exit, "life.work"},
    {"life.heap", SOQ__ROLE_EACH, "nothing is lost outside the host's allocator either", check_heap, "life.work"},
};
const struct soq__check_family soq__checks_life = SOQ__FAMILY(checks);
