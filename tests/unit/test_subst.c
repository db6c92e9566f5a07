#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "agent/subst.h"
#include "base/cleanup.h"

static const char *lookup(void *user, const char *name)
{
    if (!strcmp(name, "rank"))
        return "7";
    if (!strcmp(name, "local_rank"))
        return "3";
    if (!strcmp(name, "job"))
        return "";
    return NULL;
}

static const struct {
    const char *text;
    bool program;
    const char *result; /* NULL: an error */
    const char *message;
} CASES[] = {
    {"", false, "", NULL},
    {"plain", false, "plain", NULL},
    {"${rank}", false, "7", NULL},
    {"a${rank}b${local_rank}c", false, "a7b3c", NULL},
    {"${rank}${rank}", false, "77", NULL},
    {"[${job}]", false, "[]", NULL},
    {"$$", false, "$", NULL},
    {"$${rank}", false, "${rank}", NULL},
    {"$$${rank}", false, "$7", NULL},
    {"$HOME cost $5 $", false, "$HOME cost $5 $", NULL},
    {"{\"a\": 1}", false, "{\"a\": 1}", NULL},
    {"${rnk}", false, NULL, "unknown name '${rnk}'; did you mean '${rank}'?"},
    {"${}", false, NULL, "unknown name '${}'; '$$' stands for '$'"},
    {"x${rank", false, NULL, "'${' without '}'; '$$' stands for '$'"},
    {"${env.NOPE}", false, NULL, "'${env.NOPE}': this environment variable is not set"},
    {"${ rank }", false, NULL, "unknown name '${ rank }'; did you mean '${rank}'?"},
    {"${"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "aaaaaaa"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}",
     false, NULL, "name in '${aaaaaaaaaaaaaaaaaaaa...}' is too long"},
    {"--rank=${local_rank}", true, "--rank=3", NULL},
    {"${local_rank}${local_rank}", true, "33", NULL},
    {"${rank} $$ ${nothing ${ $", true, "${rank} $$ ${nothing ${ $", NULL},
    {"{\"a\": \"${x}\"}", true, "{\"a\": \"${x}\"}", NULL},
};

Test(subst, replaces_names_and_leaves_the_rest)
{
    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        struct er_error err = ER_ERROR_INIT;
        char *result = NULL;
        int rc = er_subst(CASES[i].text, CASES[i].program, lookup, NULL, &result, &err);

        if (CASES[i].result) {
            cr_expect_eq(rc, 0, "%s: %s", CASES[i].text, err.text);
            cr_expect_str_eq(result, CASES[i].result, "%s", CASES[i].text);
        } else {
            cr_expect_eq(rc, ER_E_CONFIG, "%s", CASES[i].text);
            cr_expect_str_eq(err.text, CASES[i].message);
            cr_expect_null(result);
        }
        free(result);
    }
}

Test(subst, check_knows_every_documented_name)
{
    char *environ_[] = {(char *)"HOME=/h", (char *)"EMPTY=", NULL};
    struct er_error err = ER_ERROR_INIT;

    cr_expect_eq(er_subst_check("${job}${role}${rank}${local_rank}${world_size}${local_world_size}"
                                "${node_rank}${nnodes}${generation}${restart_count}${master_addr}"
                                "${master_port}${node_id}${hostname}${checkpoint_dir}"
                                "${env.HOME}${env.EMPTY}",
                                false, environ_, &err),
                 0, "%s", err.text);
    cr_expect_eq(er_subst_check("${env.HOM}", false, environ_, &err), ER_E_CONFIG);
    cr_expect_eq(er_subst_check("${env.}", false, environ_, &err), ER_E_CONFIG);
    cr_expect_eq(er_subst_check("${what}", true, environ_, &err), 0);
}

Test(subst, environment_is_matched_by_whole_name)
{
    char *environ_[] = {(char *)"AB=1", (char *)"A=2", (char *)"C", NULL};

    cr_expect_str_eq(er_environ_get(environ_, "A"), "2");
    cr_expect_null(er_environ_get(environ_, "C"));
    cr_expect_null(er_environ_get(NULL, "A"));
}
