#pragma once
/* Who we are to etcd: TLS material and password from files, and the token that a login gave. */
#include <stdbool.h>

#include "rendezvous/etcd_codec.h"
#include "rendezvous/store_etcd.h"

#define ER_ETCD_PEM_MAX      (1u << 20)
#define ER_ETCD_PASSWORD_MAX 1024

struct er_etcd_auth {
    bool tls;                      /* wanted for endpoints that don't say */
    char *ca, *cert, *key;         /* PEM, owned; NULL: none */
    char *server_name;             /* owned; NULL: the endpoint's host */
    char *user, *password;         /* owned; NULL: no login */
    bool off;                      /* the server has authentication switched off */
    uint64_t cert_until_us;        /* wall-clock end of `cert`; 0: none, or not known */
    char token[ER_ETCD_TOKEN_MAX]; /* "": not logged in */
    struct {
        char *ca, *cert, *key, *password; /* owned; NULL: none */
    } files;
};

/* -EACCES (the certificate has expired, or is not valid yet), ER_E_CONFIG (a file is missing,
 * unreadable, empty or not PEM; halves of a pair), -ENOMEM. */
int er_etcd_auth_load(struct er_etcd_auth *ret, const struct er_etcd_opts *opts,
                      struct er_error *err);
/* The files again, before a connection is made: they may hold others by now, where certificates and
 * passwords are replaced from time to time. Where they cannot be used (one half is written, the new
 * one has expired), what was loaded stays. */
void er_etcd_auth_refresh(struct er_etcd_auth *a);
/* Wipes the secrets. */
void er_etcd_auth_done(struct er_etcd_auth *a);
bool er_etcd_auth_needs_login(const struct er_etcd_auth *a);
