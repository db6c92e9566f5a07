#include "examples/text_data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define ADVICE                                                                                     \
    "install the Debian package fortunes, or give a file or folder with --text (the Bible: "       \
    "packages bible-kjv and bible-kjv-text, `bible -f gen1:1-rev22:21 > bible.txt`)"

static int append_file(struct text *text, const char *path, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    uint8_t *wider;
    size_t want;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_set(err, -errno, "text '%s': %s", path, strerror(errno));
    want = (size_t)st.st_size;
    if (want > TEXT_MAX - text->n)
        return er_error_set(err, -EFBIG, "text '%s': more than %zu bytes together", path, TEXT_MAX);
    wider = realloc(text->bytes, text->n + want + 1);
    if (!wider)
        return er_error_set(err, -ENOMEM, "text '%s': %zu bytes", path, want);
    text->bytes = wider;
    while (want > 0) {
        ssize_t n = read(fd, text->bytes + text->n, want);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return er_error_set(err, n < 0 ? -errno : -EIO, "text '%s': %s", path,
                                n < 0 ? strerror(errno) : "shorter than a moment ago");
        text->n += (size_t)n;
        want -= (size_t)n;
    }
    return 0;
}

/* Indexes and other encodings of the same text have a suffix. */
static int is_plain(const struct dirent *entry)
{
    return !strchr(entry->d_name, '.');
}

static int append_folder(struct text *text, const char *path, struct er_error *err)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, is_plain, alphasort), rc = 0;

    if (n < 0)
        return er_error_set(err, -errno, "folder '%s': %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char file[4096];
        struct stat st;

        snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
        if (rc == 0 && lstat(file, &st) == 0 && S_ISREG(st.st_mode))
            rc = append_file(text, file, err);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int text_open(struct text *text, const char *path, struct er_error *err)
{
    const char *from = path ? path : TEXT_DIR;
    struct stat st;
    int rc;

    *text = (struct text){0};
    if (stat(from, &st) < 0)
        return er_error_set(err, -errno, "text '%s': %s%s", from, strerror(errno),
                            path ? "" : "; " ADVICE);
    rc = S_ISDIR(st.st_mode) ? append_folder(text, from, err) : append_file(text, from, err);
    if (rc == 0 && text->n == 0)
        rc = er_error_set(err, -EINVAL, "text '%s' is empty%s", from, path ? "" : "; " ADVICE);
    if (rc < 0)
        text_close(text);
    return rc;
}

void text_close(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}
