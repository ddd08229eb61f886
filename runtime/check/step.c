/* Checks of steps: failures stick and are labelled, cancelling ends them, what cannot be done is refused, and the next step
 * works.
 */
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

/* x *= 2; an op that most have. */
static int twice(struct soq__rig *rig, const struct soq__matrix *x)
{
    struct soq_scale_args args = {.scale = 2, .x = x->view};
    int rc;

    SOQ__OP(rig, rig->ops->elementwise->scale, args, &rc);
    return rc;
}

static void need_scale(struct soq__rig *rig, struct soq__kit *kit)
{
    soq__rig_open(rig, kit);
    soq__rig_need(rig, (struct soq_op_desc){.op = SOQ_OP_SCALE});
}

static void expect_scaled(struct soq__rig *rig, struct soq__matrix *x, const struct soq__matrix *old, float by)
{
    soq__rig_fetch(rig, x);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            SOQ__EXPECT(rig->kit, *soq__matrix_at(x, r, c) == by * *soq__matrix_at(old, r, c),
                        "row %u, column %u is %g and was %g", r, c, (double)*soq__matrix_at(x, r, c),
                        (double)*soq__matrix_at(old, r, c));
}

/* ---- Failures */

static void check_sticky(struct soq__kit *kit)
{
    struct soq__matrix x, old;
    struct soq_scale_args wrong = {.scale = 2};
    struct soq_error *err;
    struct soq__rig rig;
    int rc;

    need_scale(&rig, kit);
    x = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    old = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    wrong.x = x.view;
    wrong.x.dtype = 9999;
    begin(&rig);
    SOQ__OP(&rig, rig.ops->elementwise->scale, wrong, &rc);
    SOQ__EXPECT(kit, rc < 0 && rc >= -SOQ_EINTERNAL, "an op on a matrix of type 9999 returned %d", rc);
    soq__kit_at(kit, "an op failed with %d (%s)", rc, soq__error_text(rc));
    SOQ__EXPECT(kit, twice(&rig, &x) == rc, "the next op of the step did not return the same");
    err = soq__kit_error(kit);
    soq__kit_refused(kit, "end", rig.ops->end(rig.self, err), rc, err);
    SOQ__EXPECT(kit, strstr(err->text, "scale"), "the message does not name the op: %s", err->text);
    expect_scaled(&rig, &x, &old, 1);
    soq__kit_at(kit, "the step after one that failed");
    begin(&rig);
    SOQ__EXPECT(kit, twice(&rig, &x) == 0, "the op is refused");
    soq__rig_end(&rig);
    expect_scaled(&rig, &x, &old, 2);
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
    if (soq__rig_supports(&rig, desc))
        soq__kit_skip(kit, "claims trees, which this kit does not check yet");
    soq__rig_step_init(s);
    soq__rig_step_add(s, 0, 0, ROWS);
    s->step.serial = 1;
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

static void try_cancel(struct soq__rig *rig, struct soq__matrix *x, unsigned poll)
{
    struct soq_error *err;
    int rc = 0;

    soq__kit_at(rig->kit, "%d ops, cancelled at poll %u", MANY, poll);
    begin(rig);
    cancel_at(rig->kit, poll);
    for (int i = 0; i < MANY && !rc; i++)
        rc = twice(rig, x);
    SOQ__EXPECT(rig->kit, rc == 0 || rc == -SOQ_ECANCELLED, "an op returned %d", rc);
    err = soq__kit_error(rig->kit);
    rc = rig->ops->end(rig->self, err);
    SOQ__EXPECT(rig->kit, atomic_load(&rig->kit->host.n_polls), "it never asked whether to go on");
    if (atomic_load(&rig->kit->host.n_polls) < poll) {
        soq__kit_ok(rig->kit, "end, which did not ask that often,", rc, err);
    } else {
        soq__kit_refused(rig->kit, "end", rc, -SOQ_ECANCELLED, err);
        SOQ__EXPECT(rig->kit, strstr(err->text, "scale"), "the message does not name the op: %s", err->text);
    }
    cancel_at(rig->kit, 0);
}

static void check_cancel(struct soq__kit *kit)
{
    struct soq__matrix x, y, old;
    struct soq__rig rig;

    need_scale(&rig, kit);
    x = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    y = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    old = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    for (unsigned poll = 1; poll <= 4; poll++)
        try_cancel(&rig, &x, poll);
    soq__kit_at(kit, "the step after one that was cancelled");
    begin(&rig);
    SOQ__EXPECT(kit, twice(&rig, &y) == 0, "the op is refused");
    soq__rig_end(&rig);
    expect_scaled(&rig, &y, &old, 2);
}

/* ---- Long steps, and two instances at once */

static void check_long(struct soq__kit *kit)
{
    enum { OPS = 10000 };
    struct soq_scale_args same = {.scale = 1};
    struct soq__matrix x, old;
    struct soq__rig rig;

    need_scale(&rig, kit);
    x = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    old = soq__rig_matrix(&rig, ROWS, COLS, 1, 1);
    same.x = x.view;
    soq__kit_at(kit, "a step of %d ops", OPS);
    begin(&rig);
    for (int i = 0; i < OPS; i++)
        SOQ__SUBMIT(&rig, rig.ops->elementwise->scale, same);
    soq__rig_end(&rig);
    expect_scaled(&rig, &x, &old, 1);
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
