/* KV groups, and the ops on them: arguments checked and recorded. */
#include <string.h>

#include "cpu.h"

/* ---- Groups -------------------------------------------------------------------------------------------------------------- */

static const struct soq_kv_plane *plane_at(const struct soq_kv_group_desc *desc, const struct soq_kv_plane *planes, uint32_t i)
{
    return (const struct soq_kv_plane *)((const uint8_t *)planes + (size_t)i * desc->plane_stride);
}

static int check_format(const struct soq_kv_group_desc *desc, const struct soq_kv_plane *plane, uint32_t class,
                        struct soq_error *err)
{
    const struct soq_kv_format *format = &plane->format;
    bool plain = format->kind == SOQ_FORMAT_PLAIN;
    uint64_t bytes = plain ? (uint64_t)desc->block_tokens * plane->width * cpu_number_bytes(format->dtype) : 1;

    if (class == CPU_PLAIN && !plain)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: kv group %u: planes of new entries must be plain, not of kind %u",
                           desc->index, format->kind);
    if (plain && !cpu_number_bytes(format->dtype))
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: kv group %u: plain planes must be F32, F16 or BF16, not type %u",
                           desc->index, format->dtype);
    if (plane->alias >= 0 || plane->tokens_per_entry != 1 || (plain && format->rotation))
        return plugin_fail(err, SOQ_EUNSUPPORTED,
                           "cpu: kv group %u: aliases, several tokens per entry and rotated plain planes are not supported",
                           desc->index);
    if (!plane->heads || !plane->width || format->tile_bytes < bytes)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: tiles of %llu bytes for %u x %u", desc->index,
                           (unsigned long long)format->tile_bytes, desc->block_tokens, plane->width);
    return 0;
}

static int check_coder(const struct soq_kv_group_desc *desc, const struct soq_kv_coder *coder, struct soq_error *err)
{
    if (coder && coder->ops && coder->ops->encode && coder->ops->decode)
        return 0;
    return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: packed planes without a coder that encodes and decodes",
                       desc->index);
}

static int take_planes(const struct cpu *cpu, struct cpu_class *class, uint32_t number, const struct soq_kv_group_desc *desc,
                       const struct soq_kv_plane *planes, struct soq_error *err)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < desc->n_planes; i++) {
        const struct soq_kv_plane *plane = plane_at(desc, planes, i);
        uint32_t side = plane->role == SOQ_PLANE_KEY ? CPU_KEY : CPU_VALUE;
        int rc = check_format(desc, plane, number, err);

        if (!rc && plane->role != SOQ_PLANE_KEY && plane->role != SOQ_PLANE_VALUE)
            rc = plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: kv group %u: plane role %u is not supported", desc->index,
                             plane->role);
        if (!rc && number == CPU_PACKED)
            rc = check_coder(desc, desc->coders ? &desc->coders[i] : NULL, err);
        if (rc)
            return rc;
        class->planes[side] = (struct cpu_plane){
            .role = plane->role,
            .heads = plane->heads,
            .width = plane->width,
            .offset = offset,
            .format = plane->format,
            .coder = number == CPU_PACKED ? desc->coders[i] : (struct soq_kv_coder){0},
        };
        if (cpu->q8) /* else tiles are decoded: computing on codes rounds queries and weights */
            class->planes[side].codes = cpu_codes_of(&plane->format, plane->role, desc->block_tokens, plane->width);
        offset += plane->format.tile_bytes * desc->n_layers * plane->heads;
    }
    if (!class->planes[CPU_KEY].heads || class->planes[CPU_KEY].heads != class->planes[CPU_VALUE].heads ||
        offset > class->block_bytes)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: needs keys and values of the same heads in %llu bytes a block",
                           desc->index, (unsigned long long)class->block_bytes);
    return 0;
}

/* Both classes; the packed one must have the same heads and widths. */
static int take_classes(const struct cpu *cpu, struct cpu_group *group, const struct soq_kv_group_desc *desc,
                        struct soq_error *err)
{
    struct cpu_class *plain = &group->classes[CPU_PLAIN], *packed = &group->classes[CPU_PACKED];
    int rc;

    plain->block_bytes = desc->block_bytes;
    rc = take_planes(cpu, plain, CPU_PLAIN, desc, desc->planes, err);
    if (rc || !desc->packed)
        return rc;
    packed->block_bytes = desc->packed_bytes;
    rc = take_planes(cpu, packed, CPU_PACKED, desc, desc->packed, err);
    for (uint32_t side = 0; side < CPU_SIDES && !rc; side++)
        if (packed->planes[side].heads != plain->planes[side].heads || packed->planes[side].width != plain->planes[side].width)
            rc = plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: packed blocks have %u heads of %u, the others %u of %u",
                             desc->index, packed->planes[side].heads, packed->planes[side].width, plain->planes[side].heads,
                             plain->planes[side].width);
    return rc;
}

static void group_free(void *self, soq_kv_group handle)
{
    struct cpu *cpu = self;
    struct cpu_group *group = (struct cpu_group *)(uintptr_t)handle;

    if (!group)
        return;
    for (struct cpu_group **p = &cpu->groups; *p; p = &(*p)->next)
        if (*p == group) {
            *p = group->next;
            break;
        }
    cpu->host->free(cpu->host->ctx, group->tables);
    for (uint32_t class = 0; class < CPU_CLASSES; class ++)
        cpu->host->free(cpu->host->ctx, group->classes[class].blocks);
    cpu->host->free(cpu->host->ctx, group);
}

/* The group whose slabs hold this one's blocks, too. */
static int take_storage(struct cpu_group *group, uint64_t storage, struct soq_error *err)
{
    struct cpu_group *store = storage ? (struct cpu_group *)(uintptr_t)storage : group;
    bool same = store->store == store && store->block_tokens == group->block_tokens;

    for (uint32_t class = 0; class < CPU_CLASSES; class ++)
        same &= store->classes[class].block_bytes == group->classes[class].block_bytes;
    if (!same)
        return plugin_fail(err, SOQ_EINVAL,
                           "cpu: kv group %u: blocks of %llu bytes (packed: %llu) for %u tokens cannot lie in the slabs of "
                           "group %u, whose blocks have %llu (%llu) for %u tokens",
                           group->index, (unsigned long long)group->classes[CPU_PLAIN].block_bytes,
                           (unsigned long long)group->classes[CPU_PACKED].block_bytes, group->block_tokens, store->index,
                           (unsigned long long)store->classes[CPU_PLAIN].block_bytes,
                           (unsigned long long)store->classes[CPU_PACKED].block_bytes, store->block_tokens);
    group->store = store;
    return 0;
}

static int fill_group(struct cpu *cpu, struct cpu_group *group, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    size_t n = (size_t)cpu->params.max_slots * desc->max_blocks;
    int rc = take_classes(cpu, group, desc, err);

    if (!rc)
        rc = take_storage(group, desc->storage, err);
    if (rc)
        return rc;
    group->tables = cpu->host->alloc(cpu->host->ctx, n * sizeof *group->tables, 64);
    if (!group->tables)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: block tables of kv group %u", desc->index);
    for (size_t i = 0; i < n; i++)
        group->tables[i] = SOQ_BLOCK_NONE;
    cpu->serial = 0; /* no step has told this group anything */
    return cpu_reserve_scratch(cpu, cpu_attention_scratch(group), err);
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    struct cpu *cpu = self;
    struct cpu_group *group;
    int rc;

    if (desc->kind != SOQ_GROUP_FULL && desc->kind != SOQ_GROUP_WINDOW)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: kv groups of kind %u are not supported", desc->kind);
    if (!desc->block_tokens || desc->block_tokens & (desc->block_tokens - 1) || !desc->max_blocks || !desc->n_layers)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: %u tokens a block (a power of two?), %u blocks, %u layers",
                           desc->index, desc->block_tokens, desc->max_blocks, desc->n_layers);
    group = cpu->host->alloc(cpu->host->ctx, sizeof *group, 64);
    if (!group)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: kv group %u", desc->index);
    *group = (struct cpu_group){
        .index = desc->index,
        .n_layers = desc->n_layers,
        .block_tokens = desc->block_tokens,
        .max_blocks = desc->max_blocks,
        .layers = desc->layers,
        .first_head = desc->first_head,
        .next = cpu->groups,
    };
    group->store = group;
    cpu->groups = group;
    rc = fill_group(cpu, group, desc, err);
    if (rc)
        group_free(self, (soq_kv_group)(uintptr_t)group);
    else
        *group_out = (soq_kv_group)(uintptr_t)group;
    return rc;
}

static int reserve_blocks(struct cpu *cpu, struct cpu_class *class, uint32_t n, struct soq_error *err)
{
    uint8_t **blocks;

    if (n <= class->n_blocks)
        return 0;
    blocks = cpu->host->alloc(cpu->host->ctx, n * sizeof *blocks, 64);
    if (!blocks)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: addresses of %u blocks", n);
    memset(blocks, 0, n * sizeof *blocks);
    if (class->n_blocks)
        memcpy(blocks, class->blocks, class->n_blocks * sizeof *blocks);
    cpu->host->free(cpu->host->ctx, class->blocks);
    class->blocks = blocks;
    class->n_blocks = n;
    return 0;
}

static int group_slab(void *self, soq_kv_group handle, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err)
{
    struct cpu *cpu = self;
    struct cpu_group *group = (struct cpu_group *)(uintptr_t)handle;
    struct cpu_class *class;
    int rc;

    if (block_class >= CPU_CLASSES || !group->classes[block_class].block_bytes)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: kv group %u has no blocks of class %u", group->index, block_class);
    if (group->store != group)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u has no slabs of its own: its blocks lie in those of group %u",
                           group->index, group->store->index);
    if (first_block > SOQ_BLOCK_INDEX_MASK || n_blocks > SOQ_BLOCK_INDEX_MASK - first_block)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv group %u: %u blocks from %u on are too many", group->index, n_blocks,
                           first_block);
    class = &group->classes[block_class];
    rc = reserve_blocks(cpu, class, first_block + n_blocks, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n_blocks; i++)
        class->blocks[first_block + i] = slab ? (uint8_t *)(uintptr_t)slab + i * class->block_bytes : NULL;
    return 0;
}

/* ---- Ops ----------------------------------------------------------------------------------------------------------------- */

static bool mapped(const struct cpu_group *group, uint32_t slot, uint64_t first_entry, uint64_t n_entries)
{
    uint64_t last = (first_entry + n_entries + group->block_tokens - 1) / group->block_tokens;

    if (n_entries && last > group->max_blocks)
        return false;
    for (uint64_t i = first_entry / group->block_tokens; n_entries && i < last; i++)
        if (!cpu_block(group, slot, (uint32_t)i))
            return false;
    return true;
}

/* Packed blocks take no new entries. */
static bool writable(const struct cpu_group *group, uint32_t slot, uint32_t entry)
{
    return mapped(group, slot, entry, 1) &&
           cpu_block_ref(group, slot, entry / group->block_tokens) >> SOQ_BLOCK_CLASS_SHIFT == CPU_PLAIN;
}

/* Once per step and group: every block that the step may touch is there. */
static int check_blocks(struct cpu *cpu, uint32_t op, struct cpu_group *group)
{
    const struct soq_step *step = cpu->step;

    for (uint32_t i = 0; i < step->n_seqs && !group->checked; i++) {
        const struct soq_step_seq *seq = &step_seqs(step)[i];

        for (uint32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++)
            if (!writable(group, seq->slot, step_rows(step)[r].entry))
                return cpu_refuse(cpu, op, SOQ_EINVAL, "slot %u of group %u has no block for entry %u", seq->slot, group->index,
                                  step_rows(step)[r].entry);
        for (uint32_t s = 0; s < seq->n_segments; s++) {
            const struct soq_step_segment *segment = &step_segments(step)[seq->first_segment + s];

            if (segment->group == group->index && !mapped(group, seq->slot, segment->first_entry, segment->n_entries))
                return cpu_refuse(cpu, op, SOQ_EINVAL, "slot %u of group %u lacks blocks of entries %u to %u", seq->slot,
                                  group->index, segment->first_entry, segment->first_entry + segment->n_entries);
        }
    }
    group->checked = true;
    return 0;
}

static int check_group(struct cpu *cpu, uint32_t op, soq_kv_group handle, uint32_t layer)
{
    struct cpu_group *group = (struct cpu_group *)(uintptr_t)handle;

    if (!group)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "kv group 0");
    if (layer >= group->n_layers)
        return cpu_refuse(cpu, op, SOQ_EINVAL, "layer %u of %u in group %u", layer, group->n_layers, group->index);
    return check_blocks(cpu, op, group);
}

static int kv_append(void *self, const struct soq_kv_append_args *args)
{
    struct cpu *cpu = self;
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    const struct cpu_plane *planes = group ? group->classes[CPU_PLAIN].planes : NULL;

    if (cpu->failed || check_group(cpu, SOQ_OP_KV_APPEND, args->group, args->layer) ||
        cpu_check_view(cpu, SOQ_OP_KV_APPEND, "k", &args->k, cpu->step->n_rows,
                       planes[CPU_KEY].heads * planes[CPU_KEY].width) ||
        cpu_check_view(cpu, SOQ_OP_KV_APPEND, "v", &args->v, cpu->step->n_rows,
                       planes[CPU_VALUE].heads * planes[CPU_VALUE].width))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_KV_APPEND, cpu_run_kv_append, args, sizeof *args);
}

/* The segments' flags and ends, and what they ask of the arguments. */
static int check_segments(struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_group *group,
                          const struct soq_step_seq *seq)
{
    for (uint32_t s = 0; s < seq->n_segments; s++) {
        const struct soq_step_segment *segment = &step_segments(cpu->step)[seq->first_segment + s];

        if (segment->group != group->index)
            continue;
        if (segment->flags && (args->n_rot % 2 || args->n_rot > args->head_dim_k ||
                               (args->rope_kind != SOQ_ROPE_HALF && args->rope_kind != SOQ_ROPE_INTERLEAVED)))
            return cpu_refuse(cpu, SOQ_OP_ATTENTION, SOQ_EINVAL, "a rotated segment with RoPE of kind %u on %u of %u columns",
                              args->rope_kind, args->n_rot, args->head_dim_k);
        if (segment->flags && cpu_check_view(cpu, SOQ_OP_ATTENTION, "inv_freq", &args->inv_freq, 1, args->n_rot / 2))
            return cpu->failed;
        if (args->mass && (uint64_t)segment->first_entry + segment->n_entries > args->mass_stride)
            return cpu_refuse(cpu, SOQ_OP_ATTENTION, SOQ_EINVAL, "attention mass of entries %u to %u in lines of %u",
                              segment->first_entry, segment->first_entry + segment->n_entries, args->mass_stride);
    }
    return 0;
}

static int check_mass(struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_group *group)
{
    struct soq_error err = SOQ_ERROR_INIT;

    if ((args->mass + args->mass_offset) % sizeof(uint64_t))
        return cpu_refuse(cpu, SOQ_OP_ATTENTION, SOQ_EINVAL, "attention mass begins at byte %llu, inside a number",
                          (unsigned long long)args->mass_offset);
    if (cpu_reserve_scratch(cpu, cpu_attention_mass_scratch(group, cpu->step), &err))
        return cpu_refuse(cpu, SOQ_OP_ATTENTION, SOQ_ENOMEM, "%s", err.text);
    return 0;
}

static int check_attention(struct cpu *cpu, const struct soq_attention_args *args)
{
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    const struct cpu_plane *key = &group->classes[CPU_PLAIN].planes[CPU_KEY], *value = key + CPU_VALUE - CPU_KEY;

    if (check_group(cpu, SOQ_OP_ATTENTION, args->group, args->layer))
        return cpu->failed;
    if (args->n_kv_heads != key->heads || args->n_heads == 0 || args->n_heads % args->n_kv_heads ||
        args->head_dim_k != key->width || args->head_dim_v != value->width)
        return cpu_refuse(cpu, SOQ_OP_ATTENTION, SOQ_EINVAL,
                          "%u heads over %u kv heads of %u and %u, the group has %u of %u and %u", args->n_heads,
                          args->n_kv_heads, args->head_dim_k, args->head_dim_v, key->heads, key->width, value->width);
    if (cpu_check_view(cpu, SOQ_OP_ATTENTION, "q", &args->q, cpu->step->n_rows, args->n_heads * args->head_dim_k) ||
        cpu_check_view(cpu, SOQ_OP_ATTENTION, "out", &args->out, cpu->step->n_rows, args->n_heads * args->head_dim_v))
        return cpu->failed;
    for (uint32_t i = 0; i < cpu->step->n_seqs; i++)
        if (check_segments(cpu, args, group, &step_seqs(cpu->step)[i]))
            return cpu->failed;
    if (args->mass && check_mass(cpu, args, group))
        return cpu->failed;
    return cpu_check_vector(cpu, SOQ_OP_ATTENTION, "sink_logits", args->sink_logits, args->n_heads, true);
}

static int attention(void *self, const struct soq_attention_args *args)
{
    struct cpu *cpu = self;

    if (cpu->failed || check_attention(cpu, args))
        return cpu->failed;
    return cpu_record(cpu, SOQ_OP_ATTENTION, cpu_run_attention, args, sizeof *args);
}

const struct soq_attention_ops cpu_attention_ops = {
    .struct_size = sizeof cpu_attention_ops,
    .group_create = group_create,
    .group_free = group_free,
    .group_slab = group_slab,
    .kv_append = kv_append,
    .attention = attention,
    .kv_gather = cpu_kv_gather,
    .kv_pack = cpu_kv_pack,
};
