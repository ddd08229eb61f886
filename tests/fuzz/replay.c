/* Runs a fuzz target over the files that it is given, where libFuzzer is not there to do it. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 1 << 24 };

int main(int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;

    for (int i = 1; i < argc; i++) {
        struct soq_buf b = SOQ_BUF_INIT;

        if (soq__file_read(argv[i], MAX_INPUT, &b, &err) != 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)soq__buf_str(&b), b.len);
        soq__buf_done(&b);
    }
    printf("# %s: %d inputs\n", argv[0], argc - 1);
    return argc > 1 ? 0 : 1;
}
