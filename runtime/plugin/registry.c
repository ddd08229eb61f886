/* Scanning directories, and the choice among candidates. */
#include "plugin/registry.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/nearest.h"
#include "config/settings.h"
#include "plugin/candidate.h"
#include "plugin/dirs.h"
#include "plugin/pluginconf.h"

#define CANDIDATES_MAX 1024
#define NAME_SIZE 64

struct soq__registry {
    struct soq__candidate **items; /* in order of preference */
    size_t count;
    struct soq__dirs dirs;
};

/* "name[/variant][!]" */
struct query {
    enum soq_role role;
    char name[NAME_SIZE];
    char variant[NAME_SIZE];
    bool forced;   /* a variant is given */
    bool required; /* ! */
};

/* ---- Life */

static int add(struct soq__registry *r, size_t rank, const char *file, struct soq_error *err)
{
    const char *dir = r->dirs.paths[rank];
    struct soq__candidate **items;
    int rc;

    if (r->count == CANDIDATES_MAX)
        return soq__fail(err, SOQ_ELIMIT, "%s: more than %d manifests in all plugin directories", dir, CANDIDATES_MAX);
    items = soq__realloc_array(r->items, r->count + 1, sizeof(struct soq__candidate *));
    if (!items)
        return soq__fail(err, SOQ_ENOMEM, "plugins: out of memory");
    r->items = items;
    rc = soq__candidate_create(dir, rank, file, &items[r->count], err);
    r->count += !rc;
    return rc;
}

static bool is_manifest(const char *file)
{
    size_t n = strlen(file);

    return file[0] != '.' && n > 4 && strcmp(file + n - 4, ".ini") == 0;
}

static int scan(struct soq__registry *r, size_t rank, struct soq_error *err)
{
    DIR *dir = opendir(r->dirs.paths[rank]);
    const struct dirent *entry;
    int rc = 0;

    while (dir && !rc && (entry = readdir(dir))) {
        if (is_manifest(entry->d_name))
            rc = add(r, rank, entry->d_name, err);
    }
    if (dir)
        closedir(dir);
    return rc;
}

int soq__registry_create(const struct soq__registry_params *params, struct soq__registry **registry_out, struct soq_error *err)
{
    struct soq__registry *r = soq__alloc_zero(1, sizeof *r);
    int rc;

    if (!r)
        return soq__fail(err, SOQ_ENOMEM, "plugins: out of memory");
    rc = soq__dirs_init(&r->dirs, params, soq__is_privileged(), err);
    for (size_t i = 0; i < r->dirs.count && !rc; i++)
        rc = scan(r, i, err);
    if (rc) {
        soq__registry_free(r);
        return rc;
    }
    if (r->count)
        qsort(r->items, r->count, sizeof(struct soq__candidate *), soq__candidate_compare);
    *registry_out = r;
    return 0;
}

void soq__registry_free(struct soq__registry *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        soq__candidate_free(r->items[i]);
    soq__free(r->items);
    soq__dirs_done(&r->dirs);
    soq__free(r);
}

size_t soq__registry_count(const struct soq__registry *r)
{
    return r->count;
}

const struct soq__candidate *soq__registry_candidate(const struct soq__registry *r, size_t index)
{
    return index < r->count ? r->items[index] : NULL;
}

/* ---- Queries */

static int parse_query(enum soq_role role, const char *spec, struct query *q, struct soq_error *err)
{
    size_t len = strlen(spec), n = strcspn(spec, "/!");
    const char *variant = spec[n] == '/' ? spec + n + 1 : "";
    size_t variant_len = strcspn(variant, "!");
    const char *end = spec[n] == '/' ? variant + variant_len : spec + n;

    *q = (struct query){.role = role, .forced = spec[n] == '/', .required = *end == '!'};
    if (!n || n >= NAME_SIZE || variant_len >= NAME_SIZE || end + q->required != spec + len)
        return soq__fail(err, SOQ_EINVAL, "%s \"%.100s\": expected NAME or NAME/VARIANT", soq__role_name(role), spec);
    memcpy(q->name, spec, n);
    memcpy(q->variant, variant, variant_len);
    return 0;
}

static bool has_role(const struct soq__candidate *c, enum soq_role role)
{
    return c->readable && (c->manifest.roles & 1u << role);
}

static bool matches(const struct soq__candidate *c, const struct query *q)
{
    return has_role(c, q->role) && strcmp(c->manifest.name, q->name) == 0 &&
           (!q->forced || strcmp(c->manifest.variant, q->variant) == 0);
}

/* Says what is there instead, and where that was looked for. */
static int fail_unknown(const struct soq__registry *r, const struct query *q, struct soq_error *err)
{
    const char *names[2 * CANDIDATES_MAX], *near;
    const char *role = soq__role_name(q->role), *slash = q->forced ? "/" : "";
    const char *searched = r->dirs.searched.len ? soq__buf_str(&r->dirs.searched) : "no directory";
    size_t count = 0, unreadable = 0;
    char wanted[2 * NAME_SIZE + 1];

    for (size_t i = 0; i < r->count; i++) {
        unreadable += !r->items[i]->readable;
        if (has_role(r->items[i], q->role)) {
            names[count++] = r->items[i]->manifest.name;
            names[count++] = r->items[i]->id;
        }
    }
    snprintf(wanted, sizeof wanted, "%s%s%s", q->name, slash, q->variant);
    near = soq__nearest(wanted, names, count);
    if (near)
        return soq__fail(err, SOQ_ENOTFOUND, "no %s \"%s\" is installed; did you mean \"%s\"? (searched: %s)", role, wanted,
                         near, searched);
    return soq__fail(err, SOQ_ENOTFOUND,
                     "no %s \"%s\" is installed (%zu plugins found, %zu unreadable manifests); `soquete plugins` "
                     "lists them, --plugin-dir adds a directory; searched: %s",
                     role, wanted, r->count - unreadable, unreadable, searched);
}

static int fail_unusable(const struct query *q, const struct soq_buf *reasons, struct soq_error *err)
{
    return soq__fail(err, SOQ_ENOTFOUND, "no usable %s \"%s%s%s\": %s", soq__role_name(q->role), q->name, q->forced ? "/" : "",
                     q->variant, soq__buf_str(reasons));
}

static void add_reason(struct soq_buf *reasons, const char *who, const char *why)
{
    size_t n = strlen(who);
    bool named = strncmp(why, who, n) == 0 && why[n] == ':'; /* messages of plugins often begin so */

    soq__buf_printf(reasons, "%s%s%s%s", reasons->len ? "; " : "", named ? "" : who, named ? "" : ": ", why);
}

/* ---- The choice */

/* Why other was left for chosen. */
static void set_lower(struct soq__candidate *other, const struct soq__candidate *chosen, bool forced)
{
    int priority = chosen->manifest.priority;

    if (strcmp(other->id, chosen->id) == 0)
        soq__candidate_set(other, SOQ_CANDIDATE_LOWER, "%s comes first", chosen->manifest_path);
    else if (forced)
        soq__candidate_set(other, SOQ_CANDIDATE_LOWER, "%s was asked for", chosen->id);
    else if (other->manifest.priority == priority)
        soq__candidate_set(other, SOQ_CANDIDATE_LOWER, "same priority as %s, which comes first by name", chosen->id);
    else
        soq__candidate_set(other, SOQ_CANDIDATE_LOWER, "priority %d is lower than %s's %d", other->manifest.priority,
                           chosen->id, priority);
}

/* passed: those that come earlier and cannot be used, with the reasons. */
static void set_chosen(struct soq__registry *r, struct soq__candidate *chosen, const struct query *q,
                       const struct soq_buf *passed)
{
    bool news = chosen->state != SOQ_CANDIDATE_CHOSEN;

    soq__candidate_set(chosen, SOQ_CANDIDATE_CHOSEN, "%s",
                       q->forced ? "asked for by name and variant" : "asked for, and the best");
    if (news)
        soq__log(SOQ_LOG_INFO, "%s %s is chosen: %s; %s%s%s", soq__role_name(q->role), chosen->id, chosen->reason,
                 chosen->library_path, passed->len ? "; passed over: " : "", soq__buf_str(passed));
    for (size_t i = 0; i < r->count; i++) {
        struct soq__candidate *other = r->items[i];
        bool open = other->state == SOQ_CANDIDATE_UNTRIED || other->state == SOQ_CANDIDATE_USABLE;

        if (open && has_role(other, q->role) && strcmp(other->manifest.name, q->name) == 0)
            set_lower(other, chosen, q->forced);
    }
}

int soq__registry_find(struct soq__registry *r, enum soq_role role, const char *spec,
                       const struct soq__plugin_role **plugin_out, struct soq_error *err)
{
    struct soq_error why = SOQ_ERROR_INIT;
    struct soq_buf reasons = SOQ_BUF_INIT;
    struct query q;
    int rc = parse_query(role, spec, &q, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < r->count; i++) {
        struct soq__candidate *c = r->items[i];

        if (!matches(c, &q))
            continue;
        rc = soq__candidate_load(c, &why);
        if (rc == 0) {
            set_chosen(r, c, &q, &reasons);
            *plugin_out = soq__plugin_find_role(c->plugin, role);
            goto out;
        }
        if (rc == -SOQ_ENOMEM) {
            soq__fail(err, SOQ_ENOMEM, "%s: %s", c->id, why.text);
            goto out;
        }
        add_reason(&reasons, c->id, why.text);
    }
    rc = reasons.len ? fail_unusable(&q, &reasons, err) : fail_unknown(r, &q, err);
out:
    soq__buf_done(&reasons);
    return rc;
}

/* ---- Backends: the choice goes on until one has a device */

/* 0: choice is filled. 1: this one has none, why says so. Negative: the configuration is wrong or memory is short. */
static int ask_devices(struct soq__candidate *c, struct soq__settings *settings, const struct soq_host *host,
                       struct soq__backend_choice *choice, struct soq_error *why)
{
    const struct soq__plugin_role *plugin = soq__plugin_find_role(c->plugin, SOQ_ROLE_BACKEND);
    struct soq__plugin_config config;
    uint32_t count = 0;
    int rc = soq__plugin_config_init(&config, plugin, settings, why);

    if (rc)
        return rc;
    *choice = (struct soq__backend_choice){.plugin = plugin};
    for (uint32_t i = 0; i < SOQ_DEVICES_MAX; i++)
        choice->devices[i].struct_size = sizeof choice->devices[i];
    rc = plugin->ops.backend->devices(host, &config.view, choice->devices, sizeof choice->devices[0], SOQ_DEVICES_MAX, &count,
                                      why);
    soq__plugin_config_done(&config);
    why->text[sizeof why->text - 1] = '\0';
    choice->n_devices = count < SOQ_DEVICES_MAX ? count : SOQ_DEVICES_MAX;
    if (rc == -SOQ_ENOMEM)
        return rc;
    if (!rc && count)
        return 0;
    if (!*why->text)
        soq__fail(why, SOQ_ENOTFOUND, "it found no device");
    soq__candidate_set(c, SOQ_CANDIDATE_ABSENT, "%s", why->text);
    return 1;
}

/* 0: chosen. 1: no candidate will do, err has the reasons. Negative: nothing can be chosen until the cause is mended. */
static int choose_backend(struct soq__registry *r, const struct query *q, struct soq__settings *settings,
                          const struct soq_host *host, struct soq__backend_choice *choice, struct soq_error *err)
{
    struct soq_buf reasons = SOQ_BUF_INIT;
    int rc = 1;

    for (size_t i = 0; i < r->count && rc == 1; i++) {
        struct soq_error why = SOQ_ERROR_INIT;
        struct soq__candidate *c = r->items[i];

        if (!matches(c, q))
            continue;
        rc = soq__candidate_load(c, &why);
        if (!rc)
            rc = ask_devices(c, settings, host, choice, &why);
        else if (rc != -SOQ_ENOMEM)
            rc = 1;
        if (!rc)
            set_chosen(r, c, q, &reasons);
        else if (rc < 0)
            soq__fail(err, (enum soq_error_code) - rc, "%s", why.text);
        else
            add_reason(&reasons, c->id, why.text);
    }
    if (rc == 1 && reasons.len)
        fail_unusable(q, &reasons, err);
    else if (rc == 1)
        fail_unknown(r, q, err);
    soq__buf_done(&reasons);
    return rc;
}

static int check_repeated(const char *const *use, size_t index, const struct query *q, struct soq_error *err)
{
    for (size_t i = 0; i < index; i++) {
        if (strcspn(use[i], "/!") == strlen(q->name) && memcmp(use[i], q->name, strlen(q->name)) == 0)
            return soq__fail(err, SOQ_EINVAL, "[backend] use: %s is there twice", q->name);
    }
    return 0;
}

int soq__registry_choose_backends(struct soq__registry *r, const char *const *use, size_t n_use, struct soq__settings *settings,
                                  const struct soq_host *host, struct soq__backend_choice *choices, size_t *count_out,
                                  struct soq_error *err)
{
    struct soq_buf reasons = SOQ_BUF_INIT;
    size_t count = 0;
    int rc = 0;

    if (n_use > SOQ_BACKENDS_MAX)
        return soq__fail(err, SOQ_ELIMIT, "[backend] use: %zu backends; at most %d", n_use, SOQ_BACKENDS_MAX);
    for (size_t i = 0; i < n_use && rc >= 0; i++) {
        struct soq_error why = SOQ_ERROR_INIT;
        struct query q;

        rc = parse_query(SOQ_ROLE_BACKEND, use[i], &q, err);
        if (!rc)
            rc = check_repeated(use, i, &q, err);
        if (rc)
            break;
        rc = choose_backend(r, &q, settings, host, &choices[count], &why);
        if (!rc)
            choices[count++].required = q.required;
        if (rc < 0) {
            soq__fail(err, (enum soq_error_code) - rc, "%s", why.text);
        } else if (rc && q.required) {
            rc = soq__fail(err, SOQ_ENOTFOUND, "backend %s is required: %s", use[i], why.text);
        } else if (rc) {
            soq__log(SOQ_LOG_WARN, "backend %s is left out: %s", use[i], why.text);
            soq__buf_printf(&reasons, "%s%s", reasons.len ? "; " : "", why.text);
        }
    }
    if (rc >= 0)
        rc = count ? 0 : soq__fail(err, SOQ_ENOTFOUND, "[backend] use: none can be used: %s", soq__buf_str(&reasons));
    if (!rc)
        *count_out = count;
    soq__buf_done(&reasons);
    return rc;
}

int soq__registry_claim_sections(const struct soq__registry *r, struct soq__settings *settings, struct soq_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < r->count && !rc; i++) {
        const struct soq__candidate *c = r->items[i];

        for (uint32_t role = 1; role <= SOQ_ROLE_COMM && !rc; role++) {
            const char *family = soq__role_section((enum soq_role)role);
            char section[2 * NAME_SIZE];

            if (!family || !has_role(c, (enum soq_role)role))
                continue;
            snprintf(section, sizeof section, "%s.%s", family, c->manifest.name);
            rc = soq__settings_claim(settings, section, err);
            if (rc && rc != -SOQ_ENOMEM) {
                soq__log(SOQ_LOG_WARN, "plugin %s has no section: %s", c->id, err ? err->text : section);
                rc = 0;
            }
        }
    }
    return rc;
}

/* ---- The report */

/* The candidate before `index` that is preferred to it for all its roles, if any was tried with success. */
static struct soq__candidate *preferred(const struct soq__registry *r, size_t index)
{
    const struct soq__candidate *c = r->items[index];

    for (size_t i = 0; i < index; i++) {
        struct soq__candidate *other = r->items[i];
        bool usable = other->state == SOQ_CANDIDATE_CHOSEN || other->state == SOQ_CANDIDATE_USABLE;

        if (usable && strcmp(other->manifest.name, c->manifest.name) == 0 &&
            (other->manifest.roles & c->manifest.roles) == c->manifest.roles)
            return other;
    }
    return NULL;
}

int soq__registry_try_all(struct soq__registry *r, struct soq_error *err)
{
    for (size_t i = 0; i < r->count; i++) {
        struct soq__candidate *c = r->items[i], *better;
        struct soq_error why = SOQ_ERROR_INIT;
        int rc = soq__candidate_load(c, &why);

        if (rc == -SOQ_ENOMEM)
            return soq__fail(err, SOQ_ENOMEM, "%s: %s", c->id, why.text);
        if (rc || c->state != SOQ_CANDIDATE_UNTRIED)
            continue;
        better = preferred(r, i);
        if (better)
            set_lower(c, better, false);
        else
            soq__candidate_set(c, SOQ_CANDIDATE_USABLE, "it can be loaded, but the configuration does not ask for it");
    }
    return 0;
}
