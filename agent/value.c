#include "agent/value.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/value_internal.h"
#include "agent/yaml_text.h"
#include "base/parse.h"

int er_strlist_add(struct er_strlist *list, const char *text, size_t n)
{
    char **items = realloc(list->items, (list->n + 2) * sizeof(*items));

    if (!items)
        return -ENOMEM;
    list->items = items;
    items[list->n] = strndup(text, n);
    if (!items[list->n])
        return -ENOMEM;
    items[++list->n] = NULL;
    return 0;
}

int er_strlist_copy(const struct er_strlist *from, struct er_strlist *ret)
{
    struct er_strlist copy = {0};

    for (size_t i = 0; i < from->n; i++) {
        if (er_strlist_add(&copy, from->items[i], strlen(from->items[i]))) {
            er_strlist_free(&copy);
            return -ENOMEM;
        }
    }
    *ret = copy;
    return 0;
}

void er_strlist_free(struct er_strlist *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct er_strlist){0};
}

int er_envlist_put(struct er_envlist *env, const char *name, const char *value)
{
    char *copy = value ? strdup(value) : NULL, **names, **values;
    size_t i = 0;

    if (value && !copy)
        return -ENOMEM;
    while (i < env->n && strcmp(env->names[i], name) != 0)
        i++;
    if (i < env->n) {
        free(env->values[i]);
        env->values[i] = copy;
        return 0;
    }
    names = realloc(env->names, (i + 1) * sizeof(*names));
    if (names)
        env->names = names;
    values = realloc(env->values, (i + 1) * sizeof(*values));
    if (values)
        env->values = values;
    if (!names || !values || !(names[i] = strdup(name))) {
        free(copy);
        return -ENOMEM;
    }
    values[i] = copy;
    env->n++;
    return 0;
}

void er_envlist_free(struct er_envlist *env)
{
    for (size_t i = 0; i < env->n; i++) {
        free(env->names[i]);
        free(env->values[i]);
    }
    free(env->names);
    free(env->values);
    *env = (struct er_envlist){0};
}

typedef int (*format_fn)(const struct er_key_info *key, const union er_value *value,
                         struct er_buf *out);
typedef void (*free_fn)(union er_value *value);

/* `none` and `auto` of numbers, as text; NULL: a number like any other. */
static const char *special(const struct er_key_info *key, uint64_t number)
{
    if (key->flags & ER_KEY_NONE && number == key->none_as)
        return "none";
    if (key->flags & ER_KEY_AUTO && number == key->auto_as)
        return "auto";
    return NULL;
}

static int format_u64(const struct er_key_info *key, const union er_value *value,
                      struct er_buf *out)
{
    uint64_t number = key->type == ER_KEY_U32 ? value->u32 : value->u64;
    const char *word = special(key, number);

    return word ? er_buf_add_str(out, word)
                : er_buf_printf(out, "%llu", (unsigned long long)number);
}

static int format_rank(const struct er_key_info *key, const union er_value *value,
                       struct er_buf *out)
{
    return value->i32 < 0 ? er_buf_add_str(out, "none") : er_buf_printf(out, "%d", value->i32);
}

static int format_ratio(const struct er_key_info *key, const union er_value *value,
                        struct er_buf *out)
{
    bool none = key->flags & ER_KEY_NONE && value->ratio <= 0;

    return none ? er_buf_add_str(out, "none") : er_buf_printf(out, "%.10g", value->ratio);
}

static int format_bool(const struct er_key_info *key, const union er_value *value,
                       struct er_buf *out)
{
    return er_buf_add_str(out, value->yes ? "true" : "false");
}

static int format_duration(const struct er_key_info *key, const union er_value *value,
                           struct er_buf *out)
{
    const char *word = special(key, value->u64);
    char text[ER_UNIT_TEXT_MAX];

    er_format_duration(value->u64, text);
    return er_buf_add_str(out, word ? word : text);
}

static int format_size(const struct er_key_info *key, const union er_value *value,
                       struct er_buf *out)
{
    char text[ER_UNIT_TEXT_MAX];

    er_format_size(value->u64, text);
    return er_buf_add_str(out, text);
}

static int format_text(const struct er_key_info *key, const union er_value *value,
                       struct er_buf *out)
{
    bool word = key->flags & (ER_KEY_AUTO | ER_KEY_NONE) && value->text &&
                (!strcmp(value->text, "auto") || !strcmp(value->text, "none"));
    bool number = key->type == ER_KEY_NPROC;

    if (!value->text)
        return er_buf_add_str(out, "none");
    if (number)
        return er_buf_add_str(out, value->text);
    return er_yaml_text(out, value->text, key->flags & ER_KEY_QUOTED && !word);
}

static int format_choice(const struct er_key_info *key, const union er_value *value,
                         struct er_buf *out)
{
    return er_buf_add_str(out, key->choices[value->number]);
}

static int format_signal(const struct er_key_info *key, const union er_value *value,
                         struct er_buf *out)
{
    return er_buf_add_str(out, value->number ? er_signal_name(value->number) + 3 : "none");
}

static int format_signals(const struct er_key_info *key, const union er_value *value,
                          struct er_buf *out)
{
    const char *comma = "";
    int rc = er_buf_add_str(out, "[");

    for (int sig = 1; !rc && sig < 64; sig++) {
        if (!(value->u64 >> sig & 1))
            continue;
        rc = er_buf_printf(out, "%s%s", comma, er_signal_name(sig) + 3);
        comma = ", ";
    }
    return rc ? rc : er_buf_add_str(out, "]");
}

static int format_range(const struct er_key_info *key, const union er_value *value,
                        struct er_buf *out)
{
    if (value->range[0] == value->range[1])
        return er_buf_printf(out, "%u", value->range[0]);
    return er_buf_printf(out, "\"%u:%u\"", value->range[0], value->range[1]);
}

static int format_streams(const struct er_key_info *key, const union er_value *value,
                          struct er_buf *out)
{
    const struct er_stream_map *map = &value->streams;
    int rc = er_buf_add_str(out, "\"");

    if (!rc && !map->n)
        rc = er_buf_printf(out, "%u", map->all);
    for (uint32_t i = 0; !rc && i < map->n; i++)
        rc = er_buf_printf(out, "%s%u:%u",
                           i             ? ","
                           : map->global ? "global:"
                                         : "",
                           map->items[i].rank, map->items[i].value);
    return rc ? rc : er_buf_add_str(out, "\"");
}

static int format_list(const struct er_key_info *key, const union er_value *value,
                       struct er_buf *out)
{
    bool numbers = key->type == ER_KEY_CODES;
    int rc;

    if (!value->list.n && key->flags & ER_KEY_NONE)
        return er_buf_add_str(out, "none");
    rc = er_buf_add_str(out, "[");
    for (size_t i = 0; !rc && i < value->list.n; i++) {
        rc = i ? er_buf_add_str(out, ", ") : 0;
        if (!rc)
            rc = numbers ? er_buf_add_str(out, value->list.items[i])
                         : er_yaml_text(out, value->list.items[i], false);
    }
    return rc ? rc : er_buf_add_str(out, "]");
}

static int format_env(const struct er_key_info *key, const union er_value *value,
                      struct er_buf *out)
{
    const struct er_envlist *env = &value->env;
    int rc = er_buf_add_str(out, "{");

    for (size_t i = 0; !rc && i < env->n; i++) {
        rc = i ? er_buf_add_str(out, ", ") : 0;
        if (!rc)
            rc = er_yaml_text(out, env->names[i], false);
        if (!rc)
            rc = er_buf_add_str(out, ": ");
        if (!rc)
            rc = env->values[i] ? er_yaml_text(out, env->values[i], true)
                                : er_buf_add_str(out, "null");
    }
    return rc ? rc : er_buf_add_str(out, "}");
}

static void free_text(union er_value *value)
{
    free(value->text);
}

static void free_list(union er_value *value)
{
    er_strlist_free(&value->list);
}

static void free_env(union er_value *value)
{
    er_envlist_free(&value->env);
}

static void free_streams(union er_value *value)
{
    free(value->streams.items);
}

static const struct {
    size_t size;
    format_fn format;
    free_fn free; /* NULL: nothing to free */
    bool single;
} TYPES[ER_KEY_TYPE_COUNT] = {
    [ER_KEY_U32] = {sizeof(uint32_t), format_u64, NULL, true},
    [ER_KEY_U64] = {sizeof(uint64_t), format_u64, NULL, true},
    [ER_KEY_RANK] = {sizeof(int32_t), format_rank, NULL, true},
    [ER_KEY_RATIO] = {sizeof(double), format_ratio, NULL, true},
    [ER_KEY_BOOL] = {sizeof(bool), format_bool, NULL, true},
    [ER_KEY_DURATION] = {sizeof(uint64_t), format_duration, NULL, true},
    [ER_KEY_SIZE] = {sizeof(uint64_t), format_size, NULL, true},
    [ER_KEY_STRING] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_NAME] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_TEMPLATE] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_PATH] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_CHOICE] = {sizeof(int), format_choice, NULL, true},
    [ER_KEY_CHOICE_TEXT] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_SIGNAL] = {sizeof(int), format_signal, NULL, true},
    [ER_KEY_SIGNALS] = {sizeof(uint64_t), format_signals, NULL, false},
    [ER_KEY_RANGE] = {2 * sizeof(uint32_t), format_range, NULL, false},
    [ER_KEY_NPROC] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_PORTS] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_CONSOLE] = {sizeof(char *), format_text, free_text, true},
    [ER_KEY_STREAMS] = {sizeof(struct er_stream_map), format_streams, free_streams, true},
    [ER_KEY_COMMAND] = {sizeof(struct er_strlist), format_list, free_list, false},
    [ER_KEY_STRINGS] = {sizeof(struct er_strlist), format_list, free_list, false},
    [ER_KEY_CODES] = {sizeof(struct er_strlist), format_list, free_list, false},
    [ER_KEY_CHOICES] = {sizeof(struct er_strlist), format_list, free_list, false},
    [ER_KEY_ENDPOINTS] = {sizeof(struct er_strlist), format_list, free_list, false},
    [ER_KEY_ENV] = {sizeof(struct er_envlist), format_env, free_env, false},
    [ER_KEY_ROLES] = {sizeof(struct er_rolelist), er_value_format_roles, er_value_free_roles,
                      false},
};

int er_value_format(const struct er_key_info *key, const union er_value *value, struct er_buf *out)
{
    return TYPES[key->type].format(key, value, out);
}

void er_value_free(const struct er_key_info *key, union er_value *value)
{
    if (TYPES[key->type].free)
        TYPES[key->type].free(value);
}

size_t er_value_size(enum er_key_type type)
{
    return TYPES[type].size;
}

bool er_value_is_single(enum er_key_type type)
{
    return TYPES[type].single;
}
