#pragma once
/*
 * TAP for tests with their own main (threads, many processes): each case runs in its own child
 * process with a deadline, so that a crash or a hang fails that case alone.
 *
 *     static void two_ranks_agree(void) { er_tap_check(sum == 3); }
 *     int main(int argc, char **argv)
 *     {
 *         static const struct er_tap_case cases[] = {{"two_ranks_agree", two_ranks_agree, 0}};
 *         return er_tap_main(argc, argv, cases, 1);
 *     }
 *
 * `program name...` runs only the named cases; `program --no-fork name` runs one in this process,
 * for a debugger.
 */
#include <stddef.h>

struct er_tap_case {
    const char *name;
    void (*run)(void);
    unsigned timeout_s; /* 0: 150 s; a backstop, never what a test measures;
                           times ER_TEST_PATIENCE, where that is set */
};

/* Exit status for main: 0 when no case failed. */
int er_tap_main(int argc, char **argv, const struct er_tap_case *cases, size_t cases_n);

/* Record a failure and go on; returns whether the condition held. */
#define er_tap_check(cond) er_tap_check_((cond) != 0, __FILE__, __LINE__, #cond)
/* Record a failure and end the case. */
#define er_tap_require(cond) er_tap_require_((cond) != 0, __FILE__, __LINE__, #cond)
/* End the case as skipped; tests/skips.txt must list it. */
_Noreturn void er_tap_skip(const char *reason);
/* A comment line of the report. */
void er_tap_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* So many checks of this case have failed so far. */
int er_tap_failures(void);

int er_tap_check_(int held, const char *file, int line, const char *text);
void er_tap_require_(int held, const char *file, int line, const char *text);
