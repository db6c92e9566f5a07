#pragma once
/* Until when certificates are good. A server that is shown an expired one just cuts the connection,
 * which says nothing; so ours are looked at before. */
#include <stdint.h>

#include "base/error.h"

/*
 * The validity of the first certificate in `pem`, read from `path` (for the text); `what`: of what,
 * for the text. `ret_until_us`: wall-clock time, microseconds since the epoch, when it ends; 0 is
 * not known: this build has no OpenSSL, or cannot read it (which gRPC will tell). -EACCES: it has
 * ended, or has not begun.
 */
int er_etcd_cert_check(const char *what, const char *path, const char *pem, uint64_t now_us,
                       uint64_t *ret_until_us, struct er_error *err);
