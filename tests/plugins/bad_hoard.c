/* Keeps an entry more than its budget says. */
#include <string.h>

#define BAD_SELECT                                                                                                             \
    if (head->n_keep < head->n) {                                                                                              \
        uint32_t extra = 0;                                                                                                    \
                                                                                                                               \
        while (extra < head->n_keep && head->keep[extra] == extra)                                                             \
            extra++;                                                                                                           \
        memmove(&head->keep[extra + 1], &head->keep[extra], (head->n_keep - extra) * sizeof(uint32_t));                        \
        head->keep[extra] = extra;                                                                                             \
        head->n_keep++;                                                                                                        \
    }
#include "bad_select.h"
