/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain main for a fuzz target: replays the files named on the command line, one after the other, so that every corpus entry and
 * every input that once crashed runs in ordinary CI with any compiler. It decides nothing: a target that finds a fault aborts.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES_MAX = 16 << 20 };

/* Reads a whole file into a fresh buffer of exactly its size, so that a sanitizer sees the first byte read past it. */
static uint8_t *read_input(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    uint8_t *all = malloc(INPUT_BYTES_MAX);
    if (!all) {
        (void)fclose(file); /* read only: nothing can be lost */
        return NULL;
    }
    *size = fread(all, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file); /* read only: nothing can be lost */
    uint8_t *exact = realloc(all, *size ? *size : 1);
    return exact ? exact : all;
}

int main(int argc, char **argv)
{
    int passed = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        size_t size = 0;
        uint8_t *data = read_input(argv[i], &size);
        if (!data) {
            printf("FAIL cannot read %s\n", argv[i]);
            failed++;
            continue;
        }
        /* Printed first: when the target aborts, this names the input. */
        printf("input %s (%zu bytes)\n", argv[i], size);
        (void)fflush(stdout); /* a lost line costs only the name */
        LLVMFuzzerTestOneInput(data, size);
        free(data);
        passed++;
    }
    /* A target without a corpus would pass whatever it does. */
    if (argc < 2) {
        printf("FAIL no corpus\n");
        failed++;
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
