/* The program cache: one file for each program, <key>.clbin in cache_dir.
 *
 * The key is a hash of everything that the binary depends on: device, driver, compiler options, kernel text. A file holds a
 * header with the key and a checksum and then the driver's binary. A file that is not whole, or that the driver refuses, is as
 * good as none: the program is built from its text and the file written anew, under another name first, so that readers see
 * whole files. */
#include "opencl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct header {
    char magic[8];
    uint64_t key, bytes, checksum; /* of the binary behind it */
};

static const char magic[8] = "soqcl-1";

#define BINARY_MAX ((uint64_t)1 << 30)

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash(uint64_t seed, const void *data, size_t bytes)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < bytes; i++)
        seed = (seed ^ p[i]) * UINT64_C(0x100000001b3);
    return seed;
}

#define HASH_START UINT64_C(0xcbf29ce484222325)

uint64_t opencl_cache_key(const struct opencl *ocl, const char *options, const struct opencl_source *const *sources,
                          size_t n_sources)
{
    static const cl_device_info about[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION};
    uint64_t key = hash(HASH_START, options, strlen(options) + 1);
    char text[256];

    for (size_t i = 0; i < sizeof about / sizeof about[0]; i++) {
        opencl_device_text(ocl->device, about[i], text, sizeof text);
        key = hash(key, text, strlen(text) + 1);
    }
    for (size_t i = 0; i < n_sources; i++)
        key = hash(key, sources[i]->text, sources[i]->bytes);
    return key;
}

static void file_name(const struct opencl *ocl, uint64_t key, const char *suffix, char *path, size_t size)
{
    snprintf(path, size, "%s/%016llx.clbin%s", ocl->cache_dir, (unsigned long long)key, suffix);
}

/* The binary, from the host's allocator; NULL if the file is not there or not whole. */
static uint8_t *read_binary(struct opencl *ocl, FILE *file, uint64_t key, size_t *bytes_out)
{
    struct header header;
    uint8_t *binary;

    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.magic, magic, sizeof magic) != 0 || header.key != key ||
        header.bytes == 0 || header.bytes > BINARY_MAX)
        return NULL;
    binary = ocl->host->alloc(ocl->host->ctx, header.bytes, 64);
    if (!binary)
        return NULL;
    if (fread(binary, 1, header.bytes, file) != header.bytes || fgetc(file) != EOF ||
        hash(HASH_START, binary, header.bytes) != header.checksum) {
        ocl->host->free(ocl->host->ctx, binary);
        return NULL;
    }
    *bytes_out = header.bytes;
    return binary;
}

static cl_program make_program(struct opencl *ocl, const uint8_t *binary, size_t bytes)
{
    cl_int loaded, status;
    cl_program program = clCreateProgramWithBinary(ocl->context, 1, &ocl->device, &bytes, &binary, &loaded, &status);

    if (status != CL_SUCCESS)
        return NULL;
    if (loaded == CL_SUCCESS && clBuildProgram(program, 1, &ocl->device, "", NULL, NULL) == CL_SUCCESS)
        return program;
    clReleaseProgram(program);
    return NULL;
}

cl_program opencl_cache_load(struct opencl *ocl, uint64_t key)
{
    cl_program program = NULL;
    uint8_t *binary;
    size_t bytes = 0;
    char path[4096];
    FILE *file;

    if (!ocl->cache_dir)
        return NULL;
    file_name(ocl, key, "", path, sizeof path);
    file = fopen(path, "rb");
    if (!file)
        return NULL;
    binary = read_binary(ocl, file, key, &bytes);
    fclose(file);
    if (binary)
        program = make_program(ocl, binary, bytes);
    ocl->host->free(ocl->host->ctx, binary);
    if (!program)
        opencl_log(ocl->host, SOQ_LOG_WARN, "opencl: %s is damaged or of another driver; it is made anew", path);
    return program;
}

static bool write_file(const char *path, const struct header *header, const uint8_t *binary)
{
    FILE *file = fopen(path, "wb");
    bool whole;

    if (!file)
        return false;
    whole = fwrite(header, sizeof *header, 1, file) == 1 && fwrite(binary, 1, header->bytes, file) == header->bytes;
    return fclose(file) == 0 && whole;
}

static bool store(struct opencl *ocl, uint64_t key, const uint8_t *binary, size_t bytes)
{
    struct header header = {.key = key, .bytes = bytes, .checksum = hash(HASH_START, binary, bytes)};
    char path[4096], fresh[4096], suffix[32];

    memcpy(header.magic, magic, sizeof magic);
    snprintf(suffix, sizeof suffix, ".%ld", (long)getpid());
    file_name(ocl, key, "", path, sizeof path);
    file_name(ocl, key, suffix, fresh, sizeof fresh);
    if (write_file(fresh, &header, binary) && rename(fresh, path) == 0)
        return true;
    remove(fresh);
    return false;
}

void opencl_cache_store(struct opencl *ocl, uint64_t key, cl_program program)
{
    unsigned char *binary;
    size_t bytes = 0;

    if (!ocl->cache_dir || ocl->cache_failed)
        return;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != CL_SUCCESS || bytes == 0)
        return;
    binary = ocl->host->alloc(ocl->host->ctx, bytes, 64);
    if (!binary)
        return;
    ocl->cache_failed = clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) != CL_SUCCESS ||
                        !store(ocl, key, binary, bytes);
    ocl->host->free(ocl->host->ctx, binary);
    if (ocl->cache_failed)
        opencl_log(ocl->host, SOQ_LOG_WARN, "opencl: compiled kernels cannot be kept in [backend.opencl] cache_dir = %s",
                   ocl->cache_dir);
}
