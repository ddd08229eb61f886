/* Manifests, discovery, the choice and the checks of the loader, with toys (tests/plugins): a good one and some that each have
 * one thing wrong. */
#include <criterion/criterion.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "config/settings.h"
#include "plugin/cpuid.h"
#include "plugin/dirs.h"
#include "plugin/host.h"
#include "plugin/pluginconf.h"
#include "plugin/registry.h"

#define BASICS "[plugin]\nname = toy\nroles = backend\nlibrary = toy.so\nabi = 0\n"
#define ALL_ROLES "roles = backend, kv_policy, kv_codec, sampler\n"

/* ---- A folder of plugins */

struct box {
    char dir[64];
    struct soq__registry *registry;
};

static void box_open(struct box *b)
{
    snprintf(b->dir, sizeof b->dir, "%s/soquete-test-XXXXXX", P_tmpdir);
    b->registry = NULL;
    cr_assert_not_null(mkdtemp(b->dir));
}

static void put_text(const struct box *b, const char *file, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", b->dir, file);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

/* A manifest file.ini for the toy's library, which is linked into the folder. */
__attribute__((format(printf, 4, 5))) static void put(const struct box *b, const char *file, const char *library,
                                                      const char *fmt, ...)
{
    const char *toys = getenv("SOQ_TEST_TOYS");
    char text[1024], name[64], target[4096], link[256];
    int n = snprintf(text, sizeof text, "[plugin]\nlibrary = %s.so\nabi = 0\n", library);
    va_list args;

    va_start(args, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, args);
    va_end(args);
    snprintf(name, sizeof name, "%s.ini", file);
    put_text(b, name, text);
    snprintf(target, sizeof target, "%s/%s.so", toys ? toys : "tests/plugins/.libs", library);
    snprintf(link, sizeof link, "%s/%s.so", b->dir, library);
    if (access(link, F_OK))
        cr_assert_eq(symlink(target, link), 0);
}

static void box_scan(struct box *b)
{
    const char *dirs[] = {b->dir};
    struct soq__registry_params params = {.dirs = dirs, .n_dirs = 1, .only_dirs = true};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__registry_create(&params, &b->registry, &err), 0, "%s", err.text);
}

static void box_close(struct box *b)
{
    char command[128];

    soq__registry_free(b->registry);
    snprintf(command, sizeof command, "rm -r %s", b->dir);
    cr_assert_eq(system(command), 0);
}

static const struct soq__candidate *candidate(const struct box *b, const char *id)
{
    for (size_t i = 0; i < soq__registry_count(b->registry); i++) {
        const struct soq__candidate *c = soq__registry_candidate(b->registry, i);

        if (strcmp(c->id, id) == 0)
            return c;
    }
    cr_assert_fail("no candidate %s", id);
    return NULL;
}

static void expect_found(const struct box *b, const char *spec, const char *id)
{
    const struct soq__plugin_role *plugin = NULL;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__registry_find(b->registry, SOQ_ROLE_BACKEND, spec, &plugin, &err), 0, "%s", err.text);
    cr_assert_str_eq(plugin->id, id);
}

static void expect_not_found(const struct box *b, enum soq_role role, const char *spec, const char *text)
{
    const struct soq__plugin_role *plugin = NULL;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_lt(soq__registry_find(b->registry, role, spec, &plugin, &err), 0);
    cr_assert_null(plugin);
    cr_expect(strstr(err.text, text), "expected \"%s\" in: %s", text, err.text);
}

/* ---- Manifests */

static int parse(const char *text, struct soq__manifest *m, struct soq_error *err)
{
    *err = (struct soq_error)SOQ_ERROR_INIT;
    return soq__manifest_parse("toy.ini", text, strlen(text), m, err);
}

Test(manifest, complete)
{
    struct soq__manifest m;
    struct soq_error err;
    int64_t live = soq__alloc_live();

    cr_assert_eq(
        parse("; a comment\n[plugin]\nname = toy\nvariant = fast-2\nroles = backend,kv_codec\nlibrary = toy.so\nabi = 0\n"
              "provides = host-ops, more\nrequires-cpu = avx2, fma\nrequires-device = /dev/kfd\npriority = -7\n",
              &m, &err),
        0, "%s", err.text);
    cr_assert_str_eq(m.name, "toy");
    cr_assert_str_eq(m.variant, "fast-2");
    cr_assert_str_eq(m.library, "toy.so");
    cr_assert_eq(m.roles, 1u << SOQ_ROLE_BACKEND | 1u << SOQ_ROLE_KV_CODEC);
    cr_assert_eq(m.priority, -7);
    cr_assert(soq__list_has(m.provides, "host-ops") && soq__list_has(m.provides, "more"));
    cr_assert_not(soq__list_has(m.provides, "host") || soq__list_has(m.provides, ""));
    soq__manifest_done(&m);
    cr_assert_eq(soq__alloc_live(), live);
}

Test(manifest, defaults)
{
    struct soq__manifest m;
    struct soq_error err;

    cr_assert_eq(parse(BASICS, &m, &err), 0, "%s", err.text);
    cr_assert_str_eq(m.variant, "");
    cr_assert_str_eq(m.provides, "");
    cr_assert_str_eq(m.requires_cpu, "");
    cr_assert_str_eq(m.requires_device, "");
    cr_assert_eq(m.priority, 0);
    soq__manifest_done(&m);
}

Test(manifest, errors)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "toy.ini: key \"name\" is missing"},
        {"[plugin]\nname = toy\nroles = backend\nabi = 0\n", "toy.ini: key \"library\" is missing"},
        {"[plugin]\nname = toy\nroles = backend\nlibrary = a.so\n", "toy.ini: key \"abi\" is missing"},
        {"[plugin]\nname = toy\nlibrary = a.so\nabi = 0\n", "toy.ini: key \"roles\" is missing"},
        {BASICS "prioritty = 1\n", "toy.ini:6: unknown key \"prioritty\"; did you mean \"priority\"?"},
        {BASICS "abi = 0\n", "toy.ini:6: abi is already given in line 5"},
        {BASICS "[other]\n", "toy.ini:6: unknown section [other]"},
        {BASICS "priority = 1001\n", "toy.ini:6: priority = 1001: expected an integer"},
        {BASICS "priority = ten\n", "toy.ini:6: priority = ten"},
        {BASICS "requires-device = /etc/passwd\n", "toy.ini:6: requires-device"},
        {BASICS "requires-device = /dev/../etc/passwd\n", "toy.ini:6: requires-device"},
        {BASICS "variant = ../x\n", "toy.ini:6: variant"},
        {"[plugin]\nname = Toy!\n", "toy.ini:2: name = Toy!: expected"},
        {"[plugin]\nname = 9lives\n", "toy.ini:2: name"},
        {"[plugin]\nroles = backend, toaster\n", "toy.ini:2: roles = backend, toaster"},
        {"[plugin]\nroles = backend, backend\n", "toy.ini:2: roles"},
        {"[plugin]\nroles =\n", "toy.ini:2: roles"},
        {"[plugin]\nlibrary = /lib/libc.so.6\n", "toy.ini:2: library = /lib/libc.so.6: expected the name of a file"},
        {"[plugin]\nlibrary = ../toy.so\n", "toy.ini:2: library"},
        {"[plugin]\nlibrary = sub/toy.so\n", "toy.ini:2: library"},
        {"[plugin]\nlibrary = ..\n", "toy.ini:2: library"},
        {"[plugin]\nabi = zero\n", "toy.ini:2: abi = zero"},
        {"[plugin]\nname\n", "toy.ini:2: "},
    };
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq__manifest m = {.priority = 77};
        struct soq_error err;

        cr_expect_lt(parse(cases[i].text, &m, &err), 0, "case %zu is accepted", i);
        cr_expect(strstr(err.text, cases[i].message), "expected \"%s\" in: %s", cases[i].message, err.text);
        cr_expect_eq(m.priority, 77);
    }
    cr_assert_eq(soq__alloc_live(), live);
}

Test(manifest, size_limit)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__manifest m;
    struct box b;
    char path[128], *text = malloc(20001);

    memset(text, '\n', 20000);
    text[20000] = '\0';
    box_open(&b);
    put_text(&b, "big.ini", text);
    snprintf(path, sizeof path, "%s/big.ini", b.dir);
    cr_assert_eq(soq__manifest_read(path, &m, &err), -SOQ_ELIMIT);
    cr_assert_eq(soq__manifest_read(b.dir, &m, &err), -SOQ_EIO);
    box_close(&b);
    free(text);
}

/* ---- The choice */

Test(choice, priority_then_name)
{
    struct box b;

    box_open(&b);
    put(&b, "z", "toy", "name = toy\n" ALL_ROLES "priority = 1\n");
    put(&b, "m", "toy_fast", "name = toy\nvariant = fast\n" ALL_ROLES "priority = 5\n");
    put(&b, "a", "toy_best", "name = toy\nvariant = best\n" ALL_ROLES "priority = 5\n");
    box_scan(&b);
    cr_assert_eq(soq__registry_count(b.registry), 3);
    cr_assert_str_eq(soq__registry_candidate(b.registry, 0)->id, "toy/best");
    cr_assert_str_eq(soq__registry_candidate(b.registry, 1)->id, "toy/fast");
    cr_assert_str_eq(soq__registry_candidate(b.registry, 2)->id, "toy");
    cr_assert_null(soq__registry_candidate(b.registry, 3));

    expect_found(&b, "toy", "toy/best");
    cr_assert_eq(candidate(&b, "toy/best")->state, SOQ_CANDIDATE_CHOSEN);
    cr_assert_eq(candidate(&b, "toy/fast")->state, SOQ_CANDIDATE_LOWER);
    cr_assert_str_eq(candidate(&b, "toy/fast")->reason, "same priority as toy/best, which comes first by name");
    cr_assert_null(candidate(&b, "toy/fast")->plugin, "a library was opened that nobody needs");
    cr_assert_str_eq(candidate(&b, "toy")->reason, "priority 1 is lower than toy/best's 5");

    expect_found(&b, "toy/fast!", "toy/fast");
    cr_assert_eq(candidate(&b, "toy/fast")->state, SOQ_CANDIDATE_CHOSEN);
    cr_assert_eq(candidate(&b, "toy/best")->state, SOQ_CANDIDATE_CHOSEN);
    expect_found(&b, "toy/", "toy");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "toy/fats", "no backend \"toy/fats\" is installed; did you mean \"toy/fast\"?");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "tyo", "did you mean \"toy\"?");
    expect_not_found(&b, SOQ_ROLE_SAMPLER, "standard", "no sampler \"standard\" is installed");
    expect_not_found(&b, SOQ_ROLE_SAMPLER, "standard", b.dir);
    expect_not_found(&b, SOQ_ROLE_BACKEND, "toy!x", "expected NAME");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "", "expected NAME");
    box_close(&b);
}

Test(choice, needs_that_do_not_hold)
{
    struct box b;

    box_open(&b);
    put(&b, "cpu", "toy_best", "name = toy\nvariant = best\n" ALL_ROLES "priority = 9\nrequires-cpu = avx2, sparkle\n");
    put(&b, "dev", "toy_fast", "name = toy\nvariant = fast\n" ALL_ROLES "priority = 8\nrequires-device = /dev/no-such-toy\n");
    put(&b, "dev2", "toy_fast",
        "name = toy\nvariant = fast\n" ALL_ROLES "priority = 7\nrequires-device = /dev/no-toy, /dev/null\n");
    box_scan(&b);
    expect_not_found(&b, SOQ_ROLE_BACKEND, "toy/best", "toy/best: ");
    expect_found(&b, "toy", "toy/fast");
    cr_assert_eq(candidate(&b, "toy/best")->state, SOQ_CANDIDATE_REFUSED);
    cr_assert_null(candidate(&b, "toy/best")->plugin);
    cr_assert_str_eq(candidate(&b, "toy/fast")->reason, "no device file: /dev/no-such-toy");
    box_close(&b);
}

Test(choice, cpu_features)
{
    size_t count;
    const char *const *names = soq__cpu_features(&count);

    cr_assert_not(soq__cpu_has("sparkle"));
    cr_assert_not(soq__cpu_has(""));
    for (size_t i = 0; i < count; i++)
        (void)soq__cpu_has(names[i]);
#ifdef __x86_64__
    cr_assert_eq(soq__cpu_has("avx2"), (bool)__builtin_cpu_supports("avx2"));
    cr_assert_eq(soq__cpu_has("avx512f"), (bool)__builtin_cpu_supports("avx512f"));
    cr_assert_eq(soq__cpu_has("fma"), (bool)__builtin_cpu_supports("fma"));
    cr_assert(soq__cpu_has("sse2"));
    if (soq__cpu_has("x86-64-v4"))
        cr_assert(soq__cpu_has("x86-64-v3") && soq__cpu_has("avx512vl"));
    if (soq__cpu_has("x86-64-v3"))
        cr_assert(soq__cpu_has("x86-64-v2") && soq__cpu_has("avx2") && soq__cpu_has("f16c"));
#endif
}

Test(choice, directories_in_order)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct box a, b;
    const char *dirs[] = {a.dir, b.dir, a.dir}, *missing[] = {"/no/such/dir"};
    struct soq__registry_params params = {.dirs = dirs, .n_dirs = 3, .only_dirs = true};
    struct soq__registry_params bad = {.config_dirs = missing, .n_config_dirs = 1, .only_dirs = true};
    struct soq__registry *r = NULL;

    box_open(&a);
    box_open(&b);
    put(&a, "toy", "toy", "name = toy\n" ALL_ROLES);
    put(&b, "toy", "toy", "name = toy\n" ALL_ROLES);
    cr_assert_eq(soq__registry_create(&params, &b.registry, &err), 0, "%s", err.text);
    cr_assert_eq(soq__registry_count(b.registry), 2, "a directory was read twice");
    expect_found(&b, "toy", "toy");
    cr_assert_eq(strncmp(soq__registry_candidate(b.registry, 0)->manifest_path, a.dir, strlen(a.dir)), 0);
    cr_assert(strstr(soq__registry_candidate(b.registry, 1)->reason, "comes first"));
    cr_assert_eq(soq__registry_create(&bad, &r, &err), -SOQ_ENOTFOUND);
    cr_assert(strstr(err.text, "[runtime] plugin_dir: plugin directory /no/such/dir: No such file"), "%s", err.text);
    box_close(&a);
    box_close(&b);
}

static size_t n_dirs(const struct soq__registry_params *params, bool privileged, const char *dir)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__dirs dirs;
    size_t count = 0;

    cr_assert_eq(soq__dirs_init(&dirs, params, privileged, &err), 0, "%s", err.text);
    for (size_t i = 0; i < dirs.count; i++)
        count += strcmp(dirs.paths[i], dir) == 0;
    soq__dirs_done(&dirs);
    return count;
}

Test(choice, environment)
{
    struct soq__registry_params only = {.only_dirs = true};
    struct soq_error err = SOQ_ERROR_INIT;
    char value[256], searched[256];
    struct box b;

    box_open(&b);
    snprintf(value, sizeof value, "/no/such/dir:%s", b.dir);
    setenv(SOQ_PLUGIN_PATH_ENV, value, 1);
    cr_assert_not(soq__is_privileged());
    cr_assert_eq(n_dirs(NULL, false, b.dir), 1);
    cr_assert_eq(n_dirs(NULL, true, b.dir), 0, "a privileged process believes the environment");
    cr_assert_eq(n_dirs(&only, false, b.dir), 0);
    snprintf(searched, sizeof searched, "searched: /no/such/dir (No such file or directory), %s", b.dir);
    cr_assert_eq(soq__registry_create(NULL, &b.registry, &err), 0, "%s", err.text);
    expect_not_found(&b, SOQ_ROLE_BACKEND, "missing", searched);
    box_close(&b);
}

Test(choice, never_the_current_directory)
{
    static const char *const values[] = {"", ":", ".", ":.:", "./:", "x/../."};
    struct box b;

    box_open(&b);
    put(&b, "toy", "toy", "name = toy\n" ALL_ROLES);
    cr_assert_eq(chdir(b.dir), 0);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv(SOQ_PLUGIN_PATH_ENV, values[i], 1);
        cr_assert_eq(n_dirs(NULL, false, b.dir), 0, "\"%s\"", values[i]);
    }
    cr_assert_eq(chdir("/"), 0);
    box_close(&b);
}

/* ---- Libraries that must be refused */

static void expect_refused(const char *library, const char *manifest, const char *reason)
{
    const struct soq__candidate *c;
    struct box b;
    char spec[64];

    box_open(&b);
    put(&b, "bad", library, "%s", manifest);
    put(&b, "good", "toy_best", "name = toy\nvariant = best\n" ALL_ROLES "priority = -1\n");
    box_scan(&b);
    c = soq__registry_candidate(b.registry, 0);
    snprintf(spec, sizeof spec, "toy/%s", c->manifest.variant);
    expect_not_found(&b, SOQ_ROLE_BACKEND, spec, reason);
    cr_assert_eq(c->state, SOQ_CANDIDATE_REFUSED);
    cr_assert_null(c->plugin);
    cr_expect(strstr(c->reason, reason), "%s: expected \"%s\" in: %s", library, reason, c->reason);
    expect_found(&b, "toy", "toy/best"); /* one bad plugin spoils no other */
    box_close(&b);
}

#define BAD "name = toy\nvariant = bad\n" ALL_ROLES

Test(refused, before_the_library)
{
    struct box b;

    box_open(&b);
    put_text(&b, "abi.ini", "[plugin]\nname = toy\nroles = backend\nlibrary = toy.so\nabi = 1\n");
    put_text(&b, "gone.ini", "[plugin]\nname = gone\nroles = backend\nlibrary = gone.so\nabi = 0\n");
    put_text(&b, "empty.ini", "[plugin]\nname = empty\nroles = backend\nlibrary = empty.so\nabi = 0\n");
    put_text(&b, "text.ini", "[plugin]\nname = text\nroles = backend\nlibrary = text.so\nabi = 0\n");
    put_text(&b, "wrong.ini", "[plugin]\nname = wrong\nrole = backend\n");
    put_text(&b, "empty.so", "");
    put_text(&b, "text.so", "This is no library, but it is longer than an ELF header, which is sixty-four bytes.");
    put_text(&b, ".hidden.ini", "");
    put_text(&b, "notes.txt", "");
    box_scan(&b);
    cr_assert_eq(soq__registry_count(b.registry), 5);
    expect_not_found(&b, SOQ_ROLE_BACKEND, "toy", "abi 1, but this host speaks 0");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "gone", "no such file: ");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "empty", "cannot open: ");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "empty", "file too short");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "text", "invalid ELF header");
    expect_not_found(&b, SOQ_ROLE_BACKEND, "missing", "4 plugins found, 1 unreadable manifests");
    cr_assert(
        strstr(soq__registry_candidate(b.registry, 4)->reason, "wrong.ini:3: unknown key \"role\"; did you mean \"roles\"?"));
    box_close(&b);
}

Test(refused, symbol)
{
    expect_refused("toy_symbol", BAD, "no symbol soquete_plugin_v0");
}

Test(refused, undefined_symbol)
{
    expect_refused("toy_undefined", BAD, "soq__toy_missing");
}

Test(refused, abi)
{
    expect_refused("toy_abi", BAD, "the library has ABI 1, but this host speaks 0");
}

Test(refused, small_descriptor)
{
    expect_refused("toy_size", BAD, "descriptor too small: 48 bytes");
}

Test(refused, null_string)
{
    expect_refused("toy_null", BAD, "name, variant, version, summary and licence must not be NULL");
}

Test(refused, stride)
{
    expect_refused("toy_stride", BAD, "role stride is 24");
}

Test(refused, name)
{
    expect_refused("toy_name", "name = toy\nvariant = bad\n" ALL_ROLES, "name = toy, but the library is \"doll\"");
}

Test(refused, variant)
{
    expect_refused("toy_fast", "name = toy\nvariant = slow\n" ALL_ROLES, "variant = slow, but the library is \"fast\"");
}

Test(refused, roles)
{
    expect_refused("toy_fast", "name = toy\nvariant = fast\nroles = backend, sampler\n",
                   "roles = backend, sampler, but the library has backend, kv_policy, kv_codec, sampler");
}

#define TOP "name = toy\npriority = 1\n" ALL_ROLES

Test(refused, minors)
{
    char later[96], needed[96];

    snprintf(later, sizeof later, "role backend: it was built for minor %d, this host has %d", SOQ_BACKEND_MINOR + 1,
             SOQ_BACKEND_MINOR);
    snprintf(needed, sizeof needed, "role backend: it needs minor 9, but this host has %d", SOQ_BACKEND_MINOR);
    expect_refused("toy_minor", TOP, later);
    expect_refused("toy_min_minor", TOP, needed);
}

Test(refused, reserved_role)
{
    expect_refused("toy_reserved", "name = toy\npriority = 1\nroles = backend, kv_policy, kv_codec, sampler, drafter\n",
                   "role drafter: the role is reserved");
    expect_refused("toy_twice", TOP, "role sampler is there twice");
}

Test(refused, tables)
{
    expect_refused("toy_slot", TOP, "role backend: slot backend.begin is required and NULL");
    expect_refused("toy_pair", TOP, "role backend: slot memory.buffer_free is required and NULL");
    expect_refused("toy_tables", TOP, "role backend: table memory comes without table matmul");
    expect_refused("toy_ops", TOP, "role backend: table memory has 24 bytes; its required slots need 56");
    expect_refused("toy_state", TOP, "role kv_policy: kv_policy.state_size is 16");
}

Test(refused, option)
{
    expect_refused("toy_option", TOP, "role backend: ");
}

/* ---- Loaded plugins */

Test(loaded, every_role)
{
    static const enum soq_role roles[] = {SOQ_ROLE_BACKEND, SOQ_ROLE_KV_POLICY, SOQ_ROLE_KV_CODEC, SOQ_ROLE_SAMPLER};
    int64_t live = soq__alloc_live();
    struct box b;

    box_open(&b);
    put(&b, "toy", "toy", "name = toy\nprovides = host-ops\n" ALL_ROLES);
    box_scan(&b);
    for (size_t i = 0; i < 4; i++) {
        const struct soq__plugin_role *p;
        struct soq_error err = SOQ_ERROR_INIT;

        cr_assert_eq(soq__registry_find(b.registry, roles[i], "toy", &p, &err), 0, "%s", err.text);
        cr_assert_eq(p->role, roles[i]);
        cr_assert_str_eq(p->version, "1.0");
        cr_assert_eq(p->n_options, 4);
        cr_assert_str_eq(p->options[1].key, "size");
        cr_assert(soq__plugin_provides(p, "host-ops"));
    }
    box_close(&b);
    cr_assert_eq(soq__alloc_live(), live);
}

Test(loaded, gaps_are_filled)
{
    const struct soq__plugin_role *p;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_scale_args scale = {.struct_size = sizeof scale};
    struct soq_add_args add = {.struct_size = sizeof add};
    struct box b;

    box_open(&b);
    put(&b, "toy", "toy", "name = toy\n" ALL_ROLES);
    box_scan(&b);
    cr_assert_eq(soq__registry_find(b.registry, SOQ_ROLE_BACKEND, "toy", &p, &err), 0, "%s", err.text);
    cr_assert_eq(p->native_ops, 1u << SOQ_OP_MATMUL | 1u << SOQ_OP_ADD);
    cr_assert_null(p->ops.backend->attention);
    cr_assert_eq(p->ops.backend->elementwise->scale(NULL, &scale), -SOQ_EUNSUPPORTED);
    cr_assert_eq(p->ops.backend->elementwise->add(NULL, &add), 0);
    cr_assert_eq(soq__registry_find(b.registry, SOQ_ROLE_KV_POLICY, "toy", &p, &err), 0);
    cr_assert_null(p->ops.kv_policy->on_commit);
    p->ops.kv_policy->shutdown(NULL);
    box_close(&b);
}

Test(loaded, other_sizes)
{
    const struct soq__plugin_role *p;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_add_args add = {.struct_size = sizeof add};
    struct box b;

    box_open(&b);
    put(&b, "skew", "toy_skew", "name = skew\nroles = sampler, backend\n");
    box_scan(&b);
    cr_assert_eq(soq__registry_find(b.registry, SOQ_ROLE_BACKEND, "skew", &p, &err), 0, "%s", err.text);
    cr_assert_eq(p->native_ops, 0, "a field beyond the plugin's table was read");
    cr_assert_null(p->ops.backend->matmul);
    cr_assert_eq(p->ops.backend->elementwise->struct_size, sizeof(struct soq_elementwise_ops));
    cr_assert_eq(p->ops.backend->elementwise->add(NULL, &add), -SOQ_EUNSUPPORTED);
    cr_assert_eq(soq__registry_find(b.registry, SOQ_ROLE_SAMPLER, "skew", &p, &err), 0);
    cr_assert_eq(p->n_options, 0);
    box_close(&b);
}

Test(loaded, libtool_folder)
{
    char command[256];
    struct box b;

    box_open(&b);
    put(&b, "toy", "toy", "name = toy\n" ALL_ROLES);
    snprintf(command, sizeof command, "cd %s && mkdir .libs && mv toy.so .libs/", b.dir);
    cr_assert_eq(system(command), 0);
    box_scan(&b);
    expect_found(&b, "toy", "toy");
    cr_assert(strstr(candidate(&b, "toy")->library_path, "/.libs/toy.so"));
    box_close(&b);
}

/* ---- Configuration */

Test(config, defaults_and_types)
{
    const struct soq__plugin_role *p;
    struct soq__plugin_config c;
    struct soq_error err = SOQ_ERROR_INIT;
    struct box b;

    box_open(&b);
    put(&b, "toy", "toy", "name = toy\n" ALL_ROLES);
    box_scan(&b);
    cr_assert_eq(soq__registry_find(b.registry, SOQ_ROLE_SAMPLER, "toy", &p, &err), 0);
    cr_assert_eq(soq__plugin_config_init(&c, p, NULL, &err), 0, "%s", err.text);
    cr_assert_str_eq(c.section, "decoding.toy");
    cr_assert_str_eq(c.view.get_string(c.view.ctx, "colour"), "red");
    cr_assert_eq(c.view.get_int(c.view.ctx, "size"), 1024);
    cr_assert_eq(c.view.get_int(c.view.ctx, "dry"), 1);
    cr_assert_float_eq(c.view.get_float(c.view.ctx, "gloss"), 0.5, 1e-9);
    cr_assert_eq(c.view.get_int(c.view.ctx, "colour"), 0);
    cr_assert_eq(c.view.get_int(c.view.ctx, "no-such-key"), 0);
    cr_assert_str_eq(c.view.get_string(c.view.ctx, "gloss"), "");
    cr_assert_str_eq(c.view.get_string(c.view.ctx, NULL), "");
    soq__plugin_config_done(&c);
    box_close(&b);
}

/* ---- Backends */

static char logged[4096];

static void remember(void *user, int level, const char *text)
{
    (void)user;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s: %s\n",
             soq__log_level_text((enum soq_log_level)level), text);
}

struct bench {
    struct box box;
    struct soq__host host;
    struct soq__settings *settings;
    struct soq__backend_choice choices[SOQ_BACKENDS_MAX];
    size_t count;
    struct soq_error err;
};

static void bench_open(struct bench *t)
{
    *t = (struct bench){.err = SOQ_ERROR_INIT};
    box_open(&t->box);
    put(&t->box, "toy", "toy", "name = toy\n" ALL_ROLES);
    put(&t->box, "fast", "toy_fast", "name = toy\nvariant = fast\npriority = 3\n" ALL_ROLES);
    put(&t->box, "empty", "toy_empty", "name = empty\n" ALL_ROLES);
    put(&t->box, "bad", "toy_name", "name = bad\n" ALL_ROLES);
    box_scan(&t->box);
    soq__host_init(&t->host, NULL);
    soq__log_install(remember, NULL, SOQ_LOG_DEBUG);
    cr_assert_eq(soq__settings_create(&t->settings, &t->err), 0);
}

static void bench_close(struct bench *t)
{
    soq__settings_free(t->settings);
    box_close(&t->box);
}

static int choose(struct bench *t, const char *first, const char *second)
{
    const char *use[] = {first, second};

    return soq__registry_choose_backends(t->box.registry, use, second ? 2 : 1, t->settings, &t->host.services, t->choices,
                                         &t->count, &t->err);
}

Test(backends, optional_ones_are_left_out_loudly)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(choose(&t, "empty", "toy"), 0, "%s", t.err.text);
    cr_assert_eq(t.count, 1);
    cr_assert_str_eq(t.choices[0].plugin->id, "toy/fast");
    cr_assert_eq(t.choices[0].n_devices, 1);
    cr_assert_str_eq(t.choices[0].devices[0].name, "red");
    cr_assert(strstr(logged, "warning: backend empty is left out: no usable backend \"empty\": empty: the toy box is empty\n"),
              "%s", logged);
    cr_assert(strstr(logged, "debug: toy: devices\n"));
    cr_assert(strstr(logged, "info: backend toy/fast is chosen: asked for, and the best; "), "%s", logged);
    cr_assert_eq(candidate(&t.box, "empty")->state, SOQ_CANDIDATE_ABSENT);
    cr_assert_str_eq(candidate(&t.box, "empty")->reason, "the toy box is empty");
    bench_close(&t);
}

Test(backends, required_ones_stop)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(choose(&t, "empty!", "toy"), -SOQ_ENOTFOUND);
    cr_assert_str_eq(t.err.text, "backend empty! is required: no usable backend \"empty\": empty: the toy box is empty");
    cr_assert_eq(choose(&t, "toy", "cuda!"), -SOQ_ENOTFOUND);
    cr_assert(strstr(t.err.text, "backend cuda! is required: no backend \"cuda\" is installed"), "%s", t.err.text);
    bench_close(&t);
}

Test(backends, none_left)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(choose(&t, "empty", "bad"), -SOQ_ENOTFOUND);
    cr_assert(strstr(t.err.text, "the toy box is empty") && strstr(t.err.text, "the library is \"doll\""), "%s", t.err.text);
    cr_assert_eq(choose(&t, "toy", "toy/fast"), -SOQ_EINVAL);
    cr_assert_str_eq(t.err.text, "[backend] use: toy is there twice");
    cr_assert_eq(choose(&t, "toy/", NULL), 0);
    cr_assert_str_eq(t.choices[0].plugin->id, "toy");
    bench_close(&t);
}

Test(backends, settings_reach_the_plugin)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(soq__settings_set(t.settings, "backend.toy", "colour", "green", &t.err), 0, "%s", t.err.text);
    cr_assert_eq(soq__settings_set(t.settings, "backend.toy", "size", "2KiB", &t.err), 0, "%s", t.err.text);
    cr_assert_eq(choose(&t, "toy", NULL), 0, "%s", t.err.text);
    cr_assert_str_eq(t.choices[0].devices[0].name, "green");
    cr_assert_eq(t.choices[0].devices[0].memory_total, 2048);
    bench_close(&t);
}

Test(backends, wrong_settings_are_fatal)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(soq__settings_set(t.settings, "backend.toy", "color", "green", &t.err), 0, "%s", t.err.text);
    cr_assert_eq(choose(&t, "toy", "empty"), -SOQ_EINVAL);
    cr_assert(strstr(t.err.text, "colour"), "%s", t.err.text);
    bench_close(&t);
}

/* ---- The report */

Test(report, try_all)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct bench t;

    bench_open(&t);
    cr_assert_eq(soq__registry_try_all(t.box.registry, &err), 0, "%s", err.text);
    cr_assert_eq(candidate(&t.box, "toy/fast")->state, SOQ_CANDIDATE_USABLE);
    cr_assert_eq(candidate(&t.box, "toy")->state, SOQ_CANDIDATE_LOWER);
    cr_assert_str_eq(candidate(&t.box, "toy")->reason, "priority 0 is lower than toy/fast's 3");
    cr_assert_not_null(candidate(&t.box, "toy")->plugin);
    cr_assert_eq(candidate(&t.box, "bad")->state, SOQ_CANDIDATE_REFUSED);
    cr_assert_str_eq(soq__candidate_state_text(SOQ_CANDIDATE_USABLE), "not needed");
    bench_close(&t);
}

Test(report, sections_of_installed_plugins_are_known)
{
    struct bench t;

    bench_open(&t);
    cr_assert_eq(soq__settings_set(t.settings, "kv.toy", "colour", "green", &t.err), 0);
    cr_assert_lt(soq__settings_check_unclaimed(t.settings, &t.err), 0);
    cr_assert_eq(soq__registry_claim_sections(t.box.registry, t.settings, &t.err), 0, "%s", t.err.text);
    cr_assert_eq(soq__settings_check_unclaimed(t.settings, &t.err), 0, "%s", t.err.text);
    cr_assert_eq(soq__settings_set(t.settings, "kv.tyo", "colour", "green", &t.err), 0);
    cr_assert_lt(soq__settings_check_unclaimed(t.settings, &t.err), 0);
    bench_close(&t);
}

/* ---- Every allocation fails once */

static int whole_life(const struct box *b)
{
    const char *dirs[] = {b->dir}, *use[] = {"empty", "toy!"};
    struct soq__registry_params params = {.dirs = dirs, .n_dirs = 1, .only_dirs = true};
    struct soq__registry *r = NULL;
    struct soq__backend_choice choices[SOQ_BACKENDS_MAX];
    const struct soq__plugin_role *plugin;
    struct soq__host host;
    struct soq_error err = SOQ_ERROR_INIT;
    size_t count;
    int rc = soq__registry_create(&params, &r, &err);

    soq__host_init(&host, NULL);
    if (!rc)
        rc = soq__registry_choose_backends(r, use, 2, NULL, &host.services, choices, &count, &err);
    if (!rc)
        rc = soq__registry_find(r, SOQ_ROLE_SAMPLER, "toy", &plugin, &err);
    if (!rc)
        rc = soq__registry_try_all(r, &err);
    cr_assert(!rc || strlen(err.text) > 0);
    soq__registry_free(r);
    return rc;
}

Test(torture, registry)
{
    int64_t live = soq__alloc_live();
    struct bench t;
    uint64_t n = 0;
    int rc;

    bench_open(&t);
    cr_assert_eq(whole_life(&t.box), 0);
    live = soq__alloc_live();
    do {
        soq__alloc_fail_at(++n, false);
        rc = whole_life(&t.box);
        soq__alloc_fail_at(0, false);
        cr_assert(rc == 0 || rc == -SOQ_ENOMEM, "allocation %lu: %d", (unsigned long)n, rc);
        cr_assert_eq(soq__alloc_live(), live, "allocation %lu leaks", (unsigned long)n);
    } while (rc == -SOQ_ENOMEM && n < 10000);
    cr_assert_gt(n, 50);
    cr_assert_lt(n, 10000);
    bench_close(&t);
}
