/* The name of this build, as in its manifest. */
#ifndef SOQ_CPU_VARIANT_H
#define SOQ_CPU_VARIANT_H

#define CPU_VARIANT "avx512"

enum { VEC_REGISTERS = 32 }; /* vectors of eight lanes that fit into registers */

#endif
