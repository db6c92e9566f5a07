#pragma once
/*
 * Mutual TLS out of a shared secret: everybody who has the file makes the same certificate
 * authority (a P-256 key by HKDF-SHA256, RFC 5869), and with it a certificate of its own for both
 * directions. Nothing is sent, the authority's key is never written. The only thing that proves
 * membership is the secret, so all certificates name ER_MANAGED_SERVER_NAME and the plan's hosts.
 */
#include "agent/managed_plan.h"

#define ER_KEEPER_SECRET_MIN 16 /* bytes; blanks at the end do not count */
#define ER_KEEPER_SECRET_MAX 65536

/* Writes ca.pem, cert.pem and key.pem (0600) into `dir`. ER_E_CONFIG: the secret file cannot be
 * read, is too short, or readable by others; ER_E_UNSUPPORTED: built without OpenSSL. */
int er_keeper_tls_write(const char *secret_file, const struct er_managed_plan *plan,
                        const char *dir, struct er_error *err);
