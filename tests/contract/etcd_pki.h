#pragma once
/* Certificates of a test: an authority and another one, a server's, a client's (CN=worker), and one
 * that has expired. */
#include <stdio.h>

#include "tests/contract/etcd_lib.h"
#include "tests/lib/tap.h"

struct pki {
    char dir[ER_TEST_PATH_MAX];
    char ca[600], other_ca[600], server_cert[600], server_key[600], client_cert[600],
        client_key[600], old_cert[600];
};

static inline void shell(const char *dir, const char *script)
{
    struct er_test_proc p;

    if (!er_tap_check(er_test_run(&p, (const char *[]){"env", "-C", dir, "sh", "-ec", script, NULL},
                                  NULL, ETCD_DEADLINE_MS) == 0))
        er_tap_note("%s", er_test_err(&p));
    er_test_done(&p);
}

static const char make_pki[] =
    "new_ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
    "$1.key "
    "-out $1.pem -days 2 -subj /CN=$1; }\n"
    "new_cert() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key "
    "-out $1.csr -subj /CN=$2; printf \"$3\" >$1.ext; "
    "openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $1.pem $4 "
    "-extfile $1.ext; }\n"
    "new_ca ca; new_ca other\n"
    "new_cert server etcd 'subjectAltName=DNS:etcd.test,DNS:localhost,IP:127.0.0.1,IP:::1\\n"
    "extendedKeyUsage=serverAuth,clientAuth' '-days 2'\n"
    "new_cert client worker 'extendedKeyUsage=clientAuth' '-days 2'\n"
    "new_cert old worker 'extendedKeyUsage=clientAuth' '-days -1'\n";

static inline void pki_new(struct pki *k)
{
    er_test_tempdir(k->dir);
    shell(k->dir, make_pki);
    snprintf(k->ca, sizeof(k->ca), "%s/ca.pem", k->dir);
    snprintf(k->other_ca, sizeof(k->other_ca), "%s/other.pem", k->dir);
    snprintf(k->server_cert, sizeof(k->server_cert), "%s/server.pem", k->dir);
    snprintf(k->server_key, sizeof(k->server_key), "%s/server.key", k->dir);
    snprintf(k->client_cert, sizeof(k->client_cert), "%s/client.pem", k->dir);
    snprintf(k->client_key, sizeof(k->client_key), "%s/client.key", k->dir);
    snprintf(k->old_cert, sizeof(k->old_cert), "%s/old.pem", k->dir);
}
