#include <criterion/criterion.h>
#include <string.h>

#include "agent/node_address.h"

static const char *const STORE[] = {"127.0.0.1:2379"};

Test(node_address, is_found_again_on_the_way_to_the_store)
{
    struct er_node_route route;
    char address[ER_ADDRESS_MAX], again[ER_ADDRESS_MAX] = "";

    cr_assert_eq(er_node_address_by("auto", STORE, 1, address, &route, NULL), 0);
    cr_assert_str_eq(address, "127.0.0.1");
    cr_assert(er_node_address_again(&route, again));
    cr_assert_str_eq(again, "127.0.0.1");
}

Test(node_address, is_found_again_on_its_interface)
{
    struct er_node_route route;
    char address[ER_ADDRESS_MAX], again[ER_ADDRESS_MAX] = "";

    cr_assert_eq(er_node_address_by("lo", STORE, 1, address, &route, NULL), 0);
    cr_assert_str_eq(route.interface, "lo");
    cr_assert(er_node_address_again(&route, again));
    cr_assert_str_eq(again, address);
}

Test(node_address, one_that_was_given_is_never_replaced)
{
    struct er_node_route route;
    char address[ER_ADDRESS_MAX], again[ER_ADDRESS_MAX] = "untouched";

    cr_assert_eq(er_node_address_by("192.0.2.7", STORE, 1, address, &route, NULL), 0);
    cr_assert_str_eq(address, "192.0.2.7");
    cr_assert_not(er_node_address_again(&route, again));
    cr_assert_str_eq(again, "untouched");
}

Test(node_address, is_of_an_interface)
{
    struct er_node_place place;

    er_node_place_of("127.0.0.1", &place);
    cr_assert_str_eq(place.interface, "lo");
    er_node_place_of("192.0.2.7", &place);
    cr_assert_str_eq(place.address, "192.0.2.7");
    cr_assert_str_eq(place.interface, "");
}

Test(node_address, may_go_to_what_its_interface_has_and_nowhere_without_a_route)
{
    const struct er_node_place own = {"127.0.0.7", "lo"}, other = {"192.0.2.7", "no-such"};
    struct er_node_route route = {.to_n = 0};
    struct er_node_place list[ER_NODE_PLACES_MAX];

    cr_assert_geq(er_node_places(&route, &own, &own, list), 2u);
    cr_assert_str_eq(list[0].address, "");
    cr_assert_str_eq(list[1].interface, "lo");
    cr_assert_eq(er_node_places(&route, &other, &other, list), 1u);
    cr_assert_geq(er_node_places(&route, &other, &own, list), 2u);
    strcpy(route.interface, "no-such"); /* was asked for: nothing else will do */
    cr_assert_eq(er_node_places(&route, &own, &own, list), 1u);
}

#define PATIENCE 5

/* Of each line: where the node is (its address is gone) and began, where it could go (the first is
 * that of the route), for how long the address has been away; where it goes. */
static const struct {
    const char *what;
    struct er_node_place own, home, list[3];
    uint64_t gone_us;
    const char *next;
} MOVES[] = {
    {"the same interface, at once",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"10.0.0.9", "e0"}},
     0,
     "10.0.0.9"},
    {"the same interface, though the route is another's",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"10.1.0.1", "e1"}, {"10.0.0.9", "e0"}},
     0,
     "10.0.0.9"},
    {"another network: the own one may come back",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"10.1.0.1", "e1"}},
     PATIENCE - 1,
     NULL},
    {"another network: it has not",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"10.1.0.1", "e1"}},
     PATIENCE,
     "10.1.0.1"},
    {"IPv6 was there all the time",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"fd00::1", "e0"}},
     PATIENCE - 1,
     NULL},
    {"IPv6 is better than nothing",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"fd00::1", "e0"}},
     PATIENCE,
     "fd00::1"},
    {"DHCP was not answered",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"169.254.3.4", "e0"}},
     PATIENCE - 1,
     NULL},
    {"nobody else gives addresses there",
     {"169.254.3.4", "e0"},
     {"169.254.3.4", "e0"},
     {{"169.254.7.7", "e0"}},
     0,
     "169.254.7.7"},
    {"from the second network to another address of it",
     {"10.1.0.1", "e1"},
     {"10.0.0.1", "e0"},
     {{"10.0.0.1", "e0"}, {"10.1.0.9", "e1"}},
     PATIENCE,
     "10.1.0.9"},
    {"from the second network back to the first",
     {"10.1.0.1", "e1"},
     {"10.0.0.1", "e0"},
     {{"10.2.0.1", "e2"}, {"10.0.0.2", "e0"}},
     PATIENCE,
     "10.0.0.2"},
    {"the second network may come back, too",
     {"10.1.0.1", "e1"},
     {"10.0.0.1", "e0"},
     {{"10.0.0.1", "e0"}},
     PATIENCE - 1,
     NULL},
    {"nowhere", {"10.0.0.1", "e0"}, {"10.0.0.1", "e0"}, {{"", ""}}, PATIENCE, NULL},
    {"what stays on the interface is no way to the store",
     {"10.0.0.1", "e0"},
     {"10.0.0.1", "e0"},
     {{"", ""}, {"fd00::1", "e0"}},
     PATIENCE,
     NULL},
    {"where it was is not known",
     {"10.0.0.1", ""},
     {"10.0.0.1", ""},
     {{"10.1.0.1", ""}},
     PATIENCE - 1,
     NULL},
    {"where it was is not known, and it stays away",
     {"10.0.0.1", ""},
     {"10.0.0.1", ""},
     {{"10.1.0.1", "e1"}},
     PATIENCE,
     "10.1.0.1"},
};

Test(node_address, moves_at_once_on_its_interface_and_later_to_another_network)
{
    for (size_t i = 0; i < sizeof(MOVES) / sizeof(MOVES[0]); i++) {
        size_t n = 1;
        const struct er_node_place *next;

        while (n < 3 && MOVES[i].list[n].address[0])
            n++;
        next = er_node_address_next(&MOVES[i].own, &MOVES[i].home, MOVES[i].list, n,
                                    MOVES[i].gone_us, PATIENCE);
        cr_expect_str_eq(next ? next->address : "none", MOVES[i].next ? MOVES[i].next : "none",
                         "%s", MOVES[i].what);
    }
}

Test(node_address, is_gone_when_the_host_does_not_have_it)
{
    cr_assert(er_node_address_gone("192.0.2.7")); /* for documentation: nobody's (RFC 5737) */
    cr_assert_not(er_node_address_gone("127.0.0.1"));
    cr_assert_not(er_node_address_gone("node7.example")); /* the DNS is not asked */
}
