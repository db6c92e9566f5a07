/* libFuzzer: short texts from elsewhere (the environment, the kernel, another node's settings,
 * DNS). The first byte says what the rest is. */
#include <arpa/nameser.h>
#include <assert.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/gpu_table.h"
#include "agent/hostlist.h"
#include "agent/http_listen.h"
#include "agent/keeper_clients.h"
#include "agent/managed_plan.h"
#include "base/fence.h"
#include "base/parse.h"
#include "base/utf8.h"
#include "rendezvous/etcd_endpoint.h"
#include "rendezvous/spec_text.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { HOSTS = 3, TOLD = 128, ITEMS = 4 };

static void see_spec(const char *text, size_t n)
{
    char told[TOLD];

    er_spec_difference("command=[\"a\"]\nnnodes=1:2\nrestart.max=3\n", text, n, told, sizeof(told));
    assert(memchr(told, '\0', sizeof(told)));
    er_spec_difference(text, "nnodes=1:2\n", 11, told, sizeof(told));
    assert(memchr(told, '\0', sizeof(told)));
    /* What is said above the spec is such a text as well. */
    er_spec_agrees("nnodes=1:2\nrestart.max=3\n", text, n, text);
    er_spec_agrees(text, "nnodes=1:2\nrestart.max=3\n", 25, "restart.max=4\n");
}

/* The probe's words, an empty line, CUDA_VISIBLE_DEVICES. */
static void see_gpus(const char *text, size_t n)
{
    static struct er_gpu_table table;
    struct er_gpu_seen seen;
    char *copy = strdup(text), *list;

    assert(copy && n == strlen(text));
    list = strstr(copy, "\n\n");
    if (list)
        list[1] = '\0';
    if (er_gpu_table_parse(&table, copy, NULL) == 0) {
        assert(table.n <= ER_GPUS_MAX && table.migs_n <= ER_GPU_MIGS_MAX);
        if (er_gpu_table_seen(&table, list ? list + 2 : NULL, &seen, NULL) == 0) {
            assert(seen.n <= ER_GPU_MIGS_MAX);
            for (size_t i = 0; i < seen.n; i++)
                assert(seen.gpus[i] >= 0 && (size_t)seen.gpus[i] < table.n);
        }
    }
    free(copy);
}

static void see_hosts(const char *text, size_t n)
{
    char hosts[HOSTS][ER_HOSTLIST_NAME_MAX];
    struct er_error err = ER_ERROR_INIT;
    size_t found = 0;

    (void)n;
    if (er_hostlist_first(text, hosts, HOSTS, &found, &err))
        assert(err.text[0]);
    else
        assert(found > 0 && found <= HOSTS && memchr(hosts[found - 1], '\0', sizeof(hosts[0])));
}

static void see_listen(const char *text, size_t n)
{
    struct er_http_listen listen;
    struct er_error err = ER_ERROR_INIT;

    (void)n;
    if (er_http_listen_parse(text, &listen, &err))
        assert(err.text[0]);
    else
        er_http_listen_is_local(&listen);
}

static void see_endpoints(const char *text, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_etcd_endpoints list;
    struct er_etcd_endpoint again;
    char out[ER_ETCD_ENDPOINT_TEXT_MAX];

    (void)n;
    if (er_etcd_endpoints_parse(text, &list, &err)) {
        assert(err.text[0]);
        return;
    }
    for (size_t i = 0; i < list.n; i++) {
        const struct er_etcd_endpoint *e = &list.list[i];

        er_etcd_endpoint_format(e, out);
        assert(er_etcd_endpoint_parse(out, &again, &err) == 0 && again.kind == e->kind);
        assert(strcmp(again.host, e->host) == 0 && again.port == e->port);
        if (e->kind != ER_ETCD_SRV)
            er_etcd_endpoint_target(e, out);
    }
}

static void see_plan(const char *text, size_t n)
{
    const char *items[ITEMS] = {NULL};
    char *copy = strdup(text), *rest = copy, out[ER_MANAGED_TEXT_MAX];
    struct er_managed_plan plan;
    size_t items_n = 0;

    assert(copy);
    while (items_n < ITEMS && rest)
        items[items_n++] = strsep(&rest, "\n");
    if (er_managed_plan_make(&plan, items, items_n, (uint16_t)(2380 + n % 3), NULL) == 0) {
        const char own[][ER_MANAGED_ADDRESS_MAX] = {"127.0.0.1", "10.0.0.1", "fd00::1"};
        const char elsewhere[][ER_MANAGED_ADDRESS_MAX] = {"10.0.0.9", "10.0.0.1"};
        struct er_managed_host host = {.name = "node1", .addresses = own, .n = 3};
        struct er_managed_listen listen;

        er_managed_plan_endpoints(&plan, out);
        for (size_t i = 0; i < plan.n; i++) {
            er_managed_is_here(&plan.members[i], &host, own, 0, &listen);
            er_managed_is_here(&plan.members[i], &host, own, 1 + n % 3, &listen);
            er_managed_is_here(&plan.members[i], &host, elsewhere, 1 + n % 2, &listen);
        }
    }
    free(copy);
}

static int take(void *user, const char *item, size_t n, struct er_error *err)
{
    ++*(size_t *)user;
    return item[0] == '!' ? er_error_set(err, ER_E_CONFIG, "%.*s", (int)n, item) : 0;
}

static void see_words(const char *text, size_t n)
{
    static const char *const words[] = {"restart", "resize", "rendezvous"};
    char out[ER_UNIT_TEXT_MAX];
    uint64_t u;

    (void)er_nearest(text, words, 3);
    (void)er_utf8_is_printable(text, n);
    if (er_parse_duration(text, false, &u, NULL) == 0) {
        uint64_t again;

        er_format_duration(u, out);
        assert(er_parse_duration(out, false, &again, NULL) == 0 && again == u);
    }
    if (er_parse_size(text, &u, NULL) == 0) {
        uint64_t again;

        er_format_size(u, out);
        assert(er_parse_size(out, &again, NULL) == 0 && again == u);
    }
    if (n == 2)
        (void)er_keeper_clients(2379);
}

static void see_values(const char *text, size_t n)
{
    uint64_t u;
    int64_t i;
    uint32_t low, high;
    double d;
    bool b;
    int s;
    size_t items = 0;
    char *copy = strdup(text);

    assert(copy);
    er_parse_u64(text, 1, 1000, &u, NULL);
    er_parse_i64(text, -5, 1000, &i, NULL);
    er_parse_f64(text, -1, 1e300, &d, NULL);
    er_parse_bool(text, &b, NULL);
    er_parse_duration(text, n % 2, &u, NULL);
    er_parse_size(text, &u, NULL);
    if (er_parse_range(text, 1000, &low, &high, NULL) == 0)
        assert(low <= high && high <= 1000);
    if (er_parse_signal(text, &s, NULL) == 0)
        assert(strncmp(er_signal_name(s), "SIG", 3) == 0);
    er_parse_list(text, ',', take, &items, NULL);
    er_fence_parse(text, &u);
    er_keeper_is_client(text, 2379);
    see_words(text, n);
    er_utf8_tame(copy, n);
    assert(er_utf8_cut(text, n / 2) <= n);
    free(copy);
}

/* ---- DNS: the resolver is this program ---- */

static const unsigned char *answer;
static size_t answer_n;

int res_ninit(res_state state)
{
    (void)state;
    return answer_n == 0 ? -1 : 0;
}

int res_nquery(res_state state, const char *name, int class, int type, unsigned char *to, int cap)
{
    size_t n = answer_n < (size_t)cap ? answer_n : (size_t)cap;

    (void)state, (void)name, (void)class, (void)type;
    if (answer[0] == '-')
        return -1;
    memcpy(to, answer, n);
    return (int)answer_n;
}

void res_nclose(res_state state)
{
    (void)state;
}

int er_etcd_srv_resolve(const char *domain, enum er_etcd_security security,
                        struct er_etcd_endpoints *ret, struct er_error *err);

static void see_srv(const char *text, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_etcd_endpoints list;

    answer = (const unsigned char *)text;
    answer_n = n;
    if (er_etcd_srv_resolve("example.org", n % 2 ? ER_ETCD_TLS : ER_ETCD_PLAIN, &list, &err)) {
        assert(err.text[0]);
        return;
    }
    assert(list.n > 0 && list.n <= ER_ETCD_ENDPOINTS_MAX);
    for (size_t i = 0; i < list.n; i++)
        assert(list.list[i].host[0] && list.list[i].port);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static void (*const see[])(const char *, size_t) = {
        see_spec, see_gpus, see_hosts, see_listen, see_endpoints, see_plan, see_values, see_srv};
    char *text;
    size_t length;

    if (n == 0)
        return 0;
    text = malloc(n);
    assert(text);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = '\0';
    length = data[0] % 8 == 7 || data[0] % 8 == 0 ? n - 1 : strlen(text);
    if (data[0] % 8 != 0 || strlen(text) == n - 1)
        see[data[0] % 8](text, length);
    free(text);
    return 0;
}
