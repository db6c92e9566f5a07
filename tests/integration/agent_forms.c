/* The forms of the command line, from outside: where the job comes from and what is made of it. */
#include <stdarg.h>

#include "tests/integration/agent_case.h"

#define OUT_IS(c, text)                                                                            \
    do {                                                                                           \
        if (!er_tap_check(strcmp(er_test_out(&(c)->p), (text)) == 0))                              \
            case_note(er_test_out(&(c)->p));                                                       \
    } while (0)

static int run_in_shell(struct agent_case *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* %s stands for the program; runs in the case's folder. */
static int run_in_shell(struct agent_case *c, const char *format, ...)
{
    char script[4096], command[8192];
    va_list ap;

    va_start(ap, format);
    vsnprintf(script, sizeof(script), format, ap);
    va_end(ap);
    snprintf(command, sizeof(command), "cd %s && R='%s' && %s", c->dir, er_test_bin("elastic-run"),
             script);
    er_test_done(&c->p);
    er_test_start(&c->p, ARGS(SH(command)),
                  ARGS("XDG_STATE_HOME=/nonexistent", "PYTHON_EXEC=/bin/echo"));
    return case_finish(c);
}

static void a_spec_comes_from_a_file_or_stdin(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "job.yml"), "command: [echo, a]\nlog: {dir: none}\n");
    er_tap_check(run_in_shell(&c, "$R job.yml b 'c d'") == 0);
    OUT_IS(&c, "[default0]: a b c d\n");
    er_tap_check(run_in_shell(&c, "$R --set log.tee=0 - b < job.yml") == 0);
    OUT_IS(&c, "a b\n");
    er_tap_check(run_in_shell(&c, "$R nothing.yaml") == 78);
    er_tap_check(strstr(er_test_err(&c.p), "nothing.yaml") != NULL);
    case_end(&c);
}

static void behind_dashes_stands_a_program(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "prog.yaml"), "#!/bin/sh\necho program $1\n");
    er_tap_check(run_in_shell(&c, "chmod +x prog.yaml && $R -- ./prog.yaml --nnodes=3") == 0);
    OUT_IS(&c, "program --nnodes=3\n");
    case_end(&c);
}

static void python_files_and_modules_have_an_interpreter(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_test_write_file(case_path(&c, "train.py"), "");
    er_tap_check(run_in_shell(&c, "$R train.py --lr 1") == 0);
    OUT_IS(&c, "-u train.py --lr 1\n");
    er_tap_check(run_in_shell(&c, "$R -m pkg.mod '${local_rank}' '${rank}'") == 0);
    OUT_IS(&c, "-u -m pkg.mod 0 ${rank}\n");
    er_tap_check(run_in_shell(&c, "$R --no-python echo x.py") == 0);
    OUT_IS(&c, "x.py\n");
    er_tap_check(run_in_shell(&c, "$R -m --no-python pkg.mod") == 64);
    case_end(&c);
}

static void kubernetes_gives_the_rank(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_in_shell(&c, "KUBERNETES_SERVICE_HOST=10.0.0.1 JOB_COMPLETION_INDEX=4 $R "
                                  "--print-config true") == 0);
    er_tap_check(strstr(er_test_out(&c.p), "rank: 4") != NULL);
    er_tap_check(strstr(er_test_out(&c.p), "# JOB_COMPLETION_INDEX") != NULL);
    er_tap_check(run_in_shell(&c, "JOB_COMPLETION_INDEX=4 $R --print-config true") == 0);
    er_tap_check(strstr(er_test_out(&c.p), "rank: none") != NULL);
    case_end(&c);
}

static void ignored_options_warn_once_by_name(void)
{
    struct agent_case c = {0};
    static const char *const NAMES[] = {"--monitor-interval", "--start-method",
                                        "--event-log-handler", "--logs-specs"};

    case_begin(&c);
    er_tap_check(run_in_shell(&c, "$R --monitor-interval 1 --start-method fork "
                                  "--event-log-handler console --logs-specs x true") == 0);
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        const char *first = strstr(er_test_err(&c.p), NAMES[i]);

        er_tap_check(first && !strstr(first + 1, NAMES[i]));
    }
    er_tap_check(run_in_shell(&c, "$R --rdzv-conf keep_alive_interval=5 true") == 0);
    er_tap_check(strstr(er_test_err(&c.p), "'keep_alive_interval' has no effect") != NULL);
    case_end(&c);
}

static void completion_and_help_go_to_stdout(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_in_shell(&c, "$R --print-completion bash | bash -n") == 0);
    er_tap_check(run_in_shell(&c, "$R --print-completion csh") == 64);
    er_tap_check(run_in_shell(&c, "$R --help restart.max") == 0);
    er_tap_check(strstr(er_test_out(&c.p), "--max-restarts") != NULL);
    er_tap_check(run_in_shell(&c, "$R --version") == 0);
    er_tap_check(strncmp(er_test_out(&c.p), "elastic-run ", 12) == 0);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"a_spec_comes_from_a_file_or_stdin", a_spec_comes_from_a_file_or_stdin, 0},
        {"behind_dashes_stands_a_program", behind_dashes_stands_a_program, 0},
        {"python_files_and_modules_have_an_interpreter",
         python_files_and_modules_have_an_interpreter, 0},
        {"kubernetes_gives_the_rank", kubernetes_gives_the_rank, 0},
        {"ignored_options_warn_once_by_name", ignored_options_warn_once_by_name, 0},
        {"completion_and_help_go_to_stdout", completion_and_help_go_to_stdout, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
