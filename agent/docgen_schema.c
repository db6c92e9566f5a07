/*
 * JSON Schema (draft 7) of the job spec, for editors. It says what the parser says of each key by
 * itself; what spans keys, and what is not available yet, is the parser's alone.
 */
#include <inttypes.h>
#include <string.h>

#include "agent/docgen_internal.h"
#include "agent/help.h"
#include "base/cleanup.h"
#include "base/field.h"

#define DURATION "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?([0-9]+us)?$"
#define SIZE     "^[0-9]+(TiB|TB|GiB|GB|MiB|MB|KiB|kB|B)$"
#define RANKS    "[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"
#define SIGNAL   "^(SIG)?[A-Z][A-Z0-9+-]*$"

static void quoted(struct er_gen *g, const char *text)
{
    if (!g->rc)
        g->rc = er_json_quote(g->out, text, strlen(text));
}

static void pattern(struct er_gen *g, const char *regex)
{
    er_gen_text(g, "{\"type\": \"string\", \"minLength\": 1, \"pattern\": ");
    quoted(g, regex);
    er_gen_text(g, "}");
}

static void words(struct er_gen *g, const char *const *choices)
{
    er_gen_text(g, "{\"enum\": [");
    for (size_t i = 0; choices[i]; i++) {
        er_gen_text(g, i ? ", " : "");
        quoted(g, choices[i]);
    }
    er_gen_text(g, "]}");
}

static void integer(struct er_gen *g, uint64_t min, uint64_t max)
{
    er_gen_printf(g, "{\"type\": \"integer\", \"minimum\": %" PRIu64, min);
    if (max)
        er_gen_printf(g, ", \"maximum\": %" PRIu64, max);
    er_gen_text(g, "}");
}

static void write_count(struct er_gen *g, const struct er_key_info *key)
{
    integer(g, key->min, key->max);
}

static void write_ratio(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_printf(g, "{\"type\": \"number\", \"minimum\": 0, \"maximum\": %" PRIu64 "}", key->max);
}

static void write_bool(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"type\": \"boolean\"}");
}

static void write_duration(struct er_gen *g, const struct er_key_info *key)
{
    pattern(g, DURATION);
}

static void write_size(struct er_gen *g, const struct er_key_info *key)
{
    pattern(g, SIZE);
}

/* A plain 5 is a string where one is wanted. */
static void write_text(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"type\": [\"string\", \"number\", \"boolean\"], \"minLength\": 1}");
}

static void write_template(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"type\": [\"string\", \"number\", \"boolean\"]}");
}

static void write_name(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"type\": [\"string\", \"integer\"], \"pattern\": "
                   "\"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$\"}");
}

static void write_choice(struct er_gen *g, const struct er_key_info *key)
{
    words(g, key->choices);
}

static void write_signal(struct er_gen *g, const struct er_key_info *key)
{
    pattern(g, SIGNAL);
}

static void list_of(struct er_gen *g, void (*item)(struct er_gen *, const struct er_key_info *),
                    const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    item(g, key);
    er_gen_text(g, ", {\"type\": \"array\", \"items\": ");
    item(g, key);
    er_gen_text(g, "}]}");
}

static void write_signals(struct er_gen *g, const struct er_key_info *key)
{
    list_of(g, write_signal, key);
}

static void write_strings(struct er_gen *g, const struct er_key_info *key)
{
    list_of(g, write_text, key);
}

static void write_code(struct er_gen *g, const struct er_key_info *key)
{
    integer(g, 1, 255);
}

static void write_codes(struct er_gen *g, const struct er_key_info *key)
{
    list_of(g, write_code, key);
}

static void write_choices(struct er_gen *g, const struct er_key_info *key)
{
    list_of(g, write_choice, key);
}

static void write_range(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    integer(g, 1, key->max);
    er_gen_text(g, ", ");
    pattern(g, "^[0-9]+(:[0-9]+)?$");
    er_gen_text(g, ", {\"type\": \"object\", \"properties\": {\"min\": ");
    integer(g, 1, key->max);
    er_gen_text(g, ", \"max\": ");
    integer(g, 1, key->max);
    er_gen_text(g, "}, \"required\": [\"min\", \"max\"], \"additionalProperties\": false}]}");
}

static void write_nproc(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    integer(g, 1, key->max);
    er_gen_text(g, ", {\"enum\": [\"gpu\", \"cpu\", \"auto\"]}]}");
}

static void write_ports(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    integer(g, 1, 65535);
    er_gen_text(g, ", ");
    pattern(g, "^[0-9]+(-[0-9]+)?$");
    er_gen_text(g, "]}");
}

static void write_console(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [{\"enum\": [\"all\", \"none\"]}, ");
    integer(g, 0, 0);
    er_gen_text(g, ", ");
    pattern(g, "^(local:)?" RANKS "$");
    er_gen_text(g, "]}");
}

static void write_streams(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    integer(g, 0, 3);
    er_gen_text(g, ", ");
    pattern(g, "^([0-3]|(global:)?[0-9]+:[0-3](,[0-9]+:[0-3])*)$");
    er_gen_text(g, "]}");
}

static void write_argument(struct er_gen *g, const struct er_key_info *key)
{
    write_template(g, key);
}

static void write_command(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"anyOf\": [");
    write_text(g, key);
    er_gen_text(g, ", {\"type\": \"array\", \"minItems\": 1, \"items\": ");
    write_argument(g, key);
    er_gen_text(g, "}]}");
}

static void write_env(struct er_gen *g, const struct er_key_info *key)
{
    er_gen_text(g, "{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[^=]+$\"}, "
                   "\"additionalProperties\": {\"type\": [\"string\", \"number\", \"boolean\", "
                   "\"null\"]}}");
}

static void write_roles(struct er_gen *g, const struct er_key_info *key)
{
    static const char *const parts[] = {"nnodes", "nproc_per_node", "command", "env"};

    er_gen_text(g, "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"object\", "
                   "\"additionalProperties\": false, \"properties\": {");
    for (size_t i = 0; i < ER_ARRAY_N(parts); i++)
        er_gen_printf(g, "%s\"%s\": {\"$ref\": \"#/properties/%s\"}", i ? ", " : "", parts[i],
                      parts[i]);
    er_gen_text(g, "}}}");
}

static void (*const WRITERS[ER_KEY_TYPE_COUNT])(struct er_gen *g, const struct er_key_info *key) = {
    [ER_KEY_U32] = write_count,          [ER_KEY_U64] = write_count,
    [ER_KEY_RANK] = write_count,         [ER_KEY_RATIO] = write_ratio,
    [ER_KEY_BOOL] = write_bool,          [ER_KEY_DURATION] = write_duration,
    [ER_KEY_SIZE] = write_size,          [ER_KEY_STRING] = write_text,
    [ER_KEY_NAME] = write_name,          [ER_KEY_TEMPLATE] = write_template,
    [ER_KEY_PATH] = write_text,          [ER_KEY_CHOICE] = write_choice,
    [ER_KEY_CHOICE_TEXT] = write_choice, [ER_KEY_SIGNAL] = write_signal,
    [ER_KEY_SIGNALS] = write_signals,    [ER_KEY_RANGE] = write_range,
    [ER_KEY_NPROC] = write_nproc,        [ER_KEY_PORTS] = write_ports,
    [ER_KEY_CONSOLE] = write_console,    [ER_KEY_STREAMS] = write_streams,
    [ER_KEY_COMMAND] = write_command,    [ER_KEY_STRINGS] = write_strings,
    [ER_KEY_CODES] = write_codes,        [ER_KEY_CHOICES] = write_choices,
    [ER_KEY_ENDPOINTS] = write_strings,  [ER_KEY_ENV] = write_env,
    [ER_KEY_ROLES] = write_roles,
};

/* The key's own form, beside `none` and `auto` where it has them. */
static void value(struct er_gen *g, const struct er_key_info *key)
{
    static const struct {
        unsigned flag;
        const char *word;
    } special[] = {{ER_KEY_NONE, "none"}, {ER_KEY_AUTO, "auto"}};

    er_gen_text(g, "\"anyOf\": [");
    WRITERS[key->type](g, key);
    for (size_t i = 0; i < ER_ARRAY_N(special); i++) {
        if (key->flags & special[i].flag)
            er_gen_printf(g, ", {\"const\": \"%s\"}", special[i].word);
    }
    er_gen_text(g, "]");
}

static void description(struct er_gen *g, const struct er_key_info *key)
{
    struct er_buf text;

    er_buf_init(&text, 8192);
    if (!g->rc)
        g->rc = er_buf_printf(&text, "%s\nDefault: %s\n", key->help, key->def ? key->def : "-");
    if (!g->rc)
        g->rc = er_help_attributes(key, &text);
    er_gen_text(g, "\"description\": ");
    quoted(g, er_buf_str(&text));
    er_buf_done(&text);
}

/* Length of the common beginning of two paths, in whole groups. */
static size_t common(const char *a, const char *b)
{
    size_t n = 0;

    for (size_t i = 0; a[i] && a[i] == b[i]; i++) {
        if (a[i] == '.')
            n = i + 1;
    }
    return n;
}

/* Dots from `from` on: how many groups of the path are open below it. */
static int depth(const char *path, size_t from)
{
    int n = 0;

    for (const char *s = path + from; (s = strchr(s, '.')); s++)
        n++;
    return n;
}

static void close_groups(struct er_gen *g, int n)
{
    for (int i = 0; i < n; i++)
        er_gen_text(g, "\n}}");
}

static void open_groups(struct er_gen *g, const char *path, size_t from)
{
    const char *at = path + from, *dot;

    for (; (dot = strchr(at, '.')); at = dot + 1) {
        er_gen_printf(g,
                      "\"%.*s\": {\"type\": \"object\", \"additionalProperties\": false, "
                      "\"properties\": {\n",
                      (int)(dot - at), at);
    }
}

/* The rows of a group stand together in the table: a group opens once and closes for good. */
static void properties(struct er_gen *g)
{
    const char *last = "";

    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        const char *dot = strrchr(key->path, '.');
        size_t shared = common(last, key->path);

        close_groups(g, depth(last, shared));
        er_gen_text(g, i ? ",\n" : "\n");
        open_groups(g, key->path, shared);
        er_gen_printf(g, "\"%s\": {", dot ? dot + 1 : key->path);
        description(g, key);
        er_gen_text(g, ", ");
        value(g, key);
        er_gen_text(g, "}");
        last = key->path;
    }
    close_groups(g, depth(last, 0));
}

int er_docgen_schema(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "{\n\"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
                    "\"$comment\": \"Written by agent/keys_doc from the tables in agent/: change "
                    "those.\",\n"
                    "\"title\": \"elastic-job(5), the job spec of elastic-run\",\n"
                    "\"type\": \"object\",\n\"additionalProperties\": false,\n"
                    "\"required\": [\"command\"],\n\"properties\": {");
    properties(&g);
    er_gen_text(&g, "\n}\n}\n");
    return g.rc;
}
