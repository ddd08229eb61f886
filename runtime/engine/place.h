/* Where layers, ops and weights go, as [backend] split and place say. Read once, at load. */
#ifndef SOQ_ENGINE_PLACE_H
#define SOQ_ENGINE_PLACE_H

#include "engine/exec.h"

struct soq__place_rule {
    char *pattern; /* fnmatch pattern of an op's or a tensor's name; owned */
    uint32_t at;
    bool used; /* something matched */
};

struct soq__placement {
    struct soq__exec *exec; /* not owned */
    uint8_t *home;          /* [n_layers]; owned */
    struct soq__place_rule *rules;
    size_t n_rules;
};

/* split: "NAME:first-last, NAME:first-"; place: "PATTERN:NAME". Layers that split does not name live at the primary backend.
 * Messages name the key and the element. */
int soq__placement_init(struct soq__placement *p, struct soq__exec *exec, uint32_t n_layers, struct soq_error *err);
void soq__placement_done(struct soq__placement *p);

/* Who runs an op: a rule's instance, which then must support it, else what the executor chooses. tensor: the weight's name, or
 * NULL. */
int soq__place(struct soq__placement *p, uint32_t home, const char *tensor, const struct soq_op_desc *desc, uint32_t *at_out,
               struct soq_error *err);
/* "first-last" or "first-" or "only"; false if it is none of these, or beyond n numbers. */
bool soq__parse_range(const char *text, uint32_t n, uint32_t *first_out, uint32_t *last_out);
/* A rule that matched nothing is a mistake: refused. */
int soq__placement_check_used(const struct soq__placement *p, struct soq_error *err);

#endif
