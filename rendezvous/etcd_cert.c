#include "rendezvous/etcd_cert.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define DATE_MAX 32

ER_CLEANUP_FOR(BIO_free_all, BIO)
ER_CLEANUP_FOR(X509_free, X509)

/* Seconds since the epoch. */
static bool time_of(const ASN1_TIME *t, time_t *ret)
{
    struct tm tm;

    if (ASN1_TIME_to_tm(t, &tm) != 1)
        return false;
    *ret = timegm(&tm);
    return true;
}

static const char *date(time_t t, char text[DATE_MAX])
{
    struct tm tm;

    strftime(text, DATE_MAX, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&t, &tm));
    return text;
}

int er_etcd_cert_check(const char *what, const char *path, const char *pem, uint64_t now_us,
                       uint64_t *ret_until_us, struct er_error *err)
{
    ER_CLEANUP(BIO_free_all_cleanup) BIO *bio = BIO_new_mem_buf(pem, (int)strlen(pem));
    ER_CLEANUP(X509_free_cleanup)
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    const time_t now = (time_t)(now_us / ER_US_PER_S);
    char text[DATE_MAX];
    time_t from, until;

    *ret_until_us = 0;
    if (!cert || !time_of(X509_get0_notBefore(cert), &from) ||
        !time_of(X509_get0_notAfter(cert), &until)) {
        ERR_clear_error();
        return 0;
    }
    if (until < now)
        return er_error_set(err, -EACCES, "etcd %s: '%s' has expired, at %s: renew it", what, path,
                            date(until, text));
    if (from > now)
        return er_error_set(err, -EACCES,
                            "etcd %s: '%s' is not valid before %s (is this host's clock right?)",
                            what, path, date(from, text));
    *ret_until_us = (uint64_t)until * ER_US_PER_S;
    return 0;
}
