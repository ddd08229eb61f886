/* What checks of KV policies share: an instance with options and a shape that it has a plan for, drawn at random. */
#ifndef SOQ_CHECK_POLICY_H
#define SOQ_CHECK_POLICY_H

#include "check/kit.h"

enum { SOQ__POLICY_CONTEXT_MAX = 400, SOQ__POLICY_LAYERS_MAX = 3, SOQ__POLICY_HEADS_MAX = 3, SOQ__POLICY_HEAD_DIM = 16 };

struct soq__policy {
    struct soq__kit *kit;
    const struct soq_kv_policy_ops *ops;
    void *self;
    struct soq_kv_shape shape;
    struct soq_kv_plan plan;
    uint32_t grid;
    uint32_t number; /* of the draw */
};

/* Runs `try` on every draw that has a plan with these needs; the first draw is the defaults. Skips the check without any. */
void soq__policy_each(struct soq__kit *kit, uint32_t needs, void (*try)(struct soq__policy *p));
/* The state of a new sequence, between guards. */
void *soq__policy_state(struct soq__policy *p);
/* One select() at the end of a prompt of n tokens, for soq__kit_work; what it keeps is not looked at. */
int soq__policy_work_select(struct soq__policy *p, uint32_t n, struct soq_error *err);

#endif
