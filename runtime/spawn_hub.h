#pragma once
/*
 * What er_spawn()'s ranks ask their parent: the part of an agent that one program needs for itself,
 * over the same messages (base/ctl.h). One generation, which is 1; nothing is committed or fenced.
 * No I/O of its own: a reply is sent through `send`.
 */
#include <stdbool.h>

#include "base/ctl.h"
#include "base/list.h"
#include "runtime/localkv.h"

#define ER_HUB_FAIL_BYTES 1024

/* `msg` is valid during the call. */
typedef void (*er_hub_send_fn)(void *user, int rank, const struct er_ctl_msg *msg);

struct er_hub {
    int size;
    const char *job, *checkpoint_dir;
    er_hub_send_fn send;
    void *user;
    struct er_local_kv kv;
    struct er_list waiting;  /* requests that are not answered yet */
    struct er_list barriers; /* names and how many have arrived */
    size_t barriers_n;
    char fail[ER_HUB_FAIL_BYTES]; /* of the first rank that gave a reason; "" none */
    int fail_rank;
};

/* Texts are borrowed. */
void er_hub_init(struct er_hub *hub, int size, const char *job, const char *checkpoint_dir,
                 er_hub_send_fn send, void *user);
void er_hub_done(struct er_hub *hub);
/* A request of `rank`: answered now or later, always once. */
void er_hub_request(struct er_hub *hub, int rank, const struct er_ctl_msg *msg, uint64_t now_us);
/* Waiting requests whose time is over are answered. */
void er_hub_step(struct er_hub *hub, uint64_t now_us);
uint64_t er_hub_deadline(const struct er_hub *hub);
/* The rank is gone: nobody waits for its answers. */
void er_hub_gone(struct er_hub *hub, int rank);
