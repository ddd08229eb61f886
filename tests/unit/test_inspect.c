/* `soquete inspect`: both forms of the report, shortening and escaping, and every problem it knows. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/inspect.h"

#include "gguf_build.h"
#include "support.h"

static const struct soq__inspect everything = {.meta = true, .tensors = true};

#define ARCH "key general.architecture 8 str llama "

/* Runs one form of the report on a script's file; the caller frees the text. */
static char *inspect(const char *script, bool json, const struct soq__inspect *show, size_t *problems_out)
{
    struct soq_buf file = SOQ_BUF_INIT, out = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g;

    gguf_build(&file, script);
    cr_assert_eq(soq__gguf_open_memory(file.data, file.len, "m.gguf", &g, &err), 0, "%s", err.text);
    *problems_out = json ? soq__inspect_json(g, show, &out) : soq__inspect_text(g, show, &out);
    soq__gguf_close(g);
    soq__buf_done(&file);
    cr_assert(soq__buf_ok(&out));
    return soq__buf_steal(&out);
}

static const struct {
    const char *script, *line;
    size_t problems;
} cases[] = {
    {"header 3 0 0", "  problem: m.gguf: key 'general.architecture' is missing\n", 1},
    {"header 3 0 1 key general.architecture 4 u32 1",
     "  problem: m.gguf: key 'general.architecture' is uint32, expected a string\n", 1},
    {"header 3 0 1 " ARCH, "  note: no tensors: metadata or a vocabulary only\n", 0},
    {"header 3 0 2 " ARCH "key x 6 u32 0x7f800000", "  problem: key 'x': item 0 is inf\n", 1},
    {"header 3 0 2 " ARCH "key x 9 u32 6 u64 2 u32 0 0xffc00000", "  problem: key 'x': item 1 is -nan\n", 1},
    {"header 3 0 3 " ARCH "key tokenizer.ggml.tokens 9 u32 8 u64 2 str a str b "
     "key tokenizer.ggml.scores 9 u32 6 u64 1 u32 0",
     "  problem: key 'tokenizer.ggml.scores' has 1 items for 2 tokens\n", 1},
    {"header 3 0 3 " ARCH "key tokenizer.ggml.tokens 9 u32 8 u64 2 str a str b key tokenizer.ggml.bos_token_id 4 u32 2",
     "  problem: key 'tokenizer.ggml.bos_token_id' is 2, but there are 2 tokens\n", 1},
    {"header 3 1 2 " ARCH
     "key tokenizer.ggml.tokens 9 u32 8 u64 2 str a str b tensor token_embd.weight 0 0 8 1 pad 32 zeros 32",
     "  problem: tensor 'token_embd.weight' has 1 rows for 2 tokens\n", 1},
    {"header 3 1 2 " ARCH "key tokenizer.ggml.tokens 9 u32 8 u64 1 str a tensor token_embd.weight 0 0 8 2 pad 32 zeros 64",
     "  note: tensor 'token_embd.weight' has 2 rows for 1 tokens\n", 0},
    {"header 3 1 1 " ARCH "tensor token_embd.weight 0 0 8 1 pad 32 zeros 32",
     "  note: no tensor 'output.weight': the embedding is used for the output too\n", 0},
    {"header 3 1 1 " ARCH "tensor w 99 0 8 1 pad 32 zeros 32", "  problem: tensor 'w' has the unknown type id 99\n", 1},
    {"header 3 1 1 " ARCH "tensor w 39 0 32 pad 32 zeros 32", "  problem: tensor 'w' has the unsupported type MXFP4\n", 1},
    {"header 3 1 1 " ARCH "tensor w 0 0 8 pad 32 zeros 132", "  note: 100 bytes follow the last tensor\n", 0},
    {"header 3 1 1 " ARCH "tensor w 0 96 8 pad 32 zeros 128", "  note: 96 bytes between tensors are not used\n", 0},
    {"header 3 1 1 " ARCH "tensor w 0 0 8 pad 32 zeros 32", "\nProblems\n  none\n", 0},
};

Test(inspect, problems)
{
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t problems;
        char *text = inspect(cases[i].script, false, &everything, &problems);

        cr_expect(strstr(text, cases[i].line), "%s\n%s", cases[i].line, text);
        cr_expect_eq(problems, cases[i].problems, "%s", text);
        soq__free(text);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

#define VALUES                                                                                                                 \
    "header 3 1 5 " ARCH "key text 8 u64 5 raw a u8 10 27 raw \" u8 0xff key many 9 u32 4 u64 20 u32 0 1 2 3 4 5 6 u32 7 8 9 " \
    "u32 10 11 12 13 14 15 16 u32 17 18 19 key big 10 u64 0xffffffffffffffff key nan 6 u32 0x7fc00000 "                        \
    "tensor w 12 0 256 3 pad 32 zeros 432"

Test(inspect, text)
{
    struct soq__inspect whole = {.meta = true, .whole = true}, tensors = {.tensors = true};
    size_t problems;
    char *text = inspect(VALUES, false, &everything, &problems);

    cr_expect(strstr(text, "m.gguf: GGUF version 3, "), "%s", text);
    cr_expect(strstr(text, "text                  string          \"a\\n\\x1b\\\"\\xff\"\n"), "%s", text);
    cr_expect(strstr(text, "many                  uint32[20]      0, 1, 2, 3, 4, 5, ...\n"), "%s", text);
    cr_expect(strstr(text, "big                   uint64          18446744073709551615\n"), "%s", text);
    cr_expect(strstr(text, "  w  Q4_K     256 x 3                       432  @"), "%s", text);
    cr_expect(strstr(text, "1 tensors             768 elements  432 B  (4.50 bits per element)"), "%s", text);
    soq__free(text);
    text = inspect(VALUES, false, &whole, &problems);
    cr_expect(strstr(text, "17, 18, 19\n") && !strstr(text, "Q4_K"), "%s", text);
    soq__free(text);
    text = inspect(VALUES, false, &tensors, &problems);
    cr_expect(strstr(text, "Q4_K") && !strstr(text, "many"), "%s", text);
    soq__free(text);
}

Test(inspect, json)
{
    size_t problems;
    char *text = inspect(VALUES, true, &everything, &problems);
    json_error_t why;
    json_t *root = json_loads(text, 0, &why), *meta, *many, *tensor;
    const char *string, *name, *type;
    json_int_t count, ne0, ne1, bytes;

    cr_assert(root, "%s: %s", why.text, text);
    cr_expect_eq(problems, 1);
    meta = json_object_get(root, "metadata");
    cr_expect_eq(json_unpack(meta, "{s:{s:s}}", "text", "value", &string), 0);
    cr_expect_str_eq(string, "a\\n\\x1b\\\"\\xff");
    cr_expect_eq(json_unpack(meta, "{s:{s:I, s:o}}", "many", "count", &count, "value", &many), 0);
    cr_expect(count == 20 && json_array_size(many) == 16 && json_integer_value(json_array_get(many, 15)) == 15);
    cr_expect(json_is_null(json_object_get(json_object_get(meta, "nan"), "value")));
    cr_expect_eq(json_real_value(json_object_get(json_object_get(meta, "big"), "value")), 0x1p64);
    tensor = json_array_get(json_object_get(root, "tensors"), 0);
    cr_expect_eq(
        json_unpack(tensor, "{s:s, s:s, s:[I,I], s:I}", "name", &name, "type", &type, "shape", &ne0, &ne1, "bytes", &bytes), 0);
    cr_expect(strcmp(name, "w") == 0 && strcmp(type, "Q4_K") == 0 && ne0 == 256 && ne1 == 3 && bytes == 432);
    cr_expect(json_is_true(json_object_get(json_array_get(json_object_get(root, "problems"), 0), "problem")));
    json_decref(root);
    soq__free(text);
}

Test(inspect, a_real_file)
{
    struct soq_buf out = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g;

    cr_assert_eq(soq__gguf_open(soq__test_data("golden/gemma3/model.gguf"), &g, &err), 0, "%s", err.text);
    cr_expect_eq(soq__inspect_text(g, &everything, &out), 0, "%s", soq__buf_str(&out));
    cr_expect(strstr(soq__buf_str(&out), "general.architecture"), "%s", soq__buf_str(&out));
    soq__gguf_close(g);
    soq__buf_done(&out);
}

/* Each growth of the report fails in turn: remembered, never a crash. */
Test(inspect, out_of_memory)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int64_t live = soq__alloc_live();
    struct soq__gguf *g;

    cr_assert_eq(soq__gguf_open(soq__test_data("golden/llama/model.gguf"), &g, &err), 0, "%s", err.text);
    for (uint64_t n = 1; n <= 6; n++) {
        struct soq_buf text = SOQ_BUF_INIT, json = SOQ_BUF_INIT;

        soq__alloc_fail_at(n, false);
        soq__inspect_text(g, &everything, &text);
        soq__alloc_fail_at(n, false);
        soq__inspect_json(g, &everything, &json);
        soq__alloc_fail_at(0, false);
        cr_expect(!soq__buf_ok(&text) && !soq__buf_ok(&json), "allocation %llu", (unsigned long long)n);
        soq__buf_done(&text);
        soq__buf_done(&json);
    }
    soq__gguf_close(g);
    cr_expect_eq(soq__alloc_live(), live);
}
