/* The OpenCL backend's life around its kernels: drivers and devices that are not there, options, memory and its limit, the
 * program cache, the profile. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_support.h"

static int try_with(struct device *d, const char *key, const char *value, struct soq_error *err)
{
    const struct override overrides[] = {{key, value}, {"arena", strcmp(key, "arena") ? "65536" : value}, {NULL, NULL}};

    *err = (struct soq_error)SOQ_ERROR_INIT;
    return device_try(d, device_plugin("opencl", "opencl"), overrides, 8, err);
}

static void open_with(struct device *d, const char *key, const char *value)
{
    struct soq_error err;
    int rc;

    device_open(d, 8); /* skips the test without a device */
    device_close(d);
    rc = try_with(d, key, value, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
}

Test(opencl_life, no_driver)
{
    struct soq_error err;
    struct device d;

    setenv("OCL_ICD_VENDORS", "/nonexistent", 1);
    cr_assert_eq(try_with(&d, "device", "", &err), -SOQ_ENOTFOUND);
    cr_assert(strstr(err.text, "no driver"), "%s", err.text);
    device_drop(&d);
}

Test(opencl_life, choice_of_device)
{
    struct soq_backend_params params = {.struct_size = sizeof params, .device = 99, .max_rows = 1, .max_slots = 1};
    struct plugin_values values = {device_plugin("opencl", "opencl"), NULL};
    struct soq_config config = plugin_config(&values);
    struct soq_device found = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t n = 0;
    struct device d;

    device_open(&d, 8);
    cr_assert_eq(d.ops->devices(&d.host.services, &config, &found, sizeof found, 1, &n, &err), 0);
    cr_assert(n >= 1 && found.index == 0 && found.name[0] && found.memory_total);
    device_close(&d);
    memset(d.self = soq__alloc_aligned(64, d.ops->instance_size), 0, d.ops->instance_size);
    cr_assert_eq(d.ops->init(d.self, &d.host.services, &config, &params, &err), -SOQ_ENOTFOUND);
    cr_assert(strstr(err.text, "no device 99"), "%s", err.text);
    soq__free(d.self);

    open_with(&d, "device", "0");
    device_close(&d);
    found.name[strlen(found.name) / 2 + 1] = '\0';
    open_with(&d, "device", found.name + 1);
    device_close(&d);
    cr_assert_eq(try_with(&d, "device", "nothing of that name", &err), -SOQ_ENOTFOUND);
    cr_assert(strstr(err.text, "device = nothing of that name"), "%s", err.text);
    device_drop(&d);
    cr_assert_eq(try_with(&d, "device", "99", &err), -SOQ_ENOTFOUND);
    device_drop(&d);
}

/* Buffers of odd sizes come and go; what is in the others stays, and memory comes back. */
Test(opencl_life, buffers)
{
    enum { N = 24 };
    soq_buffer buffers[N] = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t bytes[40000], back[40000];
    struct device d;

    open_with(&d, "memory", "1000000");
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t i = round * 7 % N, size = 1 + round * 7919 % 40000;

        if (buffers[i]) {
            uint32_t old = round - N, old_size = 1 + old * 7919 % 40000;

            cr_assert_eq(d.ops->memory->buffer_read(d.self, buffers[i], 0, back, old_size, &err), 0);
            for (uint32_t b = 0; b < old_size; b++)
                cr_assert_eq(back[b], (uint8_t)(old + b), "round %u, byte %u", round, b);
            d.ops->memory->buffer_free(d.self, buffers[i]);
        }
        for (uint32_t b = 0; b < size; b++)
            bytes[b] = (uint8_t)(round + b);
        cr_assert_eq(d.ops->memory->buffer_alloc(d.self, size, &buffers[i], &err), 0, "%s", err.text);
        cr_assert_eq(d.ops->memory->buffer_write(d.self, buffers[i], 0, bytes, size, &err), 0);
    }
    for (uint32_t i = 0; i < N; i++)
        d.ops->memory->buffer_free(d.self, buffers[i]);
    d.ops->memory->buffer_free(d.self, 0);
    cr_assert_eq(d.ops->memory->buffer_alloc(d.self, 900000, &buffers[0], &err), 0, "%s", err.text);
    d.ops->memory->buffer_free(d.self, buffers[0]);
    cr_assert_eq(d.ops->memory->buffer_write(d.self, 0, 0, bytes, 1, &err), -SOQ_EINVAL);
    cr_assert_eq(d.ops->memory->buffer_read(d.self, 0, 0, bytes, 1, &err), -SOQ_EINVAL);
    device_close(&d);
}

Test(opencl_life, memory_limit)
{
    static const float data[300 * 300];
    struct soq_weight_desc desc =
        device_weight_desc(SOQ_DTYPE_F32, data, sizeof data, 300, 300, SOQ_USE_MATMUL | SOQ_USE_EMBED);
    struct soq_weight_info info = {.struct_size = sizeof info};
    struct soq_error err = SOQ_ERROR_INIT;
    soq_buffer buffer = 0;
    struct device d;

    open_with(&d, "memory", "200000");
    cr_assert_eq(d.ops->memory->weight_prepare(d.self, &desc, &info, &err), -SOQ_ENOMEM);
    cr_assert(strstr(err.text, "w: 360000 bytes") && strstr(err.text, "memory = 200000"), "%s", err.text);
    cr_assert_eq(d.ops->memory->buffer_alloc(d.self, 200001, &buffer, &err), -SOQ_ENOMEM);
    cr_assert_eq(d.ops->memory->buffer_alloc(d.self, UINT64_MAX, &buffer, &err), -SOQ_ENOMEM);
    cr_assert_eq(d.ops->memory->buffer_alloc(d.self, 199000, &buffer, &err), 0, "%s", err.text);
    d.ops->memory->buffer_free(d.self, buffer);
    device_close(&d);
    cr_assert_eq(try_with(&d, "memory", "2", &err), -SOQ_ENOMEM);
    device_drop(&d);
}

/* ---- The program cache ---- */

struct file {
    char path[600];
    size_t bytes;
    ino_t inode;
};

/* The one file of the folder. */
static struct file only_file(const char *dir)
{
    struct file found = {0};
    DIR *d = opendir(dir);
    struct dirent *entry;
    struct stat about;
    int n = 0;

    cr_assert(d);
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.') {
            snprintf(found.path, sizeof found.path, "%s/%s", dir, entry->d_name);
            n++;
        }
    closedir(d);
    cr_assert_eq(n, 1, "%d files", n);
    cr_assert_eq(stat(found.path, &about), 0);
    found.bytes = (size_t)about.st_size;
    found.inode = about.st_ino;
    return found;
}

/* Byte `at` is turned over. */
static void damage(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    int byte;

    cr_assert(file && fseek(file, at, SEEK_SET) == 0);
    byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 0xff, file);
    fclose(file);
}

static void open_and_close(const char *dir)
{
    struct device d;

    open_with(&d, "cache_dir", dir);
    device_close(&d);
}

Test(opencl_life, program_cache)
{
    char dir[] = "/tmp/soq-cache-XXXXXX";
    struct file first, again;
    struct device d;

    cr_assert(mkdtemp(dir));
    open_and_close(dir);
    first = only_file(dir);
    open_and_close(dir);
    again = only_file(dir);
    cr_assert_eq(first.inode, again.inode, "the file was written twice");
    for (int i = 0; i < 4; i++) {
        if (i == 3)
            cr_assert_eq(truncate(again.path, (off_t)again.bytes / 2), 0);
        else
            damage(again.path, i == 0 ? 0 : i == 1 ? 20 : (long)again.bytes - 9);
        open_and_close(dir);
        again = only_file(dir);
        cr_assert_eq(first.bytes, again.bytes, "damage %d", i);
        first.inode = again.inode;
        open_and_close(dir);
        cr_assert_eq(first.inode, only_file(dir).inode, "damage %d was not mended", i);
    }
    unlink(again.path);
    rmdir(dir);
    open_with(&d, "cache_dir", dir); /* which is not there: nothing is kept, all goes on */
    device_close(&d);
}

/* ---- The profile ---- */

static char logged[4096];

static void keep_log(void *ctx, int level, const char *text)
{
    (void)ctx;
    cr_assert_eq(level, SOQ_LOG_INFO);
    strncat(logged, text, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

Test(opencl_life, profile)
{
    struct device_step *step = device_step(3, 0);
    struct soq_scale_args args = {.struct_size = sizeof args, .scale = 1};
    unsigned long long calls = 0;
    struct matrix m;
    struct device d;

    open_with(&d, "profile", "1");
    m = device_matrix(&d, 3, 8, 0, 1);
    args.x = m.view;
    device_begin(&d, step);
    for (int i = 0; i < 1200; i++)
        cr_assert_eq(d.ops->elementwise->scale(d.self, &args), 0);
    device_end(&d);
    device_matrix_done(&d, &m);
    d.host.services.log = keep_log;
    device_close(&d);
    cr_assert(strstr(logged, "opencl: scale") && sscanf(strstr(logged, "opencl: scale"), "opencl: scale %llu", &calls) == 1,
              "%s", logged);
    cr_assert_eq(calls, 1201); /* and the one of init */
    free(step);
}
