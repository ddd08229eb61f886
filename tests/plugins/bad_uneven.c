/* The last of several heads keeps one entry less, and the plan does not say so. */
#define BAD_SELECT                                                                                                             \
    if (h && h == selection->n_heads - 1 && head->n_keep < head->n && head->n_keep > 1)                                        \
        head->n_keep--;
#include "bad_select.h"
