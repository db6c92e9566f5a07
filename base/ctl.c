#include "base/ctl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * The packet: a header of 24 bytes, num_n times 8 bytes, then each string as 4 bytes of length and
 * its bytes.
 *
 *   0 magic u32 | 4 type u32 | 8 seq u32 | 12 status i32 | 16 num_n u16 | 18 str_n u16 |
 *   20 bytes in all u32
 */
#define MAGIC 0x4c544345u /* "ECTL" */
enum {
    AT_MAGIC = 0,
    AT_TYPE = 4,
    AT_SEQ = 8,
    AT_STATUS = 12,
    AT_NUM_N = 16,
    AT_STR_N = 18,
    AT_BYTES = 20
};
enum { HEADER_BYTES = 24, NUM_BYTES = 8, LENGTH_BYTES = 4 };

/* What a message of each type carries at least; the table of the header. */
static const struct {
    const char *name;
    uint32_t num_n, str_n;
} TYPES[ER_CTL_TYPE_COUNT] = {
    [ER_CTL_HELLO] = {"HELLO", 2, 0},     [ER_CTL_WORLD] = {"WORLD", 8, 4},
    [ER_CTL_READY] = {"READY", 1, 0},     [ER_CTL_KV_PUT] = {"KV_PUT", 1, 2},
    [ER_CTL_KV_GET] = {"KV_GET", 2, 1},   [ER_CTL_KV_ADD] = {"KV_ADD", 2, 1},
    [ER_CTL_BARRIER] = {"BARRIER", 2, 1}, [ER_CTL_COMMIT] = {"COMMIT", 7, 2},
    [ER_CTL_LOADED] = {"LOADED", 2, 3},   [ER_CTL_LEFT] = {"LEFT", 1, 0},
    [ER_CTL_FAIL] = {"FAIL", 1, 1},       [ER_CTL_BYE] = {"BYE", 1, 0},
    [ER_CTL_STATUS] = {"STATUS", 0, 0},   [ER_CTL_REPLY] = {"REPLY", 0, 0},
    [ER_CTL_STOP] = {"STOP", 0, 0},       [ER_CTL_DRAIN] = {"DRAIN", 0, 1},
    [ER_CTL_SCALE] = {"SCALE", 2, 0},     [ER_CTL_RELOAD] = {"RELOAD", 0, 0},
    [ER_CTL_SET] = {"SET", 0, 2},
};

void er_ctl_num(struct er_ctl_msg *msg, uint64_t value)
{
    assert(msg->num_n < ER_CTL_NUM_MAX);
    msg->num[msg->num_n++] = value;
}

void er_ctl_bytes(struct er_ctl_msg *msg, const void *data, size_t n)
{
    assert(msg->str_n < ER_CTL_STR_MAX);
    msg->str[msg->str_n++] = (struct er_ctl_str){.data = data, .len = n};
}

void er_ctl_str(struct er_ctl_msg *msg, const char *text)
{
    er_ctl_bytes(msg, text, strlen(text));
}

static void put(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

int er_ctl_encode(const struct er_ctl_msg *msg, void *packet, size_t cap)
{
    unsigned char *base = packet, *at = base;
    size_t bytes = HEADER_BYTES + (size_t)msg->num_n * NUM_BYTES;

    assert(msg->type > ER_CTL_NONE && msg->type < ER_CTL_TYPE_COUNT);
    assert(msg->num_n <= ER_CTL_NUM_MAX && msg->str_n <= ER_CTL_STR_MAX);
    if (cap > ER_CTL_PACKET_MAX)
        cap = ER_CTL_PACKET_MAX;
    for (uint32_t i = 0; i < msg->str_n; i++) {
        if (msg->str[i].len > ER_CTL_PACKET_MAX)
            return -EMSGSIZE;
        bytes += LENGTH_BYTES + msg->str[i].len;
    }
    if (bytes > cap)
        return -EMSGSIZE;
    put(base + AT_MAGIC, MAGIC, 4);
    put(base + AT_TYPE, msg->type, 4);
    put(base + AT_SEQ, msg->seq, 4);
    put(base + AT_STATUS, (uint32_t)msg->status, 4);
    put(base + AT_NUM_N, msg->num_n, 2);
    put(base + AT_STR_N, msg->str_n, 2);
    put(base + AT_BYTES, bytes, 4);
    at += HEADER_BYTES;
    for (uint32_t i = 0; i < msg->num_n; i++, at += NUM_BYTES)
        put(at, msg->num[i], NUM_BYTES);
    for (uint32_t i = 0; i < msg->str_n; i++) {
        put(at, msg->str[i].len, LENGTH_BYTES);
        at += LENGTH_BYTES;
        if (msg->str[i].len)
            memcpy(at, msg->str[i].data, msg->str[i].len);
        at += msg->str[i].len;
    }
    return (int)bytes;
}

/* The header; leaves type at ER_CTL_NONE and the counts at 0 when the type is not one of ours. */
static int decode_header(struct er_ctl_msg *msg, const unsigned char *base, size_t n,
                         struct er_error *err)
{
    uint64_t type;

    if (n < HEADER_BYTES || n > ER_CTL_PACKET_MAX)
        return er_error_set(err, ER_E_PROTOCOL, "packet of %zu bytes, expected %d to %d", n,
                            HEADER_BYTES, ER_CTL_PACKET_MAX);
    if (get(base + AT_MAGIC, 4) != MAGIC)
        return er_error_set(err, ER_E_PROTOCOL, "packet does not begin as a control message");
    if (get(base + AT_BYTES, 4) != n)
        return er_error_set(err, ER_E_PROTOCOL, "packet of %zu bytes says it has %u", n,
                            (unsigned)get(base + AT_BYTES, 4));
    msg->seq = (uint32_t)get(base + AT_SEQ, 4);
    msg->status = (int32_t)(uint32_t)get(base + AT_STATUS, 4);
    type = get(base + AT_TYPE, 4);
    if (type == ER_CTL_NONE || type >= ER_CTL_TYPE_COUNT)
        return 0;
    msg->type = (enum er_ctl_type)type;
    msg->num_n = (uint32_t)get(base + AT_NUM_N, 2);
    msg->str_n = (uint32_t)get(base + AT_STR_N, 2);
    if (msg->num_n > ER_CTL_NUM_MAX || msg->str_n > ER_CTL_STR_MAX)
        return er_error_set(
            err, ER_E_PROTOCOL, "%s with %u numbers and %u strings, at most %d and %d",
            TYPES[type].name, msg->num_n, msg->str_n, ER_CTL_NUM_MAX, ER_CTL_STR_MAX);
    if (msg->num_n < TYPES[type].num_n || msg->str_n < TYPES[type].str_n)
        return er_error_set(
            err, ER_E_PROTOCOL, "%s with %u numbers and %u strings, at least %u and %u",
            TYPES[type].name, msg->num_n, msg->str_n, TYPES[type].num_n, TYPES[type].str_n);
    return 0;
}

static int decode_body(struct er_ctl_msg *msg, const unsigned char *at, size_t left,
                       struct er_error *err)
{
    const char *name = er_ctl_type_name(msg->type);

    if (left < (size_t)msg->num_n * NUM_BYTES)
        return er_error_set(err, ER_E_PROTOCOL, "%s cut short within its numbers", name);
    for (uint32_t i = 0; i < msg->num_n; i++, at += NUM_BYTES, left -= NUM_BYTES)
        msg->num[i] = get(at, NUM_BYTES);
    for (uint32_t i = 0; i < msg->str_n; i++) {
        size_t len = left < LENGTH_BYTES ? 0 : (size_t)get(at, LENGTH_BYTES);

        if (left < LENGTH_BYTES || len > left - LENGTH_BYTES)
            return er_error_set(err, ER_E_PROTOCOL, "%s cut short within string %u", name, i);
        msg->str[i] = (struct er_ctl_str){.data = (const char *)at + LENGTH_BYTES, .len = len};
        at += LENGTH_BYTES + len;
        left -= LENGTH_BYTES + len;
    }
    if (left)
        return er_error_set(err, ER_E_PROTOCOL, "%s followed by %zu bytes too many", name, left);
    return 0;
}

int er_ctl_decode(struct er_ctl_msg *ret, const void *packet, size_t n, struct er_error *err)
{
    struct er_ctl_msg msg = {0};
    int rc = decode_header(&msg, packet, n, err);

    if (!rc && msg.type != ER_CTL_NONE)
        rc = decode_body(&msg, (const unsigned char *)packet + HEADER_BYTES, n - HEADER_BYTES, err);
    if (!rc)
        *ret = msg;
    return rc;
}

const char *er_ctl_type_name(enum er_ctl_type type)
{
    return type > ER_CTL_NONE && type < ER_CTL_TYPE_COUNT ? TYPES[type].name : "?";
}

int er_ctl_copy(struct er_ctl_str str, char *ret_text, size_t cap)
{
    if (str.len >= cap || (str.len && memchr(str.data, '\0', str.len)))
        return -ENAMETOOLONG;
    if (str.len)
        memcpy(ret_text, str.data, str.len);
    ret_text[str.len] = '\0';
    return 0;
}
