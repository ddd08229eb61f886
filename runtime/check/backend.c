/* Checks of a backend's devices, memory and weights, and the work that other checks repeat. */
#include <stdio.h>
#include <stdlib.h>

#include "check/rig.h"
#include "check/table.h"
#include "check/weights.h"
#include "model/dtype.h"

/* ---- Devices */

enum { DEVICES = 4, STRIDE = sizeof(struct soq_device) + 40 };

static void expect_device(struct soq__kit *kit, const struct soq_device *d, uint32_t i)
{
    soq__kit_at(kit, "device %u", i);
    SOQ__EXPECT(kit, memchr(d->name, 0, sizeof d->name) && *d->name, "its name is empty or has no end");
    SOQ__EXPECT(kit, memchr(d->id, 0, sizeof d->id), "its id has no end");
    SOQ__EXPECT(kit, d->index == i, "its index is %u", d->index);
    SOQ__EXPECT(kit, !d->memory_total || d->memory_free <= d->memory_total, "more memory is free (%lu) than there is (%lu)",
                (unsigned long)d->memory_free, (unsigned long)d->memory_total);
}

static void list_devices(struct soq__kit *kit, uint32_t capacity)
{
    unsigned char *raw = soq__kit_guard(kit, DEVICES * STRIDE, 8);
    struct soq_error *err = soq__kit_error(kit);
    struct soq__kit_config config;
    uint32_t count = 0;

    for (uint32_t i = 0; i < DEVICES; i++) {
        memset(raw + i * STRIDE, 0xa5, STRIDE);
        memset(raw + i * STRIDE, 0, sizeof(struct soq_device));
        memcpy(raw + i * STRIDE, &(uint32_t){sizeof(struct soq_device)}, sizeof(uint32_t));
    }
    soq__kit_ok(kit, "the configuration", soq__kit_config_init(kit, &config, NULL, err), err);
    soq__kit_ok(kit, "devices",
                kit->role->ops.backend->devices(kit->host.services, config.view, (void *)raw, STRIDE, capacity, &count, err),
                err);
    for (uint32_t i = 0; i < DEVICES; i++) {
        const unsigned char *behind = raw + i * STRIDE + sizeof(struct soq_device);

        for (size_t k = 0; k < STRIDE - sizeof(struct soq_device); k++)
            SOQ__EXPECT(kit, behind[k] == 0xa5, "wrote into the stride behind device %u", i);
        if (i < count && i < capacity)
            expect_device(kit, (const void *)(raw + i * STRIDE), i);
        else
            SOQ__EXPECT(kit, raw[i * STRIDE + offsetof(struct soq_device, name)] == 0,
                        "wrote device %u; there are %u, room for %u", i, count, capacity);
    }
    SOQ__EXPECT(kit, kit->host.n_live == 0, "devices kept %lu allocations", (unsigned long)kit->host.n_live);
}

static void check_devices(struct soq__kit *kit)
{
    soq__kit_open(kit);
    soq__kit_need_device(kit);
    for (uint32_t capacity = 0; capacity <= DEVICES; capacity++) {
        soq__kit_at(kit, "room for %u devices", capacity);
        list_devices(kit, capacity);
    }
}

static void check_absent(struct soq__kit *kit)
{
    struct soq_backend_params params = {.device = 4711, .max_rows = SOQ__KIT_MAX_ROWS, .max_slots = SOQ__KIT_MAX_SLOTS};
    struct soq__kit_config config;
    struct soq_error *err;
    int rc;

    soq__kit_open(kit);
    err = soq__kit_error(kit);
    soq__kit_ok(kit, "the configuration", soq__kit_config_init(kit, &config, NULL, err), err);
    soq__kit_at(kit, "device %u", params.device);
    rc = kit->role->ops.backend->init(soq__kit_self(kit), kit->host.services, config.view,
                                      soq__kit_box(kit, &params, sizeof params), err);
    soq__kit_refused(kit, "init", rc, -SOQ_ENOTFOUND, err);
    SOQ__EXPECT(kit, kit->host.n_live == 0, "the failed init kept %lu allocations", (unsigned long)kit->host.n_live);
}

/* ---- Buffers */

static void try_buffer(struct soq__rig *rig, uint64_t bytes)
{
    soq_buffer buffer = soq__rig_alloc(rig, bytes);
    unsigned char *in = soq__kit_guard(rig->kit, bytes, 1), *out = soq__kit_guard(rig->kit, bytes, 1);

    soq__kit_at(rig->kit, "a buffer of %lu bytes", (unsigned long)bytes);
    SOQ__EXPECT(rig->kit, strcmp(rig->ops->domain, "host") != 0 || buffer % 64 == 0, "it is not aligned to 64 bytes");
    for (uint64_t i = 0; i < bytes; i++)
        in[i] = (unsigned char)(i * 37 + 11);
    soq__rig_write(rig, buffer, 0, in, bytes);
    soq__rig_read(rig, buffer, 0, out, bytes);
    SOQ__EXPECT(rig->kit, memcmp(in, out, bytes) == 0, "what was written is not what is read");
    if (bytes > 8) {
        soq__rig_write(rig, buffer, 3, in, bytes - 5);
        soq__rig_read(rig, buffer, 3, out, bytes - 5);
        SOQ__EXPECT(rig->kit, memcmp(in, out, bytes - 5) == 0, "what was written at byte 3 is not what is read there");
        soq__rig_read(rig, buffer, bytes - 2, out, 2);
        SOQ__EXPECT(rig->kit, memcmp(in + bytes - 2, out, 2) == 0, "a write of %lu bytes at byte 3 changed the last two",
                    (unsigned long)bytes - 5);
        soq__rig_write(rig, buffer, bytes, in, 0);
    }
    soq__rig_free(rig, buffer);
}

static void check_memory(struct soq__kit *kit)
{
    static const uint64_t sizes[] = {1, 8, 63, 64, 65, 4097, 1 << 20};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    for (size_t i = 0; i < SOQ__COUNT(sizes); i++)
        try_buffer(&rig, sizes[i]);
}

/* What no machine has is refused, and nothing is lost. */
static void check_too_much(struct soq__kit *kit)
{
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 63, (uint64_t)1 << 62};
    struct soq__rig rig;
    uint64_t live;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    live = kit->host.n_live;
    for (size_t i = 0; i < SOQ__COUNT(sizes); i++) {
        struct soq_error *err = soq__kit_error(kit);
        soq_buffer buffer = 42;

        soq__kit_at(kit, "a buffer of %lu bytes", (unsigned long)sizes[i]);
        soq__kit_refused(kit, "buffer_alloc", rig.ops->memory->buffer_alloc(rig.self, sizes[i], &buffer, err), -SOQ_ENOMEM,
                         err);
        SOQ__EXPECT(kit, buffer == 42, "the failed call wrote its result");
        SOQ__EXPECT(kit, kit->host.n_live == live, "the failed call kept an allocation");
    }
}

/* ---- What is not claimed */

static const struct soq_op_desc nobody_claims[] = {
    {.op = 999},
    {.op = SOQ_OP_MATMUL, .weight_dtype = 9999, .rows = 8, .cols = 256},
    {.op = SOQ_OP_EMBED, .weight_dtype = 9999, .rows = 8, .cols = 256},
    {.op = SOQ_OP_NORM, .kind = 999},
    {.op = SOQ_OP_ROPE, .kind = 999, .head_dim_k = 8, .n_heads = 1, .n_kv_heads = 1},
    {.op = SOQ_OP_ACTIVATION, .kind = 999},
    {.op = SOQ_OP_ATTENTION,
     .head_dim_k = 8,
     .head_dim_v = 8,
     .n_heads = 1,
     .n_kv_heads = 1,
     .key_format = 999,
     .value_format = 999,
     .key_dtype = SOQ_DTYPE_F32,
     .value_dtype = SOQ_DTYPE_F32},
};

static void expect_prepare_refused(struct soq__rig *rig, uint32_t dtype)
{
    static const uint8_t zeros[1 << 12];
    struct soq_weight_desc desc = {.dtype = dtype,
                                   .name = "w",
                                   .data = zeros,
                                   .bytes = sizeof zeros,
                                   .rows = 2,
                                   .cols = 256,
                                   .uses = SOQ_USE_MATMUL,
                                   .n_shards = 1};
    struct soq_weight_info info = {.flags = 0};
    struct soq_error *err = soq__kit_error(rig->kit);
    uint64_t live = rig->kit->host.n_live;
    int rc = rig->ops->memory->weight_prepare(rig->self, soq__kit_box(rig->kit, &desc, sizeof desc),
                                              soq__kit_box(rig->kit, &info, sizeof info), err);

    soq__kit_at(rig->kit, "a weight of type %u", dtype);
    soq__kit_refused(rig->kit, "weight_prepare", rc, -SOQ_EUNSUPPORTED, err);
    SOQ__EXPECT(rig->kit, rig->kit->host.n_live == live, "the failed call kept an allocation");
}

static void check_unclaimed(struct soq__kit *kit)
{
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < SOQ__COUNT(nobody_claims); i++) {
        struct soq_error *err = soq__kit_error(kit);
        void *box = soq__kit_box(kit, &nobody_claims[i], sizeof nobody_claims[i]);

        soq__kit_at(kit, "op %u with what does not exist", nobody_claims[i].op);
        soq__kit_refused(kit, "supports", rig.ops->supports(rig.self, box, err), -SOQ_EUNSUPPORTED, err);
    }
    if (!rig.ops->memory)
        return;
    expect_prepare_refused(&rig, 9999);
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        struct soq_op_desc desc = {.op = SOQ_OP_MATMUL, .weight_dtype = soq__weight_types[i], .rows = 2, .cols = 256};

        if (!soq__rig_supports(&rig, desc))
            expect_prepare_refused(&rig, soq__weight_types[i]);
    }
}

static const struct soq__check checks[] = {
    {"backend.devices", SOQ_ROLE_BACKEND, "devices are listed within the room given", check_devices, "load.descriptor"},
    {"backend.absent", SOQ_ROLE_BACKEND, "a device that is not there is not found", check_absent, "skew.exact"},
    {"backend.memory", SOQ_ROLE_BACKEND, "buffers of any size give back what was written", check_memory, "skew.exact"},
    {"backend.too_much", SOQ_ROLE_BACKEND, "buffers that nobody has are refused", check_too_much, "skew.exact"},
    {"backend.unclaimed", SOQ_ROLE_BACKEND, "what it cannot do is unsupported, when asked and when tried", check_unclaimed,
     "skew.exact"},
};
const struct soq__check_family soq__checks_backend = SOQ__FAMILY(checks);

/* ---- Work: a weight, buffers, a group, one step with what the plugin has. Everything is given back, whatever fails */

enum { WIDTH = 64, ROWS = 3, BLOCK = 4 };

struct work {
    struct soq__kit *kit;
    const struct soq_backend_ops *ops;
    void *self;
    struct soq_error *err;
    soq_weight weight;
    soq_buffer x, y, slab;
    soq_kv_group group;
};

static int work_alloc(struct work *w, uint64_t bytes, soq_buffer *buffer_out)
{
    static const float zeros[ROWS * WIDTH];
    int rc;

    if (!w->ops->memory) {
        *buffer_out = (soq_buffer)(uintptr_t)soq__kit_guard(w->kit, bytes, 64);
        return 0;
    }
    rc = w->ops->memory->buffer_alloc(w->self, bytes, buffer_out, w->err);
    return rc ? rc : w->ops->memory->buffer_write(w->self, *buffer_out, 0, zeros, sizeof zeros, w->err);
}

static int work_weight(struct work *w)
{
    static const float data[WIDTH * WIDTH] = {1, 2, 3};
    struct soq_weight_desc desc = {.dtype = SOQ_DTYPE_F32,
                                   .name = "w",
                                   .data = data,
                                   .bytes = sizeof data,
                                   .rows = WIDTH,
                                   .cols = WIDTH,
                                   .uses = SOQ_USE_MATMUL,
                                   .may_repack = 1,
                                   .n_shards = 1};
    struct soq_op_desc op = {.op = SOQ_OP_MATMUL, .weight_dtype = SOQ_DTYPE_F32, .rows = WIDTH, .cols = WIDTH};
    struct soq_weight_info info = {.flags = 0};
    struct soq_weight_info *box;
    int rc;

    if (!w->ops->memory || w->ops->supports(w->self, soq__kit_box(w->kit, &op, sizeof op), soq__kit_error(w->kit)))
        return 0;
    box = soq__kit_box(w->kit, &info, sizeof info);
    rc = w->ops->memory->weight_prepare(w->self, soq__kit_box(w->kit, &desc, sizeof desc), box, w->err);
    soq__kit_unbox(w->kit, box, &info, sizeof info);
    w->weight = info.weight;
    return rc;
}

static int work_group(struct work *w)
{
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc = {.kind = SOQ_GROUP_FULL,
                                     .n_layers = 1,
                                     .block_tokens = BLOCK,
                                     .max_blocks = 2,
                                     .n_planes = 2,
                                     .plane_stride = sizeof planes[0],
                                     .planes = planes,
                                     .block_bytes = 2 * BLOCK * WIDTH * sizeof(float)};
    struct soq_op_desc op = {.op = SOQ_OP_KV_APPEND,
                             .head_dim_k = WIDTH,
                             .head_dim_v = WIDTH,
                             .n_heads = 1,
                             .n_kv_heads = 1,
                             .key_format = SOQ_FORMAT_PLAIN,
                             .value_format = SOQ_FORMAT_PLAIN,
                             .key_dtype = SOQ_DTYPE_F32,
                             .value_dtype = SOQ_DTYPE_F32};
    int rc;

    if (!w->ops->attention || w->ops->supports(w->self, soq__kit_box(w->kit, &op, sizeof op), soq__kit_error(w->kit)))
        return 0;
    for (uint32_t i = 0; i < 2; i++)
        planes[i] = (struct soq_kv_plane){.struct_size = sizeof planes[i],
                                          .role = i ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
                                          .heads = 1,
                                          .width = WIDTH,
                                          .tokens_per_entry = 1,
                                          .alias = -1,
                                          .format = {.struct_size = sizeof planes[i].format,
                                                     .kind = SOQ_FORMAT_PLAIN,
                                                     .dtype = SOQ_DTYPE_F32,
                                                     .tail_dtype = SOQ_DTYPE_F32,
                                                     .tile_bytes = BLOCK * WIDTH * sizeof(float)}};
    rc = work_alloc(w, 2 * desc.block_bytes, &w->slab);
    if (!rc)
        rc = w->ops->attention->group_create(w->self, soq__kit_box(w->kit, &desc, sizeof desc), &w->group, w->err);
    return rc ? rc : w->ops->attention->group_slab(w->self, w->group, 0, 0, 2, w->slab, w->err);
}

static struct soq_view work_view(soq_buffer buffer)
{
    return (struct soq_view){.buffer = buffer, .rows = ROWS, .cols = WIDTH, .row_stride = WIDTH, .dtype = SOQ_DTYPE_F32};
}

/* What ops return shows again at end. */
static void work_ops(struct work *w)
{
    struct soq_matmul_args matmul = {.weight = w->weight, .x = work_view(w->x), .y = work_view(w->y)};
    struct soq_add_args add = {.a = work_view(w->x), .b = work_view(w->y), .y = work_view(w->y)};
    struct soq_kv_append_args append = {.group = w->group, .k = work_view(w->x), .v = work_view(w->y)};
    struct soq_attention_args attention = {.group = w->group,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_dim_k = WIDTH,
                                           .head_dim_v = WIDTH,
                                           .scale = 1,
                                           .q = work_view(w->x),
                                           .out = work_view(w->y)};

    if (w->weight)
        w->ops->matmul->matmul(w->self, soq__kit_box(w->kit, &matmul, sizeof matmul));
    if (w->kit->role->native_ops >> SOQ_OP_ADD & 1)
        w->ops->elementwise->add(w->self, soq__kit_box(w->kit, &add, sizeof add));
    if (w->group) {
        w->ops->attention->kv_append(w->self, soq__kit_box(w->kit, &append, sizeof append));
        w->ops->attention->attention(w->self, soq__kit_box(w->kit, &attention, sizeof attention));
    }
}

static int work_step(struct work *w)
{
    struct soq__rig_step *s = soq__kit_guard(w->kit, sizeof *s, 8);
    float out[ROWS * WIDTH];
    int rc;

    soq__rig_step_init(s);
    soq__rig_step_add(s, 0, 0, ROWS);
    s->step.serial = soq__rig_serial();
    s->edits[0] = (struct soq_step_edit){.block = 1};
    s->step.n_edits = w->group != 0;
    rc = w->ops->begin(w->self, &s->step, w->err);
    if (rc)
        return rc;
    work_ops(w);
    rc = w->ops->end(w->self, w->err);
    return rc || !w->ops->memory ? rc : w->ops->memory->buffer_read(w->self, w->y, 0, out, sizeof out, w->err);
}

int soq__kit_backend_work(struct soq__kit *kit, void *self, struct soq_error *err)
{
    struct work w = {.kit = kit, .ops = kit->role->ops.backend, .self = self, .err = err};
    int rc = work_alloc(&w, ROWS * WIDTH * sizeof(float), &w.x);

    if (!rc)
        rc = work_alloc(&w, ROWS * WIDTH * sizeof(float), &w.y);
    if (!rc)
        rc = work_weight(&w);
    if (!rc)
        rc = work_group(&w);
    if (!rc)
        rc = work_step(&w);
    if (w.group)
        w.ops->attention->group_free(self, w.group);
    if (w.weight)
        w.ops->memory->weight_free(self, w.weight);
    for (size_t i = 0; i < 3 && w.ops->memory; i++) {
        soq_buffer buffer = i == 0 ? w.x : i == 1 ? w.y : w.slab;

        if (buffer)
            w.ops->memory->buffer_free(self, buffer);
    }
    return rc;
}
