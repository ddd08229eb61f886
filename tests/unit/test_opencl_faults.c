/* Every call that the OpenCL backend makes fails in turn, and every allocation: each time a code and a message, nothing left
 * behind, and the next try works.
 *
 * This program exports functions of the OpenCL API; the plugin finds them before the driver's. They count, fail when it is
 * their turn, and otherwise pass on. Objects made and released are counted too. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "device_support.h"

static int calls, fail_at, objects;

static void *driver(const char *name)
{
    static void *library;
    void *function;

    if (!library)
        library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    function = library ? dlsym(library, name) : NULL;
    if (!function)
        abort();
    return function;
}

static bool my_turn(void)
{
    return ++calls == fail_at;
}

/* FAULT: a function that returns a status. MAKER: one that returns an object and a status at `status`. */
#define FAULT(name, code, parameters, arguments)                                                                               \
    cl_int name parameters;                                                                                                    \
    cl_int name parameters                                                                                                     \
    {                                                                                                                          \
        return my_turn() ? code : ((cl_int(*) parameters)driver(#name))arguments;                                              \
    }
#define MAKER(type, name, code, parameters, arguments)                                                                         \
    type name parameters;                                                                                                      \
    type name parameters                                                                                                       \
    {                                                                                                                          \
        type made = my_turn() ? NULL : ((type(*) parameters)driver(#name))arguments;                                           \
                                                                                                                               \
        if (made)                                                                                                              \
            objects++;                                                                                                         \
        else                                                                                                                   \
            *status = code;                                                                                                    \
        return made;                                                                                                           \
    }
#define RELEASER(name, type)                                                                                                   \
    cl_int name(type object);                                                                                                  \
    cl_int name(type object)                                                                                                   \
    {                                                                                                                          \
        objects--;                                                                                                             \
        return ((cl_int(*)(type))driver(#name))(object);                                                                       \
    }

MAKER(cl_context, clCreateContext, CL_OUT_OF_HOST_MEMORY,
      (const cl_context_properties *p, cl_uint n, const cl_device_id *d,
       void(CL_CALLBACK *f)(const char *, const void *, size_t, void *), void *u, cl_int *status),
      (p, n, d, f, u, status))
MAKER(cl_command_queue, clCreateCommandQueue, CL_OUT_OF_RESOURCES,
      (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *status), (c, d, p, status))
MAKER(cl_mem, clCreateBuffer, CL_MEM_OBJECT_ALLOCATION_FAILURE,
      (cl_context c, cl_mem_flags f, size_t n, void *p, cl_int *status), (c, f, n, p, status))
MAKER(cl_mem, clCreateSubBuffer, CL_OUT_OF_RESOURCES,
      (cl_mem m, cl_mem_flags f, cl_buffer_create_type t, const void *p, cl_int *status), (m, f, t, p, status))
MAKER(cl_program, clCreateProgramWithSource, CL_OUT_OF_HOST_MEMORY,
      (cl_context c, cl_uint n, const char **t, const size_t *s, cl_int *status), (c, n, t, s, status))
MAKER(cl_kernel, clCreateKernel, CL_INVALID_PROGRAM_EXECUTABLE, (cl_program p, const char *n, cl_int *status), (p, n, status))
FAULT(clBuildProgram, CL_BUILD_PROGRAM_FAILURE,
      (cl_program p, cl_uint n, const cl_device_id *d, const char *o, void(CL_CALLBACK *f)(cl_program, void *), void *u),
      (p, n, d, o, f, u))
FAULT(clEnqueueNDRangeKernel, CL_OUT_OF_RESOURCES,
      (cl_command_queue q, cl_kernel k, cl_uint n, const size_t *o, const size_t *g, const size_t *l, cl_uint w,
       const cl_event *e, cl_event *v),
      (q, k, n, o, g, l, w, e, v))
FAULT(clSetKernelArg, CL_INVALID_ARG_SIZE, (cl_kernel k, cl_uint i, size_t n, const void *v), (k, i, n, v))
FAULT(clEnqueueWriteBuffer, CL_OUT_OF_RESOURCES,
      (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t n, const void *p, cl_uint w, const cl_event *e, cl_event *v),
      (q, m, b, o, n, p, w, e, v))
FAULT(clEnqueueReadBuffer, CL_OUT_OF_RESOURCES,
      (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t n, void *p, cl_uint w, const cl_event *e, cl_event *v),
      (q, m, b, o, n, p, w, e, v))
FAULT(clEnqueueMigrateMemObjects, CL_MEM_OBJECT_ALLOCATION_FAILURE,
      (cl_command_queue q, cl_uint n, const cl_mem *m, cl_mem_migration_flags f, cl_uint w, const cl_event *e, cl_event *v),
      (q, n, m, f, w, e, v))
FAULT(clFinish, CL_OUT_OF_RESOURCES, (cl_command_queue q), (q))
FAULT(clGetDeviceIDs, CL_DEVICE_NOT_FOUND, (cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id *d, cl_uint *c),
      (p, t, n, d, c))
RELEASER(clReleaseContext, cl_context)
RELEASER(clReleaseCommandQueue, cl_command_queue)
RELEASER(clReleaseMemObject, cl_mem)
RELEASER(clReleaseProgram, cl_program)
RELEASER(clReleaseKernel, cl_kernel)

/* A life in short: 0, or the first code. */
struct life {
    struct device d;
    struct soq_weight_info weight, vector;
    soq_kv_group group;
    soq_buffer slab, x, y;
};

static int make(struct life *l, struct soq_error *err)
{
    static const uint8_t blocks[8 * 34];
    struct soq_kv_format format = {sizeof format, SOQ_FORMAT_PLAIN, .dtype = SOQ_DTYPE_F16, .tile_bytes = 256};
    struct soq_kv_plane planes[2] = {{sizeof planes[0], SOQ_PLANE_KEY, 1, 8, 1, -1, format},
                                     {sizeof planes[0], SOQ_PLANE_VALUE, 1, 8, 1, -1, format}};
    struct soq_kv_group_desc group = {sizeof group,     0,      SOQ_GROUP_FULL,    1, 16, 4, 2,
                                      sizeof planes[0], planes, .block_bytes = 512};
    struct soq_weight_desc matrix = device_weight_desc(SOQ_DTYPE_Q8_0, blocks, sizeof blocks, 8, 32, SOQ_USE_MATMUL);
    struct soq_weight_desc vector = device_weight_desc(SOQ_DTYPE_F16, blocks, 16, 1, 8, SOQ_USE_VECTOR);
    const struct soq_memory_ops *memory = l->d.ops->memory;
    void *self = l->d.self;
    int rc = memory->weight_prepare(self, &matrix, &l->weight, err);

    rc = rc ? rc : memory->weight_prepare(self, &vector, &l->vector, err);
    rc = rc ? rc : l->d.ops->attention->group_create(self, &group, &l->group, err);
    rc = rc ? rc : memory->buffer_alloc(self, 4 * 512, &l->slab, err);
    rc = rc ? rc : l->d.ops->attention->group_slab(self, l->group, 0, 0, 4, l->slab, err);
    rc = rc ? rc : memory->buffer_alloc(self, 128, &l->x, err);
    return rc ? rc : memory->buffer_alloc(self, 128, &l->y, err);
}

static int compute(struct life *l, struct soq_error *err)
{
    static const float zeros[32];
    struct soq_view x = {l->x, 0, 1, 32, 32, SOQ_DTYPE_F32}, y = {l->y, 0, 1, 8, 8, SOQ_DTYPE_F32};
    struct soq_matmul_args product = {sizeof product, 0, l->weight.weight, l->vector.weight, x, y};
    struct soq_kv_append_args append = {sizeof append, 0, l->group, y, y};
    struct soq_attention_args attention = {
        .struct_size = sizeof attention,
        .group = l->group,
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim_k = 8,
        .head_dim_v = 8,
        .scale = 1,
        .q = y,
        .out = y,
    };
    struct device_step *step = device_step(1, 0);
    float result[8];
    int rc = l->d.ops->memory->buffer_write(l->d.self, l->x, 0, zeros, sizeof zeros, err);

    step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, 0, 1};
    step->copies[step->step.n_copies++] = (struct soq_step_copy){0, 1, 2, 16};
    step->segments[0] = (struct soq_step_segment){.n_layers = 1, .n_heads = 1, .n_entries = 1};
    step->step.n_segments = step->seqs[0].n_segments = 1;
    rc = rc ? rc : l->d.ops->begin(l->d.self, &step->step, err);
    if (!rc) {
        l->d.ops->matmul->matmul(l->d.self, &product);
        l->d.ops->attention->kv_append(l->d.self, &append);
        l->d.ops->attention->attention(l->d.self, &attention);
        rc = l->d.ops->end(l->d.self, err);
    }
    free(step);
    return rc ? rc : l->d.ops->memory->buffer_read(l->d.self, l->y, 0, result, sizeof result, err);
}

static int live(struct soq_error *err)
{
    static const struct override overrides[] = {{"arena", "65536"}, {NULL, NULL}};
    struct life l = {.weight.struct_size = sizeof l.weight, .vector.struct_size = sizeof l.vector};
    int rc = device_try(&l.d, device_plugin("opencl", "opencl"), overrides, 4, err);

    if (rc) {
        device_drop(&l.d);
        return rc;
    }
    rc = make(&l, err);
    rc = rc ? rc : compute(&l, err);
    rc = rc ? rc : compute(&l, err);
    l.d.ops->memory->buffer_free(l.d.self, l.x);
    l.d.ops->memory->buffer_free(l.d.self, l.y);
    l.d.ops->attention->group_free(l.d.self, l.group);
    l.d.ops->memory->buffer_free(l.d.self, l.slab);
    l.d.ops->memory->weight_free(l.d.self, l.weight.weight);
    l.d.ops->memory->weight_free(l.d.self, l.vector.weight);
    device_close(&l.d);
    return rc;
}

/* The number of calls of a life in which nothing fails. */
static int count_calls(void)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int rc;

    fail_at = calls = 0;
    rc = live(&err);
    if (rc == -SOQ_ENOTFOUND)
        cr_skip_test("%s", err.text);
    cr_assert_eq(rc, 0, "%s", err.text);
    cr_assert_gt(calls, 100, "the plugin does not call through this program");
    cr_assert_eq(objects, 0, "%d objects leak", objects);
    return calls;
}

Test(opencl_faults, every_call, .timeout = 300)
{
    int n = count_calls();

    for (int i = 1; i <= n; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        int rc;

        calls = 0;
        fail_at = i;
        rc = live(&err);
        cr_assert(rc == 0 || (rc < 0 && strncmp(err.text, "opencl: ", 8) == 0 && err.code == rc), "call %d: %d %s", i, rc,
                  err.text);
        cr_assert_eq(objects, 0, "call %d: %d objects leak", i, objects);
    }
}

Test(opencl_faults, every_allocation, .timeout = 300)
{
    int rc = -1;

    count_calls();
    for (uint64_t n = 1; rc; n++) {
        struct soq_error err = SOQ_ERROR_INIT;

        cr_assert(n < 200);
        soq__alloc_fail_at(n + 2, false); /* behind the fixture's own */
        rc = live(&err);
        soq__alloc_fail_at(0, false);
        cr_assert(rc == 0 || (rc == -SOQ_ENOMEM && strstr(err.text, "out of memory")), "%d %s", rc, err.text);
        cr_assert_eq(objects, 0, "allocation %llu: %d objects leak", (unsigned long long)n, objects);
    }
}
