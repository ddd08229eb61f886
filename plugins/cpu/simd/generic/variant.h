/* The name of this build, as in its manifest. */
#ifndef SOQ_CPU_VARIANT_H
#define SOQ_CPU_VARIANT_H

#define CPU_VARIANT "generic"

enum { VEC_REGISTERS = 16 }; /* vectors of eight lanes that fit into registers */

#endif
