/* Runs code when it is opened, with an instruction that few machines have. */
__attribute__((constructor)) static void bad_constructor(void)
{
    __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0" ::: "xmm0");
}
#include "bad_codec.h"
