/* A fuzz target over its corpus, without a fuzzer: replay_NAME FOLDER. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INPUT_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

/* From a heap block of its own length, so that a read behind its end is seen. */
static void run_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    unsigned char *data = malloc(INPUT_MAX), *exact;
    size_t n;

    if (!in || !data) {
        perror(path);
        exit(1);
    }
    n = fread(data, 1, INPUT_MAX, in);
    fclose(in);
    exact = malloc(n ? n : 1);
    if (!exact)
        exit(1);
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    free(data);
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    unsigned files = 0;

    if (!dir) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 64;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        char path[PATH_MAX];

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], e->d_name);
        run_file(path);
        files++;
    }
    closedir(dir);
    fprintf(stderr, "%u inputs\n", files);
    return files > 0 ? 0 : 1;
}
