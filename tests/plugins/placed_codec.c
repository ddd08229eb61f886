/* The odd codec, which needs to know where its tokens stand. */
#define ODD_NAME "placed"
#define ODD_TRAITS SOQ_CODEC_NEEDS_POSITIONS
#include "odd_codec.c"
