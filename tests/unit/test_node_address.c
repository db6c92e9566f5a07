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
    char interface[IF_NAMESIZE] = "untouched";

    er_node_address_interface("127.0.0.1", interface);
    cr_assert_str_eq(interface, "lo");
    er_node_address_interface("192.0.2.7", interface);
    cr_assert_str_eq(interface, "");
}

Test(node_address, moves_at_once_on_its_interface_and_later_to_another_network)
{
    cr_assert(er_node_address_moves("eth0", "eth0", 0, 5));
    cr_assert_not(er_node_address_moves("eth0", "eth1", 4, 5));
    cr_assert(er_node_address_moves("eth0", "eth1", 5, 5));
    cr_assert_not(er_node_address_moves("", "", 4, 5), "where it was is not known");
    cr_assert(er_node_address_moves("", "", 5, 5));
}

Test(node_address, is_gone_when_the_host_does_not_have_it)
{
    cr_assert(er_node_address_gone("192.0.2.7")); /* for documentation: nobody's (RFC 5737) */
    cr_assert_not(er_node_address_gone("127.0.0.1"));
    cr_assert_not(er_node_address_gone("node7.example")); /* the DNS is not asked */
}
