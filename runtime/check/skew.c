/* Checks with a host built from other headers of the same major.
 *
 * The oldest host presents structs that end with the last field of these headers, at the end of accessible memory: whoever
 * looks at what later headers append faults. (All checks of behaviour run so.) A newer one presents structs with 64 bytes more,
 * which their struct_size counts, filled with what is no pointer and no number that makes sense. */
#include "check/kit.h"
#include "check/table.h"

static void live(struct soq__kit *kit)
{
    struct soq_error *err;
    void *self;

    soq__kit_open(kit);
    self = soq__kit_instance(kit);
    err = soq__kit_error(kit);
    soq__kit_ok(kit, "work", soq__kit_work(kit, self, err), err);
    soq__kit_shutdown(kit, self);
}

static void check_exact(struct soq__kit *kit)
{
    soq__kit_at(kit, "structs that end with their last field");
    live(kit);
}

static void check_newer(struct soq__kit *kit)
{
    kit->newer = true;
    soq__kit_at(kit, "structs with fields of later headers");
    live(kit);
}

static const struct soq__check checks[] = {
    {"skew.exact", SOQ__ROLE_EACH, "nothing is read or written beyond a struct's struct_size", check_exact, "life.work"},
    {"skew.newer", SOQ__ROLE_EACH, "fields of later headers are neither used nor touched", check_newer, "life.work"},
};
const struct soq__check_family soq__checks_skew = SOQ__FAMILY(checks);
