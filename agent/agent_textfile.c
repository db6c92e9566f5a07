/* metrics.textfile: a file for node_exporter's collector instead of a port. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_metrics_internal.h"
#include "base/cleanup.h"
#include "base/log.h"

/* As node_exporter wants it: complete at every moment. No fsync, which a slow disk would make the
 * agent wait for: after a crash of the host nobody needs it. */
static int replace_textfile(const char *path, const struct er_buf *text, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *tmp = NULL;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    const char *at = text->data;
    size_t left = text->len;
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return er_error_set(err, -EEXIST, "it is there and is not a regular file");
    if (asprintf(&tmp, "%s.%d", path, (int)getpid()) < 0)
        return er_error_set(err, -ENOMEM, "out of memory");
    (void)unlink(tmp); /* of an agent that died; or it was put there to be written to */
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return er_error_errno(err, "create '%s'", tmp);
    while (left > 0) {
        ssize_t n = write(fd, at, left);

        if (n < 0) {
            int rc = er_error_errno(err, "write '%s'", tmp);

            unlink(tmp);
            return rc;
        }
        at += n;
        left -= (size_t)n;
    }
    if (rename(tmp, path) < 0) {
        int rc = er_error_errno(err, "rename to '%s'", path);

        unlink(tmp);
        return rc;
    }
    return 0;
}

void er_agent_textfile_write(struct er_agent *agent)
{
    const char *path = agent->config->metrics.textfile;
    struct er_error err = ER_ERROR_INIT;
    int rc;

    er_buf_clear(&agent->metrics_text);
    rc = er_agent_metrics_text(agent, false, &agent->metrics_text);
    if (!rc)
        rc = replace_textfile(path, &agent->metrics_text, &err);
    if (rc && !agent->textfile_told)
        er_log(ER_LOG_WARNING, "metrics.textfile cannot be written", ER_STR("path", path),
               ER_STR("reason", err.text[0] ? err.text : er_error_name(rc)));
    agent->textfile_told = rc != 0;
}
