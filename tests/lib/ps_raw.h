#pragma once
/* A worker of parameter servers, frame by frame: one that stops wherever the test wants. Its
 * gradients are ones. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/lib/tap.h"
#include "trainer/ps_server.h"
#include "trainer/ps_wire.h"

static inline void ps_raw_send(int fd, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, (const char *)data + done, n - done, MSG_NOSIGNAL);

        er_tap_require(sent > 0);
        done += (size_t)sent;
    }
}

static inline struct er_ps_frame ps_raw_hello(const struct er_flat *flat, uint32_t worker,
                                              uint64_t incarnation)
{
    return (struct er_ps_frame){.magic = ER_PS_MAGIC,
                                .type = ER_PS_FRAME_HELLO,
                                .worker = worker,
                                .a = {incarnation, flat->total, er_ps_layout(flat)}};
}

/* Its connection; the answer to HELLO follows. */
static inline int ps_raw_open(const struct er_host_record *record, const struct er_flat *flat,
                              uint32_t worker, uint64_t incarnation)
{
    struct er_ps_frame frame = ps_raw_hello(flat, worker, incarnation);
    int fd = -1;

    er_tap_require(er_host_dial(record, 0, &fd) == 0); /* the Unix socket */
    (void)fcntl(fd, F_SETFL, 0);                       /* blocking */
    ps_raw_send(fd, &frame, sizeof(frame));
    ps_raw_send(fd, record->secret, sizeof(record->secret));
    return fd;
}

static inline struct er_ps_frame ps_raw_hear(int fd, enum er_ps_frame_type type)
{
    struct er_ps_frame frame;
    ssize_t n = recv(fd, &frame, sizeof(frame), MSG_WAITALL);

    er_tap_require(n == (ssize_t)sizeof(frame) && frame.type == type);
    return frame;
}

static inline void ps_raw_say(int fd, enum er_ps_frame_type type, uint64_t a)
{
    struct er_ps_frame frame = {.magic = ER_PS_MAGIC, .type = type, .a = {a}};

    ps_raw_send(fd, &frame, sizeof(frame));
}

/* With weight 1; `count`: elements of that server. */
static inline void ps_raw_stage(int fd, uint64_t seq, uint64_t part, size_t count)
{
    const double weight = 1;
    struct er_ps_frame frame = {.magic = ER_PS_MAGIC, .type = ER_PS_FRAME_STAGE, .a = {seq, part}};
    float *ones = malloc(count * sizeof(*ones) + 1);

    er_tap_require(ones);
    for (size_t i = 0; i < count; i++)
        ones[i] = 1;
    memcpy(&frame.a[2], &weight, sizeof(weight));
    ps_raw_send(fd, &frame, sizeof(frame));
    ps_raw_send(fd, ones, count * sizeof(*ones));
    free(ones);
}
