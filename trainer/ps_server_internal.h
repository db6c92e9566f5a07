#pragma once
/* The parts of a server: ps_server.c memory, thread, optimizer; ps_conn.c connections and frames;
 * ps_lost.c what becomes of a push whose worker is gone. One thread. */
#include <poll.h>
#include <pthread.h>

#include "base/pool.h"
#include "trainer/ps_server.h"
#include "trainer/ps_wire.h"

enum er_ps_conn_kind {
    ER_PS_STRANGER, /* has not said who it is */
    ER_PS_WORKER,
    ER_PS_ASKING, /* another server, which waits for our answer */
    ER_PS_ASKED   /* another server, which we have asked */
};

struct er_ps_conn {
    struct er_ps_conn *next;
    int fd;
    enum er_ps_conn_kind kind;
    bool over; /* to be freed */
    bool dialing;
    uint32_t worker;
    struct er_ps_frame in; /* as it comes, then its body */
    size_t in_n, body_n;   /* bytes of each that are here */
    size_t body_bytes;
    void *body; /* where they go */
    uint8_t secret[ER_HOST_SECRET_BYTES];
    struct er_ps_frame out; /* as it goes; out_bytes 0: nothing */
    const void *out_body;
    size_t out_n, out_bytes;
    bool wants_lease, wants_pull;
    uint64_t deadline_us; /* STRANGER, ASKING */
};

/*
 *   IDLE -> STAGING -> STAGED -> DUE -> IDLE
 *             | gone      | gone   (counts, whatever becomes of the worker)
 *             v           v
 *            IDLE     UNDECIDED -> DUE or IDLE
 */
enum er_ps_push_state { ER_PS_IDLE, ER_PS_STAGING, ER_PS_STAGED, ER_PS_DUE, ER_PS_UNDECIDED };

struct er_ps_worker {
    struct er_ps_conn *conn;         /* NULL: gone, or not here yet */
    uint64_t incarnation, committed; /* committed: highest seq that counts */
    uint64_t old_incarnation, old_committed;
    enum er_ps_push_state state;
    uint64_t seq, part, sees;
    double weight;
    int answers; /* UNDECIDED: servers still to answer */
    bool known;
};

struct er_ps_server {
    struct er_ps_server_opts opts;
    struct er_ps_extent extent;
    uint64_t layout; /* hash of what is trained */
    struct er_pool *pool;
    float *value, *state[ER_FLAT_STATES_MAX];
    float **stage;  /* of each worker: a push as it comes; owned list */
    float **held;   /* lock-step: of each part of the step: pushes that count; owned list */
    double *weight; /* lock-step: of each part */
    struct er_host_record self, *records;
    int listen_fd[2], wake_fd; /* wake: end */
    struct er_ps_table table;
    uint64_t applied_steps, updates;
    struct er_ps_worker *workers; /* ER_PS_WORKERS_MAX */
    struct er_ps_conn *conns;
    struct pollfd *polls; /* polls_cap */
    size_t polls_cap;
    bool running, stopped;
    pthread_t thread;
};

static inline bool er_ps_lock_step(const struct er_ps_server *s)
{
    return s->opts.staleness == 0;
}

/* ps_server.c: carries out what is due, unless values are being sent. */
void er_ps_apply(struct er_ps_server *s);

/* ps_conn.c */
void er_ps_accept(struct er_ps_server *s, int listener, uint64_t now_us);
/* After poll() said something. */
void er_ps_conn_io(struct er_ps_server *s, struct er_ps_conn *conn, short revents, uint64_t now_us);
/* Answers that have become possible, and deadlines. */
void er_ps_conn_step(struct er_ps_server *s, struct er_ps_conn *conn, uint64_t now_us);
void er_ps_conn_close(struct er_ps_server *s, struct er_ps_conn *conn);
/* Frees those that are over. */
void er_ps_conn_sweep(struct er_ps_server *s);
void er_ps_answer(struct er_ps_conn *conn, enum er_ps_frame_type type, const uint64_t *a, size_t n,
                  const void *body, size_t bytes);
struct er_ps_conn *er_ps_conn_new(struct er_ps_server *s, int fd, enum er_ps_conn_kind kind);
bool er_ps_sending(const struct er_ps_server *s);

/* ps_lost.c */
/* The worker's connection is gone. */
void er_ps_lost(struct er_ps_server *s, uint32_t worker);
/* Its push counts (DUE) or does not (IDLE), and what it held is given again. */
void er_ps_settle(struct er_ps_server *s, uint32_t worker, bool committed);
/* 1: yes; 0: it never will; -1: the worker may still say so. */
int er_ps_committed(const struct er_ps_server *s, uint32_t worker, uint64_t incarnation,
                    uint64_t seq);
/* Another server's answer, or (told < 0) none will come. */
void er_ps_told(struct er_ps_server *s, uint32_t worker, int told);
