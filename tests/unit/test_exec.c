/* Backends behind the engine: who runs which op, how a step changes between them, and what remains of a step that fails half
 * way. */
#include "config/settings.h"
#include "engine/exec.h"

#include "tests/unit/engine_fixture.h"

/* ---- Two backends that only say what they are asked ---------------------------------------------------------------------- */

struct fake {
    char name; /* in the diary; zero until init */
    int failed;
};

static char diary[256];
static uint32_t fail_op;                   /* this op fails */
static bool windows[2], appends[2], ready; /* whether a and b support windows, kv_append; whether b can be initialised */

static void write_down(struct fake *f, const char *what)
{
    size_t n = strlen(diary);

    snprintf(diary + n, sizeof diary - n, "%c:%s ", f->name, what);
}

static int init(struct fake *f, char name)
{
    f->name = name;
    write_down(f, "init");
    return 0;
}

static int a_init(void *self, const struct soq_host *host, const struct soq_config *config,
                  const struct soq_backend_params *params, struct soq_error *err)
{
    (void)host;
    (void)config;
    (void)params;
    (void)err;
    return init(self, 'a');
}

static int b_init(void *self, const struct soq_host *host, const struct soq_config *config,
                  const struct soq_backend_params *params, struct soq_error *err)
{
    (void)host;
    (void)config;
    (void)params;
    if (ready)
        return init(self, 'b');
    write_down(&(struct fake){.name = 'b'}, "failure");
    return soq__fail(err, SOQ_EDEVICE, "the cable is out");
}

static void fake_shutdown(void *self)
{
    write_down(self, "shutdown");
}

static int supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    const struct fake *f = self;

    if (desc->flags & SOQ_OPDESC_WINDOW && !windows[f->name - 'a'])
        return soq__fail(why, SOQ_EUNSUPPORTED, "no windows here");
    if (desc->op == SOQ_OP_KV_APPEND && !appends[f->name - 'a'])
        return soq__fail(why, SOQ_EUNSUPPORTED, "reads only");
    return 0;
}

static int fake_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct fake *f = self;

    (void)err;
    cr_expect_eq(step->serial, 7);
    write_down(f, "begin");
    f->failed = 0;
    return 0;
}

static int fake_end(void *self, struct soq_error *err)
{
    struct fake *f = self;

    write_down(f, "end");
    return f->failed ? soq__fail(err, SOQ_EDEVICE, "op %d caught fire", f->failed) : 0;
}

static int run_op(struct fake *f, int op, const char *name)
{
    if (f->failed)
        return -SOQ_EDEVICE;
    write_down(f, name);
    f->failed = (int)fail_op == op ? op : 0;
    return f->failed ? -SOQ_EDEVICE : 0;
}

#define OP(name, number)                                                                                                       \
    static int fake_##name(void *self, const struct soq_##name##_args *args)                                                   \
    {                                                                                                                          \
        (void)args;                                                                                                            \
        return run_op(self, number, #name);                                                                                    \
    }
OP(matmul, SOQ_OP_MATMUL)
OP(add, SOQ_OP_ADD)
OP(scale, SOQ_OP_SCALE)
OP(attention, SOQ_OP_ATTENTION)
OP(kv_append, SOQ_OP_KV_APPEND)

static const struct soq_matmul_ops matmul_ops = {.struct_size = sizeof matmul_ops, .matmul = fake_matmul};
static const struct soq_elementwise_ops elementwise_ops = {
    .struct_size = sizeof elementwise_ops, .add = fake_add, .scale = fake_scale};
static const struct soq_attention_ops attention_ops = {
    .struct_size = sizeof attention_ops, .attention = fake_attention, .kv_append = fake_kv_append};

static const struct soq_memory_ops memory_ops = {.struct_size = sizeof memory_ops}; /* no tensor is made */

#define FAKE(init_, memory_)                                                                                                   \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_backend_ops), .domain = "host", .instance_size = sizeof(struct fake), .init = init_,  \
        .shutdown = fake_shutdown, .supports = supports, .begin = fake_begin, .end = fake_end, .memory = memory_,              \
        .matmul = &matmul_ops, .attention = &attention_ops, .elementwise = &elementwise_ops                                    \
    }
static const struct soq_backend_ops a_ops = FAKE(a_init, &memory_ops), b_ops = FAKE(b_init, NULL); /* b is a's guest */
static struct soq_backend_ops abroad = FAKE(b_init, NULL);

#define NATIVE(op) (1u << (op))
#define ATTENTION (NATIVE(SOQ_OP_ATTENTION) | NATIVE(SOQ_OP_KV_APPEND))
static const struct soq__plugin_role a_role = {.id = "a",
                                               .name = "a",
                                               .provides = "",
                                               .role = SOQ_ROLE_BACKEND,
                                               .ops.backend = &a_ops,
                                               .native_ops = NATIVE(SOQ_OP_MATMUL) | NATIVE(SOQ_OP_ADD) | ATTENTION};
static const struct soq__plugin_role b_role = {.id = "b",
                                               .name = "b",
                                               .provides = "host-ops",
                                               .role = SOQ_ROLE_BACKEND,
                                               .ops.backend = &b_ops,
                                               .native_ops = NATIVE(SOQ_OP_MATMUL) | NATIVE(SOQ_OP_ADD) | NATIVE(SOQ_OP_SCALE) |
                                                             ATTENTION};

static struct soq__exec exec;
static struct soq__host host;
static struct soq__settings *settings;

static void set_up(const struct soq_backend_ops *second)
{
    struct soq_error err = SOQ_ERROR_INIT;

    diary[0] = '\0';
    fail_op = 0;
    windows[0] = false;
    windows[1] = appends[0] = appends[1] = ready = true;
    soq__host_init(&host, NULL);
    cr_assert_eq(soq__settings_create(&settings, &err), 0, "%s", err.text);
    exec = (struct soq__exec){.host = &host, .settings = settings, .n_instances = 2, .current = 2};
    exec.choices[0] = (struct soq__backend_choice){.plugin = &a_role, .n_devices = 1};
    exec.choices[1] = (struct soq__backend_choice){.plugin = &b_role, .n_devices = 1};
    exec.instances[0] = (struct soq__instance){.choice = &exec.choices[0], .ops = &a_ops};
    exec.instances[1] = (struct soq__instance){.choice = &exec.choices[1], .ops = second, .memory = second == &b_ops ? 0 : 2};
}

static void tear_down(void)
{
    soq__exec_done(&exec);
    soq__settings_free(settings);
}

static uint32_t at; /* where the last op went */

static int place(enum soq_op op, uint32_t flags, struct soq_error *err)
{
    const struct soq_op_desc desc = {.struct_size = sizeof desc, .op = op, .flags = flags};

    return soq__exec_choose(&exec, 0, &desc, &at, err);
}

Test(exec, ops_go_where_they_can_run)
{
    const struct soq_op_desc matmul = {.struct_size = sizeof matmul, .op = SOQ_OP_MATMUL};
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;

    set_up(&b_ops);
    cr_expect_eq(place(SOQ_OP_MATMUL, 0, &err), 0);
    cr_expect_eq(place(SOQ_OP_ADD, 0, &err), 0);
    cr_expect_str_eq(diary, "a:init ", "the second is not even initialised while nobody needs it");
    cr_expect_eq(place(SOQ_OP_SCALE, 0, &err), 0, "%s", err.text);
    cr_expect_str_eq(diary, "a:init b:init ");
    cr_expect_eq(at, 1);
    cr_expect_eq(place(SOQ_OP_ROPE, 0, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "rope") && strstr(err.text, "a: has no such op; b: has no such op"), "%s", err.text);
    cr_expect_eq(soq__exec_supports(&exec, 1, &matmul, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "has no memory to hold weights in"), "%s", err.text);
    tear_down();
    cr_expect(strstr(diary, "a:shutdown b:shutdown"), "%s", diary);
    cr_expect_eq(soq__alloc_live(), live);
}

/* The block tables are in one place. */
Test(exec, attention_stays_together)
{
    struct soq_error err = SOQ_ERROR_INIT;

    set_up(&b_ops);
    cr_expect_eq(place(SOQ_OP_ATTENTION, 0, &err), 0);
    cr_expect_eq(at, 0);
    cr_expect_eq(place(SOQ_OP_ATTENTION, SOQ_OPDESC_WINDOW, &err), 0, "%s", err.text);
    cr_expect_eq(at, 1);
    appends[0] = false;
    cr_expect_eq(place(SOQ_OP_ATTENTION, 0, &err), 0, "%s", err.text);
    cr_expect_eq(at, 1, "who cannot append does not attend");
    windows[1] = false;
    cr_expect_eq(place(SOQ_OP_ATTENTION, SOQ_OPDESC_WINDOW, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "a: no windows here; b: no windows here"), "%s", err.text);
    tear_down();
}

Test(exec, backends_that_do_not_help)
{
    struct soq_error err = SOQ_ERROR_INIT;

    set_up(&b_ops);
    ready = false;
    cr_expect_eq(place(SOQ_OP_SCALE, 0, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "b: backend b: the cable is out"), "%s", err.text);
    ready = true;
    cr_expect_eq(place(SOQ_OP_SCALE, 0, &err), -SOQ_EUNSUPPORTED);
    cr_expect_str_eq(diary, "b:failure ", "it is tried once");
    tear_down();
    set_up(&b_ops);
    ready = false;
    exec.choices[1].required = true;
    cr_expect_eq(place(SOQ_OP_SCALE, 0, &err), -SOQ_EDEVICE);
    cr_expect_str_eq(err.text, "backend b: the cable is out");
    tear_down();
    abroad.domain = "moon";
    set_up(&abroad);
    cr_expect_eq(place(SOQ_OP_SCALE, 0, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "no backend in use has memory of its domain, moon"), "%s", err.text);
    tear_down();
}

static int run_step(struct soq_error *err)
{
    static const struct soq_step step = {.struct_size = sizeof step, .serial = 7};

    diary[0] = '\0';
    soq__exec_begin(&exec, &step, err);
    soq__exec_matmul(&exec, 0, &(struct soq_matmul_args){0});
    soq__exec_add(&exec, 0, &(struct soq_add_args){0});
    soq__exec_scale(&exec, 1, &(struct soq_scale_args){0});
    soq__exec_matmul(&exec, 0, &(struct soq_matmul_args){0});
    return soq__exec_end(&exec);
}

Test(exec, steps_change_between_backends)
{
    struct soq_error err = SOQ_ERROR_INIT;

    set_up(&b_ops);
    cr_assert(!place(SOQ_OP_MATMUL, 0, &err) && !place(SOQ_OP_ADD, 0, &err) && !place(SOQ_OP_SCALE, 0, &err));
    cr_expect_eq(run_step(&err), 0, "%s", err.text);
    cr_expect_str_eq(diary, "a:begin a:matmul a:add a:end b:begin b:scale b:end a:begin a:matmul a:end ");
    fail_op = SOQ_OP_ADD;
    cr_expect_eq(run_step(&err), -SOQ_EDEVICE);
    cr_expect_str_eq(diary, "a:begin a:matmul a:add a:end ", "after a failure nothing begins");
    cr_expect(strstr(err.text, "op 7 caught fire"), "%s", err.text);
    fail_op = SOQ_OP_SCALE;
    cr_expect_eq(run_step(&err), -SOQ_EDEVICE);
    cr_expect_str_eq(diary, "a:begin a:matmul a:add a:end b:begin b:scale b:end ");
    fail_op = 0;
    cr_expect_eq(run_step(&err), 0, "the next step is none the worse for it");
    tear_down();
}

/* ---- The engine over a backend that fails on demand ---------------------------------------------------------------------- */

#define MODEL "golden/llama/model-q8_0.gguf"

static const struct soq_backend_ops *real; /* the CPU's */
static struct soq_backend_ops faulty;
static struct soq_elementwise_ops faulty_elementwise;
static struct soq_memory_ops faulty_memory;
static int activations_left = -1, buffers_left = -1, begins_left = -1; /* until one fails; -1: none does */
static bool broken;

static bool runs_out(int *left)
{
    return *left >= 0 && (*left)-- == 0;
}

static int faulty_activation(void *self, const struct soq_activation_args *args)
{
    broken = broken || runs_out(&activations_left);
    return broken ? -SOQ_EDEVICE : real->elementwise->activation(self, args);
}

static int faulty_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    broken = false;
    return runs_out(&begins_left) ? soq__fail(err, SOQ_EDEVICE, "faulty: begin: lost") : real->begin(self, step, err);
}

static int faulty_end(void *self, struct soq_error *err)
{
    int rc = real->end(self, err);

    return broken ? soq__fail(err, SOQ_EDEVICE, "faulty: activation: a cosmic ray") : rc;
}

static int faulty_alloc(void *self, uint64_t bytes, soq_buffer *out, struct soq_error *err)
{
    return runs_out(&buffers_left) ? soq__fail(err, SOQ_ENOMEM, "faulty: no %llu bytes", (unsigned long long)bytes)
                                   : real->memory->buffer_alloc(self, bytes, out, err);
}

static struct fixture open_faulty(const char *const *with)
{
    struct fixture f = open_model(MODEL, with);
    struct soq__engine *e = f.model->engine;

    real = e->exec.instances[0].ops;
    faulty = *real;
    faulty_elementwise = *real->elementwise;
    faulty_memory = *real->memory;
    faulty_elementwise.activation = faulty_activation;
    faulty_memory.buffer_alloc = faulty_alloc;
    faulty.elementwise = &faulty_elementwise;
    faulty.memory = &faulty_memory;
    faulty.begin = faulty_begin;
    faulty.end = faulty_end;
    e->exec.instances[0].ops = &faulty;
    for (uint32_t g = 0; g < e->kv.n_groups; g++)
        e->kv.groups[g].pools[0]->owner.memory = &faulty;
    activations_left = buffers_left = begins_left = -1;
    return f;
}

static const int32_t ids[50] = {1,  17, 45, 100, 7,  9,  200, 33, 34, 35, 36, 120, 121, 122, 50, 51, 52,
                                53, 54, 55, 60,  61, 62, 63,  64, 65, 66, 67, 68,  69,  70,  71, 72, 73,
                                74, 75, 76, 77,  78, 79, 80,  81, 82, 83, 84, 85,  86,  87,  88, 89};

/* Runs ids[0..n) and 10 tokens; the same as in a session of its own. */
static void expect_well(struct fixture *f, struct soq__sequence *seq, uint32_t n)
{
    struct soq__sequence *fresh = new_sequence(f);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(run_ids(seq, ids, n, 10, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(run_ids(fresh, ids, n, 10, NULL, &err), 0, "%s", err.text);
    cr_expect_eq(seq->n_tokens, n + 10);
    cr_expect(memcmp(seq->tokens, fresh->tokens, (n + 10) * sizeof *seq->tokens) == 0, "other tokens than in a fresh session");
    soq__sequence_free(fresh);
}

/* Two layers: an activation per layer and step. */
Test(exec, op_fails_in_mid_step)
{
    struct fixture f = open_faulty((const char *[]){"engine.chunk=16", NULL});
    struct soq__sequence *seq = new_sequence(&f), *other = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(run_ids(other, ids, 20, 3, NULL, &err), 0, "%s", err.text);
    activations_left = 3; /* the second layer of the second chunk */
    cr_expect_eq(run_ids(seq, ids, 50, 10, NULL, &err), -SOQ_EDEVICE);
    cr_expect_str_eq(err.text, "faulty: activation: a cosmic ray");
    cr_expect_eq(seq->kv.n_committed, 16, "the first chunk is committed, the second left no trace: %u", seq->kv.n_committed);
    cr_expect_eq(seq->kv.n_tentative, 0);
    cr_expect_eq(seq->kv.groups[0].n_held, 1);
    cr_expect_null(seq->job);
    activations_left = 2 * 3 + 2 * 3 + 1; /* three more chunks, three tokens, half of the next */
    cr_expect_eq(run_ids(seq, ids, 50, 10, NULL, &err), -SOQ_EDEVICE);
    cr_expect_geq(seq->kv.n_committed, 50);
    cr_expect_eq(other->kv.n_committed, 22, "who was not in the step has nothing to do with it");
    expect_well(&f, seq, 50);
    expect_well(&f, other, 20);
    soq__sequence_free(seq);
    soq__sequence_free(other);
    close_model(&f);
}

Test(exec, begin_fails)
{
    struct fixture f = open_faulty(NULL);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;

    begins_left = 0;
    cr_expect_eq(run_ids(seq, ids, 50, 10, NULL, &err), -SOQ_EDEVICE);
    cr_expect_str_eq(err.text, "faulty: begin: lost");
    cr_expect_eq(seq->kv.n_committed, 0);
    cr_expect_eq(f.model->engine->kv.budget.used, 0, "nothing is held for nothing");
    expect_well(&f, seq, 50);
    soq__sequence_free(seq);
    close_model(&f);
}

/* A fork writes to the block that it shares; the step fails, the fork goes, and the copy with it. */
Test(exec, step_with_a_copy_fails)
{
    struct fixture f = open_faulty(NULL);
    struct soq__sequence *seq = new_sequence(&f), *fork = NULL;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(run_ids(seq, ids, 40, 0, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
    activations_left = 0;
    cr_expect_eq(run_ids(fork, ids, 50, 5, NULL, &err), -SOQ_EDEVICE);
    expect_well(&f, fork, 50); /* the copy is made up for */
    soq__sequence_free(fork);
    cr_assert_eq(soq__sequence_fork(seq, &fork, &err), 0, "%s", err.text);
    activations_left = 0;
    cr_expect_eq(run_ids(fork, ids, 50, 5, NULL, &err), -SOQ_EDEVICE);
    soq__sequence_free(fork);
    cr_expect_eq(f.model->engine->kv.n_copies, 0);
    expect_well(&f, seq, 50);
    soq__sequence_free(seq);
    close_model(&f);
}

Test(exec, device_out_of_memory)
{
    struct fixture f = open_faulty(NULL);
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;

    buffers_left = 0;
    cr_expect_eq(run_ids(seq, ids, 50, 10, NULL, &err), -SOQ_ENOMEM);
    cr_expect(strstr(err.text, "faulty: no 2097152 bytes"), "%s", err.text);
    cr_expect_eq(f.model->engine->kv.budget.used, 0);
    expect_well(&f, seq, 50);
    soq__sequence_free(seq);
    close_model(&f);
}
