#pragma once
/*
 * What a benchmark program needs: repetitions, medians, and raw lines for bench/run, which knows
 * units and targets and is the only one to judge:
 *
 *     {"figure": "launch_n2_ms", "value": 9.1, "spread": 0.04, "runs": 40}
 *
 * Nothing else may go to stdout. Any failure ends the program with a message and exit status 1.
 */
#include <stdbool.h>
#include <stddef.h>

enum { BENCH_RUNS_MAX = 4096 };

/* Repetitions of one measurement. Zero-initialise. */
struct bench_series {
    double values[BENCH_RUNS_MAX];
    size_t n;
};

void bench_add(struct bench_series *s, double value);
double bench_median(const struct bench_series *s);
/* `q` from 0 to 1, linear between the two nearest ranks. */
double bench_quantile(const struct bench_series *s, double q);
/* Distance between the quartiles, relative to the median. */
double bench_spread(const struct bench_series *s);

/* Median of `s`. */
void bench_emit(const char *figure, const struct bench_series *s);
/* Median of `s` beside the median that `peer` reached in the same run. */
void bench_emit_peer(const char *figure, const struct bench_series *s, const char *peer,
                     const struct bench_series *peer_s);
/* A value derived from several series. */
void bench_emit_value(const char *figure, double value, double spread, size_t runs);
/* The same beside `peer_value`; `peer` NULL: alone. */
void bench_emit_beside(const char *figure, double value, double spread, size_t runs,
                       const char *peer, double peer_value);

/* `full` repetitions, or `quick` ones when QUICK=1 was asked for. */
size_t bench_runs(size_t full, size_t quick);
/* Folder of the virtual environment with the peers' programs, or NULL without PEERS=1. */
const char *bench_peers(void);
/* Path of a built program: bench_bin("elastic-run"). Static storage, overwritten by the next call
 * but seven. */
const char *bench_bin(const char *relative);

double bench_now_ms(void);
/* Milliseconds from posix_spawn to the end of `argv` (looked up in PATH; stdin, stdout and stderr
 * are /dev/null), which must succeed. */
double bench_program_ms(const char *const argv[]);
_Noreturn void bench_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
