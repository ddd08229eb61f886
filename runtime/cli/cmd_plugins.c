/* `soquete plugins`: which plugins there are, which the configuration takes, why not the others, and what each can be told. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/nearest.h"
#include "cli/cli.h"
#include "cli/compat.h"
#include "cli/out.h"
#include "config/settings.h"
#include "plugin/host.h"
#include "plugin/registry.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define NAMES_MAX 256 /* that are searched for the nearest */

static const char usage[] = "Usage: soquete plugins [--why] [--json] [NAME[/VARIANT]]\n"
                            "\n"
                            "Lists the plugins that are installed and which of them the configuration takes, and what each\n"
                            "KV policy works with. With a name: what the plugin is, and the keys of its configuration\n"
                            "section.\n"
                            "\n"
                            "  --why                   for each plugin, why it is taken or not, and its files\n"
                            "  --json                  one JSON array instead, with everything that is known\n"
                            "  --plugin-dir DIR        look into DIR first; may be repeated\n"
                            "  --config FILE           read FILE instead of the user's or the system's file\n"
                            "  --SECTION.KEY=VALUE     override a key\n"
                            "  --help                  this text\n"
                            "\n"
                            "Exit status: 0; 1 if the configuration needs a plugin that cannot be used, or there is no plugin\n"
                            "NAME; 2 for a wrong command line or configuration.\n";

struct args {
    bool why, json;
    const char *name;
};

struct listing {
    struct soq__settings *settings;
    struct soq__registry *registry;
    struct soq_buf missing; /* what the configuration asks for in vain, a line each */
};

/* ---- What the configuration takes */

static int load_settings(const struct soq__cli_globals *globals, struct soq__settings *settings, struct soq_error *err)
{
    char *path = NULL;
    int rc = soq__settings_locate(globals->config, &path, err);

    if (!rc && path)
        rc = soq__settings_load(settings, path, err);
    soq__free(path);
    for (size_t i = 0; i < globals->n_overrides && !rc; i++)
        rc = soq__settings_override(settings, globals->overrides[i], err);
    return rc;
}

static void note(struct listing *l, int rc, const struct soq_error *why)
{
    if (rc)
        soq__buf_printf(&l->missing, "soquete plugins: %s\n", why->text);
}

/* Asks for the same plugins as an engine does. */
static void choose(struct listing *l)
{
    static const struct {
        enum soq_role role;
        const char *section, *key;
    } asked[] = {
        {SOQ_ROLE_KV_POLICY, "kv", "policy"}, {SOQ_ROLE_KV_CODEC, "kv", "codec"},        {SOQ_ROLE_KV_CODEC, "kv", "codec_k"},
        {SOQ_ROLE_KV_CODEC, "kv", "codec_v"}, {SOQ_ROLE_SAMPLER, "decoding", "sampler"},
    };
    struct soq__backend_choice choices[SOQ_BACKENDS_MAX];
    struct soq_error why = SOQ_ERROR_INIT;
    struct soq__host host;
    size_t n_use, count;
    const char *const *use = soq__settings_list(l->settings, "backend", "use", &n_use);

    soq__host_init(&host, NULL);
    note(l, soq__registry_choose_backends(l->registry, use, n_use, l->settings, &host.services, choices, &count, &why), &why);
    for (size_t i = 0; i < COUNT(asked); i++) {
        const char *spec = soq__settings_string(l->settings, asked[i].section, asked[i].key);
        const struct soq__plugin_role *plugin;

        if (!*spec) /* codec_k and codec_v: as codec */
            continue;
        note(l, soq__registry_find(l->registry, asked[i].role, spec, &plugin, &why), &why);
    }
}

static int open_listing(struct listing *l, const struct soq__cli_globals *globals, struct soq_error *err)
{
    struct soq__registry_params params = {.dirs = globals->plugin_dirs, .n_dirs = globals->n_plugin_dirs};
    int rc = soq__settings_create(&l->settings, err);

    if (!rc)
        rc = load_settings(globals, l->settings, err);
    if (rc)
        return rc;
    params.config_dirs = soq__settings_list(l->settings, "runtime", "plugin_dir", &params.n_config_dirs);
    rc = soq__registry_create(&params, &l->registry, err);
    if (rc)
        return rc;
    choose(l);
    return soq__registry_try_all(l->registry, err);
}

static void close_listing(struct listing *l)
{
    soq__registry_free(l->registry);
    soq__settings_free(l->settings);
    soq__buf_done(&l->missing);
}

/* ---- The table */

static void append_roles(const struct soq__candidate *c, struct soq_buf *out)
{
    for (uint32_t role = 1; c->readable && role <= SOQ_ROLE_COMM; role++) {
        if (c->manifest.roles >> role & 1)
            soq__buf_printf(out, "%s%s", out->len ? "," : "", soq__role_name(role));
    }
}

static const char *version_of(const struct soq__candidate *c)
{
    return c->plugin ? c->plugin->descriptor->version : "-";
}

static int wider(int width, const char *text)
{
    int n = (int)strlen(text);

    return n > width ? n : width;
}

/* Columns as wide as their content; returns false without memory. */
static bool print_table(const struct listing *l, bool why)
{
    int id_width = 4, roles_width = 5, version_width = 7;
    struct soq_buf roles = SOQ_BUF_INIT;
    const struct soq__candidate *c;
    bool complete = true;

    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)); i++) {
        soq__buf_clear(&roles);
        append_roles(c, &roles);
        id_width = c->readable ? wider(id_width, c->id) : id_width;
        roles_width = wider(roles_width, soq__buf_str(&roles));
        version_width = wider(version_width, version_of(c));
        complete = complete && soq__buf_ok(&roles);
    }
    printf("%-*s  %-*s  %-*s  STATE\n", id_width, "NAME", roles_width, "ROLES", version_width, "VERSION");
    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)); i++) {
        soq__buf_clear(&roles);
        append_roles(c, &roles);
        printf("%-*s  %-*s  %-*s  %s\n", id_width, c->readable ? c->id : "?", roles_width, soq__buf_str(&roles), version_width,
               version_of(c), soq__candidate_state_text(c->state));
        if (why)
            printf("    %s\n    %s\n", c->reason, c->library_path ? c->library_path : c->manifest_path);
    }
    soq__buf_done(&roles);
    soq__compat_print_tables(l->registry, why);
    return complete;
}

/* ---- One plugin */

static bool print_option(const struct soq_option *option)
{
    struct soq_buf takes = SOQ_BUF_INIT;
    bool complete;

    soq__option_describe(option, &takes);
    complete = soq__buf_ok(&takes);
    printf("%s = %s\n    %s (%s)\n", option->key, option->default_value, option->help ? option->help : "",
           soq__buf_str(&takes));
    soq__buf_done(&takes);
    return complete;
}

/* Roles of one plugin may share a section; it is shown once. */
static bool is_shown(const struct soq__plugin *p, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(soq__role_section(p->roles[i].role), soq__role_section(p->roles[index].role)) == 0)
            return true;
    }
    return false;
}

static bool print_options(const struct soq__plugin *p)
{
    bool complete = true;

    for (uint32_t i = 0; i < p->n_roles; i++) {
        const struct soq__plugin_role *role = &p->roles[i];

        if (is_shown(p, i))
            continue;
        printf("\n[%s.%s]%s\n", soq__role_section(role->role), role->name, role->n_options ? "" : " has no keys");
        for (uint32_t k = 0; k < role->n_options; k++)
            complete = print_option(&role->options[k]) && complete;
    }
    return complete;
}

static bool print_plugin(const struct soq__candidate *c)
{
    const struct soq__manifest *m = &c->manifest;
    struct soq_buf roles = SOQ_BUF_INIT;
    bool complete;

    append_roles(c, &roles);
    complete = soq__buf_ok(&roles);
    printf("%s %s", c->id, version_of(c));
    if (c->plugin)
        printf(": %s (%s)", c->plugin->descriptor->summary, c->plugin->descriptor->licence);
    printf("\nroles     %s\npriority  %d\n", soq__buf_str(&roles), m->priority);
    printf("%s%s%s", *m->provides ? "provides  " : "", m->provides, *m->provides ? "\n" : "");
    printf("%s%s%s", *m->requires_cpu ? "needs CPU " : "", m->requires_cpu, *m->requires_cpu ? "\n" : "");
    printf("%s%s%s", *m->requires_device ? "needs     " : "", m->requires_device, *m->requires_device ? "\n" : "");
    printf("manifest  %s\nlibrary   %s\nstate     %s: %s\n", c->manifest_path, c->library_path,
           soq__candidate_state_text(c->state), c->reason);
    for (uint32_t i = 0; c->plugin && i < c->plugin->n_roles; i++)
        soq__compat_print_line(&c->plugin->roles[i]);
    soq__buf_done(&roles);
    return c->plugin ? print_options(c->plugin) && complete : complete;
}

static bool is_meant(const struct soq__candidate *c, const char *name)
{
    return c->readable && (strcmp(c->id, name) == 0 || strcmp(c->manifest.name, name) == 0);
}

/* The candidates that `name` stands for: without those that lose to another, if there are others. */
static bool is_picked(const struct listing *l, const struct soq__candidate *c, const char *name)
{
    const struct soq__candidate *other;

    if (!is_meant(c, name))
        return false;
    if (c->state != SOQ_CANDIDATE_LOWER && c->state != SOQ_CANDIDATE_REFUSED)
        return true;
    for (size_t i = 0; (other = soq__registry_candidate(l->registry, i)); i++) {
        if (is_meant(other, name) && other->state != SOQ_CANDIDATE_LOWER && other->state != SOQ_CANDIDATE_REFUSED)
            return false;
    }
    return true;
}

static int fail_name(const struct listing *l, const char *name)
{
    const char *names[NAMES_MAX], *near;
    const struct soq__candidate *c;
    size_t count = 0;

    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)) && count + 2 <= NAMES_MAX; i++) {
        if (c->readable) {
            names[count++] = c->manifest.name;
            names[count++] = c->id;
        }
    }
    near = soq__nearest(name, names, count);
    fprintf(stderr, "soquete plugins: no plugin \"%s\"%s%s%s\n", name, near ? "; did you mean \"" : "", near ? near : "",
            near ? "\"?" : "");
    return SOQ_EXIT_FAILED;
}

static bool has_name(const struct listing *l, const char *name)
{
    const struct soq__candidate *c;

    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)); i++) {
        if (is_meant(c, name))
            return true;
    }
    return false;
}

static bool print_named(const struct listing *l, const char *name)
{
    const struct soq__candidate *c;
    bool complete = true, first = true;

    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)); i++) {
        if (!is_picked(l, c, name))
            continue;
        if (!first)
            putchar('\n');
        first = false;
        complete = print_plugin(c) && complete;
    }
    return complete;
}

/* ---- JSON */

/* What came from outside may be no UTF-8. */
static json_t *json_text(const char *text)
{
    json_t *json = text ? json_string(text) : json_null();

    return json ? json : json_string("?");
}

static json_t *json_option(const struct soq_option *option)
{
    struct soq_buf takes = SOQ_BUF_INIT;
    json_t *json;

    soq__option_describe(option, &takes);
    json = json_pack("{so so so so}", "key", json_text(option->key), "default", json_text(option->default_value), "type",
                     json_text(soq__buf_str(&takes)), "help", json_text(option->help));
    soq__buf_done(&takes);
    return json;
}

static json_t *json_role(const struct soq__plugin_role *role)
{
    json_t *options = json_array(), *works_with = soq__compat_json(role), *json;

    for (uint32_t i = 0; i < role->n_options; i++)
        json_array_append_new(options, json_option(&role->options[i]));
    json = json_pack("{ss ss so}", "role", soq__role_name(role->role), "section", soq__role_section(role->role), "options",
                     options);
    if (works_with)
        json_object_set_new(json, "works_with", works_with);
    return json;
}

static json_t *json_roles(const struct soq__candidate *c)
{
    json_t *roles = json_array();

    for (uint32_t role = 1; c->readable && role <= SOQ_ROLE_COMM; role++) {
        const struct soq__plugin_role *loaded;

        if (!(c->manifest.roles >> role & 1))
            continue;
        loaded = c->plugin ? soq__plugin_find_role(c->plugin, (enum soq_role)role) : NULL;
        json_array_append_new(roles, loaded ? json_role(loaded) : json_pack("{ss}", "role", soq__role_name(role)));
    }
    return roles;
}

static json_t *json_candidate(const struct soq__candidate *c)
{
    const struct soq__manifest *m = &c->manifest;
    const struct soq_plugin *d = c->plugin ? c->plugin->descriptor : NULL;

    return json_pack("{so so so so so so si so so so so so so so}", "id", json_text(c->id), "name", json_text(m->name),
                     "variant", json_text(m->variant), "version", json_text(d ? d->version : NULL), "summary",
                     json_text(d ? d->summary : NULL), "licence", json_text(d ? d->licence : NULL), "priority", m->priority,
                     "provides", json_text(m->provides), "requires-cpu", json_text(m->requires_cpu), "requires-device",
                     json_text(m->requires_device), "manifest", json_text(c->manifest_path), "library",
                     json_text(c->library_path), "roles", json_roles(c), "verdict",
                     json_pack("{ss so}", "state", soq__candidate_state_text(c->state), "reason", json_text(c->reason)));
}

static bool print_json(const struct listing *l, const char *name)
{
    json_t *all = json_array();
    const struct soq__candidate *c;
    bool complete = true;

    for (size_t i = 0; (c = soq__registry_candidate(l->registry, i)); i++) {
        if (!name || is_picked(l, c, name))
            complete = json_array_append_new(all, json_candidate(c)) == 0 && complete;
    }
    complete = complete && json_dumpf(all, stdout, 0) == 0;
    json_decref(all);
    putchar('\n');
    return complete;
}

/* ---- The command */

static bool parse_args(int argc, char **argv, struct args *args)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--why") == 0)
            args->why = true;
        else if (strcmp(argv[i], "--json") == 0)
            args->json = true;
        else if (argv[i][0] != '-' && !args->name)
            args->name = argv[i];
        else {
            fprintf(stderr, "soquete plugins: %s: unknown argument; see soquete plugins --help\n", argv[i]);
            return false;
        }
    }
    return true;
}

static int print(const struct listing *l, const struct args *args)
{
    bool complete;

    if (args->name && !has_name(l, args->name))
        return fail_name(l, args->name);
    if (args->json)
        complete = print_json(l, args->name);
    else
        complete = args->name ? print_named(l, args->name) : print_table(l, args->why);
    if (!complete && !ferror(stdout)) {
        soq__cli_say("plugins", "out of memory");
        return SOQ_EXIT_FAILED;
    }
    fputs(soq__buf_str(&l->missing), stderr);
    return soq__out_finish("plugins", l->missing.len && !args->name ? SOQ_EXIT_FAILED : SOQ_EXIT_OK);
}

int soq__cmd_plugins(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct listing l = {.settings = NULL};
    struct args args = {.why = false};
    int rc, status;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            soq__out_printf("%s", usage);
            return soq__out_finish("plugins", SOQ_EXIT_OK);
        }
    }
    if (!parse_args(argc, argv, &args))
        return SOQ_EXIT_USAGE;
    rc = open_listing(&l, globals, &err);
    if (rc)
        fprintf(stderr, "soquete plugins: %s\n", err.text);
    if (rc)
        status = rc == -SOQ_ENOMEM ? SOQ_EXIT_FAILED : SOQ_EXIT_USAGE;
    else
        status = print(&l, &args);
    close_listing(&l);
    return status;
}
