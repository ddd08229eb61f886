/* Memory, but no matmul. */
#define TOY_MATMUL NULL
#include "toy.h"
