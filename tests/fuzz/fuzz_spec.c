/*
 * libFuzzer: job specs. Whatever the bytes, there is a tree or one message; a value of a key that
 * is accepted is written in a canonical form that is accepted again and means the same.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/spec.h"
#include "agent/value.h"
#include "base/buf.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { PATH_MAX_HERE = 256 };

static char *no_environment[] = {NULL};

static char *format(const struct er_key_info *key, const union er_value *value)
{
    struct er_buf text;
    char *copy;

    er_buf_init(&text, ER_VALUE_TEXT_MAX);
    assert(er_value_format(key, value, &text) == 0);
    copy = strdup(er_buf_str(&text));
    assert(copy && !strchr(copy, '\n'));
    er_buf_done(&text);
    return copy;
}

static int parse(const struct er_key_info *key, const struct er_yaml_node *node,
                 union er_value *ret, struct er_error *err)
{
    struct er_value_context context = {.key = key, .environ_ = no_environment};

    return er_value_parse(&context, node, ret, err);
}

static void see_again(const struct er_key_info *key, const char *text)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;
    union er_value value;
    char *again;

    assert(er_spec_parse_value(&spec, text, &err) == 0);
    assert(parse(key, er_spec_root(spec), &value, &err) == 0);
    again = format(key, &value);
    assert(!strcmp(text, again));
    free(again);
    er_value_free(key, &value);
    er_spec_free(spec);
}

static const char *one(void *user, const char *name)
{
    return strcmp(name, "hostname") ? "1" : NULL;
}

/* What passed the check can be replaced. */
static void see_text(const char *text)
{
    struct er_error err = ER_ERROR_INIT;
    char *done = NULL;

    if (er_subst(text, false, one, NULL, &done, &err))
        assert(err.text[0]);
    free(done);
    done = NULL;
    if (er_subst(text, true, one, NULL, &done, &err))
        assert(err.text[0]);
    free(done);
}

static void see_parts(const struct er_key_info *key, const union er_value *value)
{
    struct er_strlist copy = {0};

    assert(er_value_size(key->type) <= sizeof(*value));
    if (key->type == ER_KEY_TEMPLATE || key->type == ER_KEY_PATH)
        see_text(value->text ? value->text : "");
    if (key->type != ER_KEY_COMMAND)
        return;
    assert(!er_value_is_single(key->type));
    assert(er_strlist_copy(&value->list, &copy) == 0 && copy.n == value->list.n);
    for (size_t i = 0; i < copy.n; i++)
        see_text(copy.items[i]);
    er_strlist_free(&copy);
}

static void see_value(const struct er_key_info *key, const struct er_yaml_node *node)
{
    struct er_error err = ER_ERROR_INIT;
    union er_value value;
    char *text;

    if (parse(key, node, &value, &err)) {
        assert(err.code < 0 && err.text[0]);
        return;
    }
    see_parts(key, &value);
    text = format(key, &value);
    see_again(key, text);
    free(text);
    er_value_free(key, &value);
}

/* As deep as the table's longest path. */
static void see_map(const struct er_yaml_node *map, const char *prefix)
{
    for (size_t i = 0; map->kind == ER_NODE_MAP && i < map->n; i += 2) {
        char path[PATH_MAX_HERE], near[ER_KEY_PATH_MAX];
        size_t length = strlen(prefix) + strlen(map->items[i]->text);
        const struct er_key_info *key;

        if (length + 2 >= sizeof(path))
            continue;
        strcpy(path, prefix);
        strcat(path, map->items[i]->text);
        key = er_key_find(path);
        if (key) {
            see_value(key, map->items[i + 1]);
        } else if (er_key_is_group(path)) {
            strcat(path, ".");
            see_map(map->items[i + 1], path);
        } else {
            (void)er_key_nearest(path, near);
        }
    }
}

/* The same bytes as a file. */
static void see_file(const unsigned char *data, size_t n, bool good)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;
    char path[64];
    int fd = memfd_create("spec", 0);

    assert(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    assert((er_spec_read(&spec, path, &err) == 0) == good);
    er_spec_free(spec);
    close(fd);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;
    int rc = er_spec_parse(&spec, "job.yaml", (const char *)data, n, &err);

    if (rc) {
        assert(rc < 0 && !spec && err.text[0]);
    } else {
        (void)er_yaml_node_is_null(er_spec_root(spec));
        (void)er_yaml_node_what(er_spec_root(spec));
        see_map(er_spec_root(spec), "");
    }
    if (n % 8 == 0)
        see_file(data, n, rc == 0);
    er_spec_free(spec);
    return 0;
}
