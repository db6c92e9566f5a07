#include "tests/unit/config_case.h"

#include "base/exit_codes.h"

Test(config_slurm, slurm_names_the_job)
{
    struct loaded l = load_config(
        &(struct load_case){.args = ARGS("x"), .env = ARGS("HOME=/h", "SLURM_JOB_ID=9")});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_str_eq(l.config->name, "slurm-9");
    er_config_free(l.config);
    l = load_config(&(struct load_case){
        .args = ARGS("x"),
        .env = ARGS("HOME=/h", "SLURM_JOB_ID=9", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=3")});
    cr_expect_str_eq(l.config->name, "7_3");
    er_config_free(l.config);
}

static const char *const ALLOCATION[] = {"HOME=/h",
                                         "SLURM_JOB_ID=5003",
                                         "SLURM_JOB_NUM_NODES=4",
                                         "SLURM_JOB_NODELIST=n[01-04]",
                                         "SLURMD_NODENAME=n02",
                                         "SLURM_NODEID=1",
                                         "SLURM_JOB_END_TIME=2000000000",
                                         NULL};

Test(config_slurm, allocation_brings_its_own_store)
{
    struct loaded l = load_config(&(struct load_case){.args = ARGS("x"), .env = ALLOCATION});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->rendezvous.backend, ER_BACKEND_MANAGED);
    cr_expect_str_eq(value_of(&l, "rendezvous.endpoints"),
                     "[\"n01:20006\", \"n02:20006\", \"n03:20006\"]");
    cr_expect_str_eq(er_config_setting(l.config, "rendezvous.endpoints")->origin,
                     "SLURM_JOB_NODELIST");
    cr_expect_eq(l.config->rendezvous.managed.peer_port, 20007);
    cr_expect_eq(l.config->nnodes_min, 4);
    cr_expect_eq(l.config->nnodes_max, 4);
    er_config_free(l.config);
}

Test(config_slurm, what_is_said_otherwise_counts)
{
    struct loaded l = load_config(&(struct load_case){
        .env = ALLOCATION, .spec = "name: a\ncommand: x\nrendezvous: {endpoints: [e:1]}\n"});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->rendezvous.backend, ER_BACKEND_ETCD);
    cr_expect_str_eq(value_of(&l, "rendezvous.endpoints"), "[\"e:1\"]");
    er_config_free(l.config);
    l = load_config(&(struct load_case){.args = ARGS("--standalone", "x"), .env = ALLOCATION});
    cr_expect_neq(l.rc, 0); /* four nodes have no embedded store */
    er_config_free(l.config);
    l = load_config(
        &(struct load_case){.args = ARGS("--nnodes=1", "--standalone", "x"), .env = ALLOCATION});
    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->rendezvous.backend, ER_BACKEND_EMBEDDED);
    er_config_free(l.config);
}

Test(config_slurm, store_of_a_job_file_wants_its_secret)
{
    struct loaded l =
        load_config(&(struct load_case){.env = ALLOCATION, .spec = "name: a\ncommand: x\n"});

    cr_expect_eq(l.rc, ER_E_CONFIG);
    cr_expect(strstr(l.text, "rendezvous.managed.secret_file"), "%s", l.text);
    er_config_free(l.config);
}

Test(config_slurm, two_nodes_have_one_member)
{
    static const char *const two[] = {"HOME=/h", "SLURM_JOB_ID=1", "SLURM_JOB_NUM_NODES=2",
                                      "SLURM_JOB_NODELIST=a,b", NULL};
    struct loaded l = load_config(&(struct load_case){.args = ARGS("x"), .env = two});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_str_eq(value_of(&l, "rendezvous.endpoints"), "[\"a:20002\"]");
    er_config_free(l.config);
}

Test(config_slurm, notice_lasts_until_the_allocation_ends)
{
    struct loaded l = load_config(&(struct load_case){.args = ARGS("x"), .env = ALLOCATION});
    const uint64_t end_us = 2000000000 * ER_US_PER_S;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(er_config_preempt_deadline(l.config, end_us - 7), 7);
    cr_expect_eq(er_config_preempt_deadline(l.config, end_us + 7), 0);
    er_config_free(l.config);
    l = load_config(
        &(struct load_case){.args = ARGS("--set", "preempt.deadline=9s", "x"), .env = ALLOCATION});
    cr_expect_eq(er_config_preempt_deadline(l.config, end_us - 7), 9 * ER_US_PER_S);
    er_config_free(l.config);
}
