/* Clears all of a struct that it is to fill, fields of later headers too. */
#define BAD_DESCRIBE memset(&format_out->kind, 0, format_out->struct_size - sizeof format_out->struct_size)
#include "bad_codec.h"
