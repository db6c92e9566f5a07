#pragma once
/* The same work by others: fio, and the libraries of bench/peers_ckpt.py, asked turn by turn. */
#include <stdint.h>

#include "bench/lib/bench.h"

enum { LIBRARIES_N = 4 };
extern const char *const bench_libraries[LIBRARIES_N];

/* Milliseconds in which `writers` processes of fio write `bytes` altogether: direct, 4 MiB blocks,
 * fsync at the end. Ends the program without fio. */
double bench_fio_ms(uint64_t bytes, int writers);

/* Starts the peers' process when PEERS=1; false without. */
bool bench_peers_open(void);
void bench_peers_close(void);
/* "save NAME", "first NAME", "load", "close NAME"; `ret_pause_ms` may be NULL. Ends the program
 * when the peer fails. */
double bench_peers_ask(const char *verb, const char *name, double *ret_pause_ms);
/* Of a series for each library, the one with the smallest median. */
size_t bench_fastest(const struct bench_series series[LIBRARIES_N]);
