#include "rendezvous/etcd_auth.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "rendezvous/etcd_cert.h"

static void wipe(char **secret)
{
    if (*secret)
        explicit_bzero(*secret, strlen(*secret));
    free(*secret);
    *secret = NULL;
}

typedef int (*read_fn)(const char *path, struct er_buf *buf, struct er_error *err);

static int load(read_fn read, const char *what, const char *path, size_t max, char **ret,
                struct er_error *err)
{
    struct er_buf buf;
    struct er_error why = ER_ERROR_INIT;
    int rc;

    er_buf_init(&buf, max);
    rc = read(path, &buf, &why);
    if (rc == 0 && buf.len == 0)
        rc = er_error_set(&why, ER_E_CONFIG, "'%s' is empty", path);
    if (rc == 0 && memchr(buf.data, 0, buf.len))
        rc = er_error_set(&why, ER_E_CONFIG, "'%s' is not a text file", path);
    if (rc == 0)
        *ret = ER_TAKE(buf.data);
    else
        er_error_set(err, ER_E_CONFIG, "etcd %s: %s", what, why.text);
    er_buf_done(&buf);
    return rc < 0 ? ER_E_CONFIG : 0;
}

static int load_pem(read_fn read, const char *what, const char *path, const char *kind, char **ret,
                    struct er_error *err)
{
    int rc = path ? load(read, what, path, ER_ETCD_PEM_MAX, ret, err) : 0;

    if (rc == 0 && path && (!strstr(*ret, "-----BEGIN ") || !strstr(*ret, kind)))
        return er_error_set(err, ER_E_CONFIG, "etcd %s: no %s in PEM form in '%s'", what, kind,
                            path);
    return rc;
}

static int copy(const char *text, char **ret, struct er_error *err)
{
    if (!text)
        return 0;
    *ret = strdup(text);
    return *ret ? 0 : er_error_set(err, -ENOMEM, "etcd client: out of memory");
}

/* The file's first line. */
static int load_password(const char *path, char **ret, struct er_error *err)
{
    int rc = path ? load(er_file_read_secret, "password", path, ER_ETCD_PASSWORD_MAX, ret, err) : 0;

    if (rc < 0 || !path)
        return rc;
    (*ret)[strcspn(*ret, "\r\n")] = 0;
    return **ret ? 0 : er_error_set(err, ER_E_CONFIG, "etcd password: '%s' is empty", path);
}

static int copy_files(struct er_etcd_auth *a, const struct er_etcd_opts *opts, struct er_error *err)
{
    int rc = copy(opts->ca, &a->files.ca, err);

    if (rc == 0)
        rc = copy(opts->cert, &a->files.cert, err);
    if (rc == 0)
        rc = copy(opts->key, &a->files.key, err);
    return rc == 0 ? copy(opts->password_file, &a->files.password, err) : rc;
}

int er_etcd_auth_load(struct er_etcd_auth *ret, const struct er_etcd_opts *opts,
                      struct er_error *err)
{
    struct er_etcd_auth *a = ret;
    int rc = 0;

    memset(a, 0, sizeof(*a));
    if (!opts->cert != !opts->key)
        rc = er_error_set(err, ER_E_CONFIG, "etcd TLS: a certificate and its key go together");
    else if (!opts->user != !opts->password_file)
        rc = er_error_set(err, ER_E_CONFIG, "etcd: a user and a password file go together");
    a->tls = opts->ca || opts->cert || opts->server_name;
    if (rc == 0)
        rc = load_pem(er_file_read, "CA", opts->ca, "CERTIFICATE", &a->ca, err);
    if (rc == 0)
        rc = load_pem(er_file_read, "certificate", opts->cert, "CERTIFICATE", &a->cert, err);
    if (rc == 0 && a->cert)
        rc = er_etcd_cert_check("certificate", opts->cert, a->cert, er_wall_us(), &a->cert_until_us,
                                err);
    if (rc == 0)
        rc = load_pem(er_file_read_secret, "key", opts->key, "PRIVATE KEY", &a->key, err);
    if (rc == 0)
        rc = copy(opts->server_name, &a->server_name, err);
    if (rc == 0)
        rc = copy(opts->user, &a->user, err);
    if (rc == 0)
        rc = load_password(opts->password_file, &a->password, err);
    if (rc == 0)
        rc = copy_files(a, opts, err);
    if (rc < 0)
        er_etcd_auth_done(a);
    return rc;
}

void er_etcd_auth_refresh(struct er_etcd_auth *a)
{
    const struct er_etcd_opts opts = {.ca = a->files.ca,
                                      .cert = a->files.cert,
                                      .key = a->files.key,
                                      .server_name = a->server_name,
                                      .user = a->user,
                                      .password_file = a->files.password};
    struct er_etcd_auth fresh;

    if (er_etcd_auth_load(&fresh, &opts, NULL) < 0)
        return;
    fresh.tls = a->tls;
    fresh.off = a->off;
    memcpy(fresh.token, a->token, sizeof(fresh.token));
    er_etcd_auth_done(a);
    *a = fresh;
    explicit_bzero(&fresh, sizeof(fresh));
}

void er_etcd_auth_done(struct er_etcd_auth *a)
{
    wipe(&a->password);
    wipe(&a->key);
    explicit_bzero(a->token, sizeof(a->token));
    free(a->ca);
    free(a->cert);
    free(a->server_name);
    free(a->user);
    free(a->files.ca);
    free(a->files.cert);
    free(a->files.key);
    free(a->files.password);
    memset(a, 0, sizeof(*a));
}

bool er_etcd_auth_needs_login(const struct er_etcd_auth *a)
{
    return a->user && !a->off && !*a->token;
}
