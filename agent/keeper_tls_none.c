/* A build without OpenSSL. */
#include "agent/keeper_tls.h"

int er_keeper_tls_write(const char *secret_file, const struct er_managed_plan *plan,
                        const char *dir, struct er_error *err)
{
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "rendezvous.managed.secret_file: this build has no OpenSSL (Debian: "
                        "libssl-dev when it is built)");
}
