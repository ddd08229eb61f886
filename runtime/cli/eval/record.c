#include "cli/eval/record.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/json_out.h"

#define FILE_MAX ((size_t)1 << 30) /* bytes */

const char *const soq__eval_task_names[SOQ__EVAL_TASKS] = {"text", "passkey", "recall", "speed"};

static void record_done(struct soq__eval_record *r)
{
    soq__free((char *)(uintptr_t)r->key.model);
    soq__free((char *)(uintptr_t)r->key.fingerprint);
    soq__free((char *)(uintptr_t)r->key.config);
    soq__free((char *)(uintptr_t)r->key.items);
    soq__free(r->nll);
    soq__free(r->kl);
}

void soq__eval_records_done(struct soq__eval_records *records)
{
    for (size_t i = 0; i < records->n; i++)
        record_done(&records->items[i]);
    soq__free(records->items);
    soq__free(records->path);
    if (records->file)
        fclose(records->file);
    *records = (struct soq__eval_records){0};
}

/* Strings of the record become copies; on failure it is freed. */
static int take(struct soq__eval_records *records, struct soq__eval_record r)
{
    bool has_fingerprint = r.key.fingerprint;

    r.key.model = soq__strdup(r.key.model);
    r.key.fingerprint = has_fingerprint ? soq__strdup(r.key.fingerprint) : NULL;
    r.key.config = soq__strdup(r.key.config);
    r.key.items = soq__strdup(r.key.items);
    if (records->n == records->cap) {
        size_t cap = records->cap ? 2 * records->cap : 256;
        struct soq__eval_record *more = soq__realloc_array(records->items, cap, sizeof *more);

        if (more) {
            records->items = more;
            records->cap = cap;
        }
    }
    if (!r.key.model || !r.key.fingerprint != !has_fingerprint || !r.key.config || !r.key.items || records->n == records->cap) {
        record_done(&r);
        return -1;
    }
    records->items[records->n++] = r;
    return 0;
}

static bool same_model(const struct soq__eval_key *a, const struct soq__eval_key *b)
{
    return strcmp(a->model, b->model) == 0 &&
           (!a->fingerprint || !b->fingerprint || strcmp(a->fingerprint, b->fingerprint) == 0);
}

static bool same_key(const struct soq__eval_key *a, const struct soq__eval_key *b)
{
    return a->task == b->task && a->length == b->length && a->depth == b->depth && a->index == b->index &&
           strcmp(a->config, b->config) == 0 && strcmp(a->items, b->items) == 0 && same_model(a, b);
}

const struct soq__eval_record *soq__eval_records_find(const struct soq__eval_records *records, const struct soq__eval_key *key)
{
    for (size_t i = 0; i < records->n; i++)
        if (same_key(&records->items[i].key, key))
            return &records->items[i];
    return NULL;
}

/* ---- Writing */

static json_t *numbers(const float *values, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; values && i < n; i++)
        json_array_append_new(list, soq__json_number((double)values[i]));
    return list;
}

static json_t *json_of(const struct soq__eval_record *r)
{
    json_t *json = json_pack("{ss ss* ss ss ss sI sI sI sI}", "model", r->key.model, "fingerprint", r->key.fingerprint,
                             "config", r->key.config, "task", soq__eval_task_names[r->key.task], "items", r->key.items,
                             "length", (json_int_t)r->key.length, "depth", (json_int_t)r->key.depth, "index",
                             (json_int_t)r->key.index, "kv_bytes", (json_int_t)r->kv_bytes);

    if (json && r->key.task == SOQ__EVAL_SPEED) {
        json_object_set_new(json, "kv_peak_bytes", json_integer((json_int_t)r->kv_peak));
        json_object_set_new(json, "tok_s", soq__json_number(r->tok_s));
    } else if (json) {
        json_object_set_new(json, "nll", numbers(r->nll, r->n));
    }
    if (json && r->key.task == SOQ__EVAL_TEXT) {
        json_object_set_new(json, "kl", numbers(r->kl, r->n));
        json_object_set_new(json, "same_top", json_integer((json_int_t)r->n_same_top));
    } else if (json && r->key.task != SOQ__EVAL_SPEED) {
        json_object_set_new(json, "score", soq__json_number(r->score));
    }
    return json;
}

static int write_line(struct soq__eval_records *records, const struct soq__eval_record *r, struct soq_error *err)
{
    json_t *json = json_of(r);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    int rc = 0;

    json_decref(json);
    if (!text)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (fprintf(records->file, "%s\n", text) < 0 || fflush(records->file))
        rc = soq__fail(err, SOQ_EIO, "%s: %s", records->path, strerror(errno));
    free(text);
    return rc;
}

int soq__eval_records_add(struct soq__eval_records *records, const struct soq__eval_record *record, struct soq_error *err)
{
    if (take(records, *record))
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    return records->file ? write_line(records, &records->items[records->n - 1], err) : 0;
}

/* ---- Reading */

static bool take_count(const json_t *json, const char *key, uint64_t max, bool needed, uint64_t *out)
{
    const json_t *value = json_object_get(json, key);
    json_int_t number = json_integer_value(value);

    *out = (uint64_t)number;
    return (!value && !needed) || (json_is_integer(value) && number >= 0 && (uint64_t)number <= max);
}

static bool take_text(const json_t *json, const char *key, const char **out)
{
    *out = json_string_value(json_object_get(json, key));
    return *out != NULL;
}

/* At least one, and as many as *n says unless that is 0. */
static bool take_numbers(const json_t *json, const char *key, uint32_t *n, float **out)
{
    const json_t *list = json_object_get(json, key);
    size_t n_list = json_array_size(list); /* 0: it is no list */

    if (!n_list || n_list > UINT32_MAX || (*n && *n != n_list))
        return false;
    *n = (uint32_t)n_list;
    *out = soq__alloc_zero(*n, sizeof **out);
    for (uint32_t i = 0; *out && i < *n; i++) {
        const json_t *value = json_array_get(list, i);

        if (!json_is_number(value) && !json_is_null(value))
            return false;
        (*out)[i] = json_is_null(value) ? HUGE_VALF : (float)json_number_value(value);
    }
    return *out != NULL;
}

static bool take_task(const json_t *json, enum soq__eval_task *out)
{
    const char *name = json_string_value(json_object_get(json, "task"));

    for (int i = 0; name && i < SOQ__EVAL_TASKS; i++)
        if (strcmp(name, soq__eval_task_names[i]) == 0) {
            *out = (enum soq__eval_task)i;
            return true;
        }
    return false;
}

/* The key that is missing or wrong; NULL: none. Strings are the JSON's. */
static const char *read_record(const json_t *json, struct soq__eval_record *r)
{
    uint64_t length, depth, index, same;
    const json_t *score = json_object_get(json, "score"), *tok_s = json_object_get(json, "tok_s");

    if (!take_task(json, &r->key.task))
        return "task";
    if (!take_text(json, "model", &r->key.model))
        return "model";
    if (!take_text(json, "fingerprint", &r->key.fingerprint) && json_object_get(json, "fingerprint"))
        return "fingerprint";
    if (!take_text(json, "config", &r->key.config))
        return "config";
    if (!take_text(json, "items", &r->key.items))
        return "items";
    if (!take_count(json, "length", UINT32_MAX, true, &length))
        return "length";
    if (!take_count(json, "depth", 100, true, &depth))
        return "depth";
    if (!take_count(json, "index", UINT32_MAX, true, &index))
        return "index";
    if (!take_count(json, "kv_bytes", INT64_MAX, true, &r->kv_bytes))
        return "kv_bytes";
    if (!take_count(json, "kv_peak_bytes", INT64_MAX, false, &r->kv_peak))
        return "kv_peak_bytes";
    if (r->key.task != SOQ__EVAL_SPEED && !take_numbers(json, "nll", &r->n, &r->nll))
        return "nll";
    if (r->key.task == SOQ__EVAL_TEXT && !take_numbers(json, "kl", &r->n, &r->kl))
        return "kl";
    if (!take_count(json, "same_top", r->n, false, &same))
        return "same_top";
    r->key.length = (uint32_t)length;
    r->key.depth = (uint32_t)depth;
    r->key.index = (uint32_t)index;
    r->n_same_top = (uint32_t)same;
    r->score = json_number_value(score);
    r->tok_s = json_number_value(tok_s);
    return NULL;
}

static int read_line(struct soq__eval_records *records, const char *line, size_t n, size_t number, struct soq_error *err)
{
    struct soq__eval_record r = {.n = 0};
    json_t *json = json_loadb(line, n, 0, NULL);
    const char *wrong = json_is_object(json) ? read_record(json, &r) : "";
    int rc = 0;

    if (wrong) {
        soq__free(r.nll);
        soq__free(r.kl);
        rc = *wrong
                 ? soq__fail(err, SOQ_ECORRUPT, "%s:%zu: \"%s\" is missing or wrong; is it a file that soquete eval kv wrote?",
                             records->path, number, wrong)
                 : soq__fail(err, SOQ_ECORRUPT, "%s:%zu: no JSON object", records->path, number);
    } else if (take(records, r)) {
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    json_decref(json);
    return rc;
}

/* What is left of a line that was being written. */
static bool is_torn(const char *rest)
{
    static const char begin[] = "{\"model\":";
    size_t n = strlen(rest);

    return strncmp(rest, begin, n < sizeof begin - 1 ? n : sizeof begin - 1) == 0;
}

/* *end_out: bytes up to the end of the last whole line. */
static int read_all(struct soq__eval_records *records, size_t *end_out, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    const char *at, *end;
    int rc = soq__file_read(records->path, FILE_MAX, &text, err);

    at = soq__buf_str(&text);
    for (size_t number = 1; !rc && (end = strchr(at, '\n')); number++) {
        rc = end > at ? read_line(records, at, (size_t)(end - at), number, err) : 0;
        at = end + 1;
    }
    if (!rc && !is_torn(at))
        rc = soq__fail(err, SOQ_ECORRUPT, "%s: the last line has no end; is it a file that soquete eval kv wrote?",
                       records->path);
    *end_out = (size_t)(at - soq__buf_str(&text));
    soq__buf_done(&text);
    return rc;
}

int soq__eval_records_open(struct soq__eval_records *records, const char *path, struct soq_error *err)
{
    size_t end = 0;
    struct stat st;
    int rc = 0;

    *records = (struct soq__eval_records){0};
    if (!path)
        return 0;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return soq__fail(err, SOQ_EINVAL,
                         "--results %s: it is no regular file; results are read back from it, so name one, or a file that "
                         "is to be made",
                         path);
    records->path = soq__strdup(path);
    if (!records->path)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    records->file = fopen(path, "ae");
    if (!records->file)
        return soq__fail(err, SOQ_EIO, "--results %s: cannot be written: %s; name another file", path, strerror(errno));
    rc = read_all(records, &end, err);
    if (!rc && ftruncate(fileno(records->file), (off_t)end))
        rc = soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    return rc;
}
