#pragma once
/* Between agent/value_parse.c (single values), value_ranks.c and value_list.c (lists and maps). */
#include "agent/value.h"

/* How much of a wrong text is repeated in a message. */
#define SHOWN "%.80s"

typedef int (*er_value_parse_fn)(struct er_value_context *c, const struct er_yaml_node *node,
                                 union er_value *value, struct er_error *err);

int er_value_no_memory(struct er_error *err);
/* "expected a duration, got a list" */
int er_value_wrong_kind(struct er_value_context *c, const struct er_yaml_node *node,
                        struct er_error *err);
/* Base's parsers answer -EINVAL and -ERANGE; both are a wrong configuration here. */
int er_value_as_config(int rc, struct er_error *err);
/* Index of a choice, or a negative code. */
int er_value_find_choice(const struct er_key_info *key, const char *text, struct er_error *err);

/* Refuses lists, maps and null. */
int er_value_want_text(struct er_value_context *c, const struct er_yaml_node *node,
                       struct er_error *err);
int er_value_copy_text(const char *text, union er_value *value, struct er_error *err);

int er_value_parse_console(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err);
int er_value_parse_streams(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err);
int er_value_parse_signals(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err);
int er_value_parse_list(struct er_value_context *c, const struct er_yaml_node *node,
                        union er_value *value, struct er_error *err);
int er_value_parse_command(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err);
int er_value_parse_env(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err);
int er_value_format_roles(const struct er_key_info *key, const union er_value *value,
                          struct er_buf *out);
void er_value_free_roles(union er_value *value);
int er_value_parse_roles(struct er_value_context *c, const struct er_yaml_node *node,
                         union er_value *value, struct er_error *err);
