/* Without OpenSSL nobody looks. */
#include "rendezvous/etcd_cert.h"

int er_etcd_cert_check(const char *what, const char *path, const char *pem, uint64_t now_us,
                       uint64_t *ret_until_us, struct er_error *err)
{
    *ret_until_us = 0;
    return 0;
}
