/* The GGUF reader: what it reads, and what it says of files that are damaged, hostile or something else. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "model/fingerprint.h"
#include "model/gguf.h"

#include "gguf_build.h"
#include "support.h"

#define KEYS(n) "header 3 0 " #n " "
#define TENSORS(n) "header 3 " #n " 0 "

struct bad_file {
    const char *script;
    const char *message; /* part of it */
    int code;
};

static const struct bad_file bad_files[] = {
    /* other formats */
    {"", "bad: the file is empty", SOQ_ECORRUPT},
    {"raw GGUF", "not a GGUF file: only 4 bytes", SOQ_ECORRUPT},
    {"raw hello,world", "begins with bytes 68 65 6c 6c instead of \"GGUF\"", SOQ_EINVAL},
    {"raw FUGG u32 3", "big-endian GGUF file; convert it", SOQ_EINVAL},
    {"raw GGUF u32 0x03000000 zeros 16", "big-endian GGUF (version 3); convert it", SOQ_EUNSUPPORTED},
    {"raw GGUF u32 0x02000000 zeros 16", "big-endian GGUF (version 2); convert it", SOQ_EUNSUPPORTED},
    {"raw lmgg u32 0", "old GGML file", SOQ_EINVAL},
    {"raw fmgg u32 1", "old GGMF file", SOQ_EINVAL},
    {"raw tjgg u32 3", "old GGJT file", SOQ_EINVAL},
    {"raw algg u32 1", "old GGLA adapter", SOQ_EINVAL},
    {"u64 80 raw {\"a\":{}}", "a safetensors file; convert", SOQ_EINVAL},
    {"raw PK u8 3 4 zeros 20", "a zip archive", SOQ_EINVAL},
    {"u8 0x80 2 zeros 20", "a Python pickle", SOQ_EINVAL},
    {"u8 0x1f 0x8b zeros 20", "gzip-compressed", SOQ_EINVAL},
    {"u8 0x28 0xb5 0x2f 0xfd zeros 20", "zstd-compressed", SOQ_EINVAL},
    {"u8 0x89 raw HDF zeros 20", "an HDF5 file", SOQ_EINVAL},
    {"u8 0x7f raw ELF zeros 20", "a program or library", SOQ_EINVAL},
    {"raw <!DOCTYPE raw html>", "an HTML page; the download went wrong", SOQ_EINVAL},
    {"raw <html>", "an HTML page", SOQ_EINVAL},
    {"raw version u8 32 raw https://git-lfs.github.com/spec/v1", "a Git LFS pointer", SOQ_EINVAL},
    {"raw {\"model_type\":1}", "a JSON file", SOQ_EINVAL},
    /* header */
    {"header 1 0 0", "GGUF version 1 is not supported", SOQ_EUNSUPPORTED},
    {"header 0 0 0", "GGUF version 0 is not supported", SOQ_EUNSUPPORTED},
    {"header 4 0 0", "GGUF version 4 is not supported", SOQ_EUNSUPPORTED},
    {"raw GGUF u32 3 u32 0", "truncated: the number of tensors needs 8 bytes at byte 8, but the file ends at 12", SOQ_ECORRUPT},
    {"raw GGUF u32 3 u64 0 u32 0", "truncated: the number of keys needs 8 bytes at byte 16", SOQ_ECORRUPT},
    {"header 3 1 0", "truncated: the number of tensors is 1, more than a file of 24 bytes can hold", SOQ_ECORRUPT},
    {"header 3 0 1", "truncated: the number of keys is 1, more than a file of 24 bytes can hold", SOQ_ECORRUPT},
    {"header 3 0 100000 zeros 999", "the number of keys is 100000, more than a file of", SOQ_ECORRUPT},
    {"header 3 0xffffffffffffffff 0", "the number of tensors is 18446744073709551615, more than 1048576", SOQ_ELIMIT},
    {"header 3 0 0x8000000000000000", "the number of keys is 9223372036854775808, more than 1048576", SOQ_ELIMIT},
    /* keys */
    {KEYS(1) "u64 0 u32 4 zeros 9", "key 1 of 1: the name is empty", SOQ_ECORRUPT},
    {KEYS(1) "u64 70000 zeros 70010", "key 1 of 1: the name's length is 70000, more than 65535", SOQ_ECORRUPT},
    {KEYS(1) "u64 0xffffffffffffffff zeros 9", "the name's length is 18446744073709551615", SOQ_ECORRUPT},
    {KEYS(1) "u64 50 zeros 9", "key 1 of 1: truncated: the name needs 50 bytes at byte 32, but the file ends at 41",
     SOQ_ECORRUPT},
    {KEYS(1) "u64 3 raw a u8 27 raw b u32 4 u32 1", "key 1 of 1: the name is not UTF-8 text", SOQ_ECORRUPT},
    {KEYS(1) "u64 3 raw a u8 0 raw b u32 4 u32 1", "key 1 of 1: the name is not UTF-8 text", SOQ_ECORRUPT},
    {KEYS(1) "u64 2 u8 0xc2 0x9b u32 4 u32 1", "key 1 of 1: the name is not UTF-8 text", SOQ_ECORRUPT},
    {KEYS(1) "u64 2 u8 0xc3 0x28 u32 4 u32 1", "key 1 of 1: the name is not UTF-8 text", SOQ_ECORRUPT},
    {KEYS(2) "key a 4 u32 1 u64 0 zeros 9", "key 2 of 2: the name is empty", SOQ_ECORRUPT},
    {KEYS(1) "key abcdef 13 zeros 9", "key 'abcdef': the value's type 13 does not exist", SOQ_ECORRUPT},
    {KEYS(1) "key abcdef 0xffffffff", "key 'abcdef': the value's type 4294967295 does not exist", SOQ_ECORRUPT},
    {KEYS(1) "str abcdefgh", "key 'abcdefgh': truncated: the value's type needs 4 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc.def 10 u32 1", "key 'abc.def': truncated: the value needs 8 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 7 u8 2", "key 'abc': a bool has the value 2", SOQ_ECORRUPT},
    {KEYS(2) "key abc 4 u32 1 key abc 4 u32 2", "bad: key 'abc' is there twice", SOQ_ECORRUPT},
    {KEYS(3) "key abc 4 u32 1 key aaa 0 u8 1 key abc 8 str x", "bad: key 'abc' is there twice", SOQ_ECORRUPT},
    /* strings and arrays */
    {KEYS(1) "key abc 8 u64 100 raw abc", "key 'abc': truncated: a string needs 100 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 8 u64 0xfffffffffffffff8 raw abc", "a string needs 18446744073709551608 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 8 u32 0", "key 'abc': truncated: 1 strings cannot be in the 4 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 9 u64 1 u32 4 u64 1 u32 7", "key 'abc': an array of arrays is not supported", SOQ_EUNSUPPORTED},
    {KEYS(1) "key abc 9 u32 77 u64 1 u32 4", "key 'abc': the array's item type 77 does not exist", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u8 1", "key 'abc': truncated: the array's item type needs 4 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 4 u32 1", "key 'abc': truncated: the array's length needs 8 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 4 u64 3 u32 1 2", "key 'abc': truncated: the value needs 12 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 10 u64 0x2000000000000001 u64 1", "an array of 2305843009213693953 items cannot be", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 4 u64 0x3fffffffffffffff u64 1", "truncated: the value needs 18446744073709551612", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 8 u64 0x2000000000000001 str x", "truncated: 2305843009213693953 strings cannot", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 8 u64 2 str first u64 99", "key 'abc': truncated: a string needs 99 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 8 u64 2 str first zeros 3", "key 'abc': truncated: a string's length needs 8 bytes", SOQ_ECORRUPT},
    {KEYS(1) "key abc 9 u32 7 u64 3 u8 0 1 3", "key 'abc': a bool has the value 3", SOQ_ECORRUPT},
    /* keys with a meaning */
    {KEYS(1) "key general.alignment 4 u32 0", "'general.alignment' is 0, must be a power of two from 8 to 65536", SOQ_ECORRUPT},
    {KEYS(1) "key general.alignment 4 u32 4", "'general.alignment' is 4, must be", SOQ_ECORRUPT},
    {KEYS(1) "key general.alignment 4 u32 48", "'general.alignment' is 48, must be", SOQ_ECORRUPT},
    {KEYS(1) "key general.alignment 4 u32 0x80000000", "'general.alignment' is 2147483648, must be", SOQ_ECORRUPT},
    {KEYS(1) "key general.alignment 10 u64 0x100000020", "'general.alignment' is 4294967328, expected at most", SOQ_EINVAL},
    {KEYS(1) "key general.alignment 5 u32 0xffffffe0", "'general.alignment' is -32, expected 0 or more", SOQ_EINVAL},
    {KEYS(1) "key general.alignment 8 str 32", "'general.alignment' is string, expected an integer", SOQ_EINVAL},
    {KEYS(1) "key split.count 4 u32 3", "part 1 of a model split into 3 files", SOQ_EUNSUPPORTED},
    {KEYS(2) "key split.no 2 u8 2 0 key split.count 2 u8 5 0", "part 3 of a model split into 5 files", SOQ_EUNSUPPORTED},
    {KEYS(1) "key split.count 6 u32 0", "'split.count' is float32, expected an integer", SOQ_EINVAL},
    /* the tensor table */
    {TENSORS(1) "u64 0 zeros 33", "tensor 1 of 1: the name is empty", SOQ_ECORRUPT},
    {TENSORS(1) "u64 65 zeros 99", "tensor 1 of 1: the name's length is 65, more than 64", SOQ_ECORRUPT},
    {TENSORS(1) "u64 2 u8 10 10 zeros 30", "tensor 1 of 1: the name is not UTF-8 text", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 zeros 64", "tensor 'w': 0 dimensions, must be 1 to 4", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 1 1 1 1 1 pad 32 zeros 32", "tensor 'w': 5 dimensions, must be 1 to 4", SOQ_ECORRUPT},
    {TENSORS(1) "str w u32 0xffffffff zeros 64", "tensor 'w': 4294967295 dimensions", SOQ_ECORRUPT},
    {TENSORS(1) "str wwwwwwwwwwwwwwwwwwwwwwwww", "truncated: the number of dimensions needs 4 bytes", SOQ_ECORRUPT},
    {TENSORS(1) "str w u32 4 u64 1 1 1", "tensor 'w': truncated: a dimension needs 8 bytes", SOQ_ECORRUPT},
    {TENSORS(1) "str w u32 2 u64 1 1", "tensor 'w': truncated: the tensor's type needs 4 bytes", SOQ_ECORRUPT},
    {TENSORS(1) "str w u32 2 u64 1 1 u32 0", "tensor 'w': truncated: the tensor's offset needs 8 bytes", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 8 0 pad 32 zeros 64", "tensor 'w': dimension 1 is 0", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 0 pad 32 zeros 64", "tensor 'w': dimension 0 is 0", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 0xffffffff 0xffffffff 8", "too many elements: 4294967295 x 4294967295 x 8 x 1", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 0x100000000 0x100000000", "tensor 'w': too many elements", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 0x8000000000000000", "tensor 'w': too many elements", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 0x4000000000000000", "tensor 'w': 4611686018427387904 elements of type F32", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 12 0 100 pad 32 zeros 99", "rows of 100 elements are not a whole number of Q4_K blocks of 256",
     SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 16 0 100 pad 32 zeros 99", "are not a whole number of IQ2_XXS blocks of 256", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 33 8 pad 32 zeros 128", "tensor 'w': offset 33 is not a multiple of the alignment 32",
     SOQ_ECORRUPT},
    {"header 3 1 1 key general.alignment 4 u32 64 tensor w 0 32 8 pad 64 zeros 128",
     "tensor 'w': offset 32 is not a multiple of the alignment 64", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 8 pad 32 zeros 31",
     "tensor 'w': 32 bytes at offset 0 of the data, which begins at byte 64, end beyond the file of 95 bytes", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 64 8 pad 32 zeros 64", "tensor 'w': 32 bytes at offset 64 of the data", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0xffffffffffffffe0 8 pad 32 zeros 64", "32 bytes at offset 18446744073709551584", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0x7fffffffffffffe0 8 pad 32 zeros 64", "32 bytes at offset 9223372036854775776", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 99 4096 8 pad 32 zeros 64", "tensor 'w': 0 bytes at offset 4096 of the data", SOQ_ECORRUPT},
    {TENSORS(1) "tensor w 0 0 8", "end beyond the file of 57 bytes", SOQ_ECORRUPT},
    {TENSORS(2) "tensor w 0 0 8 tensor w 0 32 8 pad 32 zeros 64", "bad: tensor 'w' is there twice", SOQ_ECORRUPT},
    {TENSORS(2) "tensor a 0 0 8 tensor b 0 0 8 pad 32 zeros 64", "overlaps with tensor", SOQ_ECORRUPT},
    {TENSORS(2) "tensor a 0 32 8 tensor b 0 0 9 pad 32 zeros 64", "tensor 'b': overlaps with tensor 'a' at byte 128",
     SOQ_ECORRUPT},
    {TENSORS(2) "tensor a 0 0 64 tensor b 99 64 8 pad 32 zeros 256", "tensor 'a': overlaps with tensor 'b'", SOQ_ECORRUPT},
};

/* Opens the script's file from memory that ends exactly where the file does, so that the sanitizer sees every stray read. */
static int open_script(const char *script, void **memory_out, struct soq__gguf **out, struct soq_error *err)
{
    struct soq_buf b = SOQ_BUF_INIT;
    size_t len;

    gguf_build(&b, script);
    len = b.len;
    *memory_out = soq__alloc(len);
    if (len)
        memcpy(*memory_out, b.data, len);
    soq__buf_done(&b);
    return soq__gguf_open_memory(*memory_out, len, "bad", out, err);
}

static struct soq__gguf *open_good(const char *script, void **memory_out)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;

    cr_assert_eq(open_script(script, memory_out, &g, &err), 0, "%s", err.text);
    return g;
}

Test(gguf, bad_files)
{
    int64_t live = soq__alloc_live();

    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const struct bad_file *bad = &bad_files[i];
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__gguf *g = NULL;
        void *memory;
        int rc = open_script(bad->script, &memory, &g, &err);

        cr_expect_eq(rc, -bad->code, "\"%s\" gave %d: %s", bad->script, rc, err.text);
        cr_expect(strstr(err.text, bad->message) && strncmp(err.text, "bad: ", 5) == 0, "\"%s\" said: %s", bad->script,
                  err.text);
        cr_expect_null(g);
        soq__gguf_close(g);
        soq__free(memory);
    }
    cr_expect_eq(soq__alloc_live(), live);
}

#define ALL_TYPES                                                                                                              \
    "header 3 0 16 key u8 0 u8 200 key i8 1 u8 0xfe key u16 2 u8 0x10 0x27 key i16 3 u8 0xf0 0xd8 key u32 4 u32 4000000000 "   \
    "key i32 5 u32 0xfffffffb key f32 6 u32 0x3fc00000 key bool 7 u8 1 key text 8 str hello key u64 10 u64 "                   \
    "0x8000000000000000 "                                                                                                      \
    "key i64 11 u64 0xfffffffffffffff0 key f64 12 u64 0x7fe0000000000000 key nan 6 u32 0x7fc00000 "                            \
    "key words 9 u32 8 u64 3 str one u64 0 str three key none 9 u32 8 u64 0 key shorts 9 u32 3 u64 2 u8 0xff 0xff 5 0 "

Test(gguf, scalars)
{
    void *memory;
    struct soq__gguf *g = open_good(ALL_TYPES, &memory);
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    int64_t i64 = 0;
    float f32 = 0;
    bool flag = false;
    struct soq__gguf_str text;

    cr_expect(soq__gguf_u32(g, "u8", &u32, &err) == 0 && u32 == 200);
    cr_expect(soq__gguf_u32(g, "u16", &u32, &err) == 0 && u32 == 10000);
    cr_expect(soq__gguf_u32(g, "u32", &u32, &err) == 0 && u32 == 4000000000u);
    cr_expect(soq__gguf_u64(g, "u64", &u64, &err) == 0 && u64 == 0x8000000000000000);
    cr_expect(soq__gguf_i64(g, "i8", &i64, &err) == 0 && i64 == -2);
    cr_expect(soq__gguf_i64(g, "i16", &i64, &err) == 0 && i64 == -10000);
    cr_expect(soq__gguf_i64(g, "i32", &i64, &err) == 0 && i64 == -5);
    cr_expect(soq__gguf_i64(g, "i64", &i64, &err) == 0 && i64 == -16);
    cr_expect(soq__gguf_f32(g, "f32", &f32, &err) == 0 && f32 == 1.5f);
    cr_expect(soq__gguf_bool(g, "bool", &flag, &err) == 0 && flag);
    cr_expect(soq__gguf_string(g, "text", &text, &err) == 0 && soq__gguf_str_equal(text, "hello"));
    soq__gguf_close(g);
    soq__free(memory);
}

Test(gguf, values_out_of_range_and_wrong_types)
{
    void *memory;
    struct soq__gguf *g = open_good(ALL_TYPES, &memory);
    struct soq_error err = SOQ_ERROR_INIT;
    const struct soq__gguf_kv *array = NULL;
    struct soq__gguf_str text;
    uint64_t u64;
    uint32_t u32 = 77;
    int64_t i64;
    float f32;
    bool flag;

    cr_expect_eq(soq__gguf_u32(g, "u64", &u32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'u64' is 9223372036854775808, expected at most 4294967295");
    cr_expect_eq(soq__gguf_u32(g, "i32", &u32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'i32' is -5, expected 0 or more");
    cr_expect_eq(soq__gguf_i64(g, "u64", &i64, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'u64' is 9223372036854775808, expected at most 9223372036854775807");
    cr_expect_eq(soq__gguf_u64(g, "f32", &u64, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'f32' is float32, expected an integer");
    cr_expect_eq(soq__gguf_u32(g, "bool", &u32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'bool' is bool, expected an integer");
    cr_expect_eq(soq__gguf_u32(g, "shorts", &u32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'shorts' is array of int16, expected an integer");
    cr_expect_eq(soq__gguf_f32(g, "f64", &f32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'f64' is 8.98847e+307, expected a finite float32");
    cr_expect_eq(soq__gguf_f32(g, "nan", &f32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'nan' is nan, expected a finite float32");
    cr_expect_eq(soq__gguf_f32(g, "u32", &f32, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'u32' is uint32, expected a floating-point number");
    cr_expect_eq(soq__gguf_bool(g, "u8", &flag, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'u8' is uint8, expected bool");
    cr_expect_eq(soq__gguf_string(g, "words", &text, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'words' is array of string, expected a string");
    cr_expect_eq(soq__gguf_strings(g, "text", &array, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'text' is string, expected an array of strings");
    cr_expect_eq(soq__gguf_ints(g, "words", &array, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'words' is array of string, expected an array of integers");
    cr_expect_eq(soq__gguf_floats(g, "shorts", &array, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'shorts' is array of int16, expected an array of floating-point numbers");
    cr_expect_eq(soq__gguf_string(g, "tex", &text, &err), -SOQ_ENOTFOUND);
    cr_expect_str_eq(err.text, "bad: key 'tex' is missing");
    cr_expect(u32 == 77 && !array, "outputs are written only on success");
    soq__gguf_close(g);
    soq__free(memory);
}

Test(gguf, values_for_absent_keys)
{
    void *memory;
    struct soq__gguf *g = open_good(ALL_TYPES, &memory);
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t u32;
    float f32;
    bool flag;

    cr_expect(soq__gguf_u32_or(g, "absent", 5, &u32, &err) == 0 && u32 == 5);
    cr_expect(soq__gguf_u32_or(g, "u8", 5, &u32, &err) == 0 && u32 == 200);
    cr_expect(soq__gguf_f32_or(g, "absent", 0.5f, &f32, &err) == 0 && f32 == 0.5f);
    cr_expect(soq__gguf_f32_or(g, "f32", 0.5f, &f32, &err) == 0 && f32 == 1.5f);
    cr_expect(soq__gguf_bool_or(g, "absent", true, &flag, &err) == 0 && flag);
    cr_expect(soq__gguf_bool_or(g, "bool", false, &flag, &err) == 0 && flag);
    cr_expect_eq(soq__gguf_u32_or(g, "text", 5, &u32, &err), -SOQ_EINVAL, "a wrong type is no absence");
    cr_expect_eq(soq__gguf_f32_or(g, "text", 5, &f32, &err), -SOQ_EINVAL);
    cr_expect_eq(soq__gguf_bool_or(g, "text", true, &flag, &err), -SOQ_EINVAL);
    soq__gguf_close(g);
    soq__free(memory);
}

Test(gguf, arrays)
{
    void *memory;
    struct soq__gguf *g =
        open_good("header 2 0 6 key s 9 u32 8 u64 3 str one u64 0 str three key e 9 u32 8 u64 0 "
                  "key i 9 u32 3 u64 2 u8 0xff 0xff 5 0 key b 9 u32 7 u64 2 u8 1 0 "
                  "key f 9 u32 6 u64 2 u32 0x3f800000 0xbf000000 key u 9 u32 10 u64 2 u64 1 0xffffffffffffffff",
                  &memory);
    struct soq_error err = SOQ_ERROR_INIT;
    const struct soq__gguf_kv *a = NULL;

    cr_expect_eq(soq__gguf_version(g), 2);
    cr_assert_eq(soq__gguf_strings(g, "s", &a, &err), 0, "%s", err.text);
    cr_expect(a->count == 3 && soq__gguf_str_equal(soq__gguf_str_at(a, 0), "one"));
    cr_expect(soq__gguf_str_equal(soq__gguf_str_at(a, 1), "") && soq__gguf_str_equal(soq__gguf_str_at(a, 2), "three"));
    cr_expect_eq(soq__gguf_str_at(a, 3).len, 0, "beyond the end");
    cr_expect(soq__gguf_int_at(a, 0) == 0 && soq__gguf_float_at(a, 0) == 0, "of another kind");
    cr_assert_eq(soq__gguf_strings(g, "e", &a, &err), 0, "%s", err.text);
    cr_expect(a->count == 0 && soq__gguf_str_at(a, 0).len == 0);
    cr_assert_eq(soq__gguf_ints(g, "i", &a, &err), 0, "%s", err.text);
    cr_expect(a->count == 2 && soq__gguf_int_at(a, 0) == -1 && soq__gguf_int_at(a, 1) == 5 && soq__gguf_int_at(a, 2) == 0);
    cr_expect_eq(soq__gguf_str_at(a, 0).len, 0, "of another kind");
    cr_assert_eq(soq__gguf_ints(g, "b", &a, &err), 0, "%s", err.text);
    cr_expect(soq__gguf_int_at(a, 0) == 1 && soq__gguf_int_at(a, 1) == 0);
    cr_assert_eq(soq__gguf_floats(g, "f", &a, &err), 0, "%s", err.text);
    cr_expect(soq__gguf_float_at(a, 0) == 1.0 && soq__gguf_float_at(a, 1) == -0.5 && soq__gguf_float_at(a, 2) == 0);
    cr_expect_eq(soq__gguf_ints(g, "u", &a, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "bad: key 'u' has 18446744073709551615 as item 1, expected at most 9223372036854775807");
    soq__gguf_close(g);
    soq__free(memory);
}

Test(gguf, tensors)
{
    void *memory;
    struct soq__gguf *g = open_good("header 3 4 1 key general.alignment 4 u32 64 tensor b 0 64 4 2 tensor a 12 128 256 "
                                    "tensor new 99 320 7 tensor old 16 384 256 2 pad 64 zeros 516",
                                    &memory);
    struct soq_error err = SOQ_ERROR_INIT;
    const struct soq__gguf_tensor *t = NULL;

    cr_expect_eq(soq__gguf_n_tensors(g), 4);
    cr_expect_eq(soq__gguf_alignment(g), 64);
    cr_assert_eq(soq__gguf_tensor_need(g, "b", &t, &err), 0, "%s", err.text);
    cr_expect(t == soq__gguf_tensor_at(g, 0) && t->n_dims == 2 && t->ne[0] == 4 && t->ne[1] == 2 && t->ne[2] == 1);
    cr_expect(t->elements == 8 && t->bytes == 32 && t->offset == soq__gguf_data_offset(g) + 64);
    cr_expect_eq((const char *)t->data, (const char *)memory + t->offset);
    cr_assert_eq(soq__gguf_tensor_need(g, "a", &t, &err), 0, "%s", err.text);
    cr_expect(t->dtype->id == SOQ_DTYPE_Q4_K && t->bytes == 144 && t->elements == 256);
    t = NULL;
    cr_expect_eq(soq__gguf_tensor_need(g, "new", &t, &err), -SOQ_EUNSUPPORTED);
    cr_expect_str_eq(err.text, "bad: tensor 'new' has the unknown type id 99");
    cr_expect_eq(soq__gguf_tensor_need(g, "old", &t, &err), -SOQ_EUNSUPPORTED);
    cr_expect(strstr(err.text, "bad: tensor 'old' has the unsupported type IQ2_XXS; supported are F32, F16,"), "%s", err.text);
    cr_expect_eq(soq__gguf_tensor_need(g, "c", &t, &err), -SOQ_ENOTFOUND);
    cr_expect_str_eq(err.text, "bad: tensor 'c' is missing");
    cr_expect(!t && !soq__gguf_tensor_find(g, "") && !soq__gguf_tensor_at(g, 4) && !soq__gguf_kv_at(g, 1));
    soq__gguf_close(g);
    soq__free(memory);
}

/* Every prefix of a file with keys, arrays and tensors is refused, and no read leaves it. */
Test(gguf, every_truncation)
{
    struct soq_buf b = SOQ_BUF_INIT;
    int64_t live = soq__alloc_live();

    gguf_build(&b, "header 3 2 3 key a 8 str text key b 9 u32 8 u64 2 str x str y key c 9 u32 4 u64 2 u32 1 2 "
                   "tensor w 0 0 8 2 tensor v 8 64 32 pad 32 zeros 98");
    for (size_t n = 0; n <= b.len; n++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__gguf *g = NULL;
        char *exact = soq__alloc(n);
        int rc;

        memcpy(exact, b.data, n);
        rc = soq__gguf_open_memory(exact, n, "cut", &g, &err);
        cr_expect_eq(rc == 0, n == b.len, "%zu of %zu bytes: %s", n, b.len, err.text);
        cr_expect(rc == 0 || err.text[0]);
        soq__gguf_close(g);
        soq__free(exact);
    }
    soq__buf_done(&b);
    cr_expect_eq(soq__alloc_live(), live);
}

/* Every byte of the header of a file replaced by a few hostile values: opened or refused, but no stray read. */
Test(gguf, every_byte_damaged)
{
    static const unsigned char values[] = {0, 1, 7, 9, 0x7f, 0x80, 0xff};
    struct soq_buf b = SOQ_BUF_INIT;
    int64_t live = soq__alloc_live();
    size_t opened = 0;

    gguf_build(&b, "header 3 1 2 key a 8 str text key b 9 u32 8 u64 2 str x str y tensor w 0 0 8 pad 32 zeros 32");
    for (size_t i = 0; i < b.len; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            struct soq__gguf *g = NULL;
            unsigned char *exact = soq__alloc(b.len);

            memcpy(exact, b.data, b.len);
            exact[i] = values[v];
            opened += soq__gguf_open_memory(exact, b.len, "damaged", &g, NULL) == 0;
            soq__gguf_close(g);
            soq__free(exact);
        }
    cr_expect(opened > sizeof values * 32 && opened < sizeof values * b.len, "%zu opened", opened);
    soq__buf_done(&b);
    cr_expect_eq(soq__alloc_live(), live);
}

/* Each allocation of an open fails in turn. */
Test(gguf, out_of_memory)
{
    const char *path = soq__test_data("golden/llama/model.gguf");
    int64_t live = soq__alloc_live();
    uint64_t before = soq__alloc_count(), count;
    struct soq__gguf *g = NULL;

    cr_assert_eq(soq__gguf_open(path, &g, NULL), 0);
    count = soq__alloc_count() - before;
    soq__gguf_close(g);
    cr_expect_geq(count, 7);
    for (uint64_t n = 1; n <= count; n++) {
        struct soq_error err = SOQ_ERROR_INIT;

        g = NULL;
        soq__alloc_fail_at(n, n % 2);
        cr_expect_eq(soq__gguf_open(path, &g, &err), -SOQ_ENOMEM, "allocation %llu: %s", (unsigned long long)n, err.text);
        soq__alloc_fail_at(0, false);
        cr_expect(strstr(err.text, "out of memory") && strstr(err.text, "model.gguf"), "%s", err.text);
        cr_expect_null(g);
        cr_expect_eq(soq__alloc_live(), live, "allocation %llu leaks", (unsigned long long)n);
    }
}

Test(gguf, a_real_file)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    const struct soq__gguf_tensor *t;
    const struct soq__gguf_kv *tokens;
    unsigned char before;
    uint32_t width;

    cr_assert_eq(soq__gguf_open(soq__test_data("golden/llama/model.gguf"), &g, &err), 0, "%s", err.text);
    cr_expect_eq(soq__gguf_version(g), 3);
    cr_expect_eq(soq__gguf_u32(g, "llama.embedding_length", &width, &err), 0, "%s", err.text);
    cr_expect_eq(soq__gguf_strings(g, "tokenizer.ggml.tokens", &tokens, &err), 0, "%s", err.text);
    cr_expect_eq(soq__gguf_tensor_need(g, "token_embd.weight", &t, &err), 0, "%s", err.text);
    cr_expect(t->ne[0] == width && t->ne[1] == tokens->count);
    for (size_t i = 0; i < soq__gguf_n_kv(g); i++) {
        const struct soq__gguf_kv *kv = soq__gguf_kv_at(g, i);
        char key[256];

        snprintf(key, sizeof key, "%.*s", (int)kv->key.len, kv->key.data);
        cr_expect_eq(soq__gguf_find(g, key), kv, "%s", key);
    }
    before = ((const unsigned char *)t->data)[t->bytes / 2];
    soq__gguf_tensor_drop(g, t);
    cr_expect_eq(((const unsigned char *)t->data)[t->bytes / 2], before, "dropped pages are read again from the file");
    soq__gguf_close(g);
}

/* Bytes of the file that are mapped into this process. */
static uint64_t resident(const char *path)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    uint64_t kib = 0;

    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, path))
            while (fgets(line, sizeof line, f) && sscanf(line, "Rss: %" SCNu64, &kib) != 1)
                continue;
    fclose(f);
    return kib << 10;
}

/* A process that took a fingerprint holds no more of the file than its header, and the pages at the borders of tensors. */
Test(gguf, a_fingerprint)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    struct soq__hash hash, again;
    uint64_t most;

    cr_assert_eq(soq__gguf_open(soq__test_data("golden/llama256/model.gguf"), &g, &err), 0, "%s", err.text);
    most = soq__gguf_data_offset(g) + (soq__gguf_n_tensors(g) + 2) * (uint64_t)sysconf(_SC_PAGESIZE);
    cr_expect_eq(soq__model_fingerprint(g, &hash, &err), 0, "%s", err.text);
    cr_expect_leq(resident("golden/llama256/model.gguf"), most);
    cr_expect_eq(soq__model_fingerprint(g, &again, &err), 0, "%s", err.text);
    cr_expect_arr_eq(hash.bytes, again.bytes, sizeof hash.bytes);
    soq__gguf_close(g);
}

Test(gguf, files_that_cannot_be_opened)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;

    cr_expect_eq(soq__gguf_open("/no/such/model.gguf", &g, &err), -SOQ_ENOTFOUND);
    cr_expect(strstr(err.text, "/no/such/model.gguf: cannot open"), "%s", err.text);
    cr_expect_eq(soq__gguf_open(soq__test_data("golden"), &g, &err), -SOQ_EINVAL);
    cr_expect(strstr(err.text, "not a regular file"), "%s", err.text);
    cr_expect_null(g);
    soq__gguf_close(g);
}

/* As many entries as a large model has: a vocabulary of 2^18 tokens and 4000 tensors, opened within a tenth of a second (the
 * test allows more, for sanitizers). */
Test(gguf, large_tables)
{
    struct soq_buf b = SOQ_BUF_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    const struct soq__gguf_kv *tokens;
    double start;
    char name[32];

    gguf_header(&b, 3, 4000, 1);
    gguf_key_array(&b, "tokens", SOQ__GGUF_STRING, 1 << 18);
    for (int i = 0; i < 1 << 18; i++) {
        snprintf(name, sizeof name, "token%d", i);
        gguf_string(&b, name);
    }
    for (uint64_t i = 0; i < 4000; i++) {
        snprintf(name, sizeof name, "blk.%u.weight", (unsigned)(i * 7919 % 4000));
        gguf_tensor(&b, name, SOQ_DTYPE_F32, i * 32, 1, (const uint64_t[]){8});
    }
    gguf_pad(&b, 32);
    gguf_zeros(&b, 4000 * 32);
    start = soq__clock_now();
    cr_assert_eq(soq__gguf_open_memory(b.data, b.len, "large", &g, &err), 0, "%s", err.text);
    cr_expect_lt(soq__clock_now() - start, 1.0);
    cr_assert_eq(soq__gguf_strings(g, "tokens", &tokens, &err), 0, "%s", err.text);
    cr_expect(soq__gguf_str_equal(soq__gguf_str_at(tokens, (1 << 18) - 1), "token262143"));
    for (unsigned i = 0; i < 4000; i++) {
        const struct soq__gguf_tensor *t;

        snprintf(name, sizeof name, "blk.%u.weight", i);
        t = soq__gguf_tensor_find(g, name);
        cr_assert(t && soq__gguf_str_equal(t->name, name), "%s", name);
    }
    soq__gguf_close(g);
    soq__buf_done(&b);
}
