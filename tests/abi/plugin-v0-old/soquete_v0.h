/* Frozen: what the headers said of a KV policy in the draft before its first numbered minor, cut to what old.c uses. It is
 * never changed; that is what it is for. */
#ifndef SOQUETE_V0_H
#define SOQUETE_V0_H

#include <stddef.h>
#include <stdint.h>

struct soq_error {
    uint32_t struct_size;
    int32_t code;
    char text[1000];
};

struct soq_option;
struct soq_config;
struct soq_host;

struct soq_kv_shape {
    uint32_t struct_size;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t context;
    uint32_t block_tokens;
    uint32_t model_window;
};

struct soq_kv_plan {
    uint32_t struct_size;
    uint32_t needs;
    uint32_t window;
    uint32_t sinks;
    uint32_t grid;
    uint32_t queries;
    uint32_t no_prefix_hits, no_drafts;
    uint64_t peak_entries;
};

struct soq_kv_range {
    uint32_t first, last;
};

struct soq_kv_commit {
    uint32_t struct_size;
    uint32_t n_positions;
    uint32_t end_of_prompt;
    uint32_t max_ranges;
    const float *mass;
};

struct soq_kv_policy_ops {
    uint32_t struct_size;
    uint32_t reserved;
    size_t instance_size;
    int (*init)(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err);
    void (*shutdown)(void *self);
    int (*describe)(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err);
    size_t state_size;
    int (*on_commit)(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                     uint32_t *n_ranges_out, struct soq_error *err);
};

enum { SOQ_ABI_MAJOR = 0, SOQ_ROLE_KV_POLICY = 2, SOQ_KV_POLICY_MINOR = 0 };

struct soq_role_entry {
    uint32_t struct_size;
    uint32_t role;
    uint32_t minor;
    uint32_t min_minor;
    const void *ops;
    const struct soq_option *options;
    uint32_t n_options, option_stride;
};

struct soq_plugin {
    uint32_t struct_size;
    uint32_t abi_major;
    const char *name;
    const char *variant;
    const char *version;
    const char *summary;
    const char *licence;
    uint32_t n_roles, role_stride;
    const struct soq_role_entry *roles;
};

extern __attribute__((visibility("default"))) const struct soq_plugin soquete_plugin_v0;

#endif
