/* What a file is, by its first bytes: people point at the wrong file more often than files are damaged. */
#include "model/gguf_internal.h"

struct format {
    const char *magic;
    size_t len;
    const char *what;
};

#define FORMAT(magic, what)                                                                                                    \
    {                                                                                                                          \
        magic, sizeof magic - 1, what                                                                                          \
    }

static const struct format formats[] = {
    FORMAT("FUGG", "a big-endian GGUF file; convert it to little-endian"),
    FORMAT("lmgg", "an old GGML file (before GGUF); convert the original model to GGUF"),
    FORMAT("fmgg", "an old GGMF file (before GGUF); convert the original model to GGUF"),
    FORMAT("tjgg", "an old GGJT file (before GGUF); convert the original model to GGUF"),
    FORMAT("algg", "an old GGLA adapter (before GGUF); convert the original adapter to GGUF"),
    FORMAT("PK\3\4", "a zip archive, perhaps a PyTorch checkpoint; convert the model to GGUF"),
    FORMAT("\x80\2", "a Python pickle, perhaps a PyTorch checkpoint; convert the model to GGUF"),
    FORMAT("\x89HDF", "an HDF5 file; convert the model to GGUF"),
    FORMAT("\x1f\x8b", "gzip-compressed; decompress it first"),
    FORMAT("\x28\xb5\x2f\xfd", "zstd-compressed; decompress it first"),
    FORMAT("version https://git-lfs", "a Git LFS pointer; fetch the file itself with `git lfs pull`"),
    FORMAT("<!DOCTYPE", "an HTML page; the download went wrong"),
    FORMAT("<!doctype", "an HTML page; the download went wrong"),
    FORMAT("<html", "an HTML page; the download went wrong"),
    FORMAT("\x7f"
           "ELF",
           "a program or library"),
    FORMAT("{", "a JSON file"),
};

/* A safetensors file: the length of a JSON header, then that header. */
static bool is_safetensors(const unsigned char *data, size_t size)
{
    return size >= 9 && data[8] == '{' && soq__load_u64(data) < (uint64_t)1 << 32;
}

static const char *looks_like(const unsigned char *data, size_t size)
{
    if (is_safetensors(data, size))
        return "a safetensors file; convert the model to GGUF";
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (size >= formats[i].len && memcmp(data, formats[i].magic, formats[i].len) == 0)
            return formats[i].what;
    return NULL;
}

static int check_version(const struct soq__gguf *g, struct soq_error *err)
{
    uint32_t version = soq__load_u32(g->map.data + 4);
    uint32_t swapped = __builtin_bswap32(version);

    if (version == 2 || version == 3)
        return 0;
    if (version == 1)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: GGUF version 1 is not supported; convert the model again", g->path);
    if (swapped >= 1 && swapped <= 3)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: big-endian GGUF (version %u); convert it to little-endian", g->path,
                         swapped);
    return soq__fail(err, SOQ_EUNSUPPORTED, "%s: GGUF version %u is not supported (2 and 3 are)", g->path, version);
}

int soq__gguf_check_magic(const struct soq__gguf *g, struct soq_error *err)
{
    const unsigned char *data = g->map.data;
    size_t size = g->map.size;
    const char *what;

    if (size == 0)
        return soq__fail(err, SOQ_ECORRUPT, "%s: the file is empty", g->path);
    what = looks_like(data, size);
    if (what)
        return soq__fail(err, SOQ_EINVAL, "%s: not a GGUF file but %s", g->path, what);
    if (size < 8)
        return soq__fail(err, SOQ_ECORRUPT, "%s: not a GGUF file: only %zu bytes", g->path, size);
    if (memcmp(data, "GGUF", 4) != 0)
        return soq__fail(err, SOQ_EINVAL, "%s: not a GGUF file: it begins with bytes %02x %02x %02x %02x instead of \"GGUF\"",
                         g->path, data[0], data[1], data[2], data[3]);
    return check_version(g, err);
}
