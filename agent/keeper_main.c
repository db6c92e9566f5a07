/* elastic-managed-etcd: keeps one member of a job's managed etcd, and makes TLS files out of the
 * job's secret. Started by the agent, of little use by hand. */
#include <stdio.h>
#include <string.h>

#include "agent/keeper.h"
#include "agent/keeper_tls.h"
#include "base/exit_codes.h"

static const char USAGE[] =
    "usage: " ER_KEEPER_PROGRAM
    " keep --name=JOB --endpoints=HOST:PORT,... --index=N --listen=ADDRESS,...\n"
    "           --home=DIR --data=DIR --etcd=FILE [--secret=FILE] [--peer-port=N] [--linger-ms=N]\n"
    "           [--keep-data=1] [--fresh=1] [--fd=N]     run one member until it is told to stop\n"
    "       " ER_KEEPER_PROGRAM
    " tls --secret=FILE --endpoints=HOST:PORT,... --peer-port=N --out=DIR\n"
    "           write " ER_KEEPER_CA ", " ER_KEEPER_CERT ", " ER_KEEPER_KEY "\n"
    "\n"
    "elastic-run starts it on the hosts of `rendezvous: {backend: managed}`; there is no need to "
    "run it\n"
    "by hand. See docs/managed-etcd.md.\n";

static int make_tls(const struct er_keeper_opts *o, struct er_error *err)
{
    struct er_managed_listen listen;
    struct er_managed_plan plan;
    int rc = er_keeper_opts_plan(o, &plan, &listen, err);

    return rc ? rc : er_keeper_tls_write(o->secret, &plan, o->out, err);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    struct er_error err = ER_ERROR_INIT;
    static struct er_keeper_opts opts;
    int rc;

    if (strcmp(verb, "--help") == 0 || strcmp(verb, "--version") == 0) {
        fputs(verb[2] == 'h' ? USAGE : ER_KEEPER_PROGRAM " " ER_VERSION "\n", stdout);
        return 0;
    }
    if (strcmp(verb, "keep") != 0 && strcmp(verb, "tls") != 0) {
        fputs(USAGE, stderr);
        return ER_CODE_USAGE;
    }
    rc = er_keeper_opts_parse(argc - 2, argv + 2, &opts, &err);
    if (!rc && strcmp(verb, "keep") == 0)
        return er_keeper_run(&opts);
    if (!rc)
        rc = make_tls(&opts, &err);
    if (!rc)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return rc == ER_E_USAGE ? ER_CODE_USAGE : ER_CODE_CONFIG;
}
