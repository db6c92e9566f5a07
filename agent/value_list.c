/* Lists and maps: signals, strings, commands, environments. */
#include "agent/value_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/parse.h"

/* Runs `item` over a list, or over a single value as a list of one. */
typedef int (*item_fn)(struct er_value_context *c, const char *text, union er_value *value,
                       struct er_error *err);

static int each_item(struct er_value_context *c, const struct er_yaml_node *node, item_fn item,
                     union er_value *value, struct er_error *err)
{
    bool list = node->kind == ER_NODE_LIST;
    size_t n = list ? node->n : 1;

    if (node->kind == ER_NODE_MAP || (!list && er_yaml_node_is_null(node)))
        return er_value_wrong_kind(c, node, err);
    for (size_t i = 0; i < n; i++) {
        const struct er_yaml_node *one = list ? node->items[i] : node;
        int rc;

        c->ret_bad = one;
        if (one->kind != ER_NODE_SCALAR || er_yaml_node_is_null(one))
            return er_error_set(err, ER_E_CONFIG, "item %zu: expected a value, got %s", i + 1,
                                er_yaml_node_what(one));
        rc = item(c, one->text, value, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int add_signal(struct er_value_context *c, const char *text, union er_value *value,
                      struct er_error *err)
{
    int sig = 0, rc = er_parse_signal(text, &sig, err);

    if (rc)
        return er_value_as_config(rc, err);
    if (sig == SIGKILL || sig == SIGSTOP || sig == SIGCHLD)
        return er_error_set(err, ER_E_CONFIG, "%s cannot be handled", er_signal_name(sig));
    value->u64 |= 1ull << sig;
    return 0;
}

int er_value_parse_signals(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err)
{
    value->u64 = 0;
    return each_item(c, node, add_signal, value, err);
}

static int add_string(struct er_value_context *c, const char *text, union er_value *value,
                      struct er_error *err)
{
    if (!*text)
        return er_error_set(err, ER_E_CONFIG, "an empty item");
    return er_strlist_add(&value->list, text, strlen(text)) ? er_value_no_memory(err) : 0;
}

static int add_code(struct er_value_context *c, const char *text, union er_value *value,
                    struct er_error *err)
{
    uint64_t code;

    if (er_parse_u64(text, 1, 255, &code, NULL))
        return er_error_set(err, ER_E_CONFIG,
                            "expected an exit code from 1 to 255, got '" SHOWN "'", text);
    return add_string(c, text, value, err);
}

static int add_choice(struct er_value_context *c, const char *text, union er_value *value,
                      struct er_error *err)
{
    int rc = er_value_find_choice(c->key, text, err);

    return rc < 0 ? rc : add_string(c, text, value, err);
}

static int add_endpoint(struct er_value_context *c, const char *text, union er_value *value,
                        struct er_error *err)
{
    if (strpbrk(text, " \t\r\n,"))
        return er_error_set(err, ER_E_CONFIG, "expected HOST:PORT, got '" SHOWN "'", text);
    return add_string(c, text, value, err);
}

/* `none` where the key has it is the empty list. */
int er_value_parse_list(struct er_value_context *c, const struct er_yaml_node *node,
                        union er_value *value, struct er_error *err)
{
    static const item_fn items[ER_KEY_TYPE_COUNT] = {
        [ER_KEY_STRINGS] = add_string,
        [ER_KEY_CODES] = add_code,
        [ER_KEY_CHOICES] = add_choice,
        [ER_KEY_ENDPOINTS] = add_endpoint,
    };

    return each_item(c, node, items[c->key->type], value, err);
}

static int add_argument(struct er_value_context *c, const char *text, union er_value *value,
                        struct er_error *err)
{
    int rc = c->program_form ? 0 : er_subst_check(text, false, c->environ_, err);

    if (rc)
        return rc;
    return er_strlist_add(&value->list, text, strlen(text)) ? er_value_no_memory(err) : 0;
}

/* One word of a command line, quotes and backslashes resolved, into `word`; NULL: no more. */
static int next_word(const char **at, char *word, bool *ret_more, struct er_error *err)
{
    const char *s = *at + strspn(*at, " \t\r\n");
    char quote = '\0';

    *ret_more = *s;
    for (; *s && (quote || !strchr(" \t\r\n", *s)); s++) {
        bool escape = *s == '\\' && s[1] && (!quote || (quote == '"' && strchr("\"\\", s[1])));

        if (escape)
            *word++ = *++s;
        else if (!quote && (*s == '\'' || *s == '"'))
            quote = *s;
        else if (*s == quote)
            quote = '\0';
        else
            *word++ = *s;
    }
    *word = '\0';
    *at = s;
    return quote ? er_error_set(err, ER_E_CONFIG, "a quote (%c) is not closed", quote) : 0;
}

static int split_command(struct er_value_context *c, const char *text, union er_value *value,
                         struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *word = malloc(strlen(text) + 1);
    bool more = true;
    int rc = word ? 0 : er_value_no_memory(err);

    while (!rc) {
        rc = next_word(&text, word, &more, err);
        if (!rc && !more)
            break;
        if (!rc)
            rc = add_argument(c, word, value, err);
    }
    return rc;
}

int er_value_parse_command(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err)
{
    bool single = node->kind == ER_NODE_SCALAR && !er_yaml_node_is_null(node);
    int rc;

    if (single && c->key->flags & ER_KEY_NONE && !strcmp(node->text, "none"))
        return 0;
    rc = single ? split_command(c, node->text, value, err)
                : each_item(c, node, add_argument, value, err);
    if (!rc && (!value->list.n || !*value->list.items[0]))
        rc = er_error_set(err, ER_E_CONFIG, "names no program");
    return rc;
}

int er_value_parse_env(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err)
{
    if (node->kind != ER_NODE_MAP)
        return er_value_wrong_kind(c, node, err);
    for (size_t i = 0; i < node->n; i += 2) {
        const char *name = node->items[i]->text;
        const struct er_yaml_node *item = node->items[i + 1];
        bool remove = er_yaml_node_is_null(item);
        int rc = 0;

        c->ret_bad = node->items[i];
        if (!*name || strchr(name, '='))
            return er_error_set(err, ER_E_CONFIG, "'" SHOWN "' is no name of a variable", name);
        c->ret_bad = item;
        if (item->kind != ER_NODE_SCALAR)
            return er_error_set(err, ER_E_CONFIG, SHOWN ": expected a value, got %s", name,
                                er_yaml_node_what(item));
        if (!remove && !c->program_form)
            rc = er_subst_check(item->text, false, c->environ_, err);
        if (rc)
            return er_error_wrap(err, rc, SHOWN, name);
        if (er_envlist_put(&value->env, name, remove ? NULL : item->text))
            return er_value_no_memory(err);
    }
    return 0;
}
