/* Every struct of the plugin ABI, reachable from one exported name each: what abidw looks at. Tables hang on void pointers in
 * the descriptor and would not be found from there. */
#include "soquete/plugin.h"

#define ROOT(type)                                                                                                             \
    extern __attribute__((visibility("default"))) const struct type *const abi_##type;                                         \
    const struct type *const abi_##type = NULL

ROOT(soq_plugin);
ROOT(soq_host);
ROOT(soq_option);
ROOT(soq_worker);
ROOT(soq_error);
ROOT(soq_backend_ops);
ROOT(soq_op_desc);
ROOT(soq_kv_policy_ops);
ROOT(soq_kv_codec_ops);
ROOT(soq_sampler_ops);
ROOT(soq_logit_bias);
ROOT(soq_step);
ROOT(soq_step_row);
ROOT(soq_step_seq);
ROOT(soq_step_segment);
ROOT(soq_step_edit);
ROOT(soq_step_copy);
