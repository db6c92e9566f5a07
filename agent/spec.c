#include "agent/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"

struct anchor {
    char *name;
    struct er_yaml_node *node;
    bool open; /* its end is not reached yet: an alias to it would be a circle */
};

struct er_spec {
    struct er_yaml_node *root;
    struct er_yaml_node **nodes; /* all of them, for er_spec_free() */
    size_t nodes_n, nodes_cap;
};

/* State of one parse; the stack stands for recursion, which outside data must not drive. */
struct reader {
    const char *name; /* NULL: no position in messages */
    yaml_parser_t *yaml;
    struct er_spec *spec;
    struct er_yaml_node *stack[ER_SPEC_DEPTH_MAX];
    size_t depth;
    struct anchor *anchors;
    size_t anchors_n;
    struct er_error *err;
};

enum { ANCHORS_MAX = 1024 };

#define refuse(r, line, col, fmt, ...)                                                             \
    ((r)->name ? er_error_set((r)->err, ER_E_CONFIG, "%s:%u:%u: " fmt, (r)->name,                  \
                              (unsigned)(line), (unsigned)(col), ##__VA_ARGS__)                    \
               : er_error_set((r)->err, ER_E_CONFIG, fmt, ##__VA_ARGS__))

#define refuse_at(r, mark, fmt, ...)                                                               \
    refuse(r, (mark).line + 1, (mark).column + 1, fmt, ##__VA_ARGS__)

void er_spec_free(struct er_spec *spec)
{
    int saved = errno;

    if (!spec)
        return;
    for (size_t i = 0; i < spec->nodes_n; i++) {
        free(spec->nodes[i]->text);
        free(spec->nodes[i]->items);
        free(spec->nodes[i]);
    }
    free(spec->nodes);
    free(spec);
    errno = saved;
}

ER_CLEANUP_FOR(er_spec_free, struct er_spec)

/* Room for one more element; doubling. */
static void *grow(void *items, size_t n, size_t *cap, size_t size)
{
    size_t want = *cap ? *cap * 2 : 8;
    void *more;

    if (n < *cap)
        return items;
    more = realloc(items, want * size);
    if (more)
        *cap = want;
    return more;
}

static struct er_yaml_node *new_node(struct reader *r, enum er_yaml_node_kind kind, yaml_mark_t at)
{
    struct er_spec *spec = r->spec;
    void *nodes = grow(spec->nodes, spec->nodes_n, &spec->nodes_cap, sizeof(*spec->nodes));
    struct er_yaml_node *node;

    if (!nodes)
        return NULL;
    spec->nodes = nodes;
    node = calloc(1, sizeof(*node));
    if (!node)
        return NULL;
    *node = (struct er_yaml_node){
        .kind = kind,
        .line = (uint32_t)at.line + 1,
        .col = (uint32_t)at.column + 1,
        .values = 1,
    };
    spec->nodes[spec->nodes_n++] = node;
    return node;
}

/* Powers of two only are allocated, so that `n` alone tells when to grow. */
static int push_item(struct er_yaml_node *into, struct er_yaml_node *item)
{
    if (!(into->n & (into->n - 1))) {
        size_t cap = into->n ? into->n * 2 : 1;
        struct er_yaml_node **items = realloc(into->items, cap * sizeof(struct er_yaml_node *));

        if (!items)
            return -ENOMEM;
        into->items = items;
    }
    into->items[into->n++] = item;
    return 0;
}

static int check_key(struct reader *r, const struct er_yaml_node *map,
                     const struct er_yaml_node *key, yaml_mark_t at)
{
    if (key->kind != ER_NODE_SCALAR)
        return refuse_at(r, at, "a key must be a single value, found %s", er_yaml_node_what(key));
    if (map->n / 2 >= ER_SPEC_KEYS_MAX)
        return refuse_at(r, at, "more than %d keys in one map", ER_SPEC_KEYS_MAX);
    for (size_t i = 0; i < map->n; i += 2) {
        if (!strcmp(map->items[i]->text, key->text))
            return refuse_at(r, at, "duplicate key '%.100s', first given on line %u", key->text,
                             map->items[i]->line);
    }
    return 0;
}

/* A complete value (or an alias' one) takes its place in what is being read. */
static int place(struct reader *r, struct er_yaml_node *node, yaml_mark_t at)
{
    struct er_yaml_node *parent;
    int rc;

    if (!r->depth) {
        r->spec->root = node;
        return 0;
    }
    parent = r->stack[r->depth - 1];
    if (parent->kind == ER_NODE_MAP && !(parent->n & 1)) {
        rc = check_key(r, parent, node, at);
        if (rc)
            return rc;
    }
    parent->values += node->values;
    if (parent->values > ER_SPEC_VALUES_MAX)
        return refuse_at(r, at, "more than %d values, aliases written out", ER_SPEC_VALUES_MAX);
    return push_item(parent, node) ? er_error_set(r->err, -ENOMEM, "out of memory") : 0;
}

static int add_anchor(struct reader *r, const yaml_char_t *name, struct er_yaml_node *node,
                      bool open, yaml_mark_t at)
{
    struct anchor *anchors;
    char *copy;

    if (!name)
        return 0;
    if (r->anchors_n >= ANCHORS_MAX)
        return refuse_at(r, at, "more than %d anchors", ANCHORS_MAX);
    anchors = realloc(r->anchors, (r->anchors_n + 1) * sizeof(*anchors));
    if (!anchors)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    r->anchors = anchors;
    copy = strdup((const char *)name);
    if (!copy)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    r->anchors[r->anchors_n++] = (struct anchor){copy, node, open};
    return 0;
}

static int on_alias(struct reader *r, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor;

    for (size_t i = r->anchors_n; i-- > 0;) { /* the latest of that name counts */
        if (strcmp(r->anchors[i].name, name) != 0)
            continue;
        if (r->anchors[i].open)
            return refuse_at(r, event->start_mark, "alias '*%.100s' stands within itself", name);
        return place(r, r->anchors[i].node, event->start_mark);
    }
    return refuse_at(r, event->start_mark, "alias '*%.100s' has no anchor '&%.100s' before it",
                     name, name);
}

static int check_tag(struct reader *r, const yaml_char_t *tag, yaml_mark_t at)
{
    static const char core[] = "tag:yaml.org,2002:";

    if (!tag || !strcmp((const char *)tag, "!"))
        return 0;
    if (!strncmp((const char *)tag, core, sizeof(core) - 1)) {
        const char *name = (const char *)tag + sizeof(core) - 1;

        if (!strcmp(name, "str") || !strcmp(name, "seq") || !strcmp(name, "map"))
            return 0;
    }
    return refuse_at(r, at, "tag '%.100s' is not supported", (const char *)tag);
}

static int on_scalar(struct reader *r, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    struct er_yaml_node *node;
    int rc = check_tag(r, event->data.scalar.tag, event->start_mark);

    if (rc)
        return rc;
    if (memchr(value, 0, length))
        return refuse_at(r, event->start_mark, "a value must not hold a NUL");
    node = new_node(r, ER_NODE_SCALAR, event->start_mark);
    if (!node)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    node->text = strndup(value, length);
    node->plain =
        event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && event->data.scalar.plain_implicit;
    if (!node->text)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    rc = add_anchor(r, event->data.scalar.anchor, node, false, event->start_mark);
    return rc ? rc : place(r, node, event->start_mark);
}

static int on_start(struct reader *r, const yaml_event_t *event, enum er_yaml_node_kind kind)
{
    bool map = kind == ER_NODE_MAP;
    const yaml_char_t *tag = map ? event->data.mapping_start.tag : event->data.sequence_start.tag;
    const yaml_char_t *anchor =
        map ? event->data.mapping_start.anchor : event->data.sequence_start.anchor;
    struct er_yaml_node *node;
    int rc = check_tag(r, tag, event->start_mark);

    if (rc)
        return rc;
    if (r->depth == ER_SPEC_DEPTH_MAX)
        return refuse_at(r, event->start_mark, "more than %d maps and lists within each other",
                         ER_SPEC_DEPTH_MAX);
    node = new_node(r, kind, event->start_mark);
    if (!node)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    rc = add_anchor(r, anchor, node, true, event->start_mark);
    if (!rc)
        r->stack[r->depth++] = node;
    return rc;
}

static bool has_key(const struct er_yaml_node *map, const char *name)
{
    for (size_t i = 0; i < map->n; i += 2) {
        if (!strcmp(map->items[i]->text, name))
            return true;
    }
    return false;
}

/* The keys of `from` that `map` does not have. */
static int merge_map(struct reader *r, struct er_yaml_node *map, const struct er_yaml_node *key,
                     const struct er_yaml_node *from)
{
    if (from->kind != ER_NODE_MAP)
        return refuse(r, key->line, key->col, "'<<' takes a map or a list of maps, got %s",
                      er_yaml_node_what(from));
    for (size_t i = 0; i < from->n; i += 2) {
        if (has_key(map, from->items[i]->text))
            continue;
        if (map->n / 2 >= ER_SPEC_KEYS_MAX)
            return refuse(r, key->line, key->col, "more than %d keys in one map", ER_SPEC_KEYS_MAX);
        if (push_item(map, from->items[i]) || push_item(map, from->items[i + 1]))
            return er_error_set(r->err, -ENOMEM, "out of memory");
    }
    return 0;
}

/* `<<: *base` or `<<: [*first, *second]`: the map's own keys win wherever they stand, then those of
 * the first. Sizes were counted when the values were placed. */
static int merge(struct reader *r, struct er_yaml_node *map)
{
    const struct er_yaml_node *key, *value;
    size_t at = 0;
    int rc = 0;

    while (at < map->n && !(map->items[at]->plain && !strcmp(map->items[at]->text, "<<")))
        at += 2;
    if (at >= map->n)
        return 0;
    key = map->items[at];
    value = map->items[at + 1];
    for (; at + 2 < map->n; at++)
        map->items[at] = map->items[at + 2];
    map->n -= 2;
    if (value->kind != ER_NODE_LIST)
        return merge_map(r, map, key, value);
    for (size_t i = 0; !rc && i < value->n; i++)
        rc = merge_map(r, map, key, value->items[i]);
    return rc;
}

static int on_end(struct reader *r)
{
    struct er_yaml_node *node = r->stack[--r->depth];
    yaml_mark_t at = {.line = node->line - 1, .column = node->col - 1};
    int rc = node->kind == ER_NODE_MAP ? merge(r, node) : 0;

    if (rc)
        return rc;

    for (size_t i = 0; i < r->anchors_n; i++) {
        if (r->anchors[i].node == node)
            r->anchors[i].open = false;
    }
    return place(r, node, at);
}

/* Positive: the document's end. */
static int on_event(struct reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->spec->root)
            return refuse_at(r, event->start_mark, "a second document; there must be one only");
        return 0;
    case YAML_SCALAR_EVENT:
        return on_scalar(r, event);
    case YAML_ALIAS_EVENT:
        return on_alias(r, event);
    case YAML_SEQUENCE_START_EVENT:
        return on_start(r, event, ER_NODE_LIST);
    case YAML_MAPPING_START_EVENT:
        return on_start(r, event, ER_NODE_MAP);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return on_end(r);
    case YAML_STREAM_END_EVENT:
        return 1;
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    default:
        return 0;
    }
}

static int yaml_refused(struct reader *r)
{
    const yaml_parser_t *yaml = r->yaml;

    if (yaml->error == YAML_MEMORY_ERROR)
        return er_error_set(r->err, -ENOMEM, "out of memory");
    if (yaml->context)
        return refuse_at(r, yaml->problem_mark, "%s (%s)", yaml->problem, yaml->context);
    if (yaml->error == YAML_READER_ERROR)
        return refuse(r, yaml->mark.line + 1, yaml->mark.column + 1, "%s", yaml->problem);
    return refuse_at(r, yaml->problem_mark, "%s", yaml->problem);
}

static int read_events(struct reader *r)
{
    int rc = 0;

    while (!rc) {
        yaml_event_t event;

        if (!yaml_parser_parse(r->yaml, &event))
            return yaml_refused(r);
        rc = on_event(r, &event);
        yaml_event_delete(&event);
    }
    return rc < 0 ? rc : 0;
}

/* Before libyaml sees it: a NUL would end its input or make it guess UTF-16, silently. */
static int check_bytes(struct reader *r, const char *data, size_t n)
{
    unsigned line = 1, col = 1;

    if (n > ER_SPEC_FILE_MAX)
        return er_error_set(r->err, ER_E_CONFIG, "%s: larger than 1 MiB",
                            r->name ? r->name : "value");
    for (size_t i = 0; i < n;) {
        size_t length = er_utf8_decode(data + i, n - i, NULL);

        if (!length)
            return refuse(r, line, col, "not valid UTF-8 (byte 0x%02x)",
                          (unsigned)(unsigned char)data[i]);
        if (!data[i])
            return refuse(r, line, col, "a NUL byte: not a text file");
        col = data[i] == '\n' ? 1 : col + 1;
        line += data[i] == '\n';
        i += length;
    }
    return 0;
}

static int parse(struct er_spec **ret, const char *name, const char *data, size_t n,
                 struct er_error *err)
{
    ER_CLEANUP(er_spec_free_cleanup) struct er_spec *spec = calloc(1, sizeof(*spec));
    yaml_parser_t yaml;
    struct reader r = {.name = name, .yaml = &yaml, .spec = spec, .err = err};
    int rc = spec ? check_bytes(&r, data, n) : er_error_set(err, -ENOMEM, "out of memory");

    if (rc)
        return rc;
    if (!yaml_parser_initialize(&yaml))
        return er_error_set(err, -ENOMEM, "out of memory");
    yaml_parser_set_encoding(&yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&yaml, (const unsigned char *)data, n);
    rc = read_events(&r);
    yaml_parser_delete(&yaml);
    for (size_t i = 0; i < r.anchors_n; i++)
        free(r.anchors[i].name);
    free(r.anchors);
    if (!rc && !spec->root)
        rc = refuse(&r, 1, 1, "empty: no keys");
    if (!rc)
        *ret = ER_TAKE(spec);
    return rc;
}

int er_spec_parse(struct er_spec **ret, const char *name, const char *data, size_t n,
                  struct er_error *err)
{
    return parse(ret, name, data, n, err);
}

int er_spec_parse_value(struct er_spec **ret, const char *text, struct er_error *err)
{
    return parse(ret, NULL, text, strlen(text), err);
}

/* The whole of a file or pipe, up to one byte more than is allowed. */
static int read_all(int fd, const char *path, struct er_buf *buf, struct er_error *err)
{
    for (;;) {
        ssize_t got;

        if (buf->len > ER_SPEC_FILE_MAX)
            return er_error_set(err, ER_E_CONFIG, "%s: larger than 1 MiB", path);
        if (er_buf_reserve(buf, 4096))
            return er_error_set(err, -ENOMEM, "out of memory");
        got = read(fd, buf->data + buf->len, 4096);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            er_error_errno(err, "read job spec '%s'", path);
            return err ? (err->code = ER_E_CONFIG) : ER_E_CONFIG;
        }
        if (!got)
            return 0;
        buf->len += (size_t)got;
    }
}

int er_spec_read(struct er_spec **ret, const char *path, struct er_error *err)
{
    bool from_stdin = !strcmp(path, "-");
    ER_CLEANUP(er_cleanup_fd) int opened = -1;
    ER_CLEANUP(er_buf_done) struct er_buf buf;
    int rc;

    er_buf_init(&buf, ER_SPEC_FILE_MAX + 8192);
    if (!from_stdin) {
        opened = open(path, O_RDONLY | O_CLOEXEC);
        if (opened < 0) {
            er_error_errno(err, "open job spec '%s'", path);
            return err ? (err->code = ER_E_CONFIG) : ER_E_CONFIG;
        }
    }
    rc = read_all(from_stdin ? STDIN_FILENO : opened, path, &buf, err);
    return rc ? rc : parse(ret, from_stdin ? "<stdin>" : path, er_buf_str(&buf), buf.len, err);
}

const struct er_yaml_node *er_spec_root(const struct er_spec *spec)
{
    return spec->root;
}

bool er_yaml_node_is_null(const struct er_yaml_node *node)
{
    return node->kind == ER_NODE_SCALAR && node->plain &&
           (!*node->text || !strcmp(node->text, "null") || !strcmp(node->text, "~"));
}

const char *er_yaml_node_what(const struct er_yaml_node *node)
{
    if (node->kind == ER_NODE_MAP)
        return "a map";
    if (node->kind == ER_NODE_LIST)
        return "a list";
    return er_yaml_node_is_null(node) ? "nothing" : "a value";
}
