/* Static thread-local storage. */
static __thread int bad_calls __attribute__((tls_model("initial-exec")));
#define BAD_ENCODE bad_calls++
#include "bad_codec.h"
