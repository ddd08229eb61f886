/* What there is to compute on, and the choice by index, id or name. */
#include "opencl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of extensions, whose headers a build machine may lack. */
enum {
    DEVICE_UUID_KHR = 0x106a,              /* cl_khr_device_uuid: 16 bytes */
    DEVICE_PCI_BUS_INFO_KHR = 0x410f,      /* cl_khr_pci_bus_info: domain, bus, device, function */
    DEVICE_GLOBAL_FREE_MEMORY_AMD = 0x4039 /* cl_amd_device_attribute_query: KiB */
};

enum { PLATFORMS_MAX = 16 };

void opencl_device_text(cl_device_id device, cl_device_info what, char *text, size_t size)
{
    char whole[4096] = "";

    if (clGetDeviceInfo(device, what, sizeof whole - 1, whole, NULL) != CL_SUCCESS)
        whole[0] = '\0';
    snprintf(text, size, "%s", whole);
}

uint64_t opencl_device_number(cl_device_id device, cl_device_info what, size_t bytes)
{
    union {
        uint64_t u64;
        uint32_t u32;
        size_t size;
    } value = {0};

    if (clGetDeviceInfo(device, what, bytes, &value, NULL) != CL_SUCCESS)
        return 0;
    return bytes == sizeof value.u64 ? value.u64 : value.u32;
}

static bool has_extension(cl_device_id device, const char *name)
{
    char all[4096];

    opencl_device_text(device, CL_DEVICE_EXTENSIONS, all, sizeof all);
    return strstr(all, name);
}

/* The UUID, else the PCI address, else "". */
static void describe_id(cl_device_id device, char *id, size_t size)
{
    uint8_t uuid[16];
    cl_uint pci[4];

    id[0] = '\0';
    if (has_extension(device, "cl_khr_device_uuid") &&
        clGetDeviceInfo(device, DEVICE_UUID_KHR, sizeof uuid, uuid, NULL) == CL_SUCCESS)
        snprintf(id, size, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", uuid[0], uuid[1], uuid[2],
                 uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8], uuid[9], uuid[10], uuid[11], uuid[12], uuid[13],
                 uuid[14], uuid[15]);
    else if (has_extension(device, "cl_khr_pci_bus_info") &&
             clGetDeviceInfo(device, DEVICE_PCI_BUS_INFO_KHR, sizeof pci, pci, NULL) == CL_SUCCESS)
        snprintf(id, size, "%04x:%02x:%02x.%x", pci[0], pci[1], pci[2], pci[3]);
}

/* NULL, or what the device lacks. */
static const char *lacks(cl_device_id device)
{
    char version[64], profile[32];
    int major = 0, minor = 0;

    opencl_device_text(device, CL_DEVICE_OPENCL_C_VERSION, version, sizeof version);
    opencl_device_text(device, CL_DEVICE_PROFILE, profile, sizeof profile);
    if (!opencl_device_number(device, CL_DEVICE_AVAILABLE, sizeof(cl_bool)))
        return "is not available";
    if (!opencl_device_number(device, CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool)))
        return "has no compiler";
    if (sscanf(version, "OpenCL C %d.%d", &major, &minor) != 2 || major * 10 + minor < 12)
        return "has no OpenCL C 1.2";
    if (strcmp(profile, "FULL_PROFILE") != 0)
        return "has no full profile";
    if (!opencl_device_number(device, CL_DEVICE_ENDIAN_LITTLE, sizeof(cl_bool)))
        return "is big-endian";
    if (opencl_device_number(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)) < OPENCL_ITEMS)
        return "has work-groups that are too small";
    return NULL;
}

static void describe(cl_device_id device, struct opencl_found *found)
{
    struct soq_device *about = &found->about;
    size_t free_kib[2] = {0};

    *found = (struct opencl_found){.handle = device, .about.struct_size = sizeof *about};
    clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof found->type, &found->type, NULL);
    opencl_device_text(device, CL_DEVICE_NAME, about->name, sizeof about->name);
    describe_id(device, about->id, sizeof about->id);
    about->memory_total = opencl_device_number(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong));
    if (has_extension(device, "cl_amd_device_attribute_query") &&
        clGetDeviceInfo(device, DEVICE_GLOBAL_FREE_MEMORY_AMD, sizeof free_kib, free_kib, NULL) == CL_SUCCESS)
        about->memory_free = (uint64_t)free_kib[0] * 1024;
}

static int rank(const struct opencl_found *found)
{
    return found->type & CL_DEVICE_TYPE_GPU ? 0 : found->type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2;
}

/* The device, at its place in the list. */
static uint32_t insert(struct opencl_found *list, uint32_t n, cl_device_id device)
{
    struct opencl_found found;
    uint32_t at = n;

    describe(device, &found);
    while (at && rank(&list[at - 1]) > rank(&found))
        at--;
    memmove(list + at + 1, list + at, (n - at) * sizeof *list);
    list[at] = found;
    return n + 1;
}

int opencl_find_devices(struct opencl_found found[OPENCL_DEVICES_MAX], uint32_t *count_out, struct soq_error *err)
{
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_device_id devices[OPENCL_DEVICES_MAX];
    cl_uint n_platforms = 0;
    char trouble[200] = "";
    uint32_t n = 0;
    cl_int status = clGetPlatformIDs(PLATFORMS_MAX, platforms, &n_platforms);

    if (status != CL_SUCCESS || n_platforms == 0)
        return plugin_fail(err, SOQ_ENOTFOUND, "opencl: no driver (ICD) is installed (%s)", opencl_status_name(status));
    for (cl_uint p = 0; p < n_platforms && p < PLATFORMS_MAX; p++) {
        cl_uint n_devices = 0;

        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, OPENCL_DEVICES_MAX, devices, &n_devices) != CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < n_devices && n < OPENCL_DEVICES_MAX; d++) {
            const char *missing = lacks(devices[d]);
            char name[64];

            opencl_device_text(devices[d], CL_DEVICE_NAME, name, sizeof name);
            if (missing)
                snprintf(trouble, sizeof trouble, "; %s %s", name, missing);
            else
                n = insert(found, n, devices[d]);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        found[i].about.index = i;
    if (n == 0)
        return plugin_fail(err, SOQ_ENOTFOUND, "opencl: the drivers have no device that can be used%s", trouble);
    *count_out = n;
    return 0;
}

static bool contains(const char *text, const char *part)
{
    size_t n = strlen(part);

    for (; strlen(text) >= n; text++)
        if (strncasecmp(text, part, n) == 0)
            return true;
    return false;
}

/* wanted: as in the configuration, not "". */
static bool is_wanted(const struct soq_device *about, const char *wanted)
{
    if (wanted[strspn(wanted, "0123456789")] == '\0')
        return strtoul(wanted, NULL, 10) == about->index;
    return strcasecmp(about->id, wanted) == 0 || contains(about->name, wanted);
}

int opencl_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices, uint32_t stride,
                   uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    const char *wanted = config->get_string(config->ctx, "device");
    struct opencl_found found[OPENCL_DEVICES_MAX];
    uint32_t n = 0, count = 0;
    int rc = opencl_find_devices(found, &n, err);

    (void)host;
    *count_out = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct soq_device *about = &found[i].about;

        if (*wanted && !is_wanted(about, wanted))
            continue;
        if (count < capacity)
            memcpy((uint8_t *)devices + (size_t)count * stride, about, stride < sizeof *about ? stride : sizeof *about);
        count++;
    }
    *count_out = count;
    if (!rc && count == 0)
        rc = plugin_fail(err, SOQ_ENOTFOUND, "opencl: [backend.opencl] device = %s: none of the %u devices; the first is 0, %s",
                         wanted, n, found[0].about.name);
    return rc;
}
