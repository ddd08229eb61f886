/* Weights: on the device in GGUF's own blocks, decoded as they are used; vectors as F32. */
#include "opencl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct opencl_type types[] = {
#define TYPE(id, value, text, n, size) {.dtype = id, .name = text, .elements = n, .bytes = size},
    SOQ_DTYPES(TYPE)
#undef TYPE
};

const struct opencl_type *opencl_type(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

/* Type Q4_K: the kernels' decode_q4_k. */
static int program_of(struct opencl *ocl, const struct opencl_type *type, struct opencl_program **program_out,
                      struct soq_error *err)
{
    char options[64] = "-DDECODE=decode_";
    size_t n = strlen(options);

    for (const char *p = type->name; *p; p++)
        options[n++] = (char)tolower((unsigned char)*p);
    options[n] = '\0';
    return opencl_program(ocl, OPENCL_WEIGHT, options, type->name, program_out, err);
}

static int check_desc(const struct soq_weight_desc *desc, const struct opencl_type *type, struct soq_error *err)
{
    const char *name = desc->name ? desc->name : "";
    uint64_t bytes;

    if (!type)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: tensor %s: type %u is not supported", name, desc->dtype);
    if (!desc->data || !desc->rows || !desc->cols || desc->cols % type->elements)
        return plugin_fail(err, SOQ_EINVAL, "opencl: tensor %s: %u x %u of %s has no data or no whole blocks", name, desc->rows,
                           desc->cols, type->name);
    if (__builtin_mul_overflow((uint64_t)desc->cols / type->elements * type->bytes, (uint64_t)desc->rows, &bytes) ||
        desc->bytes < bytes)
        return plugin_fail(err, SOQ_EINVAL, "opencl: tensor %s: %llu bytes are too few for %u x %u of %s", name,
                           (unsigned long long)desc->bytes, desc->rows, desc->cols, type->name);
    if (desc->uses == 0 || (desc->uses & SOQ_USE_VECTOR && (desc->uses != SOQ_USE_VECTOR || desc->rows != 1)))
        return plugin_fail(err, SOQ_EINVAL, "opencl: tensor %s: a vector has one row and no other use (rows %u, uses %u)", name,
                           desc->rows, desc->uses);
    return 0;
}

/* weight->data, blocks -> F32. */
static int widen(struct opencl *ocl, struct opencl_weight *weight, struct soq_error *err)
{
    uint64_t bytes = ((uint64_t)weight->cols + 3) / 4 * 4 * sizeof(float);
    struct opencl_program *program = NULL;
    cl_mem wide = NULL;
    int rc = program_of(ocl, weight->type, &program, err);

    if (!rc)
        rc = opencl_mem_create(ocl, bytes, weight->name, &wide, err);
    if (!rc) {
        struct opencl_call call = opencl_call(ocl, 0, program, OPENCL_K_expand);

        opencl_arg_mem(&call, weight->data);
        opencl_arg_u32(&call, weight->cols);
        opencl_arg_mem(&call, wide);
        rc = opencl_launch_items(&call, (weight->cols + 3) / 4, 1);
        if (!rc && opencl_finish(ocl) != CL_SUCCESS)
            rc = plugin_fail(err, SOQ_EDEVICE, "opencl: tensor %s: %s failed", weight->name, ocl->device_name);
        else if (rc)
            *err = ocl->error;
        ocl->failed = 0;
    }
    if (rc) {
        opencl_mem_free(ocl, wide);
        return rc;
    }
    opencl_mem_free(ocl, weight->data);
    weight->data = wide;
    weight->bytes = bytes;
    return 0;
}

static int fill(struct opencl *ocl, struct opencl_weight *weight, const void *data, struct soq_error *err)
{
    bool vector = weight->uses & SOQ_USE_VECTOR;
    int rc = vector ? 0 : program_of(ocl, weight->type, &weight->program, err);

    if (!rc)
        rc = opencl_mem_create(ocl, weight->bytes, weight->name, &weight->data, err);
    if (!rc)
        rc = opencl_write(ocl, weight->data, 0, data, weight->bytes, weight->name, err);
    if (!rc && vector && weight->type->dtype != SOQ_DTYPE_F32)
        rc = widen(ocl, weight, err);
    return rc;
}

int opencl_weight_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out,
                          struct soq_error *err)
{
    struct opencl *ocl = self;
    const struct opencl_type *type = opencl_type(desc->dtype);
    struct soq_weight_info info = {.struct_size = info_out->struct_size};
    struct opencl_weight *weight;
    int rc = check_desc(desc, type, err);

    if (rc)
        return rc;
    weight = ocl->host->alloc(ocl->host->ctx, sizeof *weight, 64);
    if (!weight)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: tensor %s", desc->name);
    *weight = (struct opencl_weight){.type = type, .rows = desc->rows, .cols = desc->cols, .uses = desc->uses};
    weight->row_bytes = (uint64_t)desc->cols / type->elements * type->bytes;
    weight->bytes = weight->row_bytes * desc->rows;
    snprintf(weight->name, sizeof weight->name, "%s", desc->name ? desc->name : "");
    rc = fill(ocl, weight, desc->data, err);
    if (rc) {
        opencl_weight_free(self, (soq_weight)(uintptr_t)weight);
        return rc;
    }
    info.weight = (soq_weight)(uintptr_t)weight;
    info.bytes = weight->bytes;
    memcpy(info_out, &info, info.struct_size < sizeof info ? info.struct_size : sizeof info);
    return 0;
}

void opencl_weight_free(void *self, soq_weight handle)
{
    struct opencl *ocl = self;
    struct opencl_weight *weight = opencl_weight(handle);

    if (!weight)
        return;
    opencl_mem_free(ocl, weight->data);
    ocl->host->free(ocl->host->ctx, weight);
}
