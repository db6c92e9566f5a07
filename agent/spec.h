#pragma once
/*
 * YAML text to a tree with positions, on libyaml's event parser. Knows nothing of keys. Anchors and
 * aliases work (an alias is the same node again), merge keys too; tags other than the core ones,
 * several documents, duplicate keys, NULs, invalid UTF-8 and anything above the limits are refused.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    ER_SPEC_FILE_MAX = 1 << 20,
    ER_SPEC_DEPTH_MAX = 16,     /* maps and lists within each other */
    ER_SPEC_VALUES_MAX = 65536, /* values with every alias written out */
    ER_SPEC_KEYS_MAX = 4096     /* keys of one map */
};

enum er_yaml_node_kind { ER_NODE_SCALAR, ER_NODE_LIST, ER_NODE_MAP };

struct er_yaml_node {
    enum er_yaml_node_kind kind;
    bool plain;         /* a scalar without quotes */
    uint32_t line, col; /* from 1; 0: not from a file */
    char *text;         /* owned; of a scalar, never NULL there */
    /* Items; of a map: key, value, key, value, ... Nodes are owned by the document. */
    struct er_yaml_node **items;
    size_t n;      /* pointers in `items` */
    size_t values; /* scalars, lists and maps in this tree, aliases written out */
};

struct er_spec; /* a document: owns its nodes */

/* `name` stands in messages ("job.yaml:3:1: ..."). ER_E_CONFIG: the text is wrong. */
int er_spec_parse(struct er_spec **ret, const char *name, const char *data, size_t n,
                  struct er_error *err);
/* As er_spec_parse(), without "name:" and position in messages: the value of an option. */
int er_spec_parse_value(struct er_spec **ret, const char *text, struct er_error *err);
/* Reads the file, or stdin for "-". ER_E_CONFIG also for a file that cannot be read. */
int er_spec_read(struct er_spec **ret, const char *path, struct er_error *err);
const struct er_yaml_node *er_spec_root(const struct er_spec *spec);
void er_spec_free(struct er_spec *spec);

/* null, ~ or nothing at all, without quotes. */
bool er_yaml_node_is_null(const struct er_yaml_node *node);
/* "a map", "a list", "a value", "nothing" */
const char *er_yaml_node_what(const struct er_yaml_node *node);
