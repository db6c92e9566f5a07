#include "agent/keeper_tls.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/keeper_opts.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define CURVE        "P-256"
#define SCALAR_BYTES 48 /* 128 bits more than the order has: no bias worth a name */
#define SALT         "elastic-run managed etcd"
#define CA_INFO      "certificate authority v1"
#define CA_NAME      "elastic-run managed etcd"
#define LEAF_NAME    "elastic-run"
/* Hosts' clocks may be wrong; the secret is what is renewed. RFC 5280, 4.1.2.5 */
#define NOT_BEFORE "20000101000000Z"
#define NOT_AFTER  "99991231235959Z"

ER_CLEANUP_FOR(EVP_PKEY_free, EVP_PKEY)
ER_CLEANUP_FOR(EVP_KDF_free, EVP_KDF)
ER_CLEANUP_FOR(EVP_KDF_CTX_free, EVP_KDF_CTX)
ER_CLEANUP_FOR(EVP_PKEY_CTX_free, EVP_PKEY_CTX)
ER_CLEANUP_FOR(EC_GROUP_free, EC_GROUP)
ER_CLEANUP_FOR(EC_POINT_free, EC_POINT)
ER_CLEANUP_FOR(BN_clear_free, BIGNUM)
ER_CLEANUP_FOR(OSSL_PARAM_BLD_free, OSSL_PARAM_BLD)
ER_CLEANUP_FOR(OSSL_PARAM_free, OSSL_PARAM)
ER_CLEANUP_FOR(X509_free, X509)
ER_CLEANUP_FOR(X509_EXTENSION_free, X509_EXTENSION)
ER_CLEANUP_FOR(BIO_free_all, BIO)

static int failed(struct er_error *err, const char *what)
{
    char text[256] = "unknown error";
    unsigned long code = ERR_get_error();

    if (code)
        ERR_error_string_n(code, text, sizeof(text));
    return er_error_set(err, -EIO, "OpenSSL: %s: %s", what, text);
}

static int secret_error(struct er_error *err, const char *path, const char *what)
{
    return er_error_set(err, ER_E_CONFIG, "rendezvous.managed.secret_file: '%s' %s", path, what);
}

static int read_secret(const char *path, struct er_buf *ret, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_set(err, ER_E_CONFIG,
                            "rendezvous.managed.secret_file: read '%s': %s (the same file must be "
                            "on all nodes; `openssl rand -hex 32` makes one)",
                            path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return secret_error(err, path, "is no regular file");
    if (st.st_mode & 077)
        return secret_error(err, path, "can be read by others: chmod 600 it");
    if (st.st_size > ER_KEEPER_SECRET_MAX)
        return secret_error(err, path, "is longer than 64 KiB: is it the right file?");
    if (er_buf_reserve(ret, (size_t)st.st_size) < 0)
        return er_error_set(err, -ENOMEM, "read '%s': out of memory", path);
    if (er_read_all(fd, ret->data, (size_t)st.st_size) < 0)
        return secret_error(err, path, "cannot be read");
    ret->len = (size_t)st.st_size;
    while (ret->len && isspace((unsigned char)ret->data[ret->len - 1]))
        ret->len--;
    if (ret->len < ER_KEEPER_SECRET_MIN)
        return secret_error(err, path,
                            "is shorter than 16 bytes: `openssl rand -hex 32` makes a good one");
    return 0;
}

/* RFC 5869 */
static int derive(const struct er_buf *secret, unsigned char out[SCALAR_BYTES])
{
    ER_CLEANUP(EVP_KDF_free_cleanup) EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    ER_CLEANUP(EVP_KDF_CTX_free_cleanup) EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){"SHA256"}, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret->data, secret->len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (char[]){SALT}, strlen(SALT)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (char[]){CA_INFO}, strlen(CA_INFO)),
        OSSL_PARAM_construct_end(),
    };

    return ctx && EVP_KDF_derive(ctx, out, SCALAR_BYTES, params) == 1 ? 0 : -EIO;
}

/* A private key in [1, order), from more bits than it has. FIPS 186-5, A.2.1 */
static int scalar(const unsigned char bytes[SCALAR_BYTES], const EC_GROUP *group, BIGNUM **ret)
{
    ER_CLEANUP(BN_clear_free_cleanup) BIGNUM *wide = BN_bin2bn(bytes, SCALAR_BYTES, NULL);
    ER_CLEANUP(BN_clear_free_cleanup) BIGNUM *top = BN_dup(EC_GROUP_get0_order(group));
    ER_CLEANUP(BN_clear_free_cleanup) BIGNUM *k = BN_secure_new();
    BN_CTX *ctx = BN_CTX_new();
    bool good = wide && top && k && ctx && BN_sub_word(top, 1) && BN_mod(k, wide, top, ctx) &&
                BN_add_word(k, 1);

    BN_CTX_free(ctx);
    if (!good)
        return -EIO;
    *ret = ER_TAKE(k);
    return 0;
}

static EVP_PKEY *key_of(const EC_GROUP *group, const BIGNUM *k)
{
    ER_CLEANUP(EC_POINT_free_cleanup) EC_POINT *q = EC_POINT_new(group);
    ER_CLEANUP(OSSL_PARAM_BLD_free_cleanup) OSSL_PARAM_BLD *bld = OSSL_PARAM_BLD_new();
    ER_CLEANUP(OSSL_PARAM_free_cleanup) OSSL_PARAM *params = NULL;
    ER_CLEANUP(EVP_PKEY_CTX_free_cleanup)
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    unsigned char point[128];
    EVP_PKEY *key = NULL;
    size_t n;

    if (!q || !bld || !ctx || EC_POINT_mul(group, q, k, NULL, NULL, NULL) != 1)
        return NULL;
    n = EC_POINT_point2oct(group, q, POINT_CONVERSION_UNCOMPRESSED, point, sizeof(point), NULL);
    if (!n || !OSSL_PARAM_BLD_push_utf8_string(bld, OSSL_PKEY_PARAM_GROUP_NAME, CURVE, 0) ||
        !OSSL_PARAM_BLD_push_octet_string(bld, OSSL_PKEY_PARAM_PUB_KEY, point, n) ||
        !OSSL_PARAM_BLD_push_BN(bld, OSSL_PKEY_PARAM_PRIV_KEY, k))
        return NULL;
    params = OSSL_PARAM_BLD_to_param(bld);
    if (!params || EVP_PKEY_fromdata_init(ctx) != 1 ||
        EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_KEYPAIR, params) != 1)
        return NULL;
    return key;
}

static int authority_key(const struct er_buf *secret, EVP_PKEY **ret, struct er_error *err)
{
    ER_CLEANUP(EC_GROUP_free_cleanup)
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    ER_CLEANUP(BN_clear_free_cleanup) BIGNUM *k = NULL;
    unsigned char bytes[SCALAR_BYTES];
    int rc = group ? derive(secret, bytes) : -EIO;

    if (!rc)
        rc = scalar(bytes, group, &k);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    *ret = rc ? NULL : key_of(group, k);
    return *ret ? 0 : failed(err, "derive a key from the secret");
}

static bool set_name(X509_NAME *name, const char *text)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)text, -1, -1,
                                      0) == 1;
}

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    ER_CLEANUP(X509_EXTENSION_free_cleanup) X509_EXTENSION *ext = NULL;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    return ext && X509_add_ext(cert, ext, -1) == 1;
}

static bool set_serial(X509 *cert)
{
    uint64_t serial;

    return RAND_bytes((unsigned char *)&serial, sizeof(serial)) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), (serial >> 1) | 1) == 1;
}

/* What every certificate has. */
static X509 *new_cert(const char *subject, EVP_PKEY *key)
{
    ER_CLEANUP(X509_free_cleanup) X509 *cert = X509_new();

    if (!cert || X509_set_version(cert, X509_VERSION_3) != 1 || !set_serial(cert) ||
        !set_name(X509_get_subject_name(cert), subject) ||
        !set_name(X509_get_issuer_name(cert), CA_NAME) ||
        ASN1_TIME_set_string_X509(X509_getm_notBefore(cert), NOT_BEFORE) != 1 ||
        ASN1_TIME_set_string_X509(X509_getm_notAfter(cert), NOT_AFTER) != 1 ||
        X509_set_pubkey(cert, key) != 1)
        return NULL;
    return ER_TAKE(cert);
}

static int authority(EVP_PKEY *key, X509 **ret, struct er_error *err)
{
    ER_CLEANUP(X509_free_cleanup) X509 *cert = new_cert(CA_NAME, key);

    if (!cert || !add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE") ||
        !add_extension(cert, cert, NID_key_usage, "critical,keyCertSign") ||
        !add_extension(cert, cert, NID_subject_key_identifier, "hash") ||
        X509_sign(cert, key, EVP_sha256()) <= 0)
        return failed(err, "make the certificate authority");
    *ret = ER_TAKE(cert);
    return 0;
}

/* etcd's members look for each other's host, agents for the one fixed name. */
static void names_of(const struct er_managed_plan *plan, char *ret, size_t room)
{
    size_t used = (size_t)snprintf(ret, room, "DNS:" ER_MANAGED_SERVER_NAME);

    for (size_t i = 0; i < plan->n; i++) {
        const struct er_etcd_endpoint *at = &plan->members[i].at;
        bool number = at->literal_v6 || strspn(at->host, "0123456789.") == strlen(at->host);

        used +=
            (size_t)snprintf(ret + used, room - used, ",%s:%s", number ? "IP" : "DNS", at->host);
        if (used >= room)
            return;
    }
}

static int leaf(EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key, const struct er_managed_plan *plan,
                X509 **ret, struct er_error *err)
{
    ER_CLEANUP(X509_free_cleanup) X509 *cert = new_cert(LEAF_NAME, key);
    char names[1024];

    names_of(plan, names, sizeof(names));
    if (!cert || !add_extension(cert, ca, NID_basic_constraints, "critical,CA:FALSE") ||
        !add_extension(cert, ca, NID_key_usage, "critical,digitalSignature") ||
        !add_extension(cert, ca, NID_ext_key_usage, "serverAuth,clientAuth") ||
        !add_extension(cert, ca, NID_authority_key_identifier, "keyid:always") ||
        !add_extension(cert, ca, NID_subject_alt_name, names) ||
        X509_sign(cert, ca_key, EVP_sha256()) <= 0)
        return failed(err, "make a certificate");
    *ret = ER_TAKE(cert);
    return 0;
}

/* One of the two. */
static int write_pem(const char *dir, const char *file, X509 *cert, EVP_PKEY *key,
                     struct er_error *err)
{
    ER_CLEANUP(BIO_free_all_cleanup) BIO *bio = BIO_new(BIO_s_secmem());
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char path[ER_KEEPER_PATH_MAX + 16];
    char *text;
    long n;

    if (!bio || (cert ? PEM_write_bio_X509(bio, cert)
                      : PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)) != 1)
        return failed(err, "format a certificate");
    n = BIO_get_mem_data(bio, &text);
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || er_write_all(fd, text, (size_t)n) < 0)
        return er_error_errno(err, "write '%s'", path);
    return 0;
}

static int make_all(const struct er_buf *secret, const struct er_managed_plan *plan,
                    const char *dir, struct er_error *err)
{
    ER_CLEANUP(EVP_PKEY_free_cleanup) EVP_PKEY *ca_key = NULL;
    ER_CLEANUP(EVP_PKEY_free_cleanup) EVP_PKEY *key = EVP_EC_gen(CURVE);
    ER_CLEANUP(X509_free_cleanup) X509 *ca = NULL;
    ER_CLEANUP(X509_free_cleanup) X509 *cert = NULL;
    int rc = key ? authority_key(secret, &ca_key, err) : failed(err, "make a key");

    if (!rc)
        rc = authority(ca_key, &ca, err);
    if (!rc)
        rc = leaf(key, ca, ca_key, plan, &cert, err);
    if (!rc)
        rc = write_pem(dir, ER_KEEPER_CA, ca, NULL, err);
    if (!rc)
        rc = write_pem(dir, ER_KEEPER_CERT, cert, NULL, err);
    return rc ? rc : write_pem(dir, ER_KEEPER_KEY, NULL, key, err);
}

int er_keeper_tls_write(const char *secret_file, const struct er_managed_plan *plan,
                        const char *dir, struct er_error *err)
{
    struct er_buf secret;
    int rc;

    er_buf_init(&secret, ER_KEEPER_SECRET_MAX);
    rc = read_secret(secret_file, &secret, err);
    if (!rc)
        rc = make_all(&secret, plan, dir, err);
    if (secret.data)
        OPENSSL_cleanse(secret.data, secret.cap);
    er_buf_done(&secret);
    return rc;
}
