/* The plugin opened, and instances of its roles. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "check/kit.h"
#include "config/settings.h"

/* ---- Opening */

const struct soq_plugin *soq__kit_descriptor(struct soq__kit *kit)
{
    void *object = dlopen(kit->library, RTLD_NOW | RTLD_LOCAL);
    const struct soq_plugin *descriptor;

    SOQ__EXPECT(kit, object, "dlopen: %s", dlerror());
    descriptor = dlsym(object, SOQ_PLUGIN_SYMBOL);
    SOQ__EXPECT(kit, descriptor, "no symbol %s", SOQ_PLUGIN_SYMBOL);
    return descriptor;
}

/* The loader wants a manifest: one that repeats the descriptor. */
static void identify(struct soq__kit *kit, const struct soq_plugin *d)
{
    struct soq__manifest *m = &kit->identity;

    SOQ__EXPECT(kit, d->struct_size >= offsetof(struct soq_plugin, name), "the descriptor has %u bytes", d->struct_size);
    SOQ__EXPECT(kit, d->abi_major == SOQ_ABI_MAJOR, "it has ABI %u, but this host speaks %d", d->abi_major, SOQ_ABI_MAJOR);
    SOQ__EXPECT(kit, d->struct_size >= sizeof *d, "the descriptor has %u bytes and must have %zu", d->struct_size, sizeof *d);
    SOQ__EXPECT(kit, d->name && d->variant && d->roles, "the descriptor has no name, variant or roles");
    *m = (struct soq__manifest){.name = strdup(d->name),
                                .variant = strdup(d->variant),
                                .library = strdup(""),
                                .provides = strdup(""),
                                .requires_cpu = strdup(""),
                                .requires_device = strdup(""),
                                .abi = SOQ_ABI_MAJOR};
    for (uint32_t i = 0; i < d->n_roles; i++) {
        const struct soq_role_entry *entry = (const void *)((const char *)d->roles + (size_t)i * d->role_stride);

        if (entry->role < 32)
            m->roles |= 1u << entry->role;
    }
}

void soq__kit_open(struct soq__kit *kit)
{
    struct soq_error err = SOQ_ERROR_INIT;

    identify(kit, soq__kit_descriptor(kit));
    SOQ__EXPECT(kit, soq__plugin_load(kit->library, &kit->identity, &kit->plugin, &err) == 0, "%s", err.text);
    soq__kit_host_init(kit);
    if (!kit->role_id)
        return;
    kit->role = soq__plugin_find_role(kit->plugin, (enum soq_role)kit->role_id);
    SOQ__EXPECT(kit, kit->role, "the plugin has no role %s", soq__role_name(kit->role_id));
}

/* ---- Configurations */

static const struct soq_option *find_option(const struct soq__kit_config *config, const char *key, const char *as)
{
    const struct soq__plugin_role *role = config->kit->role;

    for (uint32_t i = 0; key && i < role->n_options; i++) {
        if (strcmp(role->options[i].key, key) == 0)
            return &role->options[i];
    }
    soq__kit_fail(config->kit, "asks for the %s \"%s\", which is not in its option table", as, key ? key : "NULL");
}

static int64_t get_int(void *ctx, const char *key)
{
    const struct soq__kit_config *config = ctx;
    uint32_t type = find_option(config, key, "integer")->type;

    SOQ__EXPECT(config->kit, type == SOQ_OPT_INT || type == SOQ_OPT_SIZE || type == SOQ_OPT_BOOL,
                "asks for \"%s\" as an integer, but its table says type %u", key, type);
    return config->real.view.get_int(config->real.view.ctx, key);
}

static double get_float(void *ctx, const char *key)
{
    const struct soq__kit_config *config = ctx;
    uint32_t type = find_option(config, key, "number")->type;

    SOQ__EXPECT(config->kit, type == SOQ_OPT_FLOAT, "asks for \"%s\" as a float, but its table says type %u", key, type);
    return config->real.view.get_float(config->real.view.ctx, key);
}

static const char *get_string(void *ctx, const char *key)
{
    struct soq__kit_config *config = ctx;
    uint32_t type = find_option(config, key, "string")->type;
    char *copy;

    SOQ__EXPECT(config->kit, type == SOQ_OPT_STRING || type == SOQ_OPT_ENUM || type == SOQ_OPT_PATH,
                "asks for \"%s\" as a string, but its table says type %u", key, type);
    copy = strdup(config->real.view.get_string(config->real.view.ctx, key));
    SOQ__EXPECT(config->kit, copy && config->n_strings < SOQ__COUNT(config->strings), "asks for more than %zu strings",
                SOQ__COUNT(config->strings));
    config->strings[config->n_strings++] = copy;
    return copy;
}

int soq__kit_config_init(struct soq__kit *kit, struct soq__kit_config *config, const char *const *settings,
                         struct soq_error *err)
{
    struct soq_config view = {.ctx = config, .get_int = get_int, .get_float = get_float, .get_string = get_string};
    char flag[512];
    int rc;

    *config = (struct soq__kit_config){.kit = kit};
    rc = soq__settings_create(&config->settings, err);
    for (; !rc && settings && *settings; settings++) {
        snprintf(flag, sizeof flag, "%s.%s.%s", soq__role_section(kit->role->role), kit->role->name, *settings);
        rc = soq__settings_override(config->settings, flag, err);
    }
    if (!rc)
        rc = soq__plugin_config_init(&config->real, kit->role, config->settings, err);
    if (rc)
        soq__settings_free(config->settings);
    else
        config->view = soq__kit_box(kit, &view, sizeof view);
    return rc;
}

/* What the plugin was given is gone from here on: strings first become nonsense. */
void soq__kit_config_done(struct soq__kit_config *config)
{
    for (size_t i = 0; i < config->n_strings; i++) {
        memset(config->strings[i], '?', strlen(config->strings[i]));
        free(config->strings[i]);
    }
    soq__plugin_config_done(&config->real);
    soq__settings_free(config->settings);
}

/* ---- Instances */

static size_t instance_size(const struct soq__plugin_role *role)
{
    switch (role->role) {
    case SOQ_ROLE_BACKEND:
        return role->ops.backend->instance_size;
    case SOQ_ROLE_KV_POLICY:
        return role->ops.kv_policy->instance_size;
    case SOQ_ROLE_KV_CODEC:
        return role->ops.kv_codec->instance_size;
    default:
        return role->ops.sampler->instance_size;
    }
}

void *soq__kit_self(struct soq__kit *kit)
{
    return soq__kit_guard(kit, instance_size(kit->role), 64);
}

static int init_backend(struct soq__kit *kit, void *self, const struct soq_config *config, struct soq_error *err)
{
    struct soq_backend_params params = {.max_rows = SOQ__KIT_MAX_ROWS, .max_slots = SOQ__KIT_MAX_SLOTS};

    return kit->role->ops.backend->init(self, kit->host.services, config, soq__kit_box(kit, &params, sizeof params), err);
}

int soq__kit_init(struct soq__kit *kit, void *self, const char *const *settings, struct soq_error *err)
{
    const struct soq__plugin_role *role = kit->role;
    struct soq__kit_config config;
    int rc = soq__kit_config_init(kit, &config, settings, err);

    if (rc)
        return rc;
    switch (role->role) {
    case SOQ_ROLE_BACKEND:
        rc = init_backend(kit, self, config.view, err);
        break;
    case SOQ_ROLE_KV_POLICY:
        rc = role->ops.kv_policy->init(self, kit->host.services, config.view, err);
        break;
    case SOQ_ROLE_KV_CODEC:
        rc = role->ops.kv_codec->init(self, kit->host.services, config.view, err);
        break;
    default:
        rc = role->ops.sampler->init(self, kit->host.services, config.view, err);
        break;
    }
    soq__kit_config_done(&config);
    return rc;
}

void soq__kit_shutdown(struct soq__kit *kit, void *self)
{
    const struct soq__plugin_role *role = kit->role;

    switch (role->role) {
    case SOQ_ROLE_BACKEND:
        role->ops.backend->shutdown(self);
        break;
    case SOQ_ROLE_KV_POLICY:
        role->ops.kv_policy->shutdown(self);
        break;
    case SOQ_ROLE_KV_CODEC:
        role->ops.kv_codec->shutdown(self);
        break;
    default:
        role->ops.sampler->shutdown(self);
        break;
    }
    soq__kit_guard_intact(kit, self, "its instance");
    soq__kit_host_verify(kit);
}

void soq__kit_need_device(struct soq__kit *kit)
{
    struct soq_error *err = soq__kit_error(kit);
    struct soq__kit_config config;
    uint32_t count = 0;
    int rc;

    soq__kit_need_machine(kit);
    if (kit->role->role != SOQ_ROLE_BACKEND)
        return;
    rc = soq__kit_config_init(kit, &config, NULL, err);
    soq__kit_ok(kit, "the default configuration", rc, err);
    rc = kit->role->ops.backend->devices(kit->host.services, config.view, NULL, sizeof(struct soq_device), 0, &count, err);
    soq__kit_config_done(&config);
    if (rc == -SOQ_ENOTFOUND)
        soq__kit_skip(kit, "no device: %.*s", (int)sizeof err->text - 1, err->text);
    soq__kit_ok(kit, "devices", rc, err);
    SOQ__EXPECT(kit, count, "devices succeeded with none; it must fail with %d and a reason", -SOQ_ENOTFOUND);
}

void *soq__kit_instance(struct soq__kit *kit)
{
    struct soq_error *err = soq__kit_error(kit);
    void *self = soq__kit_self(kit);

    soq__kit_need_device(kit);
    soq__kit_ok(kit, "init", soq__kit_init(kit, self, NULL, err), err);
    return self;
}

int soq__kit_work(struct soq__kit *kit, void *self, struct soq_error *err)
{
    switch (kit->role->role) {
    case SOQ_ROLE_BACKEND:
        return soq__kit_backend_work(kit, self, err);
    case SOQ_ROLE_KV_POLICY:
        return soq__kit_policy_work(kit, self, err);
    case SOQ_ROLE_KV_CODEC:
        return soq__kit_codec_work(kit, self, err);
    default:
        return soq__kit_sampler_work(kit, self, err);
    }
}
