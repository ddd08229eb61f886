/* Taking over a tensor: packed for the kernels, kept as it is, or widened to a vector of F32. */
#ifndef SOQ_CPU_WEIGHTS_H
#define SOQ_CPU_WEIGHTS_H

#include "cpu.h"

int cpu_weight_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out, struct soq_error *err);
void cpu_weight_free(void *self, soq_weight weight);

/* Source blocks [first, first + n) of a group, packed: in place, or made in `scratch` from the source. */
const uint8_t *cpu_weight_spans(const struct cpu_weight *weight, uint64_t group, uint64_t first, uint64_t n, uint8_t *scratch);

#endif
