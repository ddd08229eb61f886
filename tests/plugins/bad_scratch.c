/* Where there are several heads it writes behind its scratch. */
#include <stddef.h>

static size_t bad_used;
#define BAD_SELECT                                                                                                             \
    bad_used += sizeof(struct ranked) * head->n;                                                                               \
    if (selection->n_heads > 1 && h == selection->n_heads - 1)                                                                 \
        ((char *)selection->scratch)[bad_used] = 0;                                                                            \
    bad_used *= h != selection->n_heads - 1;
#include "bad_select.h"
