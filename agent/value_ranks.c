/* Values that name ranks: what the console shows, which streams go where. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/value_internal.h"
#include "base/parse.h"

/* One item of a list of ranks: "8" or "8-15". */
static int check_ranks(void *user, const char *item, size_t n, struct er_error *err)
{
    char text[24], *dash;
    uint64_t first, last;

    if (n >= sizeof(text))
        return -EINVAL;
    memcpy(text, item, n);
    text[n] = '\0';
    dash = strchr(text, '-');
    if (dash)
        *dash = '\0';
    if (er_parse_u64(text, 0, UINT32_MAX - 1, &first, NULL))
        return -EINVAL;
    return dash ? er_parse_u64(dash + 1, first, UINT32_MAX - 1, &last, NULL) : 0;
}

int er_value_parse_console(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err)
{
    const char *list;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    list = strncmp(node->text, "local:", 6) ? node->text : node->text + 6;
    if (strcmp(node->text, "all") != 0 && strcmp(node->text, "none") != 0 &&
        er_parse_list(list, ',', check_ranks, NULL, NULL))
        return er_error_set(err, ER_E_CONFIG,
                            "expected all, none, ranks \"0,8-15\" or local ranks \"local:0\"; got "
                            "'" SHOWN "'",
                            node->text);
    return er_value_copy_text(node->text, value, err);
}

static int add_stream(void *user, const char *item, size_t n, struct er_error *err)
{
    struct er_stream_map *map = user;
    void *items;
    char text[24], *colon;
    uint64_t rank, streams;

    if (n >= sizeof(text))
        return -EINVAL;
    memcpy(text, item, n);
    text[n] = '\0';
    colon = strchr(text, ':');
    if (!colon)
        return -EINVAL;
    *colon = '\0';
    if (er_parse_u64(text, 0, UINT32_MAX - 1, &rank, NULL) ||
        er_parse_u64(colon + 1, 0, 3, &streams, NULL))
        return -EINVAL;
    for (uint32_t i = 0; i < map->n; i++) {
        if (map->items[i].rank == rank)
            return -EINVAL;
    }
    items = realloc(map->items, (map->n + 1) * sizeof(*map->items));
    if (!items)
        return -ENOMEM;
    map->items = items;
    map->items[map->n].rank = (uint32_t)rank;
    map->items[map->n++].value = (uint8_t)streams;
    return 0;
}

int er_value_parse_streams(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err)
{
    static const char global[] = "global:";
    const char *list;
    uint64_t all;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (!er_parse_u64(node->text, 0, 3, &all, NULL)) {
        value->streams.all = (uint8_t)all;
        return 0;
    }
    value->streams.global = !strncmp(node->text, global, sizeof(global) - 1);
    list = node->text + (value->streams.global ? sizeof(global) - 1 : 0);
    rc = er_parse_list(list, ',', add_stream, &value->streams, NULL);
    if (rc == -ENOMEM)
        return er_value_no_memory(err);
    if (rc)
        return er_error_set(err, ER_E_CONFIG,
                            "expected 0, 1, 2, 3, LOCAL_RANK:VALUE,... or "
                            "global:RANK:VALUE,... with each rank once; got '" SHOWN "'",
                            node->text);
    return 0;
}
