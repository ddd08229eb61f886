/* Checks of steps: failures stick and are labelled, cancelling ends them, what cannot be done is refused, and the next step
 * works.
 */
#include <stdlib.h>

#include "check/rig.h"
#include "check/table.h"

enum { ROWS = 5, COLS = 8, MANY = 300 };

static void begin(struct soq__rig *rig)
{
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, 0, ROWS);
    soq__rig_begin(rig, &s);
}

/* ---- An op that doubles a matrix: scale, in place, or a product with 2 I */

struct doubling {
    struct soq__rig rig;
    struct soq__matrix x, out;
    float *before;     /* [out.n_raw] */
    soq_weight weight; /* 0: scale */
    const char *name;
};

static soq_weight twice_identity(struct soq__rig *rig)
{
    float w[COLS * COLS] = {0};

    for (uint32_t i = 0; i < COLS; i++)
        w[i * COLS + i] = 2;
    return soq__rig_weight(rig, SOQ_DTYPE_F32, w, sizeof w, COLS, COLS, SOQ_USE_MATMUL);
}

static void open_doubling(struct doubling *d, struct soq__kit *kit)
{
    struct soq_op_desc matmul = {.op = SOQ_OP_MATMUL, .weight_dtype = SOQ_DTYPE_F32, .rows = COLS, .cols = COLS};

    *d = (struct doubling){.name = "scale"};
    soq__rig_open(&d->rig, kit);
    d->x = soq__rig_matrix(&d->rig, ROWS, COLS, 1, 1);
    d->out = d->x;
    if (!soq__rig_supports(&d->rig, (struct soq_op_desc){.op = SOQ_OP_SCALE})) {
        if (!d->rig.ops->memory || !soq__rig_supports(&d->rig, matmul))
            soq__kit_skip(kit, "claims neither scale nor products of F32");
        d->name = "matmul";
        d->weight = twice_identity(&d->rig);
        d->out = soq__rig_matrix(&d->rig, ROWS, COLS, 2, 2);
    }
    d->before = malloc(d->out.n_raw * sizeof *d->before);
    SOQ__EXPECT(kit, d->before, "the kit is out of memory");
    memcpy(d->before, d->out.raw, d->out.n_raw * sizeof *d->before);
}

static int twice(struct doubling *d)
{
    struct soq_scale_args scale = {.scale = 2, .x = d->x.view};
    struct soq_matmul_args matmul = {.weight = d->weight, .x = d->x.view, .y = d->out.view};
    int rc;

    if (d->weight)
        SOQ__OP(&d->rig, d->rig.ops->matmul->matmul, matmul, &rc);
    else
        SOQ__OP(&d->rig, d->rig.ops->elementwise->scale, scale, &rc);
    return rc;
}

/* The same op with what is no matrix, or no weight. */
static int wrong(struct doubling *d)
{
    struct soq_scale_args scale = {.scale = 2, .x = d->x.view};
    struct soq_matmul_args matmul = {.x = d->x.view, .y = d->out.view};
    int rc;

    scale.x.dtype = 9999;
    if (d->weight)
        SOQ__OP(&d->rig, d->rig.ops->matmul->matmul, matmul, &rc);
    else
        SOQ__OP(&d->rig, d->rig.ops->elementwise->scale, scale, &rc);
    return rc;
}

static void expect_untouched(struct doubling *d)
{
    soq__rig_fetch(&d->rig, &d->out);
    SOQ__EXPECT(d->rig.kit, memcmp(d->out.raw, d->before, d->out.n_raw * sizeof *d->before) == 0,
                "an op behind the one that failed ran all the same");
}

/* A step of its own, which works. */
static void expect_works(struct doubling *d, const char *when)
{
    struct soq__matrix old = soq__rig_matrix(&d->rig, ROWS, COLS, 1, 1);

    soq__kit_at(d->rig.kit, "%s", when);
    memcpy(d->x.raw, old.raw, old.n_raw * sizeof *old.raw);
    soq__rig_send(&d->rig, &d->x);
    begin(&d->rig);
    SOQ__EXPECT(d->rig.kit, twice(d) == 0, "the op is refused");
    soq__rig_end(&d->rig);
    soq__rig_fetch(&d->rig, &d->out);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            SOQ__EXPECT(d->rig.kit, *soq__matrix_at(&d->out, r, c) == 2 * *soq__matrix_at(&old, r, c), "twice %g is %g",
                        (double)*soq__matrix_at(&old, r, c), (double)*soq__matrix_at(&d->out, r, c));
}

/* ---- Failures */

static void check_sticky(struct soq__kit *kit)
{
    struct soq_error *err;
    struct doubling d;
    int rc;

    open_doubling(&d, kit);
    begin(&d.rig);
    rc = wrong(&d);
    SOQ__EXPECT(kit, rc < 0 && rc >= -SOQ_EINTERNAL, "%s with wrong arguments returned %d", d.name, rc);
    soq__kit_at(kit, "%s failed with %d (%s)", d.name, rc, soq__error_text(rc));
    SOQ__EXPECT(kit, twice(&d) == rc, "the next op of the step did not return the same");
    err = soq__kit_error(kit);
    soq__kit_refused(kit, "end", d.rig.ops->end(d.rig.self, err), rc, err);
    SOQ__EXPECT(kit, strstr(err->text, d.name), "the message does not name the op: %s", err->text);
    expect_untouched(&d);
    expect_works(&d, "the step after one that failed");
}

/* What the plugin said no to when it was asked, it says no to when it is told. */
static void check_unclaimed(struct soq__kit *kit)
{
    struct soq__matrix x;
    struct soq_error *err;
    struct soq__rig rig;
    int rc;

    soq__rig_open(&rig, kit);
    if (!(kit->role->native_ops >> SOQ_OP_ACTIVATION & 1))
        soq__kit_skip(kit, "has no op with kinds");
    x = soq__rig_matrix(&rig, ROWS, COLS, 0, 1);
    begin(&rig);
    SOQ__OP(&rig, rig.ops->elementwise->activation, ((struct soq_activation_args){.kind = 999, .gate = x.view, .y = x.view}),
            &rc);
    SOQ__EXPECT(kit, rc == -SOQ_EUNSUPPORTED, "an activation of kind 999 returned %d and must %d", rc, -SOQ_EUNSUPPORTED);
    err = soq__kit_error(kit);
    soq__kit_refused(kit, "end", rig.ops->end(rig.self, err), -SOQ_EUNSUPPORTED, err);
    SOQ__EXPECT(kit, strstr(err->text, "activation"), "the message does not name the op: %s", err->text);
}

static void check_tree(struct soq__kit *kit)
{
    struct soq_op_desc desc = {.op = SOQ_OP_ATTENTION,
                               .head_dim_k = 8,
                               .head_dim_v = 8,
                               .n_heads = 1,
                               .n_kv_heads = 1,
                               .key_format = SOQ_FORMAT_PLAIN,
                               .value_format = SOQ_FORMAT_PLAIN,
                               .flags = SOQ_OPDESC_TREE};
    struct soq__rig_step *s = soq__kit_guard(kit, sizeof *s, 8);
    struct soq_error *err;
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!rig.ops->attention)
        soq__kit_skip(kit, "has no attention, which is what trees concern");
    if (soq__rig_supports(&rig, desc))
        soq__kit_skip(kit, "claims trees, which this kit does not check yet");
    soq__rig_step_init(s);
    soq__rig_step_add(s, 0, 0, ROWS);
    s->step.serial = soq__rig_serial();
    s->step.flags = 0;
    err = soq__kit_error(kit);
    soq__kit_refused(kit, "begin of a step with a tree of rows", rig.ops->begin(rig.self, &s->step, err), -SOQ_EUNSUPPORTED,
                     err);
    begin(&rig);
    soq__rig_end(&rig);
}

/* ---- Cancelling */

static void cancel_at(struct soq__kit *kit, unsigned poll)
{
    atomic_store(&kit->host.n_polls, 0);
    atomic_store(&kit->host.cancel_at, poll);
}

static void try_cancel(struct doubling *d, unsigned poll)
{
    struct soq__kit *kit = d->rig.kit;
    struct soq_error *err;
    int rc = 0;

    soq__kit_at(kit, "%d ops, cancelled at poll %u", MANY, poll);
    begin(&d->rig);
    cancel_at(kit, poll);
    for (int i = 0; i < MANY && !rc; i++)
        rc = twice(d);
    SOQ__EXPECT(kit, rc == 0 || rc == -SOQ_ECANCELLED, "an op returned %d", rc);
    err = soq__kit_error(kit);
    rc = d->rig.ops->end(d->rig.self, err);
    SOQ__EXPECT(kit, atomic_load(&kit->host.n_polls), "it never asked whether to go on");
    if (atomic_load(&kit->host.n_polls) < poll) {
        soq__kit_ok(kit, "end, which did not ask that often,", rc, err);
    } else {
        soq__kit_refused(kit, "end", rc, -SOQ_ECANCELLED, err);
        SOQ__EXPECT(kit, strstr(err->text, d->name), "the message does not name the op: %s", err->text);
    }
    cancel_at(kit, 0);
}

static void check_cancel(struct soq__kit *kit)
{
    struct doubling d;

    open_doubling(&d, kit);
    for (unsigned poll = 1; poll <= 4; poll++)
        try_cancel(&d, poll);
    expect_works(&d, "the step after one that was cancelled");
}

/* ---- Long steps, and two instances at once */

static void check_long(struct soq__kit *kit)
{
    enum { OPS = 10000 };
    struct doubling d;

    open_doubling(&d, kit);
    soq__kit_at(kit, "a step of %d ops", OPS);
    begin(&d.rig);
    for (int i = 0; i < OPS; i++)
        SOQ__EXPECT(kit, twice(&d) == 0, "op %d is refused", i);
    soq__rig_end(&d.rig);
    expect_works(&d, "the step after it");
}

struct parallel {
    struct soq__kit *kit;
    void *self[2];
};

static void work_there(void *arg, uint32_t index)
{
    const struct parallel *p = arg;
    const struct soq_backend_ops *ops = p->kit->role->ops.backend;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, 0, ROWS);
    for (uint32_t i = 0; i < 200; i++) {
        s.step.serial = i + 1;
        soq__kit_ok(p->kit, "begin", ops->begin(p->self[index], &s.step, &err), &err);
        soq__kit_ok(p->kit, "end", ops->end(p->self[index], &err), &err);
    }
}

static void check_at_once(struct soq__kit *kit)
{
    struct parallel p = {.kit = kit};

    soq__kit_open(kit);
    p.self[0] = soq__kit_instance(kit);
    p.self[1] = soq__kit_instance(kit);
    soq__kit_at(kit, "two instances, a thread each");
    soq__kit_threads(kit, 2, work_there, &p);
}

static const struct soq__check checks[] = {
    {"step.sticky", SOQ_ROLE_BACKEND, "the first failure stays, is labelled, and ends with its step", check_sticky,
     "skew.exact"},
    {"step.unclaimed", SOQ_ROLE_BACKEND, "an op of no known kind is unsupported", check_unclaimed, "skew.exact"},
    {"step.tree", SOQ_ROLE_BACKEND, "a step with a tree of rows is refused where that is not claimed", check_tree,
     "skew.exact"},
    {"step.cancel", SOQ_ROLE_BACKEND, "a step that is cancelled ends so, and the next one works", check_cancel, "skew.exact"},
    {"step.long", SOQ_ROLE_BACKEND, "steps may have many ops", check_long, "skew.exact"},
    {"step.at_once", SOQ_ROLE_BACKEND, "two instances may have steps at once", check_at_once, "skew.exact"},
};
const struct soq__check_family soq__checks_step = SOQ__FAMILY(checks);
