#pragma once
/*
 * Values of keys: YAML node -> typed value -> canonical YAML text, one table row a type. The value
 * has the layout of its field in struct er_config.
 */
#include "agent/config.h"
#include "agent/keys.h"
#include "agent/spec.h"
#include "base/buf.h"

enum { ER_VALUE_TEXT_MAX = 4 << 20 };

union er_value {
    uint64_t u64;
    uint32_t u32;
    uint32_t range[2];
    int32_t i32;
    int number;
    double ratio;
    bool yes;
    char *text; /* owned */
    struct er_strlist list;
    struct er_envlist env;
    struct er_stream_map streams;
    struct er_rolelist roles;
};

struct er_value_context {
    const struct er_key_info *key;
    bool bare_seconds;                  /* durations: a bare number is seconds */
    bool program_form;                  /* ${...} is left alone, except in log.prefix */
    char **environ_;                    /* for ${env.NAME} */
    const struct er_yaml_node *ret_bad; /* on failure: the node at fault */
};

/* ER_E_CONFIG or -ENOMEM; the text is without key and position. */
int er_value_parse(struct er_value_context *context, const struct er_yaml_node *node,
                   union er_value *ret, struct er_error *err);
/* Canonical, in YAML's flow style, on one line; parses back to the same value. */
int er_value_format(const struct er_key_info *key, const union er_value *value, struct er_buf *out);
void er_value_free(const struct er_key_info *key, union er_value *value);
/* Bytes of the field in struct er_config. */
size_t er_value_size(enum er_key_type type);
/* Single values, as opposed to lists and maps: their text is taken as it is from an option. */
bool er_value_is_single(enum er_key_type type);

/* NULL: no role of that name. */
const struct er_role *er_rolelist_find(const struct er_rolelist *roles, const char *name);
int er_strlist_add(struct er_strlist *list, const char *text, size_t n);
int er_strlist_copy(const struct er_strlist *from, struct er_strlist *ret);
void er_strlist_free(struct er_strlist *list);
/* Adds or replaces; value NULL: remove the name from the environment. */
int er_envlist_put(struct er_envlist *env, const char *name, const char *value);
void er_envlist_free(struct er_envlist *env);
