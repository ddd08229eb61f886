/* Settings: the INI dialect, typed values, messages, origins, plugins' sections, and etc/soquete.ini. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "config/ini.h"
#include "config/schema.h"
#include "config/settings.h"
#include "tests/unit/support.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define OPTION(type_, key_, default_, ...)                                                                                     \
    {                                                                                                                          \
        .struct_size = sizeof(struct soq_option), .type = type_, .key = key_, .default_value = default_, .help = "Help.",      \
        __VA_ARGS__                                                                                                            \
    }

/* A plugin's table with one option of each type. */
static const struct soq_option window_options[] = {
    OPTION(SOQ_OPT_INT, "size", "1024", .min = 1, .max = 4096),
    OPTION(SOQ_OPT_INT, "any", "-9223372036854775808", .max = -1),
    OPTION(SOQ_OPT_FLOAT, "share", "0.5", .min = 0, .max = 1),
    OPTION(SOQ_OPT_FLOAT, "positive", "1", .min = 0, .max = INFINITY),
    OPTION(SOQ_OPT_FLOAT, "negative", "-1", .min = -INFINITY, .max = 0),
    OPTION(SOQ_OPT_BOOL, "strict", "no"),
    OPTION(SOQ_OPT_STRING, "label", ""),
    OPTION(SOQ_OPT_ENUM, "mode", "slow", .choices = "slow|fast|fastest"),
    OPTION(SOQ_OPT_SIZE, "bytes", "4KiB", .max = -1),
    OPTION(SOQ_OPT_PATH, "file", ""),
};

static struct soq__settings *new_settings(void)
{
    struct soq__settings *s = NULL;

    cr_assert_eq(soq__settings_create(&s, NULL), 0);
    return s;
}

static struct soq__settings *parsed(const char *text)
{
    struct soq__settings *s = new_settings();
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__settings_parse(s, "etc/soquete.ini", text, strlen(text), &err), 0, "%s", err.text);
    return s;
}

static int add_window(struct soq__settings *s, struct soq_error *err)
{
    return soq__settings_add_schema(s, "kv.window", window_options, COUNT(window_options), sizeof *window_options, err);
}

static const char *string_of(const struct soq__settings *s, const char *section, const char *key)
{
    return soq__settings_string(s, section, key);
}

static const char *origin_of(const struct soq__settings *s, const char *section, const char *key)
{
    return soq__settings_find(s, section, key)->origin;
}

/* ---- The dialect */

struct seen {
    char text[8192]; /* "section.key=value@line;" of each entry */
    size_t longest;
};

static int record(void *user, const struct soq__ini_entry *e, struct soq_error *err)
{
    struct seen *seen = user;
    size_t n = strlen(seen->text);

    (void)err;
    if (!e->key) {
        snprintf(seen->text + n, sizeof seen->text - n, "[%s]@%u;", e->section, e->line);
        return 0;
    }
    snprintf(seen->text + n, sizeof seen->text - n, "%s.%s=%s@%u;", e->section, e->key, e->value, e->line);
    seen->longest = strlen(e->value) > seen->longest ? strlen(e->value) : seen->longest;
    return 0;
}

Test(ini, accepts)
{
    static const struct {
        const char *text, *seen;
    } cases[] = {
        {"", ""},
        {"\xef\xbb\xbf", ""},
        {"\n\n# c\n;c\n   ; c\n\t\n", ""},
        {"[a]\nk=v", "[a]@1;a.k=v@2;"},
        {"[a]\nk = v\n", "[a]@1;a.k=v@2;"},
        {"\xef\xbb\xbf[a]\nk = v\n", "[a]@1;a.k=v@2;"},
        {"[a]\r\n\r\nk = v\r\n", "[a]@1;a.k=v@3;"},
        {"[a]\nk: v\n", "[a]@1;a.k=v@2;"},
        {"[a]\nk = x:y=z\n", "[a]@1;a.k=x:y=z@2;"},
        {"[a]\nk =\n", "[a]@1;a.k=@2;"},
        {"[a]\nk = ; none\n", "[a]@1;a.k=@2;"},
        {"[a]\nk = v ; comment\n", "[a]@1;a.k=v@2;"},
        {"[a]\nk = v\t;comment\n", "[a]@1;a.k=v@2;"},
        {"[a]\nk = a;b #c\n", "[a]@1;a.k=a;b #c@2;"},
        {"[a]\n  k = v\n\t  l = w  \n", "[a]@1;a.k=v@2;a.l=w@3;"},
        {"[ a ] ; comment\nk = v\n", "[a]@1;a.k=v@2;"},
        {"[a]# comment\n", "[a]@1;"},
        {"[a]\n[b]\n[a]\nk=1\n", "[a]@1;[b]@2;[a]@3;a.k=1@4;"},
        {"[a]\nk = \"quoted\"\n", "[a]@1;a.k=\"quoted\"@2;"},
        {"[a]\nk = caf\xc3\xa9\n", "[a]@1;a.k=caf\xc3\xa9@2;"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct seen seen = {.text = ""};
        int rc = soq__ini_parse("f.ini", cases[i].text, strlen(cases[i].text), record, &seen, &err);

        cr_expect_eq(rc, 0, "case %zu: %s", i, err.text);
        cr_expect_str_eq(seen.text, cases[i].seen, "case %zu: %s", i, seen.text);
    }
}

#define BAD(text_, code_, ...)                                                                                                 \
    {                                                                                                                          \
        .text = text_, .size = sizeof(text_) - 1, .code = code_, .parts = { __VA_ARGS__ }                                      \
    }

struct bad {
    const char *text;
    size_t size;
    int code;
    const char *parts[6]; /* what the message must contain */
};

static void expect_parts(const char *text, const char *const parts[6], size_t i)
{
    for (size_t j = 0; j < 6 && parts[j]; j++)
        cr_expect(strstr(text, parts[j]) != NULL, "case %zu: '%s' lacks '%s'", i, text, parts[j]);
}

Test(ini, refuses)
{
    static const struct bad cases[] = {
        BAD("[a]\nk\n", SOQ_EINVAL, "f.ini:2: ", "key = value"),
        BAD("[a]\nk = v\n  more\n", SOQ_EINVAL, "f.ini:3: ", "cannot continue"),
        BAD("[a]\nk = v\nmore\n[b]\nx = ]\nagain", SOQ_EINVAL, "f.ini:3: "),
        BAD("[a]\nk ; = v\n", SOQ_EINVAL, "f.ini:2: "),
        BAD("[a]\nlast", SOQ_EINVAL, "f.ini:2: "),
        BAD("[a\nk = v\n", SOQ_EINVAL, "f.ini:1: ", "']' is missing"),
        BAD("[a] k = v\n", SOQ_EINVAL, "f.ini:1: ", "after the section"),
        BAD("[]\n", SOQ_EINVAL, "f.ini:1: ", "name is missing"),
        BAD("[ ]\n", SOQ_EINVAL, "f.ini:1: ", "name is missing"),
        BAD("[a]\n= v\n", SOQ_EINVAL, "f.ini:2: ", "name is missing"),
        BAD("\n\nk = v\n", SOQ_EINVAL, "f.ini:3: ", "before the first [section]"),
        BAD("[a]\nk = \xff\n", SOQ_EINVAL, "f.ini:2: ", "UTF-8"),
        BAD("[a]\nk = \xc3\n", SOQ_EINVAL, "f.ini:2: ", "UTF-8"),
        BAD("# \xed\xa0\x80\n", SOQ_EINVAL, "f.ini:1: ", "UTF-8"),
        BAD("[a]\nk = a\0b\n", SOQ_EINVAL, "f.ini:2: ", "control character"),
        BAD("\0", SOQ_EINVAL, "f.ini:1: ", "control character"),
        BAD("[a]\nk = a\rb\n", SOQ_EINVAL, "f.ini:2: ", "control character"),
        BAD("[a]\nk = \x1b[0m\n", SOQ_EINVAL, "f.ini:2: ", "control character"),
        BAD("[\0a]\n", SOQ_EINVAL, "f.ini:1: ", "control character"),
        BAD("\xff\xfe[\0a\0]\0", SOQ_EINVAL, "f.ini:1: "),
        BAD("[a123456789012345678901234567890123456789012345678901234567890123456789]\n", SOQ_ELIMIT, "f.ini:1: ", "64 bytes"),
        BAD("[a]\na123456789012345678901234567890123456789012345678901234567890123456789=1\n", SOQ_ELIMIT, "f.ini:2: "),
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct seen seen = {.text = ""};
        int rc = soq__ini_parse("f.ini", cases[i].text, cases[i].size, record, &seen, &err);

        cr_expect_eq(rc, -cases[i].code, "case %zu: %d", i, rc);
        expect_parts(err.text, cases[i].parts, i);
    }
}

/* Lines on both sides of inih's limit read alike, whatever part of the line is long. */
Test(ini, long_lines)
{
    static const size_t lengths[] = {150, 190, 195, 196, 197, 198, 199, 200, 201, 202, 255, 256, 5000, 65536};
    static const char *const forms[] = {"k = %s", "k = %s ; comment", "  k: %s\r", "k = v ;%s", "; %s", "[b] ; %s", "k%s"};

    for (size_t i = 0; i < COUNT(lengths); i++) {
        for (size_t f = 0; f < COUNT(forms); f++) {
            char *line = soq__alloc(lengths[i] + 100), *text = soq__alloc(lengths[i] + 100);
            size_t fill = lengths[i] - (strlen(forms[f]) - 2);
            char *filling = soq__alloc(fill + 1);
            struct seen seen = {.text = ""};
            struct soq_error err = SOQ_ERROR_INIT;
            int rc;

            memset(filling, 'x', fill);
            filling[fill] = '\0';
            sprintf(line, forms[f], filling);
            cr_assert_eq(strlen(line), lengths[i]);
            sprintf(text, "[a]\n%s\nlast = 1\n", line);
            rc = soq__ini_parse("f.ini", text, strlen(text), record, &seen, &err);
            if (f == 6) {
                cr_expect_eq(rc, -SOQ_EINVAL);
                cr_expect_str_eq(err.text, "f.ini:2: neither [section], key = value nor a comment (a value cannot continue on "
                                           "a second line)");
            } else {
                cr_expect_eq(rc, 0, "%s", err.text);
                cr_expect_eq(seen.longest, f < 3 ? fill : 1);
                cr_expect(lengths[i] > 5000 || strstr(seen.text, ".last=1@3;"), "form %zu: %s", f, seen.text);
            }
            soq__free(line);
            soq__free(text);
            soq__free(filling);
        }
    }
}

Test(ini, limits)
{
    size_t n = SOQ_INI_LINE_MAX + 1;
    char *text = soq__alloc(n + 5);
    struct seen seen = {.text = ""};
    struct soq_error err = SOQ_ERROR_INIT;

    memcpy(text, "[a]\nk=", 6);
    memset(text + 6, 'x', n - 2);
    cr_expect_eq(soq__ini_parse("f.ini", text, 4 + n, record, &seen, &err), -SOQ_ELIMIT);
    cr_expect_str_eq(err.text, "f.ini:2: the line is longer than 64 KiB");
    cr_expect_eq(soq__ini_parse("f.ini", text, 3 + n, record, &seen, &err), 0);
    cr_expect_eq(seen.longest, n - 3);
    soq__free(text);
}

/* A value that inih holds and the same value on a line that it cannot hold. */
Test(ini, long_and_short_agree)
{
    static const char *const values[] = {"v", "v ;c", ";v", "a;b", " ;", "a ; b ; c", "a = b", "a:b", "[x]", "#", "a\t;b"};

    for (size_t i = 0; i < COUNT(values); i++) {
        char shorter[64], longer[512];
        struct seen a = {.text = ""}, b = {.text = ""};

        snprintf(shorter, sizeof shorter, "[a]\nk =%s\n", values[i]);
        snprintf(longer, sizeof longer, "[a]\nk =%s%*s;%0200d\n", values[i], 4, " ", 7);
        cr_expect_eq(soq__ini_parse("f", shorter, strlen(shorter), record, &a, NULL), 0);
        cr_expect_eq(soq__ini_parse("f", longer, strlen(longer), record, &b, NULL), 0);
        cr_expect_str_eq(a.text, b.text);
    }
}

/* ---- Settings: good values */

Test(settings, defaults)
{
    int64_t live = soq__alloc_live();
    struct soq__settings *s = new_settings();
    size_t count = 0;

    cr_expect_eq(soq__settings_file(s), NULL);
    cr_expect_eq(soq__settings_int(s, "engine", "step_tokens"), 512);
    cr_expect_eq(soq__settings_size(s, "kv", "memory"), 0u);
    cr_expect_eq(soq__settings_choice(s, "runtime", "log_level"), (unsigned)SOQ_LOG_WARN);
    cr_expect_str_eq(string_of(s, "kv", "policy"), "full");
    cr_expect_str_eq(string_of(s, "model", "path"), "");
    cr_expect_str_eq(soq__settings_list(s, "backend", "use", &count)[0], "cpu");
    cr_expect_eq(count, 1u);
    cr_expect_eq(soq__settings_list(s, "runtime", "plugin_dir", &count)[0], NULL);
    cr_expect_eq(count, 0u);
    for (size_t i = 0; i < soq__core_key_count; i++) {
        cr_expect_eq(soq__settings_at(s, i)->spec.option.type, soq__core_keys[i].spec.option.type);
        cr_expect_str_eq(soq__settings_at(s, i)->origin, "default");
    }
    cr_expect_eq(soq__settings_at(s, soq__core_key_count), NULL);
    soq__settings_free(s);
    soq__settings_free(NULL);
    cr_expect_eq(soq__alloc_live(), live);
}

Test(settings, file_and_flags)
{
    static const char text[] =
        "[kv]\npolicy = window ; keeps little\nmemory = 4 GiB\n[backend]\nuse = cuda!, cpu/avx2 ,opencl\n"
        "[runtime]\nplugin_dir = a, /b/c\n[model]\npath = m, 1.gguf\n";
    struct soq__settings *s = parsed(text);
    size_t count = 0;
    const char *const *use = soq__settings_list(s, "backend", "use", &count);

    cr_expect_eq(count, 3u);
    cr_expect_str_eq(use[0], "cuda!");
    cr_expect_str_eq(use[1], "cpu/avx2");
    cr_expect_str_eq(use[2], "opencl");
    cr_expect_eq(use[3], NULL);
    cr_expect_str_eq(string_of(s, "backend", "use"), "cuda!, cpu/avx2, opencl");
    cr_expect_eq(soq__settings_size(s, "kv", "memory"), UINT64_C(4) << 30);
    cr_expect_str_eq(string_of(s, "runtime", "plugin_dir"), "etc/a, /b/c");
    cr_expect_str_eq(string_of(s, "model", "path"), "etc/m, 1.gguf");
    cr_expect_str_eq(origin_of(s, "kv", "policy"), "etc/soquete.ini:2");
    cr_expect_str_eq(origin_of(s, "kv", "codec_k"), "default");
    cr_expect_eq(soq__settings_override(s, "--kv.policy=snapkv", NULL), 0);
    cr_expect_eq(soq__settings_override(s, "kv.policy=h2o", NULL), 0);
    cr_expect_eq(soq__settings_override(s, "--model.path=x=y.gguf", NULL), 0);
    cr_expect_eq(soq__settings_set(s, "model", "context", "64", NULL), 0);
    cr_expect_str_eq(string_of(s, "kv", "policy"), "h2o");
    cr_expect_str_eq(origin_of(s, "kv", "policy"), "command line");
    cr_expect_str_eq(string_of(s, "model", "path"), "x=y.gguf");
    cr_expect_eq(soq__settings_int(s, "model", "context"), 64);
    soq__settings_free(s);
}

/* A flag wins, whether it comes before the file or after it. */
Test(settings, flag_before_file)
{
    static const char text[] = "[kv]\npolicy = window\n[kv.window]\nsize = 7\n";
    struct soq__settings *s = new_settings();

    cr_expect_eq(soq__settings_override(s, "--kv.policy=h2o", NULL), 0);
    cr_expect_eq(soq__settings_override(s, "--kv.window.size=9", NULL), 0);
    cr_expect_eq(soq__settings_parse(s, "f.ini", text, strlen(text), NULL), 0);
    cr_expect_str_eq(string_of(s, "kv", "policy"), "h2o");
    cr_expect_eq(add_window(s, NULL), 0);
    cr_expect_eq(soq__settings_int(s, "kv.window", "size"), 9);
    cr_expect_str_eq(origin_of(s, "kv.window", "size"), "command line");
    soq__settings_free(s);
}

Test(settings, is_flag)
{
    cr_expect(soq__settings_is_flag("--kv.policy=full"));
    cr_expect(soq__settings_is_flag("--kv.policy"));
    cr_expect_not(soq__settings_is_flag("--temp=0.5"));
    cr_expect_not(soq__settings_is_flag("--help"));
    cr_expect_not(soq__settings_is_flag("kv.policy=full"));
    cr_expect_not(soq__settings_is_flag("-m"));
    cr_expect_not(soq__settings_is_flag("--"));
    cr_expect_not(soq__settings_is_flag(""));
}

Test(settings, typed_values)
{
    static const struct {
        const char *key, *text;
        double number;
    } cases[] = {
        {"size", "1", 1},
        {"size", "4096", 4096},
        {"size", "+7", 7},
        {"any", "9223372036854775807", 9223372036854775807.0},
        {"any", "-0", 0},
        {"share", "0", 0},
        {"share", "1", 1},
        {"share", "2.5e-1", 0.25},
        {"share", ".5", 0.5},
        {"positive", "1e308", 1e308},
        {"negative", "-1e308", -1e308},
        {"strict", "yes", 1},
        {"strict", "true", 1},
        {"strict", "on", 1},
        {"strict", "1", 1},
        {"strict", "off", 0},
        {"strict", "false", 0},
        {"strict", "0", 0},
        {"mode", "slow", 0},
        {"mode", "fastest", 2},
        {"bytes", "0", 0},
        {"bytes", "17", 17},
        {"bytes", "17B", 17},
        {"bytes", "3KiB", 3 * 1024.0},
        {"bytes", "3 MiB", 3 * 1048576.0},
        {"bytes", "3gib", 3 * 1073741824.0},
        {"bytes", "2TiB", 2 * 1099511627776.0},
        {"bytes", "3kB", 3e3},
        {"bytes", "3MB", 3e6},
        {"bytes", "3GB", 3e9},
        {"bytes", "3TB", 3e12},
        {"bytes", "9223372036854775807", 9223372036854775807.0},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct soq__settings *s = new_settings();
        struct soq_error err = SOQ_ERROR_INIT;
        const struct soq__setting *set;
        double got;

        cr_assert_eq(add_window(s, NULL), 0);
        cr_expect_eq(soq__settings_set(s, "kv.window", cases[i].key, cases[i].text, &err), 0, "%s", err.text);
        set = soq__settings_find(s, "kv.window", cases[i].key);
        switch ((enum soq_option_type)set->spec.option.type) {
        case SOQ_OPT_INT:
            got = (double)soq__settings_int(s, "kv.window", cases[i].key);
            break;
        case SOQ_OPT_FLOAT:
            got = soq__settings_float(s, "kv.window", cases[i].key);
            break;
        case SOQ_OPT_BOOL:
            got = soq__settings_bool(s, "kv.window", cases[i].key);
            break;
        case SOQ_OPT_SIZE:
            got = (double)soq__settings_size(s, "kv.window", cases[i].key);
            break;
        default:
            got = soq__settings_choice(s, "kv.window", cases[i].key);
        }
        cr_expect_eq(got, cases[i].number, "%s = %s gives %g", cases[i].key, cases[i].text, got);
        cr_expect_str_eq(set->value.text, cases[i].text);
        soq__settings_free(s);
    }
}

/* ---- Settings: bad files and flags */

Test(settings, refuses_core)
{
    static const struct bad cases[] = {
        BAD("[kv]\npolcy = full\n", SOQ_EINVAL, "f.ini:2: [kv] polcy = full: ", "unknown key; did you mean 'policy'?"),
        BAD("[kv]\nzzz = 1\n", SOQ_EINVAL, "f.ini:2: [kv] zzz = 1: ", "unknown key; [kv] has: policy, codec, codec_k, codec_v"),
        BAD("[kv]\nPolicy = 1\n", SOQ_EINVAL, "did you mean 'policy'?"),
        BAD("\n\n[bakend]\n", SOQ_EINVAL, "f.ini:3: [bakend]: ", "did you mean [backend]?"),
        BAD("[bakend.cpu]\nthreads = 1\n", SOQ_EINVAL, "f.ini:1: [bakend.cpu]: ", "did you mean [backend.cpu]?"),
        BAD("[backend.]\n", SOQ_EINVAL, "f.ini:1: [backend.]: ", "did you mean [backend]?"),
        BAD("[xyzzy]\n", SOQ_EINVAL,
            "unknown section; there are runtime, model, engine, backend, kv, decoding, draft, backend.NAME"),
        BAD("[model.x]\n", SOQ_EINVAL, "f.ini:1: [model.x]: unknown section; there are"),
        BAD("[kv.layers]\n0-1 = policy:full\n0-1 = policy:full\n", SOQ_EINVAL, "f.ini:3: [kv.layers] 0-1",
            "already set at f.ini:2"),
        BAD("[kv]\npolicy = full\n\n[model]\n[kv]\npolicy = full\n", SOQ_EINVAL, "f.ini:6: [kv] policy = full: ", "f.ini:2"),
        BAD("[kv.window]\nsize = 1\nsize = 2\n", SOQ_EINVAL, "f.ini:3: [kv.window] size = 2: ", "already set at f.ini:2"),
        BAD("[kv]\nblock_tokens = 24\n", SOQ_EINVAL, "f.ini:2: [kv] block_tokens = 24: ", "power of two"),
        BAD("[kv]\nblock_tokens = 4\n", SOQ_EINVAL, "out of range; expected an integer, 8 to 256"),
        BAD("[kv]\nblock_tokens = 512\n", SOQ_EINVAL, "out of range; expected an integer, 8 to 256"),
        BAD("[kv]\nblock_tokens = x\n", SOQ_EINVAL, "not an integer; expected an integer, 8 to 256"),
        BAD("[kv]\nmemory = 4G\n", SOQ_EINVAL, "f.ini:2: [kv] memory = 4G: not a size; ", "KiB, MiB, GiB"),
        BAD("[engine]\nchunk =\n", SOQ_EINVAL, "f.ini:2: [engine] chunk = : not an integer"),
        BAD("[engine]\nchunk = 0\n", SOQ_EINVAL, "expected an integer, 1 to 65536"),
        BAD("[runtime]\nlog_level = inf\n", SOQ_EINVAL, "not one of error|warn|info|debug; did you mean 'info'?"),
        BAD("[runtime]\nlog_level = loud\n", SOQ_EINVAL, "no such choice; expected one of error|warn|info|debug"),
        BAD("[runtime]\nplugin_dir = a,,b\n", SOQ_EINVAL, "f.ini:2: [runtime] plugin_dir = a,,b: ", "is empty"),
        BAD("[backend]\nuse =\n", SOQ_EINVAL, "f.ini:2: [backend] use = : no backend is named"),
        BAD("[backend]\nuse = a b\n", SOQ_EINVAL, "f.ini:2: ", "not a list of backends"),
        BAD("[backend]\nuse = a/\n", SOQ_EINVAL, "not a list of backends"),
        BAD("[backend]\nuse = !a\n", SOQ_EINVAL, "not a list of backends"),
        BAD("[backend]\nuse = a!!\n", SOQ_EINVAL, "not a list of backends"),
        BAD("[backend]\nuse = a,\n", SOQ_EINVAL, "is empty"),
        BAD("[backend]\nuse = a\nuse\n", SOQ_EINVAL, "f.ini:3: "),
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t live = soq__alloc_live();
        struct soq__settings *s = new_settings();
        struct soq_error err = SOQ_ERROR_INIT;
        int rc = soq__settings_parse(s, "f.ini", cases[i].text, cases[i].size, &err);

        cr_expect_eq(rc, -cases[i].code, "case %zu: %d %s", i, rc, err.text);
        expect_parts(err.text, cases[i].parts, i);
        soq__settings_free(s);
        cr_expect_eq(soq__alloc_live(), live, "case %zu leaks", i);
    }
}

Test(settings, refuses_flags)
{
    static const struct bad cases[] = {
        BAD("--kv.polcy=full", SOQ_EINVAL, "--kv.polcy=full: unknown key; did you mean 'policy'?"),
        BAD("--kvv.policy=full", SOQ_EINVAL, "--kvv.policy=full: unknown section; did you mean [kv]?"),
        BAD("--engine.chunk=-1", SOQ_EINVAL, "--engine.chunk=-1: out of range"),
        BAD("--kv.policy", SOQ_EINVAL, "--kv.policy: expected --SECTION.KEY=VALUE"),
        BAD("--policy=a.b", SOQ_EINVAL, "--policy=a.b: expected --SECTION.KEY=VALUE"),
        BAD("--.=", SOQ_EINVAL, "unknown section"),
        BAD("--kv.=1", SOQ_EINVAL, "unknown key"),
        BAD("--kv.policy=a\nb", SOQ_EINVAL, "--kv.policy: the value is not plain UTF-8 text"),
        BAD("--kv.policy=\xff", SOQ_EINVAL, "--kv.policy: the value is not plain UTF-8 text"),
        BAD("--kv.window.size=0", SOQ_EINVAL, "--kv.window.size=0: out of range; expected an integer, 1 to 4096"),
        BAD("--kv.window.any=9223372036854775808", SOQ_EINVAL, "out of range; expected an integer"),
        BAD("--kv.window.any=0x10", SOQ_EINVAL, "not an integer"),
        BAD("--kv.window.any=-", SOQ_EINVAL, "not an integer"),
        BAD("--kv.window.any= 1", SOQ_EINVAL, "not an integer"),
        BAD("--kv.window.share=1.0001", SOQ_EINVAL, "out of range; expected a number, 0 to 1"),
        BAD("--kv.window.share=nan", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.positive=inf", SOQ_EINVAL, "not a finite decimal number; expected a number, at least 0"),
        BAD("--kv.window.positive=1e309", SOQ_EINVAL, "out of range"),
        BAD("--kv.window.positive=-1", SOQ_EINVAL, "out of range; expected a number, at least 0"),
        BAD("--kv.window.negative=1", SOQ_EINVAL, "out of range; expected a number, at most 0"),
        BAD("--kv.window.share=0x1p-1", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.share=0,5", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.share=1e", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.share=e", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.share=", SOQ_EINVAL, "not a finite decimal number"),
        BAD("--kv.window.strict=maybe", SOQ_EINVAL, "neither yes nor no"),
        BAD("--kv.window.strict=", SOQ_EINVAL, "neither yes nor no"),
        BAD("--kv.window.mode=Fast", SOQ_EINVAL, "did you mean 'fast'?"),
        BAD("--kv.window.bytes=", SOQ_EINVAL, "not a size"),
        BAD("--kv.window.bytes=KiB", SOQ_EINVAL, "not a size"),
        BAD("--kv.window.bytes=-1", SOQ_EINVAL, "not a size"),
        BAD("--kv.window.bytes=1.5GiB", SOQ_EINVAL, "not a size"),
        BAD("--kv.window.bytes=1KiBB", SOQ_EINVAL, "not a size"),
        BAD("--kv.window.bytes=9223372036854775808", SOQ_EINVAL, "out of range"),
        BAD("--kv.window.bytes=18446744073709551616", SOQ_EINVAL, "out of range"),
        BAD("--kv.window.bytes=9000000TiB", SOQ_EINVAL, "out of range"),
        BAD("--kv.window.bytes=18014398509481985KiB", SOQ_EINVAL, "out of range"),
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct soq__settings *s = new_settings();
        struct soq_error err = SOQ_ERROR_INIT;
        int rc;

        cr_assert_eq(add_window(s, NULL), 0);
        rc = soq__settings_override(s, cases[i].text, &err);
        cr_expect_eq(rc, -cases[i].code, "case %zu: %d %s", i, rc, err.text);
        expect_parts(err.text, cases[i].parts, i);
        soq__settings_free(s);
    }
}

/* A long value does not push the reason out of the message, and is not cut inside a code point. */
Test(settings, long_value_in_message)
{
    char text[4096] = "[engine]\nchunk = x";
    struct soq__settings *s = new_settings();
    struct soq_error err = SOQ_ERROR_INIT;

    for (size_t i = 0; i < 1500; i++)
        strcat(text, "\xc3\xa9");
    cr_expect_eq(soq__settings_parse(s, "f.ini", text, strlen(text), &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "\xc3\xa9...: not an integer; expected an integer, 1 to 65536"), "%s", err.text);
    soq__settings_free(s);
}

Test(settings, one_file)
{
    struct soq__settings *s = parsed("");
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq__settings_load(s, "other.ini", &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "other.ini: the settings already come from etc/soquete.ini");
    soq__settings_free(s);
}

Test(settings, too_many)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__settings *s = new_settings();

    soq__buf_puts(&text, "[kv.x]\n");
    for (int i = 0; i < 257; i++)
        soq__buf_printf(&text, "k%d = 1\n", i);
    cr_expect_eq(soq__settings_parse(s, "f.ini", text.data, text.len, &err), -SOQ_ELIMIT);
    cr_expect_str_eq(err.text, "f.ini:258: [kv.x] k256 = 1: more than 256 keys in section 'kv.x'");
    soq__settings_free(s);
    s = new_settings();
    soq__buf_clear(&text);
    for (int i = 0; i < 128; i++)
        soq__buf_printf(&text, "[kv.x%d]\n", i);
    cr_expect_eq(soq__settings_parse(s, "f.ini", text.data, text.len, &err), -SOQ_ELIMIT);
    cr_expect(strstr(err.text, "more than 128 sections"));
    soq__settings_free(s);
    soq__buf_done(&text);
}

/* ---- Plugins' sections */

Test(settings, schema)
{
    struct soq__settings *s = parsed("[kv.window]\nsize = 7\nfile = x.bin\nbytes = 1MiB\n[kv.other]\na = b\n");
    const struct soq__setting *set = soq__settings_find(s, "kv.window", "size");
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect(!set->known);
    cr_expect_str_eq(set->value.text, "7");
    cr_expect_str_eq(set->origin, "etc/soquete.ini:2");
    cr_expect_eq(add_window(s, &err), 0, "%s", err.text);
    cr_expect_eq(soq__settings_int(s, "kv.window", "size"), 7);
    cr_expect_eq(soq__settings_size(s, "kv.window", "bytes"), 1048576u);
    cr_expect_str_eq(string_of(s, "kv.window", "file"), "etc/x.bin");
    cr_expect_str_eq(string_of(s, "kv.window", "mode"), "slow");
    cr_expect_str_eq(origin_of(s, "kv.window", "size"), "etc/soquete.ini:2");
    cr_expect_str_eq(origin_of(s, "kv.window", "mode"), "default");
    cr_expect_eq(add_window(s, &err), 0, "the same table again");
    cr_expect_eq(soq__settings_add_schema(s, "kv.window", window_options, 1, sizeof *window_options, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "[kv.window]: another plugin gave this section other options");
    cr_expect_eq(soq__settings_override(s, "--kv.window.szie=1", &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "--kv.window.szie=1: unknown key; did you mean 'size'?");
    soq__settings_free(s);
}

/* A wrong value in the file is an error even where a flag overrides it; a refused table changes nothing. */
Test(settings, schema_refuses)
{
    static const struct {
        const char *text, *flag, *message;
    } cases[] = {
        {"[kv.window]\nszie = 1\n", NULL, "f.ini:2: [kv.window] szie = 1: unknown key; did you mean 'size'?"},
        {"[kv.window]\nsize = 0\n", NULL, "f.ini:2: [kv.window] size = 0: out of range; expected an integer, 1 to 4096"},
        {"[kv.window]\nsize = 0\n", "kv.window.size=1",
         "f.ini:2: [kv.window] size = 0: out of range; expected an integer, 1 to 4096"},
        {"", "kv.window.size=x", "--kv.window.size=x: not an integer; expected an integer, 1 to 4096"},
        {"", "kv.window.siz=1", "--kv.window.siz=1: unknown key; did you mean 'size'?"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct soq__settings *s = new_settings();
        struct soq_error err = SOQ_ERROR_INIT;

        cr_assert_eq(soq__settings_parse(s, "f.ini", cases[i].text, strlen(cases[i].text), &err), 0);
        if (cases[i].flag)
            cr_assert_eq(soq__settings_override(s, cases[i].flag, &err), 0);
        cr_expect_eq(add_window(s, &err), -SOQ_EINVAL);
        cr_expect_str_eq(err.text, cases[i].message);
        cr_expect_eq(soq__settings_at(s, soq__core_key_count)->known, false);
        cr_expect_eq(soq__settings_at(s, soq__core_key_count + 1), NULL);
        cr_expect_eq(soq__settings_check_unclaimed(s, &err), -SOQ_EINVAL);
        soq__settings_free(s);
    }
}

Test(settings, schema_must_be_sound)
{
    static const struct {
        const char *section, *message;
        struct soq_option options[2];
    } cases[] = {
        {"kv", "[kv]: unknown section", {OPTION(SOQ_OPT_INT, "a", "1")}},
        {"kv.layers", "[kv.layers]: the section is the core's", {OPTION(SOQ_OPT_INT, "a", "1")}},
        {"kv.x", "options of [kv.x]: an option's struct_size is 0", {{0}}},
        {"kv.x", "options of [kv.x]: option key '(null)'", {OPTION(SOQ_OPT_INT, NULL, "1")}},
        {"kv.x", "options of [kv.x]: option key 'A.b'", {OPTION(SOQ_OPT_INT, "A.b", "1")}},
        {"kv.x", "options of [kv.x]: option 'a': unknown type 0", {OPTION(0, "a", "1")}},
        {"kv.x", "options of [kv.x]: option 'a': unknown type 8", {OPTION(8, "a", "1")}},
        {"kv.x", "options of [kv.x]: option 'a': the default", {OPTION(SOQ_OPT_INT, "a", NULL)}},
        {"kv.x", "options of [kv.x]: option 'a': the choices", {OPTION(SOQ_OPT_ENUM, "a", "x")}},
        {"kv.x",
         "default: [kv.x] a = 9: out of range",
         {OPTION(SOQ_OPT_INT, "a", "9", .max = 1), OPTION(SOQ_OPT_INT, "b", "0")}},
        {"kv.x", "option 'a' occurs twice", {OPTION(SOQ_OPT_INT, "a", "0"), OPTION(SOQ_OPT_INT, "a", "0")}},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t live = soq__alloc_live();
        struct soq__settings *s = new_settings();
        struct soq_error err = SOQ_ERROR_INIT;
        size_t count = cases[i].options[1].struct_size ? 2 : 1;

        cr_expect_lt(soq__settings_add_schema(s, cases[i].section, cases[i].options, count, sizeof(struct soq_option), &err),
                     0);
        cr_expect(strstr(err.text, cases[i].message), "case %zu: %s", i, err.text);
        cr_expect_eq(soq__settings_at(s, soq__core_key_count), NULL);
        cr_expect_eq(soq__settings_check_unclaimed(s, NULL), 0);
        soq__settings_free(s);
        cr_expect_eq(soq__alloc_live(), live);
    }
}

/* Options in an array whose elements are longer than this host's struct, as a newer plugin has them. */
Test(settings, schema_stride)
{
    static const struct {
        struct soq_option option;
        double newer;
    } options[] = {{OPTION(SOQ_OPT_INT, "a", "1", .max = -1), 1.5}, {OPTION(SOQ_OPT_INT, "b", "2", .max = -1), 2.5}};
    struct soq__settings *s = new_settings();

    cr_expect_eq(soq__settings_add_schema(s, "decoding.x", &options[0].option, 2, sizeof *options, NULL), 0);
    cr_expect_eq(soq__settings_int(s, "decoding.x", "b"), 2);
    soq__settings_free(s);
}

Test(settings, unclaimed)
{
    struct soq__settings *s = parsed("[kv.window]\n[backend.cuda]\nx = 1\n[kv.windw]\n[kv.zzz]\n");
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq__settings_check_unclaimed(s, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text,
                     "etc/soquete.ini:1: [kv.window]: no plugin has this section; `soquete plugins` lists what is installed");
    cr_expect_eq(add_window(s, NULL), 0);
    cr_expect_eq(soq__settings_claim(s, "backend.cuda", NULL), 0);
    cr_expect_eq(soq__settings_claim(s, "backend.absent", NULL), 0);
    cr_expect_eq(soq__settings_check_unclaimed(s, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "etc/soquete.ini:4: [kv.windw]: no plugin has this section; did you mean [kv.window]?");
    cr_expect_eq(soq__settings_claim(s, "kv.windw", NULL), 0);
    cr_expect_eq(soq__settings_claim(s, "kv.zzz", NULL), 0);
    cr_expect_eq(soq__settings_check_unclaimed(s, &err), 0);
    cr_expect_eq(soq__settings_claim(s, "nothing", &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "[nothing]: unknown section"));
    soq__settings_free(s);
}

/* ---- Files */

/* A scratch directory with a configuration directory in it; returns its path, static. */
static const char *scratch(void)
{
    static char dir[256];
    const char *base = getenv("TMPDIR");

    snprintf(dir, sizeof dir, "%s/soquete-config-XXXXXX", base && strlen(base) < 200 ? base : P_tmpdir);
    cr_assert(mkdtemp(dir));
    return dir;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

Test(settings, locate)
{
    const char *dir = scratch();
    char home[512], config[512], file[512];
    char *path = NULL;

    snprintf(home, sizeof home, "%s/.config", dir);
    snprintf(config, sizeof config, "%s/.config/soquete", dir);
    snprintf(file, sizeof file, "%s/.config/soquete/soquete.ini", dir);
    setenv("HOME", dir, 1);
    unsetenv("XDG_CONFIG_HOME");
    cr_expect_eq(soq__settings_locate("given.ini", &path, NULL), 0);
    cr_expect_str_eq(path, "given.ini");
    soq__free(path);
    cr_assert_eq(mkdir(home, 0700), 0);
    cr_assert_eq(mkdir(config, 0700), 0);
    write_file(file, "[kv]\npolicy = mine\n[model]\npath = m.gguf\ntemplate = ~/t.jinja\n");

    cr_expect_eq(soq__settings_locate(NULL, &path, NULL), 0);
    cr_expect_str_eq(path, file);
    soq__free(path);
    setenv("XDG_CONFIG_HOME", "relative", 1); /* the specification: to be ignored */
    cr_expect_eq(soq__settings_locate(NULL, &path, NULL), 0);
    cr_expect_str_eq(path, file);
    soq__free(path);
    setenv("XDG_CONFIG_HOME", home, 1);
    cr_expect_eq(soq__settings_locate(NULL, &path, NULL), 0);
    cr_assert(path);
    cr_expect_str_eq(path, file);

    struct soq__settings *s = new_settings();
    struct soq_error err = SOQ_ERROR_INIT;
    char expected[600];

    cr_expect_eq(soq__settings_load(s, path, &err), 0, "%s", err.text);
    soq__free(path);
    snprintf(expected, sizeof expected, "%s/m.gguf", config);
    cr_expect_str_eq(string_of(s, "model", "path"), expected);
    snprintf(expected, sizeof expected, "%s/t.jinja", dir);
    cr_expect_str_eq(string_of(s, "model", "template"), expected);
    snprintf(expected, sizeof expected, "%s:2", file);
    cr_expect_str_eq(origin_of(s, "kv", "policy"), expected);
    soq__settings_free(s);

    unlink(file);
    rmdir(config);
    cr_expect_eq(soq__settings_locate(NULL, &path, NULL), 0);
    cr_expect(!path || strncmp(path, dir, strlen(dir)) != 0, "%s is gone", path);
    soq__free(path);
    rmdir(home);
    rmdir(dir);
}

Test(settings, missing_file)
{
    struct soq__settings *s = new_settings();
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq__settings_load(s, "no/such.ini", &err), -SOQ_ENOTFOUND);
    cr_expect(strstr(err.text, "no/such.ini: "), "%s", err.text);
    soq__settings_free(s);
}

/* ---- etc/soquete.ini */

static const char *example_path(void)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s", soq__test_data("../../etc/soquete.ini"));
    return path;
}

/* As shipped it changes nothing; with its defaults no longer commented out it sets every key of the core to its default. */
Test(example, lists_every_key_with_its_default)
{
    struct soq_buf text = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__settings *s = new_settings();

    cr_assert_eq(soq__settings_load(s, example_path(), &err), 0, "%s", err.text);
    for (size_t i = 0; i < soq__core_key_count; i++)
        cr_expect_str_eq(soq__settings_at(s, i)->origin, "default");
    soq__settings_free(s);

    cr_assert_eq(soq__file_read(example_path(), SOQ_INI_FILE_MAX, &text, &err), 0, "%s", err.text);
    for (char *line = text.data; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (*line == ';')
            *line = ' ';
    }
    s = new_settings();
    cr_assert_eq(soq__settings_parse(s, "soquete.ini", text.data, text.len, &err), 0, "%s", err.text);
    for (size_t i = 0; i < soq__core_key_count; i++) {
        const struct soq__setting *set = soq__settings_at(s, i);
        const struct soq_option *o = &soq__core_keys[i].spec.option;

        cr_expect_neq(strcmp(set->origin, "default"), 0, "[%s] %s is missing", set->section, o->key);
        cr_expect_str_eq(set->value.text, o->default_value, "[%s] %s = %s", set->section, o->key, set->value.text);
    }
    soq__settings_free(s);
    soq__buf_done(&text);
}

/* The comment above each key says what the table says. */
Test(example, explains_every_key)
{
    struct soq_buf text = SOQ_BUF_INIT, flat = SOQ_BUF_INIT;

    cr_assert_eq(soq__file_read(example_path(), SOQ_INI_FILE_MAX, &text, NULL), 0);
    for (const char *c = text.data; *c; c++) {
        if (strncmp(c, "\n# ", 3) == 0) {
            soq__buf_putc(&flat, ' ');
            c += 2;
        } else {
            soq__buf_putc(&flat, *c);
        }
    }
    for (size_t i = 0; i < soq__core_key_count; i++) {
        const struct soq_option *o = &soq__core_keys[i].spec.option;

        cr_expect(strstr(soq__buf_str(&flat), o->help), "'%s' of %s is missing", o->help, o->key);
    }
    soq__buf_done(&text);
    soq__buf_done(&flat);
}

/* ---- Out of memory */

/* Everything that allocates, in the usual order. */
static int whole_life(struct soq_error *err)
{
    static const char text[] =
        "[kv]\npolicy = window\n[backend]\nuse = a, b\n[runtime]\nlog_level = info\nplugin_dir = x, y\n"
        "[kv.window]\nshare = 0.25\nmode = fast\nlabel = "
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "\n[kv.other]\n";
    struct soq__settings *s = NULL;
    char *path = NULL;
    int rc = soq__settings_create(&s, err);

    if (!rc)
        rc = soq__settings_locate("x.ini", &path, err);
    if (!rc)
        rc = soq__settings_parse(s, path, text, strlen(text), err);
    if (!rc)
        rc = soq__settings_override(s, "--kv.window.size=3", err);
    if (!rc)
        rc = add_window(s, err);
    if (!rc)
        rc = soq__settings_claim(s, "kv.third", err);
    if (!rc && soq__settings_check_unclaimed(s, err) != -SOQ_EINVAL)
        rc = -1;
    soq__free(path);
    soq__settings_free(s);
    return rc;
}

Test(settings, every_allocation_may_fail)
{
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t start = soq__alloc_count(), count;

    cr_assert_eq(whole_life(&err), 0, "%s", err.text);
    count = soq__alloc_count() - start;
    cr_expect_gt(count, 100u);
    for (int all_after = 0; all_after < 2; all_after++) {
        for (uint64_t n = 1; n <= count; n++) {
            int rc;

            err = (struct soq_error)SOQ_ERROR_INIT;
            soq__alloc_fail_at(n, all_after);
            rc = whole_life(&err);
            soq__alloc_fail_at(0, false);
            cr_expect_eq(rc, -SOQ_ENOMEM, "allocation %zu: %d %s", (size_t)n, rc, err.text);
            cr_expect(strstr(err.text, "out of memory"), "allocation %zu: %s", (size_t)n, err.text);
            cr_expect_eq(soq__alloc_live(), live, "allocation %zu leaks", (size_t)n);
        }
    }
}
