/* Reading manifests: one table of keys, one function per kind of value. */
#include "plugin/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/nearest.h"
#include "config/ini.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define NAME_MAX_BYTES 32u /* of plugins and variants */

/* ---- Lists and roles */

bool soq__list_next(const char **list, const char **item_out, size_t *n_out)
{
    const char *at = *list + strspn(*list, ", \t");
    size_t n = strcspn(at, ",");

    *list = at + n;
    while (n && (at[n - 1] == ' ' || at[n - 1] == '\t'))
        n--;
    *item_out = at;
    *n_out = n;
    return n != 0;
}

bool soq__list_has(const char *list, const char *word)
{
    size_t n, word_len = strlen(word);
    const char *item;

    while (soq__list_next(&list, &item, &n)) {
        if (n == word_len && memcmp(item, word, n) == 0)
            return true;
    }
    return false;
}

static const struct {
    const char *name;
    uint32_t minor;
} roles[] = {
#define ROLE(id, value, text, minor_) [id] = {.name = text, .minor = minor_},
    SOQ_ROLES(ROLE)
#undef ROLE
};

static const char *const role_sections[COUNT(roles)] = {
    [SOQ_ROLE_BACKEND] = "backend",
    [SOQ_ROLE_KV_POLICY] = "kv",
    [SOQ_ROLE_KV_CODEC] = "kv",
    [SOQ_ROLE_SAMPLER] = "decoding",
};

const char *soq__role_name(uint32_t role)
{
    return role < COUNT(roles) ? roles[role].name : NULL;
}

uint32_t soq__role_minor(uint32_t role)
{
    return role < COUNT(roles) ? roles[role].minor : 0;
}

const char *soq__role_section(enum soq_role role)
{
    return role < COUNT(roles) ? role_sections[role] : NULL;
}

/* ---- Values: each returns NULL or what was expected */

static const char *take_text(struct soq__manifest *m, size_t offset, const char *value)
{
    char **field = (char **)((char *)m + offset);

    soq__free(*field);
    *field = soq__strdup(value);
    return NULL;
}

/* A name goes into section headers, messages and file names. */
bool soq__manifest_is_name(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

    return strspn(s, letters) > 0 && strspn(s, rest) == strlen(s) && strlen(s) <= NAME_MAX_BYTES;
}

static const char *take_name(struct soq__manifest *m, size_t offset, const char *value)
{
    if (!soq__manifest_is_name(value))
        return "a lower-case letter, then at most 31 letters, digits, - and _";
    return take_text(m, offset, value);
}

static const char *take_variant(struct soq__manifest *m, size_t offset, const char *value)
{
    return *value ? take_name(m, offset, value) : take_text(m, offset, value);
}

/* A manifest speaks for the files of its own directory only. */
static const char *take_library(struct soq__manifest *m, size_t offset, const char *value)
{
    if (!*value || value[0] == '.' || strchr(value, '/') || strlen(value) > 255)
        return "the name of a file in the manifest's directory";
    return take_text(m, offset, value);
}

static const char *take_words(struct soq__manifest *m, size_t offset, const char *value)
{
    static const char bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+, \t";

    if (strspn(value, bytes) != strlen(value))
        return "words between commas";
    return take_text(m, offset, value);
}

static const char *take_devices(struct soq__manifest *m, size_t offset, const char *value)
{
    static const char expected[] = "paths that begin with /dev/, between commas";
    const char *list = value, *item;
    size_t n;

    while (soq__list_next(&list, &item, &n)) {
        if (n <= 5 || memcmp(item, "/dev/", 5) != 0 || memmem(item, n, "..", 2))
            return expected;
    }
    return take_text(m, offset, value);
}

static const char *take_roles(struct soq__manifest *m, size_t offset, const char *value)
{
    const char *list = value, *item;
    uint32_t found = 0;
    size_t n;

    (void)offset;
    while (soq__list_next(&list, &item, &n)) {
        uint32_t role = 0;

        for (uint32_t i = 1; i < COUNT(roles) && !role; i++) {
            if (strlen(roles[i].name) == n && memcmp(roles[i].name, item, n) == 0)
                role = i;
        }
        if (!role || found & 1u << role)
            return "some of backend, kv_policy, kv_codec, sampler, each once, between commas";
        found |= 1u << role;
    }
    if (!found)
        return "some of backend, kv_policy, kv_codec, sampler, each once, between commas";
    m->roles = found;
    return NULL;
}

static bool parse_int(const char *value, long min, long max, int *out)
{
    char *end;
    long n;

    errno = 0;
    n = strtol(value, &end, 10);
    if (end == value || *end || errno || n < min || n > max)
        return false;
    *out = (int)n;
    return true;
}

static const char *take_abi(struct soq__manifest *m, size_t offset, const char *value)
{
    (void)offset;
    return parse_int(value, 0, 1000, &m->abi) ? NULL : "the ABI's major number";
}

static const char *take_priority(struct soq__manifest *m, size_t offset, const char *value)
{
    (void)offset;
    return parse_int(value, -SOQ_MANIFEST_PRIORITY_MAX, SOQ_MANIFEST_PRIORITY_MAX, &m->priority)
               ? NULL
               : "an integer from -1000 to 1000";
}

/* ---- The file */

static const struct key {
    const char *name;
    const char *(*take)(struct soq__manifest *m, size_t offset, const char *value);
    size_t offset;     /* of the text */
    const char *unset; /* the value that the key has when it is not given; NULL: it must be */
} keys[] = {
    {"name", take_name, offsetof(struct soq__manifest, name), NULL},
    {"variant", take_variant, offsetof(struct soq__manifest, variant), ""},
    {"roles", take_roles, 0, NULL},
    {"library", take_library, offsetof(struct soq__manifest, library), NULL},
    {"abi", take_abi, 0, NULL},
    {"provides", take_words, offsetof(struct soq__manifest, provides), ""},
    {"requires-cpu", take_words, offsetof(struct soq__manifest, requires_cpu), ""},
    {"requires-device", take_devices, offsetof(struct soq__manifest, requires_device), ""},
    {"priority", take_priority, 0, "0"},
};

struct reader {
    const char *path;
    struct soq__manifest manifest;
    unsigned lines[COUNT(keys)]; /* where each key was given, 0: not yet */
};

static int fail_key(const struct reader *r, const struct soq__ini_entry *e, struct soq_error *err)
{
    const char *names[COUNT(keys)], *near;

    for (size_t i = 0; i < COUNT(keys); i++)
        names[i] = keys[i].name;
    near = soq__nearest(e->key, names, COUNT(keys));
    return soq__fail(err, SOQ_EINVAL, "%s:%u: unknown key \"%s\"%s%s%s", r->path, e->line, e->key,
                     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int on_entry(void *user, const struct soq__ini_entry *e, struct soq_error *err)
{
    struct reader *r = user;
    const char *expected;
    size_t i = 0;

    if (strcmp(e->section, "plugin") != 0)
        return soq__fail(err, SOQ_EINVAL, "%s:%u: unknown section [%s]; a manifest has only [plugin]", r->path, e->line,
                         e->section);
    if (!e->key)
        return 0;
    while (i < COUNT(keys) && strcmp(keys[i].name, e->key) != 0)
        i++;
    if (i == COUNT(keys))
        return fail_key(r, e, err);
    if (r->lines[i])
        return soq__fail(err, SOQ_EINVAL, "%s:%u: %s is already given in line %u", r->path, e->line, e->key, r->lines[i]);
    r->lines[i] = e->line;
    expected = keys[i].take(&r->manifest, keys[i].offset, e->value);
    if (expected)
        return soq__fail(err, SOQ_EINVAL, "%s:%u: %s = %s: expected %s", r->path, e->line, e->key, e->value, expected);
    return 0;
}

static int check_complete(struct reader *r, struct soq_error *err)
{
    const struct soq__manifest *m = &r->manifest;

    for (size_t i = 0; i < COUNT(keys); i++) {
        if (r->lines[i])
            continue;
        if (!keys[i].unset)
            return soq__fail(err, SOQ_EINVAL, "%s: key \"%s\" is missing in [plugin]", r->path, keys[i].name);
        keys[i].take(&r->manifest, keys[i].offset, keys[i].unset);
    }
    if (!m->name || !m->variant || !m->library || !m->provides || !m->requires_cpu || !m->requires_device)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", r->path);
    return 0;
}

int soq__manifest_parse(const char *path, const char *text, size_t size, struct soq__manifest *manifest_out,
                        struct soq_error *err)
{
    struct reader r = {.path = path};
    int rc = soq__ini_parse(path, text, size, on_entry, &r, err);

    if (!rc)
        rc = check_complete(&r, err);
    if (rc) {
        soq__manifest_done(&r.manifest);
        return rc;
    }
    *manifest_out = r.manifest;
    return 0;
}

int soq__manifest_read(const char *path, struct soq__manifest *manifest_out, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    int rc;

    if (!soq__path_is_file(path))
        return soq__fail(err, SOQ_EIO, "%s: not a regular file, or not readable", path);
    rc = soq__file_read(path, SOQ_MANIFEST_SIZE_MAX, &text, err);
    if (!rc)
        rc = soq__manifest_parse(path, soq__buf_str(&text), text.len, manifest_out, err);
    soq__buf_done(&text);
    return rc;
}

void soq__manifest_done(struct soq__manifest *m)
{
    soq__free(m->name);
    soq__free(m->variant);
    soq__free(m->library);
    soq__free(m->provides);
    soq__free(m->requires_cpu);
    soq__free(m->requires_device);
    memset(m, 0, sizeof *m);
}
