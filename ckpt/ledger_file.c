/* The ledger's file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "ckpt/folder.h"
#include "ckpt/ledger.h"

#define FILE_NAME "ledger"
#define MAX_BYTES (64u << 20)

/* What a dead writer left of its last line must not become part of this one: it is ended, and an
 * empty line says that it is none. */
static bool ends_torn(int fd)
{
    struct stat st;
    char last = '\n';

    return fstat(fd, &st) == 0 && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 &&
           last != '\n';
}

int er_ledger_append(const char *dir, const struct er_ledger_entry *entry, struct er_error *err)
{
    char path[PATH_MAX], line[2 + ER_LEDGER_LINE_MAX] = "\n\n";
    size_t n = er_ledger_format(entry, line + 2), from;
    int rc = er_ckpt_check_fence(dir, entry->generation, err);

    if (rc == 0)
        rc = er_ckpt_join(dir, FILE_NAME, path, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return er_error_errno(err, "open '%s'", path);
    from = ends_torn(fd) ? 0 : 2;
    rc = er_write_all(fd, line + from, n + 2 - from);
    if (rc == 0 && fdatasync(fd) < 0)
        rc = -errno;
    return rc ? er_error_set(err, rc, "write '%s': %s", path, er_error_name(rc)) : 0;
}

/* How many line ends; what follows the last one is torn. */
static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

static int parse_all(char *text, struct er_ledger_entry *list, size_t *n, const char *path,
                     struct er_error *err)
{
    size_t number = 0;

    *n = 0;
    for (char *end; (end = strchr(text, '\n')); text = end + 1) {
        *end = '\0';
        number++;
        if (text[0] == '\0' || end[1] == '\n')
            continue;
        if (er_ledger_parse(text, &list[*n]) == 0)
            (*n)++;
        else
            return er_error_set(err, ER_E_CORRUPT, "'%s': line %zu is none of a ledger", path,
                                number);
    }
    return 0;
}

int er_ledger_read(const char *dir, struct er_ledger_entry **ret, size_t *ret_n,
                   struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct er_ledger_entry *list = NULL;
    char path[PATH_MAX];
    struct er_buf text;
    int rc = er_ckpt_join(dir, FILE_NAME, path, err);

    if (rc < 0)
        return rc;
    er_buf_init(&text, MAX_BYTES);
    rc = er_file_read_plain(path, &text, err);
    if (rc == 0 && !(list = calloc(count_lines(er_buf_str(&text)) + 1, sizeof(*list))))
        rc = er_error_set(err, -ENOMEM, "'%s': out of memory", path);
    *ret_n = 0;
    if (rc == 0 && text.len > 0)
        rc = parse_all(text.data, list, ret_n, path, err);
    er_buf_done(&text);
    if (rc == 0)
        *ret = ER_TAKE(list);
    return rc;
}
