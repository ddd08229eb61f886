/* Runs a fuzz target over the files that it is given, where libFuzzer is not there to do it. It allocates nothing from the
 * core's allocator: targets look for leaks there. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The size of the file, which is put into data_out, exactly as large, so that a sanitizer sees each byte read past its end. */
static size_t read_file(const char *path, uint8_t **data_out)
{
    FILE *f = fopen(path, "rb");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *data = size >= 0 ? malloc((size_t)size + !size) : NULL;

    if (!data || fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    fclose(f);
    *data_out = data;
    return (size_t)size;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        uint8_t *data;
        size_t size = read_file(argv[i], &data);

        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    printf("# %s: %d inputs\n", argv[0], argc - 1);
    return argc > 1 ? 0 : 1;
}
