/* libFuzzer: address records of ranks, and descriptors of operations as a peer may send them. */
#include <assert.h>
#include <string.h>

#include "runtime/comm_ops.h"
#include "runtime/host_addr.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void see_record(const char *text, size_t n)
{
    struct er_host_record rec, again;
    char out[ER_HOST_RECORD_MAX];
    int length;

    if (er_host_record_parse(&rec, text, n, NULL) < 0)
        return;
    length = er_host_record_format(&rec, out, sizeof(out));
    assert(length > 0 && rec.addr_n > 0 && rec.addr_n <= ER_HOST_ADDR_MAX);
    for (int i = 0; i < rec.addr_n; i++)
        assert(memchr(rec.addr[i], '\0', sizeof(rec.addr[i])));
    assert(er_host_record_parse(&again, out, (size_t)length, NULL) == 0);
    assert(memcmp(again.secret, rec.secret, sizeof(rec.secret)) == 0 && again.port == rec.port);
}

static void see_descriptor(const unsigned char *data)
{
    struct er_op_desc mine = {.seq = 1, .n = 8, .kind = ER_OP_RECV}, theirs;
    struct er_error err = ER_ERROR_INIT;
    char text[ER_COMM_OP_TEXT_MAX];

    memcpy(&theirs, data, sizeof(theirs));
    assert(strlen(er_op_text(&theirs, text)) < sizeof(text));
    er_op_agree(&mine, 0, &theirs, 1, &err);
    assert(er_op_bytes(&mine) == 8 * er_dtype_size(ER_F32));
    mine = er_op_shadow(&theirs);
    assert(strlen(er_op_text(&mine, text)) < sizeof(text));
    er_op_agree(&theirs, 0, &theirs, 1, &err);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    see_record((const char *)data, n);
    if (n >= sizeof(struct er_op_desc))
        see_descriptor(data);
    return 0;
}
