#include <criterion/criterion.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "base/rand.h"

Test(base_buf, holds_what_was_added_and_a_nul)
{
    struct er_buf buf;

    er_buf_init(&buf, 1000);
    cr_expect(!strcmp(er_buf_str(&buf), "") && buf.data == NULL);
    cr_expect(er_buf_add_str(&buf, "one ") == 0);
    cr_expect(er_buf_add(&buf, "two\0", 4) == 0);
    cr_expect(er_buf_printf(&buf, " %d", 3) == 0);
    cr_expect(buf.len == 10 && !memcmp(buf.data, "one two\0 3", 11));
    er_buf_consume(&buf, 8);
    cr_expect(!strcmp(er_buf_str(&buf), " 3"));
    er_buf_consume(&buf, 2);
    cr_expect(buf.len == 0 && !strcmp(er_buf_str(&buf), ""));
    er_buf_clear(&buf);
    er_buf_done(&buf);
    cr_expect(er_buf_add_str(&buf, "again") == 0);
    er_buf_done(&buf);
    er_buf_done(NULL);
}

Test(base_buf, limit_is_exact_and_failure_changes_nothing)
{
    struct er_buf buf;

    er_buf_init(&buf, 5);
    cr_expect(er_buf_add_str(&buf, "123456") == -ENOBUFS && buf.len == 0 && buf.data == NULL);
    cr_expect(er_buf_add_str(&buf, "1234") == 0);
    cr_expect(er_buf_add_str(&buf, "56") == -ENOBUFS);
    cr_expect(er_buf_printf(&buf, "%d", 56) == -ENOBUFS);
    cr_expect(!strcmp(er_buf_str(&buf), "1234"));
    cr_expect(er_buf_add_str(&buf, "5") == 0 && buf.len == 5 && buf.cap == 6);
    cr_expect(er_buf_add(&buf, "", 0) == 0);
    cr_expect(er_buf_add(&buf, "6", 1) == -ENOBUFS);
    cr_expect(er_buf_reserve(&buf, SIZE_MAX) == -ENOBUFS);
    er_buf_done(&buf);
}

Test(base_buf, sizes_that_overflow_are_refused)
{
    struct er_buf buf;

    er_buf_init(&buf, SIZE_MAX);
    cr_expect(er_buf_reserve(&buf, SIZE_MAX) == -ENOMEM);
    cr_expect(er_buf_reserve(&buf, SIZE_MAX / 2) == -ENOMEM);
    cr_expect(er_buf_add_str(&buf, "x") == 0);
    cr_expect(er_buf_reserve(&buf, SIZE_MAX) == -ENOBUFS);
    cr_expect(er_buf_reserve(&buf, SIZE_MAX - 1) == -ENOMEM);
    cr_expect(!strcmp(er_buf_str(&buf), "x"));
    er_buf_done(&buf);
}

Test(base_buf, zero_limit_accepts_nothing)
{
    struct er_buf buf;

    er_buf_init(&buf, 0);
    cr_expect(er_buf_add(&buf, "x", 1) == -ENOBUFS);
    cr_expect(er_buf_add(&buf, "x", 0) == 0 && !strcmp(er_buf_str(&buf), ""));
    er_buf_done(&buf);
}

Test(base_buf, random_edits_match_a_plain_array)
{
    enum { MAX = 300 };
    char model[MAX + 1] = "", piece[MAX + 8];
    size_t n = 0;
    struct er_buf buf;
    struct er_rand r;

    er_rand_init(&r, 3);
    er_buf_init(&buf, MAX);
    for (int i = 0; i < 20000; i++) {
        size_t k = er_rand_below(&r, 64);

        if (er_rand_below(&r, 3) == 0) {
            k = k < n ? k : n;
            er_buf_consume(&buf, k);
            memmove(model, model + k, n - k);
            n -= k;
        } else {
            memset(piece, 'a' + (int)er_rand_below(&r, 26), k);
            if (n + k > MAX) {
                cr_assert(er_buf_add(&buf, piece, k) == -ENOBUFS);
            } else {
                cr_assert(er_buf_add(&buf, piece, k) == 0);
                memcpy(model + n, piece, k);
                n += k;
            }
        }
        model[n] = '\0';
        cr_assert(buf.len == n && !strcmp(er_buf_str(&buf), model));
        cr_assert(buf.cap <= MAX + 1);
    }
    er_buf_done(&buf);
}

struct item {
    int value;
    struct er_list node;
};

Test(base_list, items_may_be_removed_while_walking)
{
    struct item items[5];
    struct er_list head;
    int sum = 0;

    er_list_init(&head);
    cr_expect(er_list_empty(&head));
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        er_list_push_back(&head, &items[i].node);
    }
    er_list_for_each_safe (node, &head) {
        struct item *item = ER_LIST_ITEM(node, struct item, node);

        if (item->value % 2) {
            er_list_remove(node);
            er_list_remove(node);
        }
    }
    er_list_for_each (node, &head) {
        sum = sum * 10 + ER_LIST_ITEM(node, struct item, node)->value;
    }
    cr_expect(sum == 24);
}
