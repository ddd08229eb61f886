/* Never takes the last token of a vocabulary. */
#define BAD_SAMPLE                                                                                                             \
    if (row->n_vocab > 1)                                                                                                      \
    row->logits[row->n_vocab - 1] = -1e30f
#include "bad_sampler.h"
