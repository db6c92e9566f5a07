/* --check of a managed store: what this host's part in it needs, without starting it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/keeper_ports.h"
#include "agent/managed_etcd.h"
#include "agent/managed_local.h"
#include "agent/managed_spawn.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"

static void find(struct er_findings *findings, int rc, const struct er_error *err)
{
    if (rc)
        er_findings_add(findings, rc, "%s", err->text);
}

/* The keeper makes its certificates, in a folder that is removed again: the secret is all that they
 * come from. */
static void check_secret(const struct er_managed_opts *o, const struct er_managed_plan *plan,
                         const char *keeper, struct er_findings *findings)
{
    struct er_keeper_opts opts = {.peer_port = o->peer_port};
    struct er_error err = ER_ERROR_INIT;
    char folder[] = "/tmp/elastic-run-check-XXXXXX";

    er_managed_plan_endpoints(plan, opts.endpoints);
    if (strlen(o->secret_file) >= sizeof(opts.secret)) {
        er_findings_add(findings, ER_E_CONFIG,
                        "rendezvous.managed.secret_file: longer than %zu bytes",
                        sizeof(opts.secret) - 1);
        return;
    }
    if (!mkdtemp(folder)) {
        find(findings, er_error_errno(&err, "make folder '%s'", folder), &err);
        return;
    }
    strcpy(opts.secret, o->secret_file);
    strcpy(opts.out, folder);
    find(findings, er_managed_make_tls(keeper, &opts, &err), &err);
    (void)er_remove_all(folder, NULL);
}

/* Does this job's member run here already? Then its ports are in use rightly. */
static bool runs(const char *name, size_t index)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char home[ER_KEEPER_HOME_MAX];
    ER_CLEANUP(er_cleanup_fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    er_keeper_home(name, index, home);
    snprintf(at.sun_path, sizeof(at.sun_path), "%.*s/" ER_KEEPER_SOCKET, ER_KEEPER_HOME_MAX - 1,
             home);
    return fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
}

static void check_members(const struct er_managed_opts *o, const struct er_managed_plan *plan,
                          struct er_findings *findings)
{
    struct er_error err = ER_ERROR_INIT;
    char etcd[ER_KEEPER_PATH_MAX];
    struct er_managed_local local;
    bool here = false;

    if (er_managed_local_find(plan, &local, &err)) {
        find(findings, err.code, &err);
        return;
    }
    for (uint32_t i = 0; i < plan->n; i++) {
        here = here || local.here[i];
        if (local.here[i] && !runs(o->name, i) &&
            er_keeper_ports_free(plan, i, &local.listen[i], 0, &err))
            er_findings_add(findings, -ENOTCONN, "rendezvous.endpoints: %s", err.text);
    }
    if (here)
        find(findings, er_managed_find_etcd(o->etcd, etcd, &err), &err);
}

void er_managed_etcd_check(const struct er_managed_opts *o, struct er_findings *findings)
{
    struct er_error err = ER_ERROR_INIT;
    char keeper[ER_KEEPER_PATH_MAX];
    struct er_managed_plan plan;

    /* The configuration has refused a plan that cannot be. */
    if (er_managed_plan_make(&plan, o->endpoints, o->endpoints_n, o->peer_port, NULL))
        return;
    check_members(o, &plan, findings);
    if (er_managed_find_keeper(keeper, &err))
        find(findings, err.code, &err);
    else if (o->secret_file)
        check_secret(o, &plan, keeper, findings);
}
