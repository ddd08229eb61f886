/* The descriptor has no summary. */
#define BAD_SUMMARY ""
#include "bad_codec.h"
