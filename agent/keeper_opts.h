#pragma once
/*
 * The keeper (elastic-managed-etcd) is the small program that runs one member of a job's managed
 * etcd. What the agent tells it, as `--key=value` arguments, and what they say to each other.
 *
 *     agent --- clone, socket pair ---> keeper (own session; outlives the agent) ---> etcd
 *     later agents of this host --- <home>/sock ---^
 *
 * Packets are text, the first word says what it is:
 *     keeper to agent   ok PID · busy (another keeper runs: connect to it) · warn TEXT · failed
 * TEXT · stopped agent to keeper   stop Pure, but for er_keeper_home().
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/managed_plan.h"
#include "base/error.h"

#define ER_KEEPER_PROGRAM  "elastic-managed-etcd"
#define ER_KEEPER_PATH_MAX 512
#define ER_KEEPER_HOME_MAX 100 /* the longest name of the highest uid; its socket's path fits */
#define ER_KEEPER_SOCKET   "sock"
#define ER_KEEPER_MEMBER   "member" /* who runs: for people and for tests */
#define ER_KEEPER_LOG      "etcd.log"
#define ER_KEEPER_WORD_MAX 4096 /* of a packet */
#define ER_KEEPER_ARGS_MAX 16

/* Files of a TLS folder. */
#define ER_KEEPER_CA   "ca.pem"
#define ER_KEEPER_CERT "cert.pem"
#define ER_KEEPER_KEY  "key.pem"

struct er_keeper_opts {
    char name[ER_MANAGED_NAME_MAX]; /* of the job */
    char endpoints[ER_MANAGED_TEXT_MAX];
    uint32_t index; /* which of them this is */
    uint32_t peer_port;
    char listen[ER_MANAGED_LISTEN_MAX * ER_MANAGED_ADDRESS_MAX]; /* addresses, or "all" */
    char home[ER_KEEPER_HOME_MAX];   /* lock, socket, certificates, log; removed at the end */
    char data[ER_KEEPER_PATH_MAX];   /* folder of etcd's data */
    uint32_t keep_data;              /* it was named by the user: stays at the end */
    uint32_t fresh;                  /* what is there is an older job's: begin anew */
    char etcd[ER_KEEPER_PATH_MAX];   /* the program */
    char secret[ER_KEEPER_PATH_MAX]; /* file; "": no TLS */
    char out[ER_KEEPER_PATH_MAX];    /* of `tls`: where the files go */
    uint32_t linger_ms;              /* without anybody connected, then it ends by itself */
    uint32_t fd;                     /* connected to the agent; 0: none */
};

/* `--key=value` for all that is set. Returns how many, each malloc'ed, or -ENOMEM. */
int er_keeper_opts_format(const struct er_keeper_opts *opts, char *ret[ER_KEEPER_ARGS_MAX],
                          struct er_error *err);
/* ER_E_USAGE: names the argument. */
int er_keeper_opts_parse(int n, char *const args[], struct er_keeper_opts *ret,
                         struct er_error *err);
/* The plan and the place where to listen, out of the options; ER_E_CONFIG. */
int er_keeper_opts_plan(const struct er_keeper_opts *opts, struct er_managed_plan *ret_plan,
                        struct er_managed_listen *ret_listen, struct er_error *err);

/* The folder of a job's member on this host, the same for all agents of a user whatever their
 * environment: /run/elastic-run/.etcd-<name>-<index> as root, else
 * /tmp/elastic-run-<uid>/.etcd-<name>-<index>. */
void er_keeper_home(const char *name, size_t index, char ret[ER_KEEPER_HOME_MAX]);
