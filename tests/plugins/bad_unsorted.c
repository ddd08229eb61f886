/* What it keeps is in the order of its weight. */
#define BAD_SELECT                                                                                                             \
    if (head->n_keep < head->n && head->n_keep > 1) {                                                                          \
        uint32_t first = head->keep[0];                                                                                        \
                                                                                                                               \
        head->keep[0] = head->keep[1];                                                                                         \
        head->keep[1] = first;                                                                                                 \
    }
#include "bad_select.h"
