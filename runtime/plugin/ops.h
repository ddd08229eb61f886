/* The tables of a role: checked, copied to the host's size, gaps filled with stubs. Calls no plugin code. */
#ifndef SOQ_PLUGIN_OPS_H
#define SOQ_PLUGIN_OPS_H

#include <stdint.h>

#include "base/error.h"
#include "soquete/plugin.h"

/* Verify tables of the host's size: required slots, slots that come in pairs, sizes. Messages name the slot. */
int soq__backend_ops_check(const struct soq_backend_ops *ops, struct soq_error *err);
int soq__kv_policy_ops_check(const struct soq_kv_policy_ops *ops, struct soq_error *err);
int soq__kv_codec_ops_check(const struct soq_kv_codec_ops *ops, struct soq_error *err);
int soq__sampler_ops_check(const struct soq_sampler_ops *ops, struct soq_error *err);

/* Copies a plugin's table, and a backend's tables behind it, into one block that begins with the role's struct; the caller
 * frees it. native_ops: bit 1 << enum soq_op for each op that the plugin has a slot for. */
int soq__ops_copy(enum soq_role role, const void *ops, void **table_out, uint32_t *native_ops_out, struct soq_error *err);

#endif
