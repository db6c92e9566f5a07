#pragma once
/* clang-format off */
/*
 * Messages between an agent and its workers, over the Unix SOCK_SEQPACKET socket ELASTIC_SOCKET:
 * codec only.
 *
 * One message is one packet: a fixed header, then numbers, then strings; every type uses the same
 * shape, so there is one encoder and one decoder. Requests carry a sequence number > 0 chosen by
 * the worker; the agent answers each with exactly one ER_CTL_REPLY of that number, in any order (a
 * waiting get is answered late). Integers are little-endian. A decoder never trusts a length. Pure.
 *
 *   type     num[]                              str[]                    reply
 *   HELLO    protocol, pid                      -                        WORLD; for a worker that
 *                                                                        was started beside a
 *                                                                        generation: of the next
 *                                                                        one, when it begins
 *   WORLD    rank, size, local_rank,            job, run, node_id,       -
 *            local_size, node_rank, nnodes,     checkpoint_dir
 *            generation, restarts [, 1: it           [, steps to leave out:
 *            is not sealed yet; what is              "51,77"]
 *            fenced waits for that]
 *   READY    generation [, flags:               -                        status
 *            1: answers a STOP with LEFT]
 *   KV_PUT   generation                         key, value               status
 *   KV_GET   generation, timeout_us             key                      status, str[0] = value;
 *            (0: no wait, UINT64_MAX: none)                              status 1: not there
 *   KV_ADD   generation,                        key                      status,
 *            delta (two's complement)                                    num[0] = new value
 *   BARRIER  generation, timeout_us             name                     status
 *   COMMIT   generation, step, bytes,           path, digest (hex)       status
 *            written_bytes, pause_us,                                    (ER_E_STALE: fenced off)
 *            duration_us,
 *            error (-errno; 0: committed)
 *   LOADED   generation, step                   path, source,            status
 *                                               skipped (JSON)
 *   LEFT     generation                         -                        WORLD of the next one,
 *                                                                        when it begins; status 1:
 *                                                                        there is none for it
 *   FAIL     generation                         message                  status
 *   BYE      generation                         -                        status
 *   REPLY    (as listed)                        (as listed), last: text of a failure
 *
 * The agent's own control socket (agent.sock) speaks the same packets with:
 *
 *   STATUS   -                                  -                        status, str[0] = JSON text
 *   STOP     1: so that it can be run again;    -                        as STATUS; the job ends
 *            time (both 0 when left out)                                 with exit code 79, or 75
 *   DRAIN    -                                  node id; "": this one    as STATUS; it leaves
 *   SCALE    min, max                           -                        as STATUS; node counts
 *   RELOAD   -                                  -                        status, str[0] = JSON:
 *                                                                        the changed keys
 *   SET      -                                  lines KEY=VALUE, or    status, str[0] = JSON:
 *                                               KEY alone: unset; who   what has changed; answered
 *                                                                       when it is written
 */
/* clang-format on */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_CTL_PROTOCOL   1
#define ER_CTL_NUM_MAX    12
#define ER_CTL_STR_MAX    6
#define ER_CTL_REJOINS    1 /* READY's flags */
#define ER_CTL_KEY_MAX    512
#define ER_CTL_VALUE_MAX  (48 * 1024)
#define ER_CTL_PACKET_MAX (64 * 1024)
/* Names of barriers that an agent keeps for one generation; more are ER_E_LIMIT. */
#define ER_CTL_BARRIERS_MAX 1024

#define ER_CTL_TYPES(X)                                                                            \
    X(HELLO)                                                                                       \
    X(WORLD)                                                                                       \
    X(READY)                                                                                       \
    X(KV_PUT)                                                                                      \
    X(KV_GET)                                                                                      \
    X(KV_ADD)                                                                                      \
    X(BARRIER)                                                                                     \
    X(COMMIT)                                                                                      \
    X(LOADED)                                                                                      \
    X(LEFT)                                                                                        \
    X(FAIL)                                                                                        \
    X(BYE)                                                                                         \
    X(STATUS)                                                                                      \
    X(REPLY)                                                                                       \
    X(STOP)                                                                                        \
    X(DRAIN)                                                                                       \
    X(SCALE)                                                                                       \
    X(RELOAD)                                                                                      \
    X(SET)

enum er_ctl_type {
    ER_CTL_NONE,
#define ER_CTL_ENUM(name) ER_CTL_##name,
    ER_CTL_TYPES(ER_CTL_ENUM)
#undef ER_CTL_ENUM
        ER_CTL_TYPE_COUNT
};

struct er_ctl_str {
    const char *data; /* borrowed: from the caller when encoding, from the packet when decoding; not
                         NUL-terminated */
    size_t len;
};

struct er_ctl_msg {
    enum er_ctl_type type;
    uint32_t seq;
    int32_t status; /* replies: 0, positive or negative as in error.h */
    uint32_t num_n, str_n;
    uint64_t num[ER_CTL_NUM_MAX];
    struct er_ctl_str str[ER_CTL_STR_MAX];
};

/* Append helpers; assert on too many. */
void er_ctl_num(struct er_ctl_msg *msg, uint64_t value);
void er_ctl_str(struct er_ctl_msg *msg, const char *text);
void er_ctl_bytes(struct er_ctl_msg *msg, const void *data, size_t n);

/* Bytes written to `packet` (room: cap), or -EMSGSIZE. */
int er_ctl_encode(const struct er_ctl_msg *msg, void *packet, size_t cap);
/* 0, or ER_E_PROTOCOL with the reason. Checks counts against the table above for known types (at
 * least as many numbers and strings as listed for requests); unknown types decode as ER_CTL_NONE
 * with seq kept, so that a newer worker gets a clean "unknown request" answer. */
int er_ctl_decode(struct er_ctl_msg *ret, const void *packet, size_t n, struct er_error *err);
const char *er_ctl_type_name(enum er_ctl_type type);
/* Copy a string out with a NUL; -ENAMETOOLONG when it does not fit or holds a NUL. */
int er_ctl_copy(struct er_ctl_str str, char *ret_text, size_t cap);
