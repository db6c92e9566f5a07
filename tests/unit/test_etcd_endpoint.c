#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/etcd_endpoint.h"
#include "rendezvous/etcd_srv.h"

static const struct {
    const char *text, *target, *name;
} good[] = {
    {"srv", "dns:///srv:2379", "srv:2379"},
    {"srv:2379", "dns:///srv:2379", "srv:2379"},
    {"unix:1", "dns:///unix:1", "unix:1"},
    {"etcd-1:2380", "dns:///etcd-1:2380", "etcd-1:2380"},
    {"etcd-1", "dns:///etcd-1:2379", "etcd-1:2379"},
    {"10.0.0.1:2379", "dns:///10.0.0.1:2379", "10.0.0.1:2379"},
    {"[fd00::1]:4001", "ipv6:[fd00::1]:4001", "[fd00::1]:4001"},
    {"[fe80::1%eth0]", "ipv6:[fe80::1%eth0]:2379", "[fe80::1%eth0]:2379"},
    {"https://a.example.org:1", "dns:///a.example.org:1", "https://a.example.org:1"},
    {"http://a", "dns:///a:2379", "http://a:2379"},
    {"https://[::1]", "ipv6:[::1]:2379", "https://[::1]:2379"},
    {"unix:/run/etcd.sock", "unix:/run/etcd.sock", "unix:/run/etcd.sock"},
    {"unix:///run/etcd:1", "unix:/run/etcd:1", "unix:/run/etcd:1"},
    {"unixs:/run/etcd.sock", "unix:/run/etcd.sock", "unixs:/run/etcd.sock"},
};

Test(etcd_endpoint, every_documented_form_is_read)
{
    struct er_etcd_endpoint e;
    char text[ER_ETCD_ENDPOINT_TEXT_MAX];

    for (size_t i = 0; i < ER_ARRAY_N(good); i++) {
        cr_assert_eq(er_etcd_endpoint_parse(good[i].text, &e, NULL), 0, "%s", good[i].text);
        er_etcd_endpoint_target(&e, text);
        cr_assert_str_eq(text, good[i].target);
        er_etcd_endpoint_format(&e, text);
        cr_assert_str_eq(text, good[i].name);
    }
    cr_assert_eq(er_etcd_endpoint_parse("srv:example.org", &e, NULL), 0);
    cr_assert_eq(e.kind, ER_ETCD_SRV);
    cr_assert_str_eq(e.host, "example.org");
}

Test(etcd_endpoint, what_is_wrong_is_named)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no host"},           {":2379", "no host"},         {"host:", "port"},
        {"host:0", "port"},        {"host:65536", "port"},       {"host:2379/path", "port"},
        {"host/path", "path"},     {"fd00::1:2379", "brackets"}, {"[fd00::1", "brackets"},
        {"[host]:1", "brackets"},  {"[]:1", "brackets"},         {"[::1]2379", "':'"},
        {"[::1%]:1", "interface"}, {"ftp://host:1", "http://"},  {"unix:relative", "absolute"},
        {"srv:", "domain"},        {"srv:a b", "domain"},        {"ho st:1", "host:port"},
    };
    struct er_etcd_endpoint e = {.port = 7};

    for (size_t i = 0; i < ER_ARRAY_N(bad); i++) {
        struct er_error err = ER_ERROR_INIT;

        cr_assert_eq(er_etcd_endpoint_parse(bad[i].text, &e, &err), ER_E_CONFIG, "%s", bad[i].text);
        cr_assert(strstr(err.text, bad[i].says), "'%s': %s", bad[i].text, err.text);
        cr_assert(strstr(err.text, bad[i].text));
        cr_assert_eq(e.port, 7, "the result was touched");
    }
}

Test(etcd_endpoint, a_list_is_split_at_commas)
{
    struct er_etcd_endpoints list;
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(er_etcd_endpoints_parse("a:1, [::1]:2 ,unix:/x", &list, NULL), 0);
    cr_assert_eq(list.n, 3);
    cr_assert_str_eq(list.list[1].host, "::1");
    cr_assert_eq(er_etcd_endpoints_parse("a:1,,b:1", &list, &err), ER_E_CONFIG);
    cr_assert(strstr(err.text, "empty item"));
    cr_assert_eq(er_etcd_endpoints_parse("a:1,a:1", &list, &err), ER_E_CONFIG);
    cr_assert(strstr(err.text, "twice"));
    cr_assert_eq(er_etcd_endpoints_parse("", &list, &err), ER_E_CONFIG);
    cr_assert_eq(er_etcd_endpoints_parse("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", &list, &err),
                 ER_E_CONFIG);
    cr_assert_eq(list.n, 3, "the result was touched");
}

/* Two SRV records of _etcd-client._tcp.x.org: 20 5 2380 b.x.org, 10 5 2379 a.x.org. */
static const unsigned char dns_answer[] =
    "\x12\x34\x81\x80\x00\x01\x00\x02\x00\x00\x00\x00"
    "\x0c_etcd-client\x04_tcp\x01x\x03org\x00\x00\x21\x00\x01"
    "\xc0\x0c\x00\x21\x00\x01\x00\x00\x00\x3c\x00\x0a\x00\x14\x00\x05\x09\x4c\x01"
    "b\xc0\x1e"
    "\xc0\x0c\x00\x21\x00\x01\x00\x00\x00\x3c\x00\x0a\x00\x0a\x00\x05\x09\x4b\x01"
    "a\xc0\x1e";

Test(etcd_endpoint, srv_records_come_in_order_of_priority)
{
    struct er_etcd_endpoints list;

    cr_assert_eq(er_etcd_srv_parse(dns_answer, sizeof(dns_answer) - 1, ER_ETCD_TLS, &list), 0);
    cr_assert_eq(list.n, 2);
    cr_assert_str_eq(list.list[0].host, "a.x.org");
    cr_assert_eq(list.list[0].port, 2379);
    cr_assert_eq(list.list[0].security, ER_ETCD_TLS);
    cr_assert_str_eq(list.list[1].host, "b.x.org");
}

Test(etcd_endpoint, a_damaged_dns_answer_is_refused)
{
    unsigned char damaged[sizeof(dns_answer)];
    struct er_etcd_endpoints list;

    for (size_t n = 0; n < sizeof(dns_answer) - 1; n++) {
        unsigned char *exact = malloc(n + 1);

        memcpy(exact, dns_answer, n);
        exact = realloc(exact, n ? n : 1);
        cr_assert_eq(er_etcd_srv_parse(exact, n, ER_ETCD_PLAIN, &list), ER_E_PROTOCOL);
        free(exact);
    }
    for (size_t i = 0; i < sizeof(dns_answer) - 1; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(damaged, dns_answer, sizeof(damaged));
            damaged[i] = (unsigned char)(damaged[i] ^ (1 << bit));
            (void)er_etcd_srv_parse(damaged, sizeof(damaged) - 1, ER_ETCD_PLAIN, &list);
        }
    }
}
