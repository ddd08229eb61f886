/* Tokens and the syntax tree of a template. Lexer and parser follow jinja2's own grammar production by production, because its
 * quirks (what binds a filter, where white space goes) are what templates rely on. */
#ifndef SOQ_TEXT_JINJA_AST_H
#define SOQ_TEXT_JINJA_AST_H

#include "text/jinja_value.h"

enum jtoken_type {
    JT_EOF,
    JT_DATA,     /* text between tags, white space already stripped */
    JT_VAR_OPEN, /* {{ */
    JT_VAR_CLOSE,
    JT_BLOCK_OPEN, /* {% */
    JT_BLOCK_CLOSE,
    JT_NAME,
    JT_STRING, /* escapes already resolved */
    JT_INTEGER,
    JT_FLOAT,
    JT_OPERATOR, /* text is the operator */
};

struct jtoken {
    enum jtoken_type type;
    uint32_t line;
    struct jstr text;
    int64_t i; /* INTEGER */
    double f;  /* FLOAT */
};

/* The tokens of a template, ended by JT_EOF, in the arena. */
int soq__jinja_lex(struct jmem *m, const char *src, size_t n, struct jtoken **tokens_out);
/* A double from decimal digits with optional fraction and exponent, whatever the locale. */
bool soq__jparse_double(const char *p, size_t n, double *out);
/* Python's unicode-escape decoding of a string literal's inside; -SOQ_EINVAL with a message if an escape is malformed. */
int soq__jinja_unescape(struct jmem *m, uint32_t line, const char *p, size_t n, struct jstr *out);

enum jnode_kind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_TUPLE,
    JN_LIST,
    JN_DICT,
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,
    JN_CALL,
    JN_FILTER,
    JN_TEST,
    JN_NEGATE,
    JN_PLUS,
    JN_NOT,
    JN_BINARY,
    JN_CONCAT,
    JN_AND,
    JN_OR,
    JN_COMPARE,
    JN_COND,
    JN_PARAM, /* name = value in calls, macro signatures and `with` */
    /* statements */
    JN_TEXT,
    JN_PRINT,
    JN_FOR,
    JN_IF,
    JN_SET,
    JN_SET_BLOCK,
    JN_MACRO,
    JN_CALL_BLOCK,
    JN_FILTER_BLOCK,
    JN_WITH,
    JN_SCOPE,
    JN_BREAK,
    JN_CONTINUE,
};

enum jop {
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW,
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN
};

struct jnode_args {
    struct jnode *positional; /* list */
    struct jnode *keywords;   /* list of PARAM */
    struct jnode *star, *star_star;
};

/* Lists of nodes are linked by `next`; absent parts are NULL. */
struct jnode {
    enum jnode_kind kind;
    uint32_t line;
    struct jnode *next;
    union {
        struct jvalue value;     /* CONST, TEXT */
        const struct jstr *name; /* NAME */
        struct jnode *items;     /* TUPLE, LIST, CONCAT, PRINT; DICT: key, value, key, value ...; SCOPE: body */
        struct jnode *operand;   /* NEGATE, PLUS, NOT */
        struct {
            struct jnode *of;
            const struct jstr *name;
        } attr; /* ATTR; as the target of SET: namespace attribute */
        struct {
            struct jnode *of, *key;
        } item;
        struct {
            struct jnode *start, *stop, *step;
        } slice; /* as item.key */
        struct {
            struct jnode *of; /* FILTER in a set or filter block: NULL at the innermost, meaning the block's text */
            const struct jstr *name;
            const struct jbuiltin *fn; /* FILTER, TEST; NULL = unknown, an error when reached */
            struct jnode_args args;
        } call; /* CALL, FILTER, TEST */
        struct {
            enum jop op;
            struct jnode *left, *right; /* in the list of a COMPARE, left is NULL */
        } binary;                       /* BINARY, AND, OR */
        struct {
            struct jnode *first, *rest; /* rest: list of BINARY */
        } compare;
        struct {
            struct jnode *test, *yes, *no; /* COND: expressions; IF: bodies */
            struct jnode *elif;            /* IF: the next IF of the chain */
        } cond;
        struct {
            const struct jstr *name;
            struct jnode *value;
        } param;
        struct {
            struct jnode *target, *over, *test, *body, *otherwise;
        } loop;
        struct {
            struct jnode *target, *value; /* SET */
            struct jnode *filter, *body;  /* SET_BLOCK; FILTER_BLOCK without target */
        } set;
        struct {
            const struct jstr *name; /* NULL in a call block */
            struct jnode *params, *body;
            struct jnode *call; /* CALL_BLOCK */
            bool uses_caller, uses_varargs, uses_kwargs;
        } macro;
        struct {
            struct jnode *vars, *body; /* vars: list of SET */
        } with;
    };
};

struct soq__jinja {
    struct jmem mem;
    struct jnode *body;
};

/* Parser internals shared by its two files. */
struct jparser {
    struct jmem *m;
    const struct jtoken *at;
    unsigned depth;
    unsigned loops;       /* enclosing for loops of this function body: break and continue need one */
    unsigned conditional; /* enclosing ifs: unknown filters and tests are errors only when reached */
    struct jnode *macro;  /* innermost macro or call block, chained through its `next` while open */
};

struct jnode *soq__jparse_node(struct jparser *p, enum jnode_kind kind, uint32_t line); /* NULL after a failure */
const struct jstr *soq__jparse_name(struct jparser *p, const struct jstr *text);
bool soq__jparse_enter(struct jparser *p); /* one level deeper; false with an error beyond the limit */
void soq__jparse_leave(struct jparser *p);
bool soq__jtoken_is(const struct jtoken *t, enum jtoken_type type, const char *text);
bool soq__jparse_skip(struct jparser *p, enum jtoken_type type, const char *text);
bool soq__jparse_expect(struct jparser *p, enum jtoken_type type, const char *text);
int soq__jparse_unexpected(struct jparser *p, const char *wanted);
int soq__jparse_fail(struct jparser *p, uint32_t line, const char *fmt, ...) SOQ_PRINTF(3, 4);

enum jtuple_mode {
    JTUPLE_COND = 1,   /* conditional expressions allowed */
    JTUPLE_SIMPLE = 2, /* names and literals only: targets */
    JTUPLE_PARENS = 4, /* in parentheses: may be empty */
};

struct jnode *soq__jparse_expression(struct jparser *p);
struct jnode *soq__jparse_tuple(struct jparser *p, unsigned mode, const char *end_name);
struct jnode *soq__jparse_filters(struct jparser *p, struct jnode *of, bool first_without_pipe);
struct jnode *soq__jparse_target(struct jparser *p, const char *end_name, bool namespaces);
bool soq__jparse_signature(struct jparser *p, struct jnode **params_out);

#endif
