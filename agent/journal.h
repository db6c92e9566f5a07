#pragma once
/*
 * The agent's own lines as entries of the journal, with fields, when stderr is the journal and
 * log.format is auto: PRIORITY, SYSLOG_IDENTIFIER, ELASTIC_JOB, ELASTIC_NODE_ID and one
 * ELASTIC_<KEY> for each key of the line. The native protocol
 * (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/) on a socket of our own: sd_journal_send(3) would
 * wait for a journal that stands still.
 */
#include "base/log.h"

/* Is `fd` what $JOURNAL_STREAM says? */
bool er_journal_is(int fd, const char *stream);
/* Texts are borrowed for the process's life. From here on er_journal_send() works. */
void er_journal_open(const char *job, const char *node_id);
bool er_journal_wanted(void);
/* An er_log_sink_fn. 0: taken. -errno: not; then the line goes where it went before. */
int er_journal_send(enum er_log_level level, const char *msg, const struct er_field *fields,
                    size_t n);
/* One entry in the protocol's form; `buf` may be used again. -ENOBUFS. */
int er_journal_format(struct er_buf *buf, int priority, const char *msg,
                      const struct er_field *fields, size_t n);
