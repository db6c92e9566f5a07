/* Roles of nodes, as the configuration has them. */
#include "tests/unit/config_case.h"

#define ROLES                                                                                      \
    "name: j\ncommand: [common, x]\nnnodes: 2\nenv: {A: 1, B: 2}\n"                                \
    "rendezvous: {endpoints: 'h:1'}\nroles:\n"                                                     \
    "  trainer: {nnodes: '1:3', nproc_per_node: 4, env: {B: 3, C: 4}}\n"                           \
    "  evaluator: {command: [eval.py], nproc_per_node: 1}\n"

Test(config_roles, a_node_has_what_its_role_says)
{
    struct loaded l = load_config(
        &(struct load_case){.args = ARGS("--role=trainer", SPEC, "more"), .spec = ROLES});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->nproc, 4);
    cr_expect_eq(l.config->nnodes_min, 3); /* 1:3 and the top level's 2 */
    cr_expect_eq(l.config->nnodes_max, 5);
    cr_expect_str_eq(value_of(&l, "command"), "[common, x, more]");
    cr_expect_str_eq(value_of(&l, "env"), "{A: \"1\", B: \"3\", C: \"4\"}", "%s",
                     value_of(&l, "env"));
    er_config_free(l.config);
    l = load_config(&(struct load_case){
        .args = ARGS("--role=evaluator", "--nproc-per-node=2", SPEC), .spec = ROLES});
    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->nproc, 2); /* the command line's */
    cr_expect_str_eq(value_of(&l, "command"), "[python3, \"-u\", eval.py]");
    cr_expect_str_eq(value_of(&l, "env"), "{A: \"1\", B: \"2\"}");
    er_config_free(l.config);
}

Test(config_roles, nodes_of_different_roles_agree)
{
    static const char *const roles[] = {"--role=trainer", "--role=evaluator"};
    char *text[2] = {NULL};

    for (int i = 0; i < 2; i++) {
        struct loaded l =
            load_config(&(struct load_case){.args = ARGS(roles[i], SPEC), .spec = ROLES});

        cr_assert_eq(l.rc, 0, "%s", l.text);
        cr_assert_eq(er_config_spec_text(l.config, &text[i], &l.err), 0);
        er_config_free(l.config);
    }
    cr_expect_str_eq(text[0], text[1]);
    cr_expect(strstr(text[0], "roles=xxh3:"));
    free(text[0]);
    free(text[1]);
}

Test(config_roles, wrong_roles_are_told)
{
    static const struct {
        const char *spec, *message;
    } cases[] = {
        {"command: a\nrole: trainr\nroles: {trainer: {}}\n",
         "role: 'trainr' is none of `roles`; say which this node has (--role, role:); did you mean "
         "'trainer'?"},
        {"command: a\nroles: {a: {nodes: 1}}\n",
         "job.yaml:2:13: roles: a: unknown key 'nodes'; a role has nnodes, nproc_per_node, command "
         "and env"},
        {"command: a\nroles: {a: 5}\n", "job.yaml:2:12: roles: a: expected a map, got a value"},
        {"command: a\nroles: {a: {nproc_per_node: many}}\n",
         "job.yaml:2:29: roles: a: nproc_per_node: expected a number from 1 to 4096, gpu, cpu or "
         "auto; got 'many'"},
        {"command: a\nroles: {'a b': {}}\n",
         "job.yaml:2:9: roles: expected a role's name of letters, digits, '.', '_' or '-'; got 'a "
         "b'"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_text(cases[i].spec);

        cr_expect_neq(l.rc, 0);
        cr_expect_str_eq(l.text, cases[i].message, "%s", l.text);
        er_config_free(l.config);
    }
}
