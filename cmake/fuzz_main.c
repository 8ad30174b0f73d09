/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_main: runs a fuzzer's function over files and the files of folders, for
 * compilers without libFuzzer and for ctest.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned ran;

static void run_file(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in) {
        perror(path);
        exit(1);
    }
    size_t size = 0, capacity = 1 << 16;
    uint8_t *data = malloc(capacity);
    for (size_t got; data && (got = fread(data + size, 1, capacity - size, in)) > 0;) {
        size += got;
        if (size < capacity) continue;
        capacity *= 2;
        uint8_t *larger = realloc(data, capacity);
        if (!larger) free(data);
        data = larger;
    }
    fclose(in);
    if (!data) {
        fprintf(stderr, "%s: no memory\n", path);
        exit(1);
    }
    /* A copy of exactly this size, so that a read past the end is seen. */
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) {
        fprintf(stderr, "%s: no memory\n", path);
        exit(1);
    }
    memcpy(exact, data, size);
    free(data);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    ran++;
}

static void run_path(const char *path) {
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        run_file(path);
        return;
    }
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        exit(1);
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char inner[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        run_path(inner);
    }
    closedir(dir);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) run_path(argv[i]);
    printf("%u inputs run\n", ran);
    return ran > 0 ? 0 : 1;
}
