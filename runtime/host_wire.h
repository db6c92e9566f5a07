#pragma once
/* What two ranks say to each other before a link is up. Fixed size, one machine type per job.
 * Internal to the host backend. */
#include <stdint.h>

#include "runtime/host_addr.h"

#define ER_WIRE_MAGIC   0x4d435245u /* "ERCM" */
#define ER_WIRE_TABLE   0x54435245u /* "ERCT" */
#define ER_WIRE_VERSION 3

struct er_wire_hello {
    uint32_t magic;
    uint16_t version, channel;
    uint32_t from, to, size, transport;
    uint64_t generation;
    uint64_t name_hash;
    uint8_t secret[ER_HOST_SECRET_BYTES];
    uint32_t record_n, pad; /* to rank 0, control: so many bytes of the caller's record follow */
};

/* X(ENUM, "text"): answers to a hello. */
#define ER_WIRE_ANSWERS(X)                                                                         \
    X(OK, "accepted")                                                                              \
    X(SECRET, "wrong secret")                                                                      \
    X(GENERATION, "another generation")                                                            \
    X(NAME, "another communicator")                                                                \
    X(RANK, "ranks do not fit")                                                                    \
    X(TAKEN, "already connected")                                                                  \
    X(RECORD, "not an address record")

enum er_wire_answer {
#define ER_WIRE_ENUM(name, text) ER_WIRE_##name,
    ER_WIRE_ANSWERS(ER_WIRE_ENUM)
#undef ER_WIRE_ENUM
        ER_WIRE_ANSWER_COUNT
};

struct er_wire_reply {
    uint32_t magic, answer;
    uint8_t proof[ER_HOST_SECRET_BYTES]; /* the secret, each bit inverted: the listener knew it */
};

/* From rank 0, after its answer: the records of all ranks in rank order follow, a line each. Frames
 * of the control connection may come before. */
struct er_wire_table {
    uint32_t magic, bytes;
};

_Static_assert(sizeof(struct er_wire_hello) == 64 && sizeof(struct er_wire_reply) == 24,
               "no padding on the wire");
