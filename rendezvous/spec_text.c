#include "rendezvous/spec_text.h"

#include <stdint.h>
#include <string.h>

#include "rendezvous/codec.h"

#define VALUE_TOLD_MAX 48 /* a longer value, or a digest, tells nobody anything */
#define ONE_MAX        96 /* room for one key with its value */

struct piece {
    const char *at;
    size_t n;
};

static struct piece up_to(struct piece text, char mark)
{
    const char *end = text.n ? memchr(text.at, mark, text.n) : NULL;

    return (struct piece){text.at, end ? (size_t)(end - text.at) : text.n};
}

static struct piece next_line(struct piece *text)
{
    struct piece line = up_to(*text, '\n');
    size_t used = line.n + (line.n < text->n);

    *text = (struct piece){text->at + used, text->n - used};
    return line;
}

static bool same(struct piece a, struct piece b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

/* The line of that key; empty: there is none. */
static struct piece line_of(struct piece text, struct piece key)
{
    while (text.n) {
        struct piece line = next_line(&text);

        if (same(up_to(line, '='), key))
            return line;
    }
    return (struct piece){"", 0};
}

static void add(struct er_text *t, struct piece piece)
{
    char text[ONE_MAX];
    size_t n = piece.n < sizeof(text) ? piece.n : sizeof(text) - 1;

    memcpy(text, piece.at, n);
    text[n] = 0;
    er_text_add(t, text);
}

static void add_difference(struct er_text *t, struct piece key, struct piece theirs, bool first)
{
    size_t head = key.n + 1;

    er_text_add(t, first ? "" : ", ");
    add(t, key);
    if (theirs.n < head || theirs.n - head > VALUE_TOLD_MAX)
        return;
    er_text_add(t, " (the job's is '");
    add(t, (struct piece){theirs.at + head, theirs.n - head});
    er_text_add(t, "')");
}

void er_spec_difference(const char *mine, const void *theirs, size_t theirs_n, char *ret,
                        size_t cap)
{
    struct piece here = {mine, strlen(mine)}, there = {theirs ? theirs : "", theirs_n}, rest = here;
    struct er_text t = {ret, cap, 0};
    uint64_t told = 0, more = 0;

    ret[0] = 0;
    er_text_add(&t, "this node's spec differs from the job's in ");
    for (int turn = 0; turn < 2; turn++) { /* this node's keys, then those that it lacks */
        while (rest.n) {
            struct piece line = next_line(&rest), key = up_to(line, '=');
            struct piece twin = line_of(turn ? here : there, key);

            if (turn ? twin.n != 0 : same(line, twin))
                continue;
            if (told && t.len + ONE_MAX + VALUE_TOLD_MAX >= cap)
                more++;
            else
                add_difference(&t, key, turn ? line : twin, told++ == 0);
        }
        rest = there;
    }
    if (more) {
        er_text_add(&t, " and ");
        er_text_u64(&t, more);
        er_text_add(&t, " more");
    }
}

const char *er_spec_value(const void *text, size_t n, const char *key, size_t *ret_n)
{
    struct piece name = {key, strlen(key)}, line = line_of((struct piece){text, n}, name);

    if (line.n <= name.n) /* none, or without a '=' */
        return NULL;
    *ret_n = line.n - name.n - 1;
    return line.at + name.n + 1;
}

/* Every line of `a` is in `b`, or its key is overridden: with `mine`'s line, whichever that is. */
static bool lines_agree(struct piece a, struct piece b, struct piece mine, struct piece overrides)
{
    while (a.n) {
        struct piece line = next_line(&a), key = up_to(line, '=');

        if (same(line, line_of(b, key)))
            continue;
        line = line_of(mine, key);
        if (line.n == 0 || !same(line, line_of(overrides, key)))
            return false;
    }
    return true;
}

bool er_spec_agrees(const char *mine, const void *theirs, size_t theirs_n, const char *overrides)
{
    struct piece here = {mine, strlen(mine)}, there = {theirs ? theirs : "", theirs_n};
    struct piece over = {overrides, strlen(overrides)};

    return lines_agree(here, there, here, over) && lines_agree(there, here, here, over);
}
