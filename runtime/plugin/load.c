/* dlopen and the checks that follow, in this order: the object, the symbol, the descriptor's size and ABI, its strings against
 * the manifest, each role's entry, its tables, its options. Nothing of the plugin is called. */
#include "plugin/load.h"

#include <dlfcn.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "config/value.h"
#include "plugin/ops.h"

#define ROLES_MAX SOQ_ROLE_COMM
#define OPTIONS_MAX 256u

char *soq__plugin_id(const struct soq__manifest *m)
{
    struct soq_buf id = SOQ_BUF_INIT;

    soq__buf_printf(&id, "%s%s%s", m->name, *m->variant ? "/" : "", m->variant);
    return soq__buf_steal(&id);
}

/* ---- Arrays of structs that may be smaller or larger than the host's */

static const void *element(const void *array, uint32_t stride, uint32_t i)
{
    return (const char *)array + (size_t)stride * i;
}

/* least: bytes that each element must have at least; stride may exceed an element's size but not undercut it. */
static int check_array(const char *what, const void *array, uint32_t count, uint32_t max, uint32_t stride, size_t least,
                       struct soq_error *err)
{
    if (count > max)
        return soq__fail(err, SOQ_EABI, "%u %ss; this host takes %u", count, what, max);
    if (!count)
        return 0;
    if (!array)
        return soq__fail(err, SOQ_EABI, "%u %ss, but the array is NULL", count, what);
    if (stride < least || stride % _Alignof(void *))
        return soq__fail(err, SOQ_EABI, "%s stride is %u; expected a multiple of %zu, at least %zu", what, stride,
                         _Alignof(void *), least);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size;

        memcpy(&size, element(array, stride, i), sizeof size);
        if (size < least || size > stride)
            return soq__fail(err, SOQ_EABI, "%s %u: struct_size is %u; expected %zu to its stride, %u", what, i, size, least,
                             stride);
    }
    return 0;
}

/* ---- The object */

static int open_symbol(const char *path, const struct soq_plugin **descriptor_out, struct soq_error *err)
{
    const struct soq_plugin *descriptor;
    void *handle;

    if (path[0] != '/')
        return soq__fail(err, SOQ_EINVAL, "%s: a library is opened by its absolute path", path);
    if (!soq__path_is_file(path))
        return soq__fail(err, SOQ_ENOTFOUND, "no such file: %s", path);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return soq__fail(err, SOQ_EIO, "cannot open: %s", dlerror());
    descriptor = dlsym(handle, SOQ_PLUGIN_SYMBOL);
    if (!descriptor)
        return soq__fail(err, SOQ_EABI, "no symbol %s: no plugin for ABI %d, or not exported", SOQ_PLUGIN_SYMBOL,
                         SOQ_ABI_MAJOR);
    *descriptor_out = descriptor;
    return 0;
}

static int check_descriptor(const struct soq_plugin *d, struct soq_error *err)
{
    if (d->struct_size < offsetof(struct soq_plugin, abi_major) + sizeof d->abi_major)
        return soq__fail(err, SOQ_EABI, "descriptor too small: %u bytes", d->struct_size);
    if (d->abi_major != SOQ_ABI_MAJOR)
        return soq__fail(err, SOQ_EABI, "the library has ABI %u, but this host speaks %d", d->abi_major, SOQ_ABI_MAJOR);
    if (d->struct_size < sizeof *d)
        return soq__fail(err, SOQ_EABI, "descriptor too small: %u bytes; ABI %d has %zu", d->struct_size, SOQ_ABI_MAJOR,
                         sizeof *d);
    if (!d->name || !d->variant || !d->version || !d->summary || !d->licence)
        return soq__fail(err, SOQ_EABI, "descriptor: name, variant, version, summary and licence must not be NULL");
    return check_array("role", d->roles, d->n_roles, ROLES_MAX, d->role_stride, sizeof(struct soq_role_entry), err);
}

/* ---- Against the manifest */

static void append_roles(struct soq_buf *out, uint32_t roles)
{
    const char *separator = "";

    for (uint32_t role = 1; role <= SOQ_ROLE_COMM; role++) {
        if (roles & 1u << role) {
            soq__buf_printf(out, "%s%s", separator, soq__role_name(role));
            separator = ", ";
        }
    }
}

static int fail_roles(uint32_t manifest, uint32_t library, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    int rc;

    soq__buf_puts(&text, "the manifest says roles = ");
    append_roles(&text, manifest);
    soq__buf_puts(&text, ", but the library has ");
    append_roles(&text, library);
    rc = soq__fail(err, SOQ_EABI, "%s", soq__buf_str(&text));
    soq__buf_done(&text);
    return rc;
}

static int compare_manifest(const struct soq_plugin *d, const struct soq__manifest *m, struct soq_error *err)
{
    uint32_t roles = 0;

    if (strcmp(d->name, m->name) != 0)
        return soq__fail(err, SOQ_EABI, "the manifest says name = %s, but the library is \"%.64s\"", m->name, d->name);
    if (strcmp(d->variant, m->variant) != 0)
        return soq__fail(err, SOQ_EABI, "the manifest says variant = %s, but the library is \"%.64s\"", m->variant, d->variant);
    for (uint32_t i = 0; i < d->n_roles; i++) {
        const struct soq_role_entry *entry = element(d->roles, d->role_stride, i);

        if (!soq__role_name(entry->role))
            return soq__fail(err, SOQ_EABI, "role %u is unknown to this host", entry->role);
        if (roles & 1u << entry->role)
            return soq__fail(err, SOQ_EABI, "role %s is there twice", soq__role_name(entry->role));
        roles |= 1u << entry->role;
    }
    return roles == m->roles ? 0 : fail_roles(m->roles, roles, err);
}

/* ---- Roles */

/* While the major is 0 layouts may change with every minor. */
static int check_minor(const struct soq_role_entry *entry, struct soq_error *err)
{
    uint32_t minor = soq__role_minor(entry->role);

    if (!minor)
        return soq__fail(err, SOQ_EABI, "the role is reserved: this host has none yet");
    if (entry->min_minor > minor)
        return soq__fail(err, SOQ_EABI, "it needs minor %u, but this host has %u", entry->min_minor, minor);
    if (SOQ_ABI_MAJOR == 0 && entry->minor != minor)
        return soq__fail(err, SOQ_EABI, "it was built for minor %u, this host has %u; they must be equal while the major is 0",
                         entry->minor, minor);
    return 0;
}

static int copy_options(const struct soq_role_entry *entry, struct soq_option **options_out, struct soq_error *err)
{
    int rc = check_array("option", entry->options, entry->n_options, OPTIONS_MAX, entry->option_stride,
                         sizeof(struct soq_option), err);
    struct soq_option *options;

    if (rc)
        return rc;
    options = soq__alloc_array(entry->n_options, sizeof *options);
    if (!options)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < entry->n_options; i++) {
        memcpy(&options[i], element(entry->options, entry->option_stride, i), sizeof options[i]);
        options[i].struct_size = sizeof options[i];
        rc = soq__option_check(&options[i], err);
        if (rc) {
            soq__free(options);
            return rc;
        }
    }
    *options_out = options;
    return 0;
}

static int fill_role(struct soq__plugin *p, struct soq__plugin_role *role, const struct soq_role_entry *entry,
                     struct soq_error *err)
{
    struct soq_option *options = NULL;
    void *table = NULL;
    int rc = check_minor(entry, err);

    if (!rc)
        rc = soq__ops_copy(entry->role, entry->ops, &table, &role->native_ops, err);
    if (rc)
        return rc;
    p->owned[p->n_owned++] = table;
    rc = copy_options(entry, &options, err);
    if (rc)
        return rc;
    p->owned[p->n_owned++] = options;
    role->ops.any = table;
    role->options = options;
    role->n_options = entry->n_options;
    return 0;
}

static int fill_roles(struct soq__plugin *p, const struct soq__manifest *m, struct soq_error *err)
{
    const struct soq_plugin *d = p->descriptor;

    for (uint32_t i = 0; i < d->n_roles; i++) {
        const struct soq_role_entry *entry = element(d->roles, d->role_stride, i);
        struct soq__plugin_role *role = &p->roles[i];
        int rc;

        *role = (struct soq__plugin_role){.id = p->id,
                                          .name = m->name,
                                          .variant = m->variant,
                                          .version = d->version,
                                          .summary = d->summary,
                                          .licence = d->licence,
                                          .provides = m->provides,
                                          .role = (enum soq_role)entry->role};
        rc = fill_role(p, role, entry, err);
        if (rc) {
            soq__fail_prefix(err, "role %s", soq__role_name(entry->role));
            return rc;
        }
        p->n_roles++;
    }
    return 0;
}

int soq__plugin_load(const char *path, const struct soq__manifest *m, struct soq__plugin **plugin_out, struct soq_error *err)
{
    const struct soq_plugin *descriptor = NULL;
    struct soq__plugin *p;
    int rc = open_symbol(path, &descriptor, err);

    if (!rc)
        rc = check_descriptor(descriptor, err);
    if (!rc)
        rc = compare_manifest(descriptor, m, err);
    if (rc)
        return rc;
    p = soq__alloc_zero(1, sizeof *p);
    if (!p)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    p->descriptor = descriptor;
    p->id = soq__plugin_id(m);
    p->roles = soq__alloc_zero(descriptor->n_roles, sizeof *p->roles);
    rc = p->id && p->roles ? fill_roles(p, m, err) : soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (rc) {
        soq__plugin_free(p);
        return rc;
    }
    *plugin_out = p;
    return 0;
}

void soq__plugin_free(struct soq__plugin *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_owned; i++)
        soq__free(p->owned[i]);
    soq__free(p->roles);
    soq__free(p->id);
    soq__free(p);
}

const struct soq__plugin_role *soq__plugin_find_role(const struct soq__plugin *p, enum soq_role role)
{
    for (uint32_t i = 0; i < p->n_roles; i++) {
        if (p->roles[i].role == role)
            return &p->roles[i];
    }
    return NULL;
}

bool soq__plugin_provides(const struct soq__plugin_role *plugin, const char *word)
{
    return soq__list_has(plugin->provides, word);
}
