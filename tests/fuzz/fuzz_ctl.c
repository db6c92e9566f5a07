/* libFuzzer: messages on a control socket. What is accepted lies within the packet, and is written
 * as it was read; a type that nobody knows keeps its number, for the answer. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/ctl.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void see_strings(const struct er_ctl_msg *m, const unsigned char *data, size_t n)
{
    char text[64];

    for (uint32_t i = 0; i < m->str_n; i++) {
        const unsigned char *at = (const unsigned char *)m->str[i].data;
        int rc = er_ctl_copy(m->str[i], text, sizeof(text));

        assert(at >= data && at + m->str[i].len <= data + n);
        assert(rc == 0 ? strlen(text) == m->str[i].len : rc == -ENAMETOOLONG);
    }
}

static void see_again(const struct er_ctl_msg *m, const unsigned char *data, size_t n)
{
    static unsigned char packet[ER_CTL_PACKET_MAX];
    struct er_ctl_msg copy = {
        .type = m->type, .seq = m->seq, .status = m->status, .num_n = 0, .str_n = 0};

    for (uint32_t i = 0; i < m->num_n; i++)
        er_ctl_num(&copy, m->num[i]);
    for (uint32_t i = 0; i < m->str_n; i++)
        er_ctl_bytes(&copy, m->str[i].data, m->str[i].len);
    assert(er_ctl_encode(&copy, packet, sizeof(packet)) == (int)n && memcmp(packet, data, n) == 0);
    assert(er_ctl_encode(&copy, packet, n - 1) == -EMSGSIZE);
    if (copy.str_n < ER_CTL_STR_MAX) {
        er_ctl_str(&copy, "one more");
        copy.str[copy.str_n - 1].len = ER_CTL_PACKET_MAX + 1;
        assert(er_ctl_encode(&copy, packet, sizeof(packet)) == -EMSGSIZE);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctl_msg m;
    int rc = er_ctl_decode(&m, data, n, &err);

    if (rc) {
        assert(rc == ER_E_PROTOCOL && err.text[0]);
        return 0;
    }
    assert(strlen(er_ctl_type_name(m.type)) > 0);
    if (m.type == ER_CTL_NONE) {
        assert(m.num_n == 0 && m.str_n == 0);
        return 0;
    }
    assert(m.num_n <= ER_CTL_NUM_MAX && m.str_n <= ER_CTL_STR_MAX);
    see_strings(&m, data, n);
    see_again(&m, data, n);
    return 0;
}
