/* Which ops need a barrier in front.
 *
 * Without one two ops may run at the same time, or one thread may be in the second while another is still in the first. Three
 * cases are safe. Products of one x into different y: q, k and v, or gate and up. Attention of different heads, each in a group
 * of its own. And ops that work row by row, on matrices that lie row under row: every thread has the same range of rows in each
 * of them, so a row is finished before the same thread takes it up again. The rounding of a product's x to 8 bits is such an
 * op, unless the rows are so few that it is divided by inputs; a barrier of its own follows it. */
#include "cpu.h"

enum { VIEWS_MAX = 3 };

static bool same_view(const struct soq_view *a, const struct soq_view *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->rows == b->rows && a->cols == b->cols &&
           a->row_stride == b->row_stride;
}

/* How two matrices lie: without a byte in common, as columns of one matrix or as the same columns, or otherwise. */
enum lie { APART, SIDE_BY_SIDE, SAME_ROWS, ACROSS };

static enum lie how_they_lie(const struct soq_view *a, const struct soq_view *b)
{
    uint64_t first_a = a->buffer + a->offset, first_b = b->buffer + b->offset;
    uint64_t stride = (uint64_t)a->row_stride * sizeof(float), apart;

    if (a->rows == 0 || b->rows == 0)
        return APART;
    if (first_a > first_b)
        return how_they_lie(b, a);
    if (first_b >= first_a + (a->rows - 1) * stride + a->cols * sizeof(float))
        return APART;
    apart = first_b - first_a;
    if (a->row_stride != b->row_stride || apart + b->cols * sizeof(float) > stride)
        return ACROSS;
    return apart >= a->cols * sizeof(float) ? SIDE_BY_SIDE : SAME_ROWS;
}

/* The matrices of an op that works row by row; 0: it does not. For a product: of the rounding of x. */
static uint32_t views_by_row(const struct cpu_op *op, const struct soq_view *views[VIEWS_MAX])
{
    views[0] = views[1] = views[2] = NULL;
    switch (op->op) {
    case SOQ_OP_MATMUL:
        views[0] = &op->args.matmul.x;
        return op->run == cpu_run_matmul_q8 && !cpu_rounds_by_inputs(op->args.matmul.x.rows);
    case SOQ_OP_EMBED:
        views[0] = &op->args.embed.y;
        return 1;
    case SOQ_OP_NORM:
        views[0] = &op->args.norm.x;
        views[1] = &op->args.norm.y;
        return 2;
    case SOQ_OP_ROPE_TABLE:
        views[0] = &op->args.rope_table.table;
        return 1;
    case SOQ_OP_ROPE:
        views[0] = &op->args.rope.x;
        views[1] = &op->args.rope.table;
        return 2;
    case SOQ_OP_ACTIVATION:
        views[0] = &op->args.activation.y;
        views[1] = &op->args.activation.gate;
        views[2] = &op->args.activation.up;
        return op->args.activation.up.buffer ? 3 : 2;
    case SOQ_OP_ADD:
        views[0] = &op->args.add.a;
        views[1] = &op->args.add.b;
        views[2] = &op->args.add.y;
        return 3;
    case SOQ_OP_SCALE:
        views[0] = &op->args.scale.x;
        return 1;
    case SOQ_OP_KV_APPEND:
        views[0] = &op->args.kv_append.k;
        views[1] = &op->args.kv_append.v;
        return 2;
    default:
        return 0;
    }
}

/* Both work row by row on the same number of rows, and what they share lies row under row. */
static bool row_after_row(const struct cpu_op *first, const struct cpu_op *second)
{
    const struct soq_view *a[VIEWS_MAX], *b[VIEWS_MAX];
    uint32_t n_a = views_by_row(first, a), n_b = views_by_row(second, b);

    for (uint32_t i = 0; i < n_a; i++)
        for (uint32_t j = 0; j < n_b; j++)
            if (a[i]->rows != b[j]->rows || how_they_lie(a[i], b[j]) == ACROSS)
                return false;
    return n_a && n_b && first->op != SOQ_OP_MATMUL;
}

/* Row after row of the whole run before it. */
static bool follows_rows(const struct cpu_op *ops, const struct cpu_op *op)
{
    const struct cpu_op *other = op;

    do {
        if (other-- == ops || !row_after_row(other, op))
            return false;
    } while (!other->head);
    return true;
}

/* One of a run of products of one x. */
static bool joins_products(const struct cpu_op *ops, struct cpu_op *op)
{
    const struct soq_matmul_args *args = &op->args.matmul;
    const struct cpu_op *other = op;
    bool rounded = false;

    do {
        enum lie lie;

        if (other-- == ops || other->op != SOQ_OP_MATMUL || !same_view(&other->args.matmul.x, &args->x))
            return false;
        lie = how_they_lie(&other->args.matmul.y, &args->y);
        if (lie != APART && lie != SIDE_BY_SIDE)
            return false;
        rounded |= other->run == cpu_run_matmul_q8;
    } while (!other->head);
    op->quantise = !rounded;
    return true;
}

/* Memory that two attention ops write and read: neither reads or writes what the other writes. */
static bool attend_apart(const struct soq_attention_args *a, const struct soq_attention_args *b)
{
    const struct soq_view *const pairs[][2] = {{&a->out, &b->out}, {&a->out, &b->q}, {&a->q, &b->out}};

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        enum lie lie = how_they_lie(pairs[i][0], pairs[i][1]);

        if (lie != APART && lie != SIDE_BY_SIDE)
            return false;
    }
    return !a->mass || !b->mass;
}

/* One of a run of attention ops. */
static bool joins_attention(const struct cpu_op *ops, const struct cpu_op *op)
{
    const struct cpu_op *other = op;

    do {
        if (other-- == ops || other->op != SOQ_OP_ATTENTION || !attend_apart(&other->args.attention, &op->args.attention))
            return false;
    } while (!other->head);
    return true;
}

void cpu_order(const struct cpu_op *ops, struct cpu_op *op)
{
    if ((op->op == SOQ_OP_MATMUL && joins_products(ops, op)) || (op->op == SOQ_OP_ATTENTION && joins_attention(ops, op))) {
        op->sync = op->head = false;
    } else if (follows_rows(ops, op)) {
        op->sync = false;
        op->head = op->op == SOQ_OP_MATMUL;
    }
}
