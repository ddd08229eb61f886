/* Keeps the beginning of a text plain for longer, and says so in the format of the tile that begins it. */
#define BAD_DESCRIBE                                                                                                           \
    if (tile->first_position == 0) {                                                                                           \
        int rc = f32_describe(self, tile, format_out, err);                                                                    \
                                                                                                                               \
        format_out->residual_tokens = tile->tokens;                                                                            \
        return rc;                                                                                                             \
    }
#include "bad_codec.h"
