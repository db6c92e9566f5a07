#include "agent/unit_node.h"

#include <stdio.h>
#include <string.h>
#include <systemd/sd-id128.h>
#include <unistd.h>

#include "agent/subst.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#define DIGITS   12 /* of 32: 48 bits tell a few thousand nodes apart */
#define FILE_MAX 128

/* Names this use of the machine's id, which nobody else may learn from it. */
#define APP_ID SD_ID128_MAKE(9c, 0f, 5a, 31, 7e, 44, 4b, 1d, a6, 02, 33, 18, e0, 5b, 71, 2c)

/* "<state directory>/node-id"; false: none, or several. */
static bool path_of(char **environ_, char ret[4096])
{
    const char *dir = er_environ_get(environ_, "STATE_DIRECTORY");

    return dir && dir[0] == '/' && !strchr(dir, ':') &&
           snprintf(ret, 4096, "%s/node-id", dir) < 4096;
}

static bool kept(char **environ_, char *ret, size_t cap)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char path[4096];
    size_t n;

    er_buf_init(&text, FILE_MAX);
    if (!path_of(environ_, path) || er_file_read(path, &text, NULL))
        return false;
    n = strcspn(er_buf_str(&text), "\n");
    if (n == 0 || n >= cap)
        return false;
    snprintf(ret, cap, "%.*s", (int)n, er_buf_str(&text));
    return true;
}

int er_unit_node_id(char **environ_, char *ret, size_t cap)
{
    char hex[SD_ID128_STRING_MAX];
    sd_id128_t id;

    if (!er_environ_get(environ_, "ELASTIC_INSTANCE"))
        return 1;
    if (kept(environ_, ret, cap))
        return 0;
    if (sd_id128_get_machine_app_specific(APP_ID, &id) < 0)
        return 1;
    snprintf(ret, cap, "m%.*s", DIGITS, sd_id128_to_string(id, hex));
    return 0;
}

void er_unit_node_keep(char **environ_, const char *id)
{
    char path[4096], text[FILE_MAX];

    if (!er_environ_get(environ_, "ELASTIC_INSTANCE") || !path_of(environ_, path) ||
        access(path, F_OK) == 0)
        return;
    snprintf(text, sizeof(text), "%s\n", id);
    (void)er_file_replace(path, text, strlen(text), 0644, NULL);
}
