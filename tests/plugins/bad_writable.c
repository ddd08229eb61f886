/* The descriptor can be written to. */
#define BAD_DESCRIPTOR __attribute__((section(".data.bad")))
#include "bad_codec.h"
