#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/ctl.h"
#include "base/rand.h"

/* A packet in memory of exactly its size, so that AddressSanitizer sees a read behind it. */
static unsigned char *exact(const unsigned char *packet, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);

    cr_assert_not_null(copy);
    memcpy(copy, packet, n);
    return copy;
}

static void expect_same(const struct er_ctl_msg *a, const struct er_ctl_msg *b)
{
    cr_assert(a->type == b->type && a->seq == b->seq && a->status == b->status);
    cr_assert(a->num_n == b->num_n && a->str_n == b->str_n);
    cr_assert(!memcmp(a->num, b->num, a->num_n * sizeof(a->num[0])));
    for (uint32_t i = 0; i < a->str_n; i++) {
        cr_assert(a->str[i].len == b->str[i].len);
        cr_assert(!a->str[i].len || !memcmp(a->str[i].data, b->str[i].data, a->str[i].len));
    }
}

/* Any type with at least what every type needs; strings out of `pool`. */
static void random_msg(struct er_rand *r, const char *pool, size_t pool_n, struct er_ctl_msg *ret)
{
    uint32_t num_n = 8 + (uint32_t)er_rand_below(r, ER_CTL_NUM_MAX - 7);
    uint32_t str_n = 4 + (uint32_t)er_rand_below(r, ER_CTL_STR_MAX - 3);

    *ret =
        (struct er_ctl_msg){.type = (enum er_ctl_type)(1 + er_rand_below(r, ER_CTL_TYPE_COUNT - 1)),
                            .seq = (uint32_t)er_rand_next(r),
                            .status = (int32_t)(uint32_t)er_rand_next(r)};
    for (uint32_t i = 0; i < num_n; i++)
        er_ctl_num(ret, er_rand_next(r));
    for (uint32_t i = 0; i < str_n; i++) {
        size_t n = er_rand_below(r, 4) ? er_rand_below(r, 40) : er_rand_below(r, pool_n / 8);

        er_ctl_bytes(ret, pool + er_rand_below(r, pool_n - n), n);
    }
}

static void fill(struct er_rand *r, char *pool, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pool[i] = (char)er_rand_next(r);
}

Test(base_ctl, random_messages_round_trip)
{
    static unsigned char packet[ER_CTL_PACKET_MAX];
    static char pool[32768];
    struct er_rand r;

    er_rand_init(&r, 11);
    fill(&r, pool, sizeof(pool));
    for (int i = 0; i < 2000; i++) {
        struct er_ctl_msg msg, back = {0};
        struct er_error err = ER_ERROR_INIT;
        unsigned char *copy;
        int n;

        random_msg(&r, pool, sizeof(pool), &msg);
        n = er_ctl_encode(&msg, packet, sizeof(packet));
        cr_assert(n > 0);
        cr_assert(er_ctl_encode(&msg, packet, (size_t)n) == n);
        cr_assert(er_ctl_encode(&msg, packet, (size_t)n - 1) == -EMSGSIZE);
        copy = exact(packet, (size_t)n);
        cr_assert(er_ctl_decode(&back, copy, (size_t)n, &err) == 0, "%s", err.text);
        expect_same(&msg, &back);
        free(copy);
    }
}

Test(base_ctl, smallest_message_of_each_type_round_trips)
{
    unsigned char packet[512];

    for (enum er_ctl_type type = ER_CTL_NONE + 1; type < ER_CTL_TYPE_COUNT; type++) {
        struct er_ctl_msg msg = {.type = type, .seq = 1}, back = {0};
        int n, rc = -1;

        /* As many numbers and strings as needed, found by trying. */
        for (unsigned nums = 0; rc && nums <= ER_CTL_NUM_MAX; nums++) {
            for (unsigned strs = 0; rc && strs <= ER_CTL_STR_MAX; strs++) {
                msg.num_n = nums;
                msg.str_n = strs;
                n = er_ctl_encode(&msg, packet, sizeof(packet));
                cr_assert(n > 0);
                rc = er_ctl_decode(&back, packet, (size_t)n, NULL);
            }
        }
        cr_expect(rc == 0, "%s", er_ctl_type_name(type));
        expect_same(&msg, &back);
    }
}

Test(base_ctl, every_truncation_is_refused)
{
    static unsigned char packet[ER_CTL_PACKET_MAX];
    static char pool[4096];
    struct er_rand r;

    er_rand_init(&r, 12);
    fill(&r, pool, sizeof(pool));
    for (int i = 0; i < 10; i++) {
        struct er_ctl_msg msg, back = {.seq = 99};
        int n;

        random_msg(&r, pool, sizeof(pool), &msg);
        n = er_ctl_encode(&msg, packet, sizeof(packet));
        cr_assert(n > 0);
        for (size_t cut = 0; cut < (size_t)n; cut++) {
            unsigned char *copy = exact(packet, cut);
            struct er_error err = ER_ERROR_INIT;

            cr_assert(er_ctl_decode(&back, copy, cut, &err) == ER_E_PROTOCOL && err.text[0]);
            /* The same with the size in the header made to agree, so that the body's checks are
             * reached. */
            if (cut >= 24) {
                copy[20] = (unsigned char)cut;
                copy[21] = (unsigned char)(cut >> 8);
                copy[22] = copy[23] = 0;
                cr_assert(er_ctl_decode(&back, copy, cut, &err) == ER_E_PROTOCOL);
            }
            free(copy);
        }
        cr_assert(back.seq == 99);
    }
}

/* What a decoder accepts lies within the packet. */
static void expect_inside(const struct er_ctl_msg *msg, const unsigned char *packet, size_t n)
{
    volatile unsigned sum = 0;

    cr_assert(msg->num_n <= ER_CTL_NUM_MAX && msg->str_n <= ER_CTL_STR_MAX);
    for (uint32_t i = 0; i < msg->str_n; i++) {
        const unsigned char *at = (const unsigned char *)msg->str[i].data;

        cr_assert(at >= packet && at <= packet + n);
        cr_assert(msg->str[i].len <= (size_t)(packet + n - at));
        for (size_t k = 0; k < msg->str[i].len; k++)
            sum += at[k];
    }
}

Test(base_ctl, damaged_packets_never_read_outside)
{
    static unsigned char packet[ER_CTL_PACKET_MAX];
    static char pool[512];
    struct er_rand r;
    int accepted = 0;

    er_rand_init(&r, 13);
    fill(&r, pool, sizeof(pool));
    for (int i = 0; i < 20000; i++) {
        struct er_ctl_msg msg, back = {0};
        unsigned char *copy;
        int n;

        random_msg(&r, pool, sizeof(pool), &msg);
        n = er_ctl_encode(&msg, packet, sizeof(packet));
        cr_assert(n > 0);
        copy = exact(packet, (size_t)n);
        for (uint64_t k = 1 + er_rand_below(&r, 4); k > 0; k--)
            copy[er_rand_below(&r, (uint64_t)n)] ^= (unsigned char)(1u << er_rand_below(&r, 8));
        if (er_ctl_decode(&back, copy, (size_t)n, NULL) == 0) {
            expect_inside(&back, copy, (size_t)n);
            accepted++;
        }
        free(copy);
    }
    cr_expect(accepted > 0);
}

Test(base_ctl, noise_is_refused)
{
    unsigned char noise[300];
    struct er_rand r;

    er_rand_init(&r, 14);
    for (int i = 0; i < 5000; i++) {
        size_t n = er_rand_below(&r, sizeof(noise) + 1);
        struct er_ctl_msg back = {0};
        unsigned char *copy;

        for (size_t k = 0; k < n; k++)
            noise[k] = (unsigned char)er_rand_next(&r);
        copy = exact(noise, n);
        cr_assert(er_ctl_decode(&back, copy, n, NULL) == ER_E_PROTOCOL);
        free(copy);
    }
}

Test(base_ctl, unknown_types_keep_their_number)
{
    unsigned char packet[128];
    struct er_ctl_msg msg = {.type = ER_CTL_STATUS, .seq = 41}, back = {0};
    int n = er_ctl_encode(&msg, packet, sizeof(packet));

    cr_assert(n == 24);
    packet[4] = 200;
    /* A newer worker may also send more numbers than we know how to hold. */
    packet[16] = 250;
    cr_expect(er_ctl_decode(&back, packet, (size_t)n, NULL) == 0);
    cr_expect(back.type == ER_CTL_NONE && back.seq == 41 && back.num_n == 0 && back.str_n == 0);
}

Test(base_ctl, missing_parts_are_named)
{
    unsigned char packet[128];
    struct er_ctl_msg msg = {.type = ER_CTL_KV_PUT, .seq = 1}, back = {.seq = 99};
    struct er_error err = ER_ERROR_INIT;
    int n;

    er_ctl_num(&msg, 1);
    er_ctl_str(&msg, "key");
    n = er_ctl_encode(&msg, packet, sizeof(packet));
    cr_expect(er_ctl_decode(&back, packet, (size_t)n, &err) == ER_E_PROTOCOL);
    cr_expect(strstr(err.text, "KV_PUT"), "%s", err.text);
    cr_expect(back.seq == 99);
}

Test(base_ctl, trailing_bytes_are_refused)
{
    unsigned char packet[128] = {0};
    struct er_ctl_msg msg = {.type = ER_CTL_STATUS, .seq = 1}, back = {0};
    int n = er_ctl_encode(&msg, packet, sizeof(packet));

    cr_expect(er_ctl_decode(&back, packet, (size_t)n + 1, NULL) == ER_E_PROTOCOL);
    packet[20] = (unsigned char)(n + 1);
    cr_expect(er_ctl_decode(&back, packet, (size_t)n + 1, NULL) == ER_E_PROTOCOL);
}

Test(base_ctl, largest_packet_is_bounded)
{
    static unsigned char packet[2 * ER_CTL_PACKET_MAX];
    static char value[ER_CTL_PACKET_MAX];
    struct er_ctl_msg msg = {.type = ER_CTL_KV_PUT, .seq = 1}, back = {0};
    int n;

    er_ctl_num(&msg, 1);
    er_ctl_str(&msg, "k");
    er_ctl_bytes(&msg, value, ER_CTL_VALUE_MAX);
    cr_expect(er_ctl_encode(&msg, packet, sizeof(packet)) > 0);
    msg.str[1].len = ER_CTL_PACKET_MAX - 24 - 8 - 5 - 4;
    n = er_ctl_encode(&msg, packet, sizeof(packet));
    cr_expect(n == ER_CTL_PACKET_MAX);
    cr_expect(er_ctl_decode(&back, packet, (size_t)n, NULL) == 0);
    msg.str[1].len++;
    cr_expect(er_ctl_encode(&msg, packet, sizeof(packet)) == -EMSGSIZE);
    msg.str[1].len = SIZE_MAX;
    cr_expect(er_ctl_encode(&msg, packet, sizeof(packet)) == -EMSGSIZE);
    cr_expect(er_ctl_decode(&back, packet, ER_CTL_PACKET_MAX + 1, NULL) == ER_E_PROTOCOL);
}

Test(base_ctl, copies_end_in_a_nul_or_fail)
{
    char text[8] = "before";

    cr_expect(er_ctl_copy((struct er_ctl_str){"1234567", 7}, text, sizeof(text)) == 0);
    cr_expect(!strcmp(text, "1234567"));
    cr_expect(er_ctl_copy((struct er_ctl_str){"12345678", 8}, text, 8) == -ENAMETOOLONG);
    cr_expect(er_ctl_copy((struct er_ctl_str){"a\0b", 3}, text, 8) == -ENAMETOOLONG);
    cr_expect(!strcmp(text, "1234567"));
    cr_expect(er_ctl_copy((struct er_ctl_str){NULL, 0}, text, 8) == 0 && !strcmp(text, ""));
    cr_expect(er_ctl_copy((struct er_ctl_str){NULL, 0}, text, 0) == -ENAMETOOLONG);
}

Test(base_ctl, types_have_names)
{
    cr_expect(!strcmp(er_ctl_type_name(ER_CTL_KV_GET), "KV_GET"));
    cr_expect(!strcmp(er_ctl_type_name(ER_CTL_NONE), "?"));
    cr_expect(!strcmp(er_ctl_type_name(ER_CTL_TYPE_COUNT), "?"));
#define CHECK_NAME(name) cr_expect(!strcmp(er_ctl_type_name(ER_CTL_##name), #name));
    ER_CTL_TYPES(CHECK_NAME)
#undef CHECK_NAME
}
