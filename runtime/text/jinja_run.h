/* A rendering in progress and the builtins' calling convention; shared by the evaluator and the tables of filters, tests,
 * methods and functions. */
#ifndef SOQ_TEXT_JINJA_RUN_H
#define SOQ_TEXT_JINJA_RUN_H

#include "text/jinja_ast.h"
#include "text/jinja_string.h"

struct jscope {
    struct jscope *parent;
    struct jdict vars;
};

struct jmacro {
    const struct jnode *node; /* MACRO or CALL_BLOCK */
    struct jscope *scope;     /* where it was defined */
};

/* A running for loop. Its `if` is asked element by element, as the loop gets there. */
struct jloop {
    const struct jnode *node;
    struct jscope *scope;       /* around the loop */
    const struct jseq *source;  /* what is iterated over */
    size_t next;                /* first element of source that the `if` has not seen */
    struct jseq *items;         /* elements that passed so far; without an `if`, source itself */
    size_t index;               /* of the current one */
    const struct jseq *changed; /* the last arguments of loop.changed(), or NULL */
};

struct jrun {
    struct jmem mem;
    struct jscope *scope;
    struct jbuild *out; /* where text goes: the result, or what a macro or block captures */
    size_t output_max;
    uint64_t steps, steps_max, next_clock; /* next_clock: look at the clock when steps reach it */
    double deadline;
    uint32_t depth, depth_max;
    uint32_t line;     /* where the first failure happened, 0 = not known yet */
    bool raised;       /* it was raise_exception */
    uint64_t closures; /* macros defined so far: the scopes they were defined in stay in use */
    int64_t now;
    const char *const *roles; /* soq__jinja_context.roles */
};

/* Arguments as written. */
struct jargs {
    const struct jvalue *positional;
    size_t count;
    const struct jdict *keywords; /* string keys; NULL = none */
};

#define JPARAMS_MAX 6

/* Arguments bound to a builtin's parameters. */
struct jcall {
    struct jvalue self;             /* the filtered or tested value, the method's object */
    struct jvalue arg[JPARAMS_MAX]; /* J_OMITTED where nothing was passed */
    const struct jargs *raw;        /* all of them, for variadic builtins */
    const struct jbuiltin *builtin;
};

typedef int jbuiltin_fn(struct jrun *r, const struct jcall *c, struct jvalue *out);

struct jbuiltin {
    const char *name;
    jbuiltin_fn *fn;
    const char *params[JPARAMS_MAX]; /* names, in order */
    unsigned required;               /* how many of them must be passed */
    bool variadic;                   /* takes anything; arg is not filled */
};

struct jbuiltin_table {
    const char *what; /* "filter", "test", ... for messages */
    const struct jbuiltin *items;
    size_t count;
};

#define JTABLE_COUNT(a) (sizeof(a) / sizeof(a)[0])

/* jinja_builtin.c: finding and calling. */
extern const struct jbuiltin_table *const soq__jfilters[], *const soq__jtests[]; /* ended by NULL */
const struct jbuiltin *soq__jbuiltin_find(const struct jbuiltin_table *const *tables, const char *name, size_t n);
/* Fails with "unknown WHAT 'name'" and the nearest name. */
int soq__jbuiltin_unknown(struct jmem *m, const struct jbuiltin_table *const *tables, const struct jstr *name);
int soq__jbuiltin_call(struct jrun *r, const struct jbuiltin *b, struct jvalue self, const struct jargs *args,
                       struct jvalue *out);

/* The tables, one per file. */
extern const struct jbuiltin_table soq__jfilters_text, soq__jfilters_seq, soq__jfilters_pick, soq__jfilters_number;
extern const struct jbuiltin_table soq__jtests_all;
extern const struct jbuiltin_table soq__jstr_methods, soq__jstr_more_methods, soq__jdict_methods, soq__jlist_methods;
extern const struct jbuiltin_table soq__jfunctions, soq__jloop_methods, soq__jcycler_methods;
extern const struct jmutator {
    enum jkind kind;
    const char *name;
} soq__jmutators[]; /* methods that would change a value; ended by NULL */

/* jinja_run.c: limits. Each returns false after a failure. */
bool soq__jstep(struct jrun *r, size_t n);
bool soq__jenter(struct jrun *r); /* one level deeper; paired with leave when true */
void soq__jleave(struct jrun *r);

/* jinja_eval.c, jinja_exec.c, jinja_call.c */
int soq__jeval(struct jrun *r, const struct jnode *n, struct jvalue *out);
int soq__jexec(struct jrun *r, const struct jnode *list); /* 0, an error, JEXEC_BREAK or JEXEC_CONTINUE */
#define JEXEC_BREAK 1
#define JEXEC_CONTINUE 2
int soq__jeval_args(struct jrun *r, const struct jnode_args *a, struct jargs *out);
int soq__jcall(struct jrun *r, struct jvalue of, const struct jargs *args, struct jvalue *out);
int soq__jfilter_value(struct jrun *r, const struct jnode *filter, struct jvalue text, struct jvalue *out);
int soq__jcapture(struct jrun *r, const struct jnode *body, struct jvalue *out); /* runs body, out = its text */
/* Makes l->items hold at least `count` elements if the loop has so many; *has says whether. */
int soq__jloop_pull(struct jrun *r, struct jloop *l, size_t count, bool *has);
int soq__jassign(struct jrun *r, const struct jnode *target, struct jvalue v);
bool soq__jset_name(struct jrun *r, const struct jstr *name, struct jvalue v);

/* jinja_access.c: attributes, items, slices, iteration. */
int soq__jget_attr(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out);
/* For a call: a missing method is an error that names the nearest one. */
int soq__jget_method(struct jrun *r, struct jvalue of, const struct jstr *name, struct jvalue *out);
int soq__jget_item(struct jrun *r, struct jvalue of, struct jvalue key, struct jvalue *out);
int soq__jget_path(struct jrun *r, struct jvalue of, struct jvalue path, const struct jvalue *fallback, struct jvalue *out);
int soq__jget_slice(struct jrun *r, struct jvalue of, const struct jvalue bounds[3], struct jvalue *out);
/* All elements as a sequence (which may be the value's own: do not change it); consumes iterators. */
int soq__jlist_of(struct jrun *r, struct jvalue v, struct jseq **out);
int soq__jlength(struct jrun *r, struct jvalue v, int64_t *out);
const struct jbuiltin *soq__jmethod_find(struct jvalue of, const struct jstr *name);

/* jinja_compare.c */
int soq__jequal(struct jrun *r, struct jvalue a, struct jvalue b, bool *out);
int soq__jcompare(struct jrun *r, enum jop op, struct jvalue a, struct jvalue b, bool *out); /* EQ ... GE, IN, NOT_IN */
int soq__jdict_find(struct jrun *r, const struct jdict *d, struct jvalue key, const struct jpair **out); /* NULL if absent */
int soq__jdict_put(struct jrun *r, struct jdict *d, struct jvalue key, struct jvalue value);
bool soq__jhashable(struct jvalue v);
/* Stable sort of items by keys[i] (both permuted). */
int soq__jsort(struct jrun *r, struct jvalue *keys, struct jvalue *items, size_t n, bool reverse);

/* jinja_ops.c: arithmetic. */
int soq__jbinary(struct jrun *r, enum jop op, struct jvalue a, struct jvalue b, struct jvalue *out);
int soq__jnegate(struct jrun *r, struct jvalue a, bool minus, struct jvalue *out);
int soq__jescape(struct jrun *r, const struct jstr *s, const struct jstr **out); /* HTML */

/* jinja_print.c: str() and repr(); jinja_json.c: json.dumps(). */
void soq__jprint(struct jrun *r, struct jbuild *b, struct jvalue v);
void soq__jrepr(struct jrun *r, struct jbuild *b, struct jvalue v);
void soq__jfloat_repr(struct jbuild *b, double f);
const struct jstr *soq__jto_str(struct jrun *r, struct jvalue v); /* str(v); NULL after a failure */

struct jjson_style {
    const struct jstr *indent; /* NULL = one line */
    const struct jstr *item_separator, *key_separator;
    bool ascii, sort;
};
void soq__jjson(struct jrun *r, struct jbuild *b, struct jvalue v, const struct jjson_style *style);

/* jinja_format.c */
int soq__jformat_percent(struct jrun *r, const struct jstr *format, struct jvalue args, struct jvalue *out);
int soq__jformat_braces(struct jrun *r, const struct jstr *format, const struct jargs *args, struct jvalue *out);

/* jinja_text.c: str operations that filters and methods share. */
enum jcase_mode { JMODE_LOWER, JMODE_UPPER, JMODE_CAPITALIZE, JMODE_TITLE, JMODE_SWAP };

int soq__jtext_case(struct jrun *r, const struct jstr *s, enum jcase_mode mode, struct jvalue *out);
int soq__jtext_strip(struct jrun *r, const struct jstr *s, struct jvalue chars, bool left, bool right, struct jvalue *out);
int soq__jtext_replace(struct jrun *r, const struct jstr *s, const struct jstr *old, const struct jstr *new, int64_t count,
                       struct jvalue *out);
struct jseq *soq__jtext_lines(struct jrun *r, const struct jstr *s, bool keep_ends);
int soq__jtext_join(struct jrun *r, const struct jstr *separator, const struct jseq *items, bool convert, struct jvalue *out);
int soq__jtext_pad(struct jrun *r, const struct jstr *s, int64_t width, int align, const struct jstr *fill, struct jvalue *out);

/* jinja_context.c */
int soq__jfrom_json(struct jrun *r, const json_t *j, bool untrusted, struct jvalue *out);

/* Conversions of arguments; fail with a message that names the builtin and the parameter. */
int soq__jarg_int(struct jrun *r, const struct jcall *c, unsigned i, int64_t fallback, int64_t *out);
int soq__jarg_str(struct jrun *r, const struct jcall *c, unsigned i, const struct jstr **out); /* NULL if omitted */
static inline bool jarg_truth(const struct jcall *c, unsigned i)
{
    return soq__jtruth(c->arg[i]);
}
/* The message for a value that an operation cannot take: "'x' is undefined" for undefined ones. */
int soq__jfail_type(struct jrun *r, struct jvalue v, const char *what);

#endif
