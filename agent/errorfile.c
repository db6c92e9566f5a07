#include "agent/errorfile.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/exit.h"
#include "base/clock.h"
#include "base/field.h"
#include "base/file.h"

#define ERROR_FILE_MAX (1024u * 1024)

static char *copy_string(const json_t *value)
{
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

void er_errorfile_read(const char *path, char **ret_message, char **ret_traceback)
{
    struct er_buf text;
    json_t *root = NULL;
    const json_t *message;

    if (access(path, F_OK) < 0)
        return;
    er_buf_init(&text, ERROR_FILE_MAX);
    if (er_file_read_plain(path, &text, NULL) == 0)
        root = json_loadb(er_buf_str(&text), text.len, 0, NULL);
    message = json_object_get(root, "message");
    if (json_is_object(message)) {
        const json_t *extra = json_object_get(message, "extraInfo");

        *ret_traceback = copy_string(json_object_get(extra, "py_callstack"));
        message = json_object_get(message, "message");
    }
    *ret_message = copy_string(message);
    json_decref(root);
    er_buf_done(&text);
}

int er_errorfile_write(const char *path, const struct er_verdict *verdict, const char *traceback,
                       struct er_error *err)
{
    const struct er_cause *c = &verdict->cause;
    char what[ER_EXIT_TEXT_MAX];
    const char *message =
        c->message[0] ? c->message : er_exit_text(c->kind, c->code, c->signal, what);
    struct er_buf text;
    int rc;

    er_buf_init(&text, ERROR_FILE_MAX);
    rc = er_buf_add_str(&text, "{\"message\":{\"message\":");
    if (!rc)
        rc = er_json_quote(&text, message, strlen(message));
    if (!rc)
        rc = er_buf_printf(
            &text, ",\"errorCode\":%d,\"extraInfo\":{\"py_callstack\":", verdict->exit_code);
    if (!rc)
        rc = er_json_quote(&text, traceback ? traceback : "", traceback ? strlen(traceback) : 0);
    if (!rc)
        rc = er_buf_printf(&text, ",\"timestamp\":\"%" PRIu64 "\"}}}\n",
                           (uint64_t)(er_wall_us() / ER_US_PER_S));
    if (rc)
        rc = er_error_set(err, rc, "error file '%s': out of memory", path);
    else
        rc = er_file_replace(path, text.data, text.len, 0644, err);
    er_buf_done(&text);
    return rc;
}
