/* libFuzzer: files that others write and the agent reads: event files, from their end, and
 * torchrun's error files. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/errorfile.h"
#include "agent/events.h"
#include "rendezvous/driver.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void see_events(const char *path)
{
    json_t *last = er_events_last(path, NULL), *exited = er_events_last(path, "agent_exited");
    char id[64];

    assert(!last || json_is_string(json_object_get(last, "event")));
    assert(!exited || last);
    if (er_events_last_run(path, id))
        assert(memchr(id, '\0', sizeof(id)) && id[0] &&
               strspn(id, "0123456789abcdef") == strlen(id));
    json_decref(last);
    json_decref(exited);
}

/* What was read can be told on. */
static void see_error(const char *path)
{
    struct er_verdict verdict = {.exit_code = 1, .cause = {.code = 1}};
    char *message = NULL, *traceback = NULL, written[] = "/dev/shm/er-fuzz-events-XXXXXX",
         *again = NULL;
    int fd;

    er_errorfile_read(path, &message, &traceback);
    fd = mkstemp(written);
    assert(fd >= 0);
    close(fd);
    snprintf(verdict.cause.message, sizeof(verdict.cause.message), "%s", message ? message : "");
    assert(er_errorfile_write(written, &verdict, traceback, NULL) == 0);
    free(traceback);
    traceback = NULL;
    er_errorfile_read(written, &again, &traceback);
    assert(again && traceback);
    unlink(written);
    free(message);
    free(again);
    free(traceback);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    char path[64];
    int fd = memfd_create("file", 0);

    assert(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    see_events(path);
    see_error(path);
    close(fd);
    see_events(path);
    return 0;
}
