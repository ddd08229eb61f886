/* Exports a symbol more (linked without the version script). */
int bad_symbol(void);

int bad_symbol(void)
{
    return 0;
}
#include "bad_codec.h"
