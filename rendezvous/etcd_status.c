#include "rendezvous/etcd_status.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

#define ANY (-1)

/* The first row that matches wins; `text` NULL matches all. */
static const struct row {
    int code;
    const char *text;
    enum er_etcd_class class;
    int rc;
    bool applied_unknown;
} rows[] = {
    {ER_GRPC_OK, NULL, ER_ETCD_OK, 0, false},
    /* overload: 3.4 says UNKNOWN, later ones RESOURCE_EXHAUSTED */
    {ANY, "etcdserver: too many requests", ER_ETCD_BUSY, 0, false},
    {ANY, "etcdserver: invalid auth token", ER_ETCD_BAD_TOKEN, 0, false},
    {ANY, "etcdserver: revision of auth store is old", ER_ETCD_BAD_TOKEN, 0, false},
    {ANY, "etcdserver: authentication is not enabled", ER_ETCD_NO_AUTH, 0, false},
    {ANY, "etcdserver: authentication failed", ER_ETCD_FINAL, -EACCES, false},
    {ANY, "etcdserver: user name is empty", ER_ETCD_FINAL, -EACCES, false},
    {ANY, "etcdserver: user name not found", ER_ETCD_FINAL, -EACCES, false},
    {ANY, "etcdserver: permission denied", ER_ETCD_FINAL, -EACCES, false},
    {ANY, "code = PermissionDenied", ER_ETCD_FINAL, -EACCES, false},
    {ANY, "etcdserver: no leader", ER_ETCD_NO_LEADER, 0, false},
    {ANY, "etcdserver: not leader", ER_ETCD_NO_LEADER, 0, false},
    {ANY, "etcdserver: not capable", ER_ETCD_NO_LEADER, 0, false},
    {ANY, "etcdserver: rpc not supported for learner", ER_ETCD_NO_LEADER, 0, false},
    {ANY, "etcdserver: leader changed", ER_ETCD_TIMEOUT, 0, true},
    {ANY, "etcdserver: request timed out", ER_ETCD_TIMEOUT, 0, true},
    {ANY, "etcdserver: server stopped", ER_ETCD_CUT, 0, true},
    {ANY, "etcdserver: mvcc: database space exceeded", ER_ETCD_FINAL, -ENOSPC, false},
    {ANY, "etcdserver: no space", ER_ETCD_FINAL, -ENOSPC, false},
    {ANY, "etcdserver: request is too large", ER_ETCD_FINAL, -E2BIG, false},
    {ANY, "message larger than max", ER_ETCD_FINAL, -E2BIG, false},
    {ANY, "etcdserver: requested lease not found", ER_ETCD_FINAL, -ENOENT, false},
    {ANY, "etcdserver: lease already exists", ER_ETCD_FINAL, -EEXIST, false},
    {ANY, "etcdserver: mvcc: required revision has been compacted", ER_ETCD_FINAL, ER_E_STALE,
     false},
    {ER_GRPC_UNAVAILABLE, "certificate verify failed", ER_ETCD_REFUSED, -EACCES, false},
    {ER_GRPC_UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED", ER_ETCD_REFUSED, -EACCES, false},
    {ER_GRPC_UNAVAILABLE, "is not in peer certificate", ER_ETCD_REFUSED, -EACCES, false},
    {ER_GRPC_UNAVAILABLE, "Hostname Verification Check failed", ER_ETCD_REFUSED, -EACCES, false},
    {ER_GRPC_UNAVAILABLE, "SSL_ERROR_SSL", ER_ETCD_REFUSED, -EACCES, false},
    {ER_GRPC_UNAVAILABLE, "failed to connect to all addresses", ER_ETCD_UNREACHABLE, 0, false},
    {ER_GRPC_UNAVAILABLE, "DNS resolution failed", ER_ETCD_UNREACHABLE, 0, false},
    {ER_GRPC_UNAVAILABLE, "name resolution", ER_ETCD_UNREACHABLE, 0, false},
    {ER_GRPC_UNAVAILABLE, NULL, ER_ETCD_CUT, 0, true},
    {ER_GRPC_DEADLINE, NULL, ER_ETCD_TIMEOUT, 0, true},
    {ER_GRPC_CANCELLED, NULL, ER_ETCD_CUT, 0, true},
    {ER_GRPC_ABORTED, NULL, ER_ETCD_CUT, 0, true},
    {ER_GRPC_INTERNAL, NULL, ER_ETCD_CUT, 0, true},
    {ER_GRPC_DATA_LOSS, NULL, ER_ETCD_CUT, 0, true},
    {ER_GRPC_INVALID, NULL, ER_ETCD_FINAL, -EINVAL, false},
    {ER_GRPC_NOT_FOUND, NULL, ER_ETCD_FINAL, -ENOENT, false},
    {ER_GRPC_EXISTS, NULL, ER_ETCD_FINAL, -EEXIST, false},
    {ER_GRPC_DENIED, NULL, ER_ETCD_FINAL, -EACCES, false},
    {ER_GRPC_UNAUTHENTICATED, NULL, ER_ETCD_FINAL, -EACCES, false},
    {ER_GRPC_EXHAUSTED, NULL, ER_ETCD_BUSY, 0, false},
    {ER_GRPC_PRECONDITION, NULL, ER_ETCD_FINAL, -EINVAL, false},
    {ER_GRPC_OUT_OF_RANGE, NULL, ER_ETCD_FINAL, ER_E_STALE, false},
    {ER_GRPC_UNIMPLEMENTED, NULL, ER_ETCD_FINAL, ER_E_UNSUPPORTED, false},
    {ANY, NULL, ER_ETCD_CUT, 0, true}, /* UNKNOWN and what may come: expect the worst */
};

struct er_etcd_verdict er_etcd_judge(int code, const char *text)
{
    const struct row *r = rows;

    while (!((r->code == ANY || r->code == code) && (!r->text || strstr(text, r->text))))
        r++;
    return (struct er_etcd_verdict){
        .class = r->class,
        .rc = r->rc,
        /* TLS can also fail after the handshake, when something was sent */
        .applied_unknown = r->applied_unknown ||
                           (r->class == ER_ETCD_REFUSED && !strstr(text, "failed to connect")),
        .from_server = code == ER_GRPC_OK || strstr(text, "etcdserver:") != NULL,
    };
}

const char *er_etcd_class_name(enum er_etcd_class class)
{
    static const char *const names[] = {
        [ER_ETCD_OK] = "ok",
        [ER_ETCD_UNREACHABLE] = "unreachable",
        [ER_ETCD_REFUSED] = "refused",
        [ER_ETCD_CUT] = "connection lost",
        [ER_ETCD_TIMEOUT] = "no answer in time",
        [ER_ETCD_NO_LEADER] = "no leader",
        [ER_ETCD_BUSY] = "overloaded",
        [ER_ETCD_BAD_TOKEN] = "token expired",
        [ER_ETCD_NO_AUTH] = "authentication is off",
        [ER_ETCD_FINAL] = "error",
    };

    return (size_t) class < ER_ARRAY_N(names) ? names[class] : "?";
}
