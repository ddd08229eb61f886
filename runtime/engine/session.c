/* Session files:
 *
 *     u8  magic[8], u32 version, u32 0, u64 length of the file, u8 checksum[16] of what follows
 *     u32 n, u8 identity[n]
 *     u32 n, i32 tokens[n], u32 n_computed (of the tokens; more than the cache has where a preemption dropped it)
 *     u32 n, u8 sampler_state[n]
 *     u64 n, u8 note[n]
 *     the cache of the sequence, up to the end */
#include "engine/session.h"

#include <string.h>

#include "base/alloc.h"
#include "base/cursor.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/outfile.h"
#include "engine/admit.h"
#include "engine/identity.h"
#include "kv/image.h"
#include "kv/swap.h"

#define MAGIC "SOQSESS"
#define FORMAT_VERSION 2
#define HEAD_BYTES 40
#define IDENTITY_MAX (1u << 24)

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

static int put(void *arg, const void *data, size_t n, struct soq_error *err)
{
    struct soq_buf *file = arg;

    soq__buf_append(file, data, n);
    return soq__buf_ok(file) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for a copy of the session");
}

/* A number of n_bytes. */
static int put_number(struct soq_buf *file, unsigned n_bytes, uint64_t value, struct soq_error *err)
{
    unsigned char bytes[8];

    soq__put_number(bytes, value, n_bytes);
    return put(file, bytes, n_bytes, err);
}

/* The length of a part in n_bytes, and the part. */
static int put_part(struct soq_buf *file, unsigned n_bytes, const void *data, size_t n, struct soq_error *err)
{
    int rc = put_number(file, n_bytes, n, err);

    return rc ? rc : put(file, data, n, err);
}

static int put_tokens(struct soq_buf *file, const struct soq__sequence *seq, struct soq_error *err)
{
    int rc = put_number(file, 4, seq->n_tokens, err);

    for (uint32_t i = 0; !rc && i < seq->n_tokens; i++)
        rc = put_number(file, 4, (uint32_t)seq->tokens[i], err);
    return rc ? rc : put_number(file, 4, soq__sequence_computed(seq), err);
}

static int identity_of(const struct soq__engine *e, struct soq_buf *out, struct soq_error *err)
{
    soq__buf_append(out, soq__buf_str(&e->identity), e->identity.len);
    soq__identity_write_layout(e, out);
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for what the session depends on");
}

/* Everything behind the head. */
static int put_parts(struct soq_buf *file, const struct soq__sequence *seq, const void *note, size_t n_note,
                     struct soq_error *err)
{
    const struct soq__engine *e = seq->engine;
    struct soq_buf identity = SOQ_BUF_INIT;
    int rc = identity_of(e, &identity, err);

    soq__buf_reserve(file, soq__kv_seq_bytes(&seq->kv) + soq__kv_swap_bytes(&seq->kv)); /* most of it */
    if (!rc)
        rc = put_part(file, 4, identity.data, identity.len, err);
    if (!rc)
        rc = put_tokens(file, seq, err);
    if (!rc)
        rc = put_part(file, 4, seq->sampler_state, e->sampler.plugin->ops.sampler->state_size, err);
    if (!rc)
        rc = put_part(file, 8, note, n_note, err);
    if (!rc)
        rc = soq__kv_image_save(&seq->kv, put, file, err);
    soq__buf_done(&identity);
    return rc;
}

static void fill_head(struct soq_buf *file)
{
    unsigned char *head = (unsigned char *)file->data;
    struct soq__hash sum = soq__hash(head + HEAD_BYTES, file->len - HEAD_BYTES);

    memcpy(head, MAGIC, sizeof MAGIC);
    soq__put_number(head + 8, FORMAT_VERSION, 4);
    soq__put_number(head + 16, file->len, 8);
    memcpy(head + 24, sum.bytes, sizeof sum.bytes);
}

static int check_policies(const struct soq__engine *e, struct soq_error *err)
{
    for (uint32_t i = 0; i < e->policies.n; i++)
        if (e->policies.kv[i].ops->traits & SOQ_POLICY_NO_SAVE)
            return soq__fail(err, SOQ_EUNSUPPORTED, "[%s] policy = %s: its sequences cannot be saved",
                             soq__kv_section(e->policies.kv[i].view), e->policies.kv[i].name);
    return 0;
}

int soq__sequence_store(struct soq__sequence *seq, const void *note, size_t n_note, struct soq_buf *out, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    int rc = check_policies(e, err);

    if (!rc)
        rc = put(out, (const unsigned char[HEAD_BYTES]){0}, HEAD_BYTES, err);
    if (rc)
        return rc;
    soq__engine_lock(e);
    rc = seq->job ? soq__fail(err, SOQ_EBUSY, "the session has a request in hand") : put_parts(out, seq, note, n_note, err);
    soq__engine_unlock(e);
    if (!rc)
        fill_head(out);
    return rc;
}

static int write_file(const char *path, const struct soq_buf *bytes, struct soq_error *err)
{
    struct soq__outfile file;
    int rc = soq__outfile_open(&file, path, err);

    if (!rc)
        rc = soq__outfile_write(&file, bytes->data, bytes->len, err);
    if (!rc)
        rc = soq__outfile_commit(&file, err);
    soq__outfile_discard(&file);
    return rc;
}

int soq__sequence_save(struct soq__sequence *seq, const char *path, const void *note, size_t n_note, struct soq_error *err)
{
    struct soq_buf bytes = SOQ_BUF_INIT;
    int rc = soq__sequence_store(seq, note, n_note, &bytes, err);

    if (rc)
        soq__fail_prefix(err, "%s", path);
    else
        rc = write_file(path, &bytes, err);
    soq__buf_done(&bytes);
    return rc;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

static struct soq__cursor part(struct soq__cursor *c, uint64_t n)
{
    const unsigned char *at = soq__cursor_take(c, n);

    return (struct soq__cursor){.at = at, .left = at ? (size_t)n : 0};
}

static int check_head(const unsigned char *data, size_t n, struct soq_error *err)
{
    struct soq__cursor c = {.at = data, .left = n};
    const unsigned char *magic = soq__cursor_take(&c, 8);
    uint32_t version = soq__cursor_u32(&c);
    uint64_t length;
    struct soq__hash sum;

    if (!magic || memcmp(magic, MAGIC, 8) != 0)
        return soq__fail(err, SOQ_ECORRUPT, "this is no session file");
    if (c.truncated || n < HEAD_BYTES)
        return soq__fail(err, SOQ_ECORRUPT, "the file is cut off after %zu bytes", n);
    if (version != FORMAT_VERSION)
        return soq__fail(err, SOQ_EUNSUPPORTED, "session files of version %u, and this program knows version %d", version,
                         FORMAT_VERSION);
    if (soq__cursor_u32(&c) != 0)
        return soq__fail(err, SOQ_ECORRUPT, "the head is wrong: the file is damaged");
    length = soq__cursor_u64(&c);
    if (length != n)
        return soq__fail(err, SOQ_ECORRUPT, "the file has %zu bytes, not %llu: it was cut off or continued", n,
                         (unsigned long long)length);
    sum = soq__hash(data + HEAD_BYTES, n - HEAD_BYTES);
    if (memcmp(sum.bytes, data + 24, sizeof sum.bytes) != 0)
        return soq__fail(err, SOQ_ECORRUPT, "the checksum is wrong: the file is damaged");
    return 0;
}

int soq__session_split(const void *data, size_t n, struct soq__session_parts *out, struct soq_error *err)
{
    struct soq__cursor c;
    int rc = check_head(data, n, err);

    if (rc)
        return rc;
    c = (struct soq__cursor){.at = (const unsigned char *)data + HEAD_BYTES, .left = n - HEAD_BYTES};
    out->identity = part(&c, soq__cursor_u32(&c));
    out->tokens = part(&c, (uint64_t)soq__cursor_u32(&c) * 4);
    out->n_computed = soq__cursor_u32(&c);
    out->sampler = part(&c, soq__cursor_u32(&c));
    out->note = part(&c, soq__cursor_u64(&c));
    out->image = c;
    return c.truncated ? soq__fail(err, SOQ_ECORRUPT, "a part is longer than the file") : 0;
}

static int check_identity(const struct soq__engine *e, const struct soq__cursor *saved, struct soq_error *err)
{
    struct soq_buf here = SOQ_BUF_INIT, there = SOQ_BUF_INIT;
    char a[200], b[200];
    int rc = identity_of(e, &here, err);

    if (!rc && saved->left > IDENTITY_MAX)
        rc = soq__fail(err, SOQ_ECORRUPT, "%zu bytes of text", saved->left);
    if (!rc)
        soq__buf_append(&there, saved->at, saved->left);
    if (!rc && !soq__buf_ok(&there))
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc && soq__identity_differs(soq__buf_str(&here), soq__buf_str(&there), a, b, sizeof a))
        rc = soq__fail(err, SOQ_EINVAL, "saved with \"%s\", but now it is \"%s\"", b, a);
    soq__buf_done(&here);
    soq__buf_done(&there);
    return rc;
}

static int read_tokens(struct soq__sequence *seq, struct soq__cursor c, struct soq_error *err)
{
    uint32_t n_vocab = seq->engine->net.logits.cols, n = (uint32_t)(c.left / 4);

    if (n > seq->engine->context + 1)
        return soq__fail(err, SOQ_ELIMIT, "%u tokens exceed the context of %u; raise [model] context", n, seq->engine->context);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = soq__cursor_u32(&c);

        if (token >= n_vocab)
            return soq__fail(err, SOQ_ECORRUPT, "token %u is %u, but ids go from 0 to %u", i, token, n_vocab - 1);
        seq->tokens[i] = (int32_t)token;
    }
    seq->n_tokens = n;
    return 0;
}

/* Fills the sequence; its blocks come from the file's memory, so they are brought in at once. */
static int take_parts(struct soq__sequence *seq, const struct soq__session_parts *p, struct soq_error *err)
{
    size_t state_size = seq->engine->sampler.plugin->ops.sampler->state_size;
    int rc = read_tokens(seq, p->tokens, err);

    if (!rc && p->sampler.left != state_size)
        rc = soq__fail(err, SOQ_ECORRUPT, "%zu bytes of the sampler's state, not %zu", p->sampler.left, state_size);
    if (!rc)
        rc = soq__kv_image_load(&seq->kv, p->image.at, p->image.left, err);
    if (!rc && (seq->kv.n_committed > p->n_computed || p->n_computed > seq->n_tokens))
        rc = soq__fail(err, SOQ_ECORRUPT, "%u entries, but %u tokens are computed of %u", seq->kv.n_committed, p->n_computed,
                       seq->n_tokens);
    if (!rc)
        rc = soq__bring_in(seq, err);
    if (rc)
        return rc;
    seq->n_dropped = p->n_computed > seq->kv.n_committed ? p->n_computed : 0;
    if (state_size)
        memcpy(seq->sampler_state, p->sampler.at, state_size);
    return 0;
}

int soq__sequence_restore(struct soq__sequence *seq, const void *data, size_t n, struct soq_buf *note, struct soq_error *err)
{
    struct soq__engine *e = seq->engine;
    struct soq__session_parts p;
    int rc = soq__session_split(data, n, &p, err);

    if (!rc)
        rc = check_identity(e, &p.identity, err);
    if (rc)
        return rc;
    soq__engine_lock(e);
    rc = take_parts(seq, &p, err);
    if (rc) {
        soq__kv_rollback(&seq->kv, 0, NULL);
        seq->n_tokens = 0;
    }
    soq__engine_unlock(e);
    if (!rc)
        soq__buf_append(note, p.note.at, p.note.left);
    return rc;
}

int soq__sequence_load(struct soq__sequence *seq, const char *path, struct soq_buf *note, struct soq_error *err)
{
    struct soq_map map;
    int rc = soq__map_open(path, &map, err);

    if (rc)
        return rc;
    rc = soq__sequence_restore(seq, map.data, map.size, note, err);
    if (rc)
        soq__fail_prefix(err, "%s", path);
    soq__map_done(&map);
    return rc;
}
