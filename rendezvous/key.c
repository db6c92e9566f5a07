#include "rendezvous/codec.h"

#include <string.h>

#include "base/rand.h"

/* Keys, fences and bounded text: the other half of codec.h. */

void er_text_add(struct er_text *t, const char *s)
{
    size_t n = strlen(s);

    if (t->len + 1 >= t->cap)
        return;
    if (n > t->cap - t->len - 1)
        n = t->cap - t->len - 1;
    memcpy(t->at + t->len, s, n);
    t->len += n;
    t->at[t->len] = 0;
}

static void add_digits(struct er_text *t, uint64_t v, unsigned base, unsigned width)
{
    char out[24];
    size_t at = sizeof(out) - 1;

    out[at] = 0;
    do {
        out[--at] = "0123456789abcdef"[v % base];
        v /= base;
        if (width)
            width--;
    } while (v || width);
    er_text_add(t, out + at);
}

void er_text_u64(struct er_text *t, uint64_t v)
{
    add_digits(t, v, 10, 0);
}

size_t er_fence_format(uint64_t generation, uint64_t nonce, char ret_text[ER_FENCE_MAX])
{
    struct er_text t = {ret_text, ER_FENCE_MAX, 0};

    er_text_u64(&t, generation);
    er_text_add(&t, ":");
    add_digits(&t, nonce, 16, 16);
    return t.len;
}

/* What stands after the root, and which parts follow it. */
static const struct {
    const char *head;
    bool generation, name, seq;
} shapes[ER_KEY_KIND_COUNT] = {
    [ER_KEY_SPEC] = {.head = "spec"},
    [ER_KEY_SPEC_NEXT] = {.head = "spec-next"},
    [ER_KEY_OVERRIDES] = {.head = "overrides"},
    [ER_KEY_WORLD] = {.head = "j/world"},
    [ER_KEY_FENCE] = {.head = "fence"},
    [ER_KEY_LEADER] = {.head = "j/leader"},
    [ER_KEY_CKPT] = {.head = "ckpt/latest"},
    [ER_KEY_NODE] = {.head = "j/n/", .name = true},
    [ER_KEY_ASSIGN] = {.head = "a/", .name = true},
    [ER_KEY_RESULT] = {.head = "j/r/", .generation = true, .name = true},
    [ER_KEY_CTL] = {.head = "j/ctl/", .name = true},
    [ER_KEY_ASIDE] = {.head = "j/aside/", .name = true},
    [ER_KEY_QUERY] = {.head = "query"},
    [ER_KEY_ANSWER] = {.head = "answer/", .name = true},
    [ER_KEY_KV] = {.head = "kv/", .generation = true, .name = true},
    [ER_KEY_OP] = {.head = "op/", .generation = true, .name = true, .seq = true},
};

size_t er_key_format(const char *root, const struct er_key *key, char ret_text[ER_KEY_MAX])
{
    struct er_text t = {ret_text, ER_KEY_MAX, 0};

    if (key->kind == ER_KEY_OTHER || key->kind >= ER_KEY_KIND_COUNT || strlen(root) >= ER_ROOT_MAX)
        return 0;
    er_text_add(&t, root);
    er_text_add(&t, shapes[key->kind].head);
    if (shapes[key->kind].generation) {
        if (key->generation > ER_GEN_MAX)
            return 0;
        add_digits(&t, key->generation, 10, ER_GEN_DIGITS);
        er_text_add(&t, "/");
    }
    if (shapes[key->kind].name) {
        if (!key->name[0])
            return 0;
        er_text_add(&t, key->name);
    }
    if (shapes[key->kind].seq) {
        er_text_add(&t, "/");
        add_digits(&t, key->seq, 10, ER_GEN_DIGITS);
    }
    return t.len;
}

/* Exactly ER_GEN_DIGITS digits, up to `end` or a '/'. */
static bool take_number(const char **at, const char *end, uint64_t *ret)
{
    uint64_t v = 0;

    if (end - *at < ER_GEN_DIGITS)
        return false;
    for (unsigned i = 0; i < ER_GEN_DIGITS; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return false;
        v = v * 10 + (uint64_t)(**at - '0');
    }
    *ret = v;
    return true;
}

static bool parse_parts(const char *at, const char *end, struct er_key *key)
{
    size_t tail = shapes[key->kind].seq ? ER_GEN_DIGITS + 1 : 0;
    size_t n;

    if (shapes[key->kind].generation) {
        if (!take_number(&at, end, &key->generation) || at == end || *at++ != '/')
            return false;
    }
    if (!shapes[key->kind].name)
        return at == end;
    if ((size_t)(end - at) <= tail)
        return false;
    n = (size_t)(end - at) - tail;
    if (n >= sizeof(key->name) || memchr(at, 0, n) ||
        (key->kind != ER_KEY_KV && memchr(at, '/', n)))
        return false;
    memcpy(key->name, at, n);
    key->name[n] = 0;
    at += n;
    return !tail || (*at++ == '/' && take_number(&at, end, &key->seq));
}

void er_key_parse(const char *root, struct er_bytes text, struct er_key *ret)
{
    size_t root_n = strlen(root);
    const char *at = text.data, *end = at + text.len;

    ret->kind = ER_KEY_OTHER;
    ret->generation = ret->seq = 0;
    ret->name[0] = 0;
    if (text.len < root_n || memcmp(at, root, root_n) != 0)
        return;
    at += root_n;
    for (unsigned k = ER_KEY_OTHER + 1; k < ER_KEY_KIND_COUNT; k++) {
        size_t n = strlen(shapes[k].head);

        if ((size_t)(end - at) < n || memcmp(at, shapes[k].head, n) != 0)
            continue;
        ret->kind = (enum er_key_kind)k;
        if (parse_parts(at + n, end, ret))
            return;
        ret->kind = ER_KEY_OTHER;
    }
}

static bool name_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool er_name_valid(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n >= ER_NAME_TEXT_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (const char *c = name; *c; c++) {
        if (!name_char(*c) && *c != '.' && *c != '_' && *c != '-')
            return false;
    }
    return true;
}

/* FNV-1a, finished. */
uint64_t er_spec_hash(const char *spec)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (; *spec; spec++)
        h = (h ^ (unsigned char)*spec) * 0x100000001b3ull;
    h = er_rand_mix(h);
    return h ? h : 1;
}
