/* Programs: built from the kernels' text, from the cache where it has them, and kept until shutdown. */
#include "opencl.h"

#include <stdio.h>
#include <string.h>

enum { SOURCES_MAX = 11 };

/* The kernel files of each program, in the order in which they need each other. */
static const char *const files[][SOURCES_MAX + 1] = {
    [OPENCL_OPS] = {"common", "edit_table", "norm", "rope_table", "rope", "activation", "add", "scale", "gather"},
    [OPENCL_WEIGHT] = {"common", "decode", "matvec", "matmul", "embed", "expand"},
    [OPENCL_KV] = {"common", "blocks", "kv_append", "copy_block", "kv_gather", "packed", "queries", "attention",
                   "attention_merge", "attention_mass"},
};

static const struct {
    enum opencl_recipe recipe;
    const char *name;
} kernels[] = {
#define KERNEL(program, text) {OPENCL_##program, #text},
    OPENCL_KERNELS(KERNEL)
#undef KERNEL
};

const char *opencl_kernel_name(enum opencl_kernel kernel)
{
    return kernels[kernel].name;
}

static size_t collect_sources(enum opencl_recipe recipe, const struct opencl_source *sources[SOURCES_MAX])
{
    size_t n = 0;

    for (; files[recipe][n]; n++)
        for (size_t i = 0; i < opencl_n_sources; i++)
            if (strcmp(opencl_sources[i].name, files[recipe][n]) == 0)
                sources[n] = &opencl_sources[i];
    return n;
}

/* The last line of the compiler's complaint that says anything, cut to size. */
static void build_log(const struct opencl *ocl, cl_program program, char *text, size_t size)
{
    size_t bytes = 0;
    char *log;

    text[0] = '\0';
    if (clGetProgramBuildInfo(program, ocl->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) != CL_SUCCESS || bytes == 0)
        return;
    log = ocl->host->alloc(ocl->host->ctx, bytes + 1, 64);
    if (!log)
        return;
    log[0] = log[bytes] = '\0';
    clGetProgramBuildInfo(program, ocl->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    snprintf(text, size, "%s", log);
    ocl->host->free(ocl->host->ctx, log);
}

static int build_from_text(struct opencl *ocl, const char *options, const struct opencl_source *const *sources, size_t n,
                           cl_program *program_out, struct soq_error *err)
{
    const char *texts[SOURCES_MAX];
    size_t sizes[SOURCES_MAX];
    char log[600];
    cl_program program;
    cl_int status;
    int rc;

    for (size_t i = 0; i < n; i++) {
        texts[i] = sources[i]->text;
        sizes[i] = sources[i]->bytes;
    }
    program = clCreateProgramWithSource(ocl->context, (cl_uint)n, texts, sizes, &status);
    if (status == CL_SUCCESS) {
        status = clBuildProgram(program, 1, &ocl->device, options, NULL, NULL);
        if (status == CL_SUCCESS) {
            *program_out = program;
            return 0;
        }
        build_log(ocl, program, log, sizeof log);
        rc = plugin_fail(err, opencl_status_code(status), "opencl: %s cannot build the kernels: %s: %s", ocl->device_name,
                         opencl_status_name(status), log);
        clReleaseProgram(program);
        return rc;
    }
    return plugin_fail(err, opencl_status_code(status), "opencl: %s takes no programs: %s", ocl->device_name,
                       opencl_status_name(status));
}

static int make_kernels(struct opencl *ocl, struct opencl_program *program, struct soq_error *err)
{
    for (size_t i = 0; i < OPENCL_N_KERNELS; i++) {
        cl_int status = CL_SUCCESS;

        if (kernels[i].recipe != program->recipe)
            continue;
        program->kernels[i] = clCreateKernel(program->handle, kernels[i].name, &status);
        if (status != CL_SUCCESS) {
            program->kernels[i] = NULL;
            return plugin_fail(err, opencl_status_code(status), "opencl: kernel %s on %s: %s", kernels[i].name,
                               ocl->device_name, opencl_status_name(status));
        }
    }
    return 0;
}

static void free_program(struct opencl *ocl, struct opencl_program *program)
{
    for (size_t i = 0; i < OPENCL_N_KERNELS; i++)
        if (program->kernels[i])
            clReleaseKernel(program->kernels[i]);
    if (program->handle)
        clReleaseProgram(program->handle);
    ocl->host->free(ocl->host->ctx, program);
}

static int fill_program(struct opencl *ocl, struct opencl_program *program, struct soq_error *err)
{
    const struct opencl_source *sources[SOURCES_MAX];
    size_t n = collect_sources(program->recipe, sources);
    char options[sizeof program->options + 128];
    uint64_t key;
    int rc;

    snprintf(options, sizeof options, "-cl-std=CL1.2 -DITEMS=%d -DQUERIES=%d -DSPLIT=%d %s", OPENCL_ITEMS, OPENCL_QUERIES,
             OPENCL_SPLIT, program->options);
    key = opencl_cache_key(ocl, options, sources, n);
    program->handle = opencl_cache_load(ocl, key);
    if (program->handle && !make_kernels(ocl, program, NULL))
        return 0;
    if (program->handle)
        clReleaseProgram(program->handle);
    program->handle = NULL;
    rc = build_from_text(ocl, options, sources, n, &program->handle, err);
    if (!rc)
        rc = make_kernels(ocl, program, err);
    if (!rc)
        opencl_cache_store(ocl, key, program->handle);
    return rc;
}

int opencl_program(struct opencl *ocl, enum opencl_recipe recipe, const char *options, const char *label,
                   struct opencl_program **program_out, struct soq_error *err)
{
    struct opencl_program *program = ocl->programs;
    int rc;

    while (program && (program->recipe != recipe || strcmp(program->options, options) != 0))
        program = program->next;
    if (!program) {
        program = ocl->host->alloc(ocl->host->ctx, sizeof *program, 64);
        if (!program)
            return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: a program");
        memset(program, 0, sizeof *program);
        program->recipe = recipe;
        snprintf(program->options, sizeof program->options, "%s", options);
        snprintf(program->label, sizeof program->label, "%s", label);
        rc = fill_program(ocl, program, err);
        if (rc) {
            free_program(ocl, program);
            return rc;
        }
        program->next = ocl->programs;
        ocl->programs = program;
    }
    *program_out = program;
    return 0;
}

void opencl_programs_free(struct opencl *ocl)
{
    while (ocl->programs) {
        struct opencl_program *program = ocl->programs;

        ocl->programs = program->next;
        free_program(ocl, program);
    }
}
