#include "tests/lib/tempdir.h"

#include <err.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WALK_FDS = 16 };

void er_test_tempdir(char ret_path[ER_TEST_PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    snprintf(ret_path, ER_TEST_PATH_MAX, "%s/er-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(ret_path))
        err(1, "mkdtemp '%s'", ret_path);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    if (remove(path) != 0)
        warn("remove '%s'", path);
    return 0;
}

void er_test_rmtree(const char *path)
{
    nftw(path, remove_one, WALK_FDS, FTW_DEPTH | FTW_PHYS);
}

void er_test_write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        err(1, "write '%s'", path);
}

void er_test_write_secret(const char *path, const char *text)
{
    er_test_write_file(path, "");
    if (chmod(path, 0600) < 0)
        err(1, "make '%s' private", path);
    er_test_write_file(path, text);
}

char *er_test_read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t n = 0;
    if (!f)
        return NULL;
    FILE *copy = open_memstream(&text, &n);
    if (!copy)
        err(1, "open_memstream");
    for (int c; (c = getc(f)) != EOF;)
        putc(c, copy);
    fclose(copy);
    fclose(f);
    return text;
}
