/* Dequantisation against the golden data, bit for bit: a row and the digest of every tensor of every quantised variant. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>

#include "model/dequant.h"
#include "model/gguf.h"

#include "npy.h"
#include "sha256.h"
#include "support.h"

/* The caller frees. */
static float *dequantise(const struct soq__gguf_tensor *t)
{
    float *out = soq__alloc_array((size_t)t->elements, sizeof *out);

    soq__dequant((enum soq_dtype)t->type)(t->data, out, (size_t)(t->elements / t->dtype->elements));
    return out;
}

static struct soq__gguf *open_model(const char *file)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    char name[256];

    snprintf(name, sizeof name, "golden/%s", file);
    cr_assert_eq(soq__gguf_open(soq__test_data(name), &g, &err), 0, "%s", err.text);
    return g;
}

static void check_row(const struct soq__gguf *g, const char *tensor, const char *type, const char *file)
{
    const struct soq__gguf_tensor *t = soq__gguf_tensor_find(g, tensor);
    char name[256];
    struct npy row;
    float *values;

    snprintf(name, sizeof name, "golden/llama256/%s", file);
    row = npy_read(soq__test_data(name));
    cr_assert(row.data && t && strcmp(row.type, "<f4") == 0);
    cr_expect_str_eq(t->dtype->name, type);
    cr_assert_eq(row.rows * row.cols, t->ne[0]);
    values = dequantise(t);
    cr_expect_eq(memcmp(values, row.data, row.cols * sizeof *values), 0, "%s: row 0 of %s differs", file, tensor);
    soq__free(values);
    npy_done(&row);
}

static void check_digests(const struct soq__gguf *g, const json_t *digests)
{
    const char *name;
    const json_t *expected;

    cr_assert_eq(json_object_size(digests), soq__gguf_n_tensors(g));
    json_object_foreach((json_t *)(uintptr_t)digests, name, expected)
    {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_find(g, name);
        char found[65];
        float *values;

        cr_assert(t, "%s: no tensor %s", soq__gguf_path(g), name);
        values = dequantise(t);
        sha256_hex(values, (size_t)t->elements * sizeof *values, found);
        cr_expect_str_eq(found, json_string_value(expected), "%s: %s", soq__gguf_path(g), name);
        soq__free(values);
    }
}

Test(dequant, golden_variants)
{
    int64_t live = soq__alloc_live();
    json_t *expect = json_load_file(soq__test_data("golden/llama256/expect.json"), 0, NULL);
    json_t *variants = json_object_get(expect, "variants"), *variant;
    const char *key;

    cr_assert_eq(json_object_size(variants), 12);
    json_object_foreach(variants, key, variant)
    {
        const char *file, *row, *tensor, *type;
        json_t *digests;
        struct soq__gguf *g;
        char path[256];

        cr_assert_eq(json_unpack(variant, "{s:s, s:s, s:s, s:s, s:o}", "gguf", &file, "dequant_row0", &row, "dequant_tensor",
                                 &tensor, "dequant_type", &type, "dequant_sha256", &digests),
                     0);
        snprintf(path, sizeof path, "llama256/%s", file);
        g = open_model(path);
        check_row(g, tensor, type, row);
        check_digests(g, digests);
        soq__gguf_close(g);
    }
    json_decref(expect);
    cr_expect_eq(soq__alloc_live(), live);
}

/* All 65536 float16 values against their definition. */
Test(dequant, every_float16)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        unsigned char block[2] = {(unsigned char)bits, (unsigned char)(bits >> 8)};
        int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
        double expected = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        float found;

        soq__dequant(SOQ_DTYPE_F16)(block, &found, 1);
        cr_assert_eq(signbit(found) != 0, bits >> 15, "sign of %04x", bits);
        if (exponent < 31)
            cr_assert_eq(fabsf(found), (float)expected, "%04x gives %g", bits, (double)found);
        else
            cr_assert(mantissa ? isnan(found) : isinf(found), "%04x gives %g", bits, (double)found);
    }
}

/* A float32 cut to its upper half, and back: exact, and equal to the float32 with the lower half 0. */
Test(dequant, bfloat16)
{
    static const struct {
        unsigned bits;
        float value;
    } cases[] = {{0x0000, 0.0f},      {0x3f80, 1.0f},        {0xc020, -2.5f},
                 {0x0001, 0x1p-133f}, {0x7f7f, 0x1.fep127f}, {0xff80, -INFINITY}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char block[2] = {(unsigned char)cases[i].bits, (unsigned char)(cases[i].bits >> 8)};
        float found;

        soq__dequant(SOQ_DTYPE_BF16)(block, &found, 1);
        cr_expect_eq(found, cases[i].value, "%04x gives %a", cases[i].bits, (double)found);
    }
}

/* The F16 and BF16 copies of a model against its F32 original: within the rounding of the narrow type. */
static void check_narrow_copy(const char *file, float relative)
{
    struct soq__gguf *wide = open_model("llama/model.gguf"), *narrow = open_model(file);

    cr_assert_eq(soq__gguf_n_tensors(wide), soq__gguf_n_tensors(narrow));
    for (size_t i = 0; i < soq__gguf_n_tensors(narrow); i++) {
        const struct soq__gguf_tensor *n = soq__gguf_tensor_at(narrow, i);
        char name[SOQ__GGUF_MAX_NAME + 1];
        const struct soq__gguf_tensor *w;
        float *a, *b;

        snprintf(name, sizeof name, "%.*s", (int)n->name.len, n->name.data);
        w = soq__gguf_tensor_find(wide, name);
        cr_assert(w && w->elements == n->elements, "%s", name);
        a = dequantise(w);
        b = dequantise(n);
        for (uint64_t j = 0; j < n->elements; j++)
            cr_assert_leq(fabsf(a[j] - b[j]), relative * fabsf(a[j]) + 1e-7f, "%s: %s[%llu]", file, name,
                          (unsigned long long)j);
        soq__free(a);
        soq__free(b);
    }
    soq__gguf_close(wide);
    soq__gguf_close(narrow);
}

Test(dequant, narrow_copies)
{
    check_narrow_copy("llama/model-f16.gguf", 0x1p-11f);
    check_narrow_copy("llama/model-bf16.gguf", 0x1p-8f);
}

Test(dequant, unaligned_blocks)
{
    struct soq__gguf *g = open_model("llama256/model-q4_k.gguf");
    const struct soq__gguf_tensor *t = soq__gguf_tensor_find(g, "blk.0.ffn_down.weight");
    unsigned char *shifted = soq__alloc((size_t)t->bytes + 1);
    float *expected = dequantise(t), *found = soq__alloc_array((size_t)t->elements, sizeof *found);

    memcpy(shifted + 1, t->data, (size_t)t->bytes);
    soq__dequant(SOQ_DTYPE_Q4_K)(shifted + 1, found, (size_t)t->elements / 256);
    cr_expect_eq(memcmp(found, expected, (size_t)t->elements * sizeof *found), 0);
    soq__free(shifted);
    soq__free(expected);
    soq__free(found);
    soq__gguf_close(g);
}

Test(dequant, types)
{
    for (uint32_t id = 0; id < 64; id++) {
        const struct soq__dtype *type = soq__dtype(id);

        cr_expect_eq(soq__dequant((enum soq_dtype)id) != NULL, type && type->supported, "type %u", id);
        if (type)
            cr_expect_eq(soq__dtype_by_name(type->name), type, "%s", type->name);
    }
    cr_expect_null(soq__dtype_by_name("Q9_9"));
    cr_expect_eq(soq__dtype_by_name("q4_k"), soq__dtype(SOQ_DTYPE_Q4_K));
    cr_expect_str_eq(soq__dtype_supported_names(), "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
                                                   "IQ4_NL, IQ4_XS, BF16");
}

Test(dequant, row_bytes)
{
    uint64_t bytes = 7;

    cr_expect(soq__dtype_row_bytes(soq__dtype(SOQ_DTYPE_Q6_K), 512, &bytes) && bytes == 420);
    cr_expect(!soq__dtype_row_bytes(soq__dtype(SOQ_DTYPE_Q6_K), 100, &bytes), "half a block");
    cr_expect(!soq__dtype_row_bytes(soq__dtype(SOQ_DTYPE_F32), UINT64_MAX / 2, &bytes), "overflow");
    cr_expect(soq__dtype_row_bytes(soq__dtype(SOQ_DTYPE_F16), 3, &bytes) && bytes == 6);
}

/* The digest itself: the empty string, "abc", and a message of two blocks (FIPS 180-4, appendix B). */
Test(dequant, sha256)
{
    char hex[65];

    sha256_hex("", 0, hex);
    cr_expect_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_hex("abc", 3, hex);
    cr_expect_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    cr_expect_str_eq(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}
