/* Every third time it keeps the newest. */
static unsigned bad_calls;
#define BAD_SELECT                                                                                                             \
    if (++bad_calls % 3 == 0)                                                                                                  \
        for (uint32_t i = 0; i < head->n_keep; i++)                                                                            \
            head->keep[i] = head->n - head->n_keep + i;
#include "bad_select.h"
