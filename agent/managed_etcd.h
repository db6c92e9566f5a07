#pragma once
/*
 * Managed etcd, the agent's side: a job's own etcd on one or three of its hosts, for users who have
 * none. The agents on those hosts see to it that a keeper (agent/keeper.h) runs the member; all
 * agents get the endpoints and, with a secret, certificates.
 *
 * A keeper is a child of our parent (the guard), in a session of its own, so that it outlives us;
 * the next agent of the job on this host finds it by its socket. Of several agents on one host the
 * first starts it, the others use it. One that dies is replaced, with the member's data.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/findings.h"
#include "agent/keeper_opts.h"
#include "agent/loop.h"
#include "base/error.h"

struct er_managed_etcd;

struct er_managed_opts {
    const char *name; /* of the job */
    const char *const *endpoints;
    size_t endpoints_n;
    uint16_t peer_port;
    const char *etcd;        /* program, looked for in PATH */
    const char *data_dir;    /* NULL: a fresh folder for each run, removed at the end */
    const char *secret_file; /* NULL: none, then `insecure` must be said */
    bool insecure;
    const char *tls_dir; /* a private folder of this agent, for its certificates */
    uint64_t linger_us;  /* see ER_MANAGED_LINGER_*; 0: those */

    /* All may be NULL. `spawned`: a keeper is our parent's child now, and must outlive us. */
    void (*spawned)(void *user, pid_t keeper);
    void (*warn)(void *user, const char *text);
    /* The only member cannot run: the store will not come. Called at most once, from step. */
    void (*failed)(void *user, const struct er_error *err);
    void *user;
};

/* A keeper without any agent connected, here or elsewhere, ends after this long: the only member's;
 * one of three, which sees its own connections only. */
#define ER_MANAGED_LINGER_ONE_US   (60 * ER_US_PER_S)
#define ER_MANAGED_LINGER_THREE_US (600 * ER_US_PER_S)

/*
 * Decides, asks the resolver, makes the certificates, starts or finds the keepers of this host;
 * waits for nothing else (tens of milliseconds; seconds when names do not resolve).
 *   ER_E_CONFIG       endpoints; neither secret_file nor insecure; the secret file
 *   ER_E_UNSUPPORTED  this host is to run etcd and has no such program; our own keeper is missing
 */
int er_managed_etcd_open(struct er_managed_etcd **ret, struct er_loop *loop,
                         const struct er_managed_opts *opts, struct er_error *err);
/* --check: program, secret and ports of this host's members; starts none. Of `opts` it takes what
 * the configuration gives. */
void er_managed_etcd_check(const struct er_managed_opts *opts, struct er_findings *findings);
/* The etcd program, looked for in PATH. ER_E_UNSUPPORTED: not there. */
int er_managed_find_etcd(const char *program, char ret[ER_KEEPER_PATH_MAX], struct er_error *err);
/* Lets go; keepers run on. NULL is fine. */
void er_managed_etcd_free(struct er_managed_etcd *m);

/* For the etcd client; valid as long as the object. Files are NULL without a secret. */
struct er_managed_store {
    const char *endpoints, *ca, *cert, *key, *server_name;
};
void er_managed_etcd_store(const struct er_managed_etcd *m, struct er_managed_store *ret);
/* Does this host run a member, or all that there are? */
bool er_managed_etcd_is_here(const struct er_managed_etcd *m);
bool er_managed_etcd_is_alone(const struct er_managed_etcd *m);
/* The keepers of this host have told that they are ending: all that there are, or had. */
bool er_managed_etcd_has_gone(const struct er_managed_etcd *m);
/* "etcd on node1 (this host)", "etcd on node1, node2, node3": what an agent waits for. */
const char *er_managed_etcd_text(const struct er_managed_etcd *m);

/* Tries again what is due; at the deadline (ER_FOREVER: none) and whenever the loop comes by. */
void er_managed_etcd_step(struct er_managed_etcd *m, uint64_t now_us);
uint64_t er_managed_etcd_deadline(const struct er_managed_etcd *m);

/* The job needs its store no more: ends the members of this host and waits, at most `wait_us`,
 * until they have gone and their folders are removed. False: they had not by then. */
bool er_managed_etcd_stop(struct er_managed_etcd *m, uint64_t wait_us);
