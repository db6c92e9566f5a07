#pragma once
/*
 * What workers and parameter servers say to each other: a frame of 64 bytes, and behind some of
 * them numbers. Fixed size, one machine type per job. A worker waits for the answer to each frame
 * but COMMIT's of other servers; a server answers LEASE and PULL when it can.
 *
 *   worker -> server                                       answer
 *   HELLO   a: incarnation, elements, layout; 16 bytes     HELLO   a: first element, count
 *   LEASE   a: 1: has been told of a change                LEASE   a: enum er_ps_answer, part or
 *                                                                     step
 *   PULL    a: steps that must be done                     PULL    a: steps done; count floats
 *   STAGE   a: seq, part, weight (double), sees; floats    STAGE   a: seq
 *   COMMIT  a: seq                                         COMMIT  a: seq
 *   TOLD    (of a change, while it waits for a LEASE)      none
 *   server -> server
 *   ASK     worker; a: incarnation, seq; 16 bytes          ASK     a: 1 committed, 0 never will be
 */
#include <stdint.h>

#include "runtime/host_addr.h"

#define ER_PS_MAGIC   0x53504552u /* "REPS" */
#define ER_PS_NUM_MAX 6

/* X(ENUM) */
#define ER_PS_FRAMES(X) X(HELLO) X(LEASE) X(PULL) X(STAGE) X(COMMIT) X(ASK) X(TOLD)
enum er_ps_frame_type {
#define ER_PS_ENUM(name) ER_PS_FRAME_##name,
    ER_PS_FRAMES(ER_PS_ENUM)
#undef ER_PS_ENUM
        ER_PS_FRAME_COUNT
};

struct er_ps_frame {
    uint32_t magic, type, worker, pad;
    uint64_t a[ER_PS_NUM_MAX];
};

_Static_assert(sizeof(struct er_ps_frame) == 64, "no padding on the wire");
