/* Forgets a position that the next row sees. */
#define BAD_COMMIT ranges[*n_ranges_out - 1].first += commit->n_positions > 8
#include "bad_policy.h"
