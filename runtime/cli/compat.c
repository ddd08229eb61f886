#include "cli/compat.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct {
    const char *title, *text, *key;
    uint32_t trait; /* that excludes it */
} features[] = {
    {"CHUNKED PREFILL", "chunked prefill", "chunked_prefill", SOQ_POLICY_NO_CHUNKS},
    {"DRAFTS", "drafts", "drafts", SOQ_POLICY_NO_DRAFTS},
    {"PREFIX HITS", "prefix hits", "prefix_hits", SOQ_POLICY_NO_PREFIX_HITS},
    {"FORK", "fork", "fork", SOQ_POLICY_NO_FORK},
    {"SAVE AND LOAD", "save and load", "save_and_load", SOQ_POLICY_NO_SAVE},
};

/* The policy of a candidate that can be used; NULL otherwise. */
static const struct soq__plugin_role *policy_of(const struct soq__candidate *c)
{
    if (!c->plugin || c->state == SOQ_CANDIDATE_LOWER || c->state == SOQ_CANDIDATE_REFUSED)
        return NULL;
    return soq__plugin_find_role(c->plugin, SOQ_ROLE_KV_POLICY);
}

void soq__compat_print_table(const struct soq__registry *registry)
{
    int width = (int)strlen("KV POLICY"), n = 0;
    const struct soq__candidate *c;

    for (size_t i = 0; (c = soq__registry_candidate(registry, i)); i++) {
        if (!policy_of(c))
            continue;
        n++;
        width = (int)strlen(c->id) > width ? (int)strlen(c->id) : width;
    }
    if (!n)
        return;
    printf("\n%-*s", width, "KV POLICY");
    for (size_t f = 0; f < COUNT(features); f++)
        printf("  %s", features[f].title);
    putchar('\n');
    for (size_t i = 0; (c = soq__registry_candidate(registry, i)); i++) {
        const struct soq__plugin_role *policy = policy_of(c);

        if (!policy)
            continue;
        printf("%-*s", width, c->id);
        for (size_t f = 0; f < COUNT(features); f++)
            printf("  %-*s", f + 1 < COUNT(features) ? (int)strlen(features[f].title) : 0,
                   policy->ops.kv_policy->traits & features[f].trait ? "no" : "yes");
        putchar('\n');
    }
}

void soq__compat_print_line(uint32_t traits)
{
    bool any = false;

    for (size_t f = 0; f < COUNT(features); f++) {
        if (traits & features[f].trait)
            continue;
        printf("%s%s", any ? ", " : "", features[f].text);
        any = true;
    }
    puts(any ? "" : "nothing of chunked prefill, drafts, prefix hits, fork, save and load");
}

json_t *soq__compat_json(uint32_t traits)
{
    json_t *json = json_object();

    for (size_t f = 0; f < COUNT(features); f++)
        json_object_set_new(json, features[f].key, json_boolean(!(traits & features[f].trait)));
    return json;
}
