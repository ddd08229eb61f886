/* Checks of loading: dlopen, the descriptor, the manifest, the tables. No function of the plugin is called. */
#include <dlfcn.h>
#include <stdio.h>

#include "base/file.h"
#include "check/kit.h"
#include "check/table.h"
#include "plugin/needs.h"
#include "plugin/ops.h"

static void check_open(struct soq__kit *kit)
{
    soq__kit_descriptor(kit);
}

/* ---- The descriptor */

static bool is_one_line(const char *text)
{
    return text && *text && strlen(text) < 200 && !strpbrk(text, "\n\r\t");
}

static void expect_strings(struct soq__kit *kit, const struct soq_plugin *d)
{
    static const char spdx[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-+ ()";

    SOQ__EXPECT(kit, is_one_line(d->version), "version must be a short text of one line");
    SOQ__EXPECT(kit, is_one_line(d->summary), "summary must be a short text of one line");
    SOQ__EXPECT(kit, is_one_line(d->licence) && strspn(d->licence, spdx) == strlen(d->licence),
                "licence must be an SPDX expression, \"Apache-2.0\" for example");
}

static void expect_options(struct soq__kit *kit, const struct soq__plugin_role *role)
{
    for (uint32_t i = 0; i < role->n_options; i++) {
        const struct soq_option *o = &role->options[i];

        soq__kit_at(kit, "role %s, option %s", soq__role_name(role->role), o->key);
        SOQ__EXPECT(kit, is_one_line(o->help), "help must be one sentence");
        SOQ__EXPECT(kit, o->default_value, "default_value is NULL");
        for (uint32_t j = 0; j < i; j++)
            SOQ__EXPECT(kit, strcmp(role->options[j].key, o->key) != 0, "is in the table twice");
    }
}

/* Its own table takes its own defaults. */
static void expect_defaults(struct soq__kit *kit, const struct soq__plugin_role *role)
{
    struct soq__kit_config config;
    struct soq_error err = SOQ_ERROR_INIT;

    kit->role = role;
    soq__kit_at(kit, "role %s", soq__role_name(role->role));
    SOQ__EXPECT(kit, soq__kit_config_init(kit, &config, NULL, &err) == 0, "%s", err.text);
    soq__kit_config_done(&config);
}

static void check_descriptor(struct soq__kit *kit)
{
    struct soq__check_facts *facts = &kit->shared->facts;
    const struct soq_plugin *d;

    soq__kit_open(kit);
    d = kit->plugin->descriptor;
    expect_strings(kit, d);
    for (uint32_t i = 0; i < kit->plugin->n_roles; i++) {
        const struct soq__plugin_role *role = &kit->plugin->roles[i];

        expect_options(kit, role);
        expect_defaults(kit, role);
        if (role->role == SOQ_ROLE_BACKEND && strcmp(role->ops.backend->domain, "host") != 0)
            facts->devices = 1;
    }
    soq__kit_at(kit, "%s", "");
    SOQ__EXPECT(kit, kit->plugin->n_roles, "it fills no role");
    snprintf(facts->name, sizeof facts->name, "%s", d->name);
    snprintf(facts->variant, sizeof facts->variant, "%s", d->variant);
    snprintf(facts->version, sizeof facts->version, "%s", d->version);
    facts->roles = kit->identity.roles;
}

/* ---- The manifest */

static void check_manifest(struct soq__kit *kit)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__manifest m = {0};
    char path[PATH_MAX];

    if (!soq__kit_manifest(kit, path))
        soq__kit_skip(kit, "no manifest beside it names it; --manifest FILE");
    SOQ__EXPECT(kit, soq__manifest_read(path, &m, &err) == 0, "%s", err.text);
    SOQ__EXPECT(kit, strcmp(m.library, strrchr(kit->library, '/') + 1) == 0, "%s: library = %s is another file", path,
                m.library);
    SOQ__EXPECT(kit, m.abi == SOQ_ABI_MAJOR, "%s: abi = %d, but this host speaks %d", path, m.abi, SOQ_ABI_MAJOR);
    SOQ__EXPECT(kit, soq__plugin_load(kit->library, &m, &kit->plugin, &err) == 0, "%s: %s", path, err.text);
    SOQ__EXPECT(kit, soq__needs_met(&m, &err) != -SOQ_EINVAL, "%s: %s", path, err.text);
}

/* ---- Other versions */

static void check_major(struct soq__kit *kit)
{
    char symbol[64];
    void *object;

    object = dlopen(kit->library, RTLD_NOW | RTLD_LOCAL);
    SOQ__EXPECT(kit, object, "dlopen: %s", dlerror());
    for (int major = 0; major <= SOQ_ABI_MAJOR + 1; major++) {
        snprintf(symbol, sizeof symbol, "soquete_plugin_v%d", major);
        SOQ__EXPECT(kit, major == SOQ_ABI_MAJOR || !dlsym(object, symbol),
                    "it shows itself to a host of major %d too (%s), whose headers it was not built from", major, symbol);
    }
    SOQ__EXPECT(kit, soq__kit_descriptor(kit)->abi_major == SOQ_ABI_MAJOR, "its descriptor has major %u",
                soq__kit_descriptor(kit)->abi_major);
}

/* ---- Optional slots */

struct optional {
    const char *name;
    size_t table;  /* offset of the table in backend_ops; 0: the role's own */
    size_t offset; /* of the slot */
};

#define OWN(type, member)                                                                                                      \
    {                                                                                                                          \
#member, 0, offsetof(struct type, member)                                                                              \
    }
#define OF(table, type, member)                                                                                                \
    {                                                                                                                          \
#table "." #member, offsetof(struct soq_backend_ops, table), offsetof(struct type, member)                             \
    }

static const struct optional backend_slots[] = {
    OWN(soq_backend_ops, attention),
    OWN(soq_backend_ops, elementwise),
    OWN(soq_backend_ops, memory),
    OF(attention, soq_attention_ops, kv_gather),
    OF(attention, soq_attention_ops, kv_pack),
    OF(elementwise, soq_elementwise_ops, embed),
    OF(elementwise, soq_elementwise_ops, norm),
    OF(elementwise, soq_elementwise_ops, rope_table),
    OF(elementwise, soq_elementwise_ops, rope),
    OF(elementwise, soq_elementwise_ops, activation),
    OF(elementwise, soq_elementwise_ops, add),
    OF(elementwise, soq_elementwise_ops, scale),
    OF(elementwise, soq_elementwise_ops, gather),
};
static const struct optional policy_slots[] = {
    OWN(soq_kv_policy_ops, shutdown),
    OWN(soq_kv_policy_ops, on_commit),
    OWN(soq_kv_policy_ops, select),
    OWN(soq_kv_policy_ops, budget),
};
static const struct optional codec_slots[] = {OWN(soq_kv_codec_ops, shutdown), OWN(soq_kv_codec_ops, prepare)};
static const struct optional sampler_slots[] = {OWN(soq_sampler_ops, shutdown), OWN(soq_sampler_ops, distribution)};

static const struct {
    const struct optional *slots;
    size_t n, size; /* of the role's table */
} optionals[] = {
    [SOQ_ROLE_BACKEND] = {backend_slots, SOQ__COUNT(backend_slots), sizeof(struct soq_backend_ops)},
    [SOQ_ROLE_KV_POLICY] = {policy_slots, SOQ__COUNT(policy_slots), sizeof(struct soq_kv_policy_ops)},
    [SOQ_ROLE_KV_CODEC] = {codec_slots, SOQ__COUNT(codec_slots), sizeof(struct soq_kv_codec_ops)},
    [SOQ_ROLE_SAMPLER] = {sampler_slots, SOQ__COUNT(sampler_slots), sizeof(struct soq_sampler_ops)},
};

static const void *plugin_table(const struct soq__kit *kit)
{
    const struct soq_plugin *d = kit->plugin->descriptor;

    for (uint32_t i = 0; i < d->n_roles; i++) {
        const struct soq_role_entry *entry = (const void *)((const char *)d->roles + (size_t)i * d->role_stride);

        if (entry->role == kit->role_id)
            return entry->ops;
    }
    return NULL;
}

/* A copy of the plugin's table without the slot; NULL where it is not there anyhow. */
static void *without(const void *table, size_t size, const struct optional *slot)
{
    static char own[sizeof(struct soq_backend_ops)], inner[512];
    char *target = own;
    uint32_t given;

    memcpy(&given, table, sizeof given);
    memcpy(own, table, given < size ? given : size);
    if (slot->table) {
        const char *theirs;

        memcpy(&theirs, own + slot->table, sizeof theirs);
        if (!theirs)
            return NULL;
        memcpy(&given, theirs, sizeof given);
        memcpy(inner, theirs, given < sizeof inner ? given : sizeof inner);
        target = inner;
        memcpy(own + slot->table, &(char *){inner}, sizeof(char *));
    }
    memset(target + slot->offset, 0, sizeof(void (*)(void)));
    return own;
}

/* The host's stubs: an unsupported op says so. */
static void expect_stub(struct soq__kit *kit, const struct soq_backend_ops *ops, const char *slot)
{
    struct soq_scale_args scale = {.struct_size = sizeof scale};
    struct soq_kv_gather_args gather = {.struct_size = sizeof gather};
    struct soq_kv_pack_args pack = {.struct_size = sizeof pack};
    struct soq_error err;

    if (strcmp(slot, "elementwise.scale") == 0)
        SOQ__EXPECT(kit, ops->elementwise->scale(NULL, &scale) == -SOQ_EUNSUPPORTED, "the host's stub for %s", slot);
    if (strcmp(slot, "attention.kv_gather") == 0)
        SOQ__EXPECT(kit, ops->attention->kv_gather(NULL, &gather, &err) == -SOQ_EUNSUPPORTED, "the host's stub for %s", slot);
    if (strcmp(slot, "attention.kv_pack") == 0)
        SOQ__EXPECT(kit, ops->attention->kv_pack(NULL, &pack, &err) == -SOQ_EUNSUPPORTED, "the host's stub for %s", slot);
}

static void check_slots(struct soq__kit *kit)
{
    soq__kit_open(kit);
    for (size_t i = 0; i < optionals[kit->role_id].n; i++) {
        const struct optional *slot = &optionals[kit->role_id].slots[i];
        const void *ops = without(plugin_table(kit), optionals[kit->role_id].size, slot);
        struct soq_error err = SOQ_ERROR_INIT;
        uint32_t native;
        void *copy;
        int rc;

        if (!ops)
            continue;
        soq__kit_at(kit, "%s = NULL", slot->name);
        rc = soq__ops_copy((enum soq_role)kit->role_id, ops, &copy, &native, &err);
        /* What is left must still be a backend; a plugin that was all one table is none without it. Nor is a policy with state
         * and nothing that uses it. */
        if (rc == -SOQ_EABI && (strstr(err.text, "no table of ops") || strstr(err.text, "would use the state")))
            continue;
        SOQ__EXPECT(kit, rc == 0, "the host refuses the rest: %s", err.text);
        if (kit->role_id == SOQ_ROLE_BACKEND)
            expect_stub(kit, copy, slot->name);
    }
}

static const struct soq__check checks[] = {
    {"load.open", SOQ__ROLE_NONE, "dlopen takes it, with all symbols bound at once", check_open, "static.elf"},
    {"load.major", SOQ__ROLE_NONE, "it shows itself to hosts of its own ABI major only", check_major, "load.open"},
    {"load.descriptor", SOQ__ROLE_NONE, "descriptor, tables and option tables are complete", check_descriptor, "load.open"},
    {"load.manifest", SOQ__ROLE_NONE, "its manifest says what the descriptor says", check_manifest, "load.open"},
    {"load.slots", SOQ__ROLE_EACH, "without any of its optional slots the host still takes it", check_slots, "load.descriptor"},
};
const struct soq__check_family soq__checks_load = SOQ__FAMILY(checks);
