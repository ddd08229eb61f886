/* Values of the template language with Python's meaning: kinds, strings with provenance, sequences, dictionaries.
 *
 * All of them live in the arena and are immutable once a template can see them, as in jinja2's immutable sandbox; only
 * namespaces, loops, cyclers, joiners and iterators change. */
#ifndef SOQ_TEXT_JINJA_VALUE_H
#define SOQ_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stdint.h>

#include "text/jinja.h"
#include "text/jinja_mem.h"

enum jkind {
    J_OMITTED, /* internal: an argument that was not passed, a slice bound that was not written */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,     /* seq */
    J_TUPLE,    /* seq */
    J_VIEW,     /* seq: dict.keys(), .values(), .items() */
    J_ITERATOR, /* seq, consumed once from its cursor: what Python's generators are here, but computed at once */
    J_DICT,
    J_RANGE,
    J_NAMESPACE, /* dict, with string keys */
    J_LOOP,
    J_MACRO,
    J_FUNCTION,
    J_METHOD,
    J_CYCLER,
    J_JOINER,
};

/* Bytes (UTF-8; malformed bytes count as one character each) and the ascending, disjoint, non-empty ranges of them that are
 * untrusted. */
struct jstr {
    const char *p;
    size_t n;
    const struct soq__span *taint;
    size_t taint_count;
    bool markup; /* the result of `safe` or `escape`: `+` escapes what it is joined with */
};

struct jvalue {
    enum jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const struct jstr *s; /* STRING; UNDEFINED: what is missing, for the message */
        struct jseq *seq;
        struct jdict *dict;
        const struct jrange *range;
        struct jloop *loop;
        const struct jmacro *macro;
        const struct jbuiltin *function;
        const struct jmethod *method;
        struct jcycler *cycler;
        struct jjoiner *joiner;
    };
};

struct jseq {
    struct jvalue *items;
    size_t count, cap;
    size_t cursor;    /* ITERATOR: the next element */
    const char *type; /* VIEW: Python's name of its type */
};

struct jpair {
    struct jvalue key, value;
};

/* In insertion order; found by linear search, because dictionaries in templates are small (each comparison is a step). */
struct jdict {
    struct jpair *pairs;
    size_t count, cap;
};

struct jrange {
    int64_t start, stop, step, count;
};

struct jmethod {
    const struct jbuiltin *fn;
    struct jvalue self;
};

struct jcycler {
    struct jseq *items;
    size_t at;
};

struct jjoiner {
    struct jvalue separator;
    bool used;
};

static inline struct jvalue jv_none(void)
{
    return (struct jvalue){.kind = J_NONE};
}

static inline struct jvalue jv_bool(bool b)
{
    return (struct jvalue){.kind = J_BOOL, .b = b};
}

static inline struct jvalue jv_int(int64_t i)
{
    return (struct jvalue){.kind = J_INT, .i = i};
}

static inline struct jvalue jv_float(double f)
{
    return (struct jvalue){.kind = J_FLOAT, .f = f};
}

static inline struct jvalue jv_str(const struct jstr *s)
{
    return (struct jvalue){.kind = J_STRING, .s = s};
}

static inline struct jvalue jv_seq(enum jkind kind, struct jseq *seq)
{
    return (struct jvalue){.kind = kind, .seq = seq};
}

static inline bool jv_is_seq(struct jvalue v)
{
    return v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_VIEW || v.kind == J_ITERATOR;
}

static inline bool jv_is_integral(struct jvalue v)
{
    return v.kind == J_INT || v.kind == J_BOOL;
}

static inline bool jv_is_number(struct jvalue v)
{
    return jv_is_integral(v) || v.kind == J_FLOAT;
}

/* An INT's or BOOL's value. */
static inline int64_t jv_integer(struct jvalue v)
{
    return v.kind == J_BOOL ? v.b : v.i;
}

/* A number's value. */
static inline double jv_double(struct jvalue v)
{
    return v.kind == J_FLOAT ? v.f : (double)jv_integer(v);
}

static inline bool jstr_is(const struct jstr *s, const char *text, size_t n)
{
    return s->n == n && (n == 0 || __builtin_memcmp(s->p, text, n) == 0);
}

static inline bool jstr_same(const struct jstr *a, const struct jstr *b)
{
    return jstr_is(a, b->p, b->n);
}

/* All of these return NULL after a failure (m->rc). */
struct jseq *soq__jseq_new(struct jmem *m, size_t cap);
bool soq__jseq_add(struct jmem *m, struct jseq *s, struct jvalue v);
struct jdict *soq__jdict_new(struct jmem *m, size_t cap);
bool soq__jdict_add(struct jmem *m, struct jdict *d, struct jvalue key, struct jvalue value); /* the key is known to be new */
bool soq__jdict_set_name(struct jmem *m, struct jdict *d, const struct jstr *name, struct jvalue value);
const struct jvalue *soq__jdict_get_name(const struct jdict *d, const char *name, size_t n); /* NULL if absent */

/* Python's name of a value's type ("str", "dict", "NoneType"). */
const char *soq__jtype_name(struct jvalue v);
bool soq__jtruth(struct jvalue v);

#endif
