#include "cli/compat.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { FEATURES_MAX = 5 };

struct feature {
    const char *title, *text, *key;
    uint32_t trait;    /* that excludes it */
    const char *where; /* it goes all the same; NULL: nowhere */
};

static const struct kind {
    enum soq_role role;
    const char *title;
    struct feature features[FEATURES_MAX]; /* up to one without a title */
} kinds[] = {
    {SOQ_ROLE_KV_POLICY,
     "KV POLICY",
     {
         {"CHUNKED PREFILL", "chunked prefill", "chunked_prefill", SOQ_POLICY_NO_CHUNKS, NULL},
         {"DRAFTS", "drafts", "drafts", SOQ_POLICY_NO_DRAFTS, NULL},
         {"PREFIX HITS", "prefix hits", "prefix_hits", SOQ_POLICY_NO_PREFIX_HITS, NULL},
         {"FORK", "fork", "fork", SOQ_POLICY_NO_FORK, NULL},
         {"SAVE AND LOAD", "save and load", "save_and_load", SOQ_POLICY_NO_SAVE, NULL},
     }},
    {SOQ_ROLE_KV_CODEC,
     "KV CODEC",
     {
         {"POLICIES THAT SELECT", "policies that select entries", "selecting_policies", SOQ_CODEC_NEEDS_POSITIONS,
          "where the format of its tiles does without positions"},
     }},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static bool is_there(const struct kind *k, size_t f)
{
    return f < FEATURES_MAX && k->features[f].title;
}

/* The kind of a role; NULL: it is none of these. */
static const struct kind *kind_of(const struct soq__plugin_role *role)
{
    for (size_t i = 0; role && i < N_KINDS; i++)
        if (kinds[i].role == role->role)
            return &kinds[i];
    return NULL;
}

static uint32_t traits_of(const struct soq__plugin_role *role)
{
    return role->role == SOQ_ROLE_KV_POLICY ? role->ops.kv_policy->traits : role->ops.kv_codec->traits;
}

enum answer { NO, PART, YES };

static enum answer works(const struct soq__plugin_role *role, const struct feature *f)
{
    if (!(traits_of(role) & f->trait))
        return YES;
    return f->where ? PART : NO;
}

/* What a candidate that can be used is of a kind; NULL: nothing. */
static const struct soq__plugin_role *role_of(const struct soq__candidate *c, const struct kind *k)
{
    if (!c->plugin || c->state == SOQ_CANDIDATE_LOWER || c->state == SOQ_CANDIDATE_REFUSED)
        return NULL;
    return soq__plugin_find_role(c->plugin, k->role);
}

static void print_row(const struct soq__candidate *c, const struct soq__plugin_role *role, const struct kind *k, int width,
                      bool why)
{
    static const char *const answers[] = {"no", "part", "yes"};

    printf("%-*s", width, c->id);
    for (size_t f = 0; is_there(k, f); f++)
        printf("  %-*s", is_there(k, f + 1) ? (int)strlen(k->features[f].title) : 0, answers[works(role, &k->features[f])]);
    putchar('\n');
    for (size_t f = 0; why && is_there(k, f); f++)
        if (works(role, &k->features[f]) == PART)
            printf("    %s: %s\n", k->features[f].text, k->features[f].where);
}

static void print_table(const struct soq__registry *registry, const struct kind *k, bool why)
{
    int width = (int)strlen(k->title), n = 0;
    const struct soq__candidate *c;

    for (size_t i = 0; (c = soq__registry_candidate(registry, i)); i++) {
        if (!role_of(c, k))
            continue;
        n++;
        width = (int)strlen(c->id) > width ? (int)strlen(c->id) : width;
    }
    if (!n)
        return;
    printf("\n%-*s", width, k->title);
    for (size_t f = 0; is_there(k, f); f++)
        printf("  %s", k->features[f].title);
    putchar('\n');
    for (size_t i = 0; (c = soq__registry_candidate(registry, i)); i++) {
        const struct soq__plugin_role *role = role_of(c, k);

        if (role)
            print_row(c, role, k, width, why);
    }
}

void soq__compat_print_tables(const struct soq__registry *registry, bool why)
{
    for (size_t i = 0; i < N_KINDS; i++)
        print_table(registry, &kinds[i], why);
}

void soq__compat_print_line(const struct soq__plugin_role *role)
{
    const struct kind *k = kind_of(role);
    bool any = false;

    if (!k)
        return;
    printf("works with ");
    for (size_t f = 0; is_there(k, f); f++) {
        enum answer answer = works(role, &k->features[f]);

        if (answer == NO)
            continue;
        printf("%s%s", any ? ", " : "", k->features[f].text);
        if (answer == PART)
            printf(" %s", k->features[f].where);
        any = true;
    }
    if (!any)
        printf("none of:");
    for (size_t f = 0; !any && is_there(k, f); f++)
        printf("%s %s", f ? "," : "", k->features[f].text);
    putchar('\n');
}

json_t *soq__compat_json(const struct soq__plugin_role *role)
{
    const struct kind *k = kind_of(role);
    json_t *json = k ? json_object() : NULL;

    for (size_t f = 0; k && is_there(k, f); f++) {
        enum answer answer = works(role, &k->features[f]);

        json_object_set_new(json, k->features[f].key, answer == PART ? json_string("part") : json_boolean(answer == YES));
    }
    return json;
}
