#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "agent/spec.h"
#include "base/buf.h"
#include "base/cleanup.h"

enum { TEXT_MAX = 64 << 20 };

/* The tree as flow YAML with every scalar that was quoted in quotes. */
static void describe(const struct er_yaml_node *node, struct er_buf *out)
{
    if (node->kind == ER_NODE_SCALAR) {
        er_buf_printf(out, node->plain ? "%s" : "'%s'", node->text);
        return;
    }
    er_buf_add_str(out, node->kind == ER_NODE_MAP ? "{" : "[");
    for (size_t i = 0; i < node->n; i++) {
        bool value = node->kind == ER_NODE_MAP && i % 2;

        er_buf_add_str(out, value ? ": " : i ? ", " : "");
        describe(node->items[i], out);
    }
    er_buf_add_str(out, node->kind == ER_NODE_MAP ? "}" : "]");
}

static const struct {
    const char *text, *tree;
} GOOD[] = {
    {"a: 1\n", "{a: 1}"},
    {"x", "x"},
    {"a: {b: [1, 2], c: }\n", "{a: {b: [1, 2], c: }}"},
    {"a: '1'\nb: \"x\\ny\"\n", "{a: '1', b: 'x\ny'}"},
    {"a: &v [1, 2]\nb: *v\n", "{a: [1, 2], b: [1, 2]}"},
    {"a: &v 1\nb: &v 2\nc: *v\n", "{a: 1, b: 2, c: 2}"},
    {"a: |\n  one\n  two\nb: >-\n  one\n  two\n", "{a: 'one\ntwo\n', b: 'one two'}"},
    {"a: !!str 1\nb: !!seq [x]\n", "{a: '1', b: [x]}"},
    {"--- # c\na: 1 # d\n...\n", "{a: 1}"},
    {"\xEF\xBB\xBF"
     "a: gr\xC3\xBC\xC3\x9F\n",
     "{a: gr\xC3\xBC\xC3\x9F}"},
    {"a: 4:6\nb: yes\nc: 0x10\n", "{a: 4:6, b: yes, c: 0x10}"},
    {"? a\n: 1\n", "{a: 1}"},
    {"a: &b {x: 1, y: 2}\nc:\n  <<: *b\n  y: 3\n", "{a: {x: 1, y: 2}, c: {y: 3, x: 1}}"},
    {"a: &b {x: 1}\nc:\n  z: 0\n  <<: [*b, {x: 5, w: 6}]\n", "{a: {x: 1}, c: {z: 0, x: 1, w: 6}}"},
    {"a: {'<<': {x: 1}}\n", "{a: {'<<': {x: 1}}}"},
    {"a: {<<: [], b: 1}\n", "{a: {b: 1}}"},
    {"a:\r\n  b: 1\r\n", "{a: {b: 1}}"},
};

Test(spec, reads_yaml)
{
    for (size_t i = 0; i < ER_ARRAY_N(GOOD); i++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_spec *spec = NULL;
        struct er_buf tree;
        int rc = er_spec_parse(&spec, "job.yaml", GOOD[i].text, strlen(GOOD[i].text), &err);

        er_buf_init(&tree, 4096);
        cr_assert_eq(rc, 0, "%s: %s", GOOD[i].text, err.text);
        describe(er_spec_root(spec), &tree);
        cr_expect_str_eq(er_buf_str(&tree), GOOD[i].tree);
        er_buf_done(&tree);
        er_spec_free(spec);
    }
}

#define BYTES(s) s, sizeof(s) - 1

static const struct {
    const char *text;
    size_t n;
    const char *message;
} BAD[] = {
    {BYTES(""), "job.yaml:1:1: empty: no keys"},
    {BYTES("# only a comment\n"), "job.yaml:1:1: empty: no keys"},
    {BYTES("a: 1\nb: [1, 2\n"),
     "job.yaml:3:1: did not find expected ',' or ']' (while parsing a flow sequence)"},
    {BYTES("a: 1\n b: 2\n"), "job.yaml:2:3: mapping values are not allowed in this context"},
    {BYTES("a:\n\t- 1\n"),
     "job.yaml:2:1: found character that cannot start any token (while scanning for the next "
     "token)"},
    {BYTES("a: \"x\n"), "job.yaml:2:1: found unexpected end of stream (while scanning a quoted "
                        "scalar)"},
    {BYTES("a: 1\nb: 2\na: 3\n"), "job.yaml:3:1: duplicate key 'a', first given on line 1"},
    {BYTES("x: {a: 1, \"a\": 2}\n"), "job.yaml:1:11: duplicate key 'a', first given on line 1"},
    {BYTES("[a]: 1\n"), "job.yaml:1:1: a key must be a single value, found a list"},
    {BYTES("{a: 1}: 1\n"), "job.yaml:1:1: a key must be a single value, found a map"},
    {BYTES("a: *nope\n"), "job.yaml:1:4: alias '*nope' has no anchor '&nope' before it"},
    {BYTES("a: &x [1, *x]\n"), "job.yaml:1:11: alias '*x' stands within itself"},
    {BYTES("a: &x {b: {c: *x}}\n"), "job.yaml:1:15: alias '*x' stands within itself"},
    {BYTES("c:\n  <<: 1\n"), "job.yaml:2:3: '<<' takes a map or a list of maps, got a value"},
    {BYTES("c:\n  <<: [{a: 1}, [x]]\n"),
     "job.yaml:2:3: '<<' takes a map or a list of maps, got a list"},
    {BYTES("a: &b {x: 1}\nc:\n  <<: *b\n  <<: *b\n"),
     "job.yaml:4:3: duplicate key '<<', first given on line 3"},
    {BYTES("a: &b\n  x: 1\n  <<: *b\n"), "job.yaml:3:7: alias '*b' stands within itself"},
    {BYTES("a: !!python/object x\n"),
     "job.yaml:1:4: tag 'tag:yaml.org,2002:python/object' is not supported"},
    {BYTES("a: !mine x\n"), "job.yaml:1:4: tag '!mine' is not supported"},
    {BYTES("a: 1\n---\nb: 1\n"), "job.yaml:2:1: a second document; there must be one only"},
    {BYTES("a: 1\nb: \0x\n"), "job.yaml:2:4: a NUL byte: not a text file"},
    {BYTES("a: \"x\\0y\"\n"), "job.yaml:1:4: a value must not hold a NUL"},
    {BYTES("a: 1\nb: \xC3(\n"), "job.yaml:2:4: not valid UTF-8 (byte 0xc3)"},
    {BYTES("\xFF\xFE"
           "a\0"),
     "job.yaml:1:1: not valid UTF-8 (byte 0xff)"},
    {BYTES("a: \xC0\x80\n"), "job.yaml:1:4: not valid UTF-8 (byte 0xc0)"},
    {BYTES("a: \xED\xA0\x80\n"), "job.yaml:1:4: not valid UTF-8 (byte 0xed)"},
    {BYTES("a: \xF4\x90\x80\x80\n"), "job.yaml:1:4: not valid UTF-8 (byte 0xf4)"},
    {BYTES("a: \x01\n"), "job.yaml:1:1: control characters are not allowed"},
    {BYTES("[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]\n"),
     "job.yaml:1:17: more than 16 maps and lists within each other"},
    {BYTES("a: @x\n"), "job.yaml:1:4: found character that cannot start any token (while scanning "
                       "for the next token)"},
    {BYTES("%YAML 3.0\n---\na: 1\n"), "job.yaml:1:1: found incompatible YAML document"},
};

Test(spec, refuses_with_the_position)
{
    for (size_t i = 0; i < ER_ARRAY_N(BAD); i++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_spec *spec = NULL;

        cr_expect_eq(er_spec_parse(&spec, "job.yaml", BAD[i].text, BAD[i].n, &err), ER_E_CONFIG,
                     "%s", BAD[i].message);
        cr_expect_str_eq(err.text, BAD[i].message);
        cr_expect_null(spec);
    }
}

static int parse_buf(const struct er_buf *text, struct er_error *err)
{
    struct er_spec *spec = NULL;
    int rc = er_spec_parse(&spec, "job.yaml", er_buf_str(text), text->len, err);

    er_spec_free(spec);
    return rc;
}

Test(spec, alias_bomb_is_refused)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf text;

    er_buf_init(&text, TEXT_MAX);
    er_buf_add_str(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 15; i++) {
        er_buf_printf(&text, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            er_buf_printf(&text, "%s*a%d", k ? ", " : "", i - 1);
        er_buf_add_str(&text, "]\n");
    }
    cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "job.yaml:5:35: more than 65536 values, aliases written out");
    er_buf_done(&text);
}

Test(spec, limits_hold)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf text;

    er_buf_init(&text, TEXT_MAX);
    for (int i = 0; i <= ER_SPEC_KEYS_MAX; i++)
        er_buf_printf(&text, "k%d: 1\n", i);
    cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "job.yaml:4097:1: more than 4096 keys in one map");

    er_buf_clear(&text);
    for (int i = 0; i <= ER_SPEC_VALUES_MAX; i++)
        er_buf_add_str(&text, "- x\n");
    cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "job.yaml:65536:3: more than 65536 values, aliases written out");

    er_buf_clear(&text);
    while (text.len <= ER_SPEC_FILE_MAX)
        er_buf_add_str(&text, "# xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n");
    cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "job.yaml: larger than 1 MiB");

    er_buf_clear(&text);
    for (int i = 0; i < 1025; i++)
        er_buf_printf(&text, "- &a%d x\n", i);
    cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "job.yaml:1025:3: more than 1024 anchors");
    er_buf_done(&text);
}

/* A flood of opening brackets is what makes parsers recurse or go quadratic. */
Test(spec, a_mebibyte_of_brackets_is_refused_at_once)
{
    static const char *const floods[] = {"[", "{", "- ", "? ", "&a ", "!!str ", "*a ", "\""};

    for (size_t i = 0; i < ER_ARRAY_N(floods); i++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_buf text;

        er_buf_init(&text, TEXT_MAX);
        while (text.len < ER_SPEC_FILE_MAX - 8)
            er_buf_add_str(&text, floods[i]);
        cr_expect_eq(parse_buf(&text, &err), ER_E_CONFIG, "%s", floods[i]);
        er_buf_done(&text);
    }
}

Test(spec, unreadable_file_is_a_wrong_spec)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;

    cr_expect_eq(er_spec_read(&spec, "/nonexistent/job.yaml", &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "open job spec '/nonexistent/job.yaml': No such file or directory");
    cr_expect_eq(er_spec_read(&spec, "/", &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "read job spec '/': Is a directory");
}

Test(spec, a_value_has_no_position)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;

    cr_expect_eq(er_spec_parse_value(&spec, "[a, b", &err), ER_E_CONFIG);
    cr_expect_str_eq(err.text, "did not find expected ',' or ']' (while parsing a flow sequence)");
    cr_expect_eq(er_spec_parse_value(&spec, "[a, b]", &err), 0);
    cr_expect_eq(er_spec_root(spec)->n, 2);
    er_spec_free(spec);
}
