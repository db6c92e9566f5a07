#pragma once
/*
 * Strict parsing of the value types of a job spec (docs/job-spec.md, "Forms of values"). The whole
 * text must match; blanks, signs where none make sense, overflow and trailing bytes are errors
 * (-EINVAL, -ERANGE) with a text that names what was expected and what stood there. Results are
 * untouched on failure. Pure.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

int er_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret, struct er_error *err);
int er_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret, struct er_error *err);
/* Decimal, finite, in [min, max]; no hex, no inf or nan. */
int er_parse_f64(const char *text, double min, double max, double *ret, struct er_error *err);
/* `true` | `false` only. */
int er_parse_bool(const char *text, bool *ret, struct er_error *err);

/* `250us 500ms 30s 10m 1h 7d`, joined `1h30m`, `0s`; `none` = ER_FOREVER. A bare number is an
 * error, unless `bare_seconds` (torchrun's own options: "30", "0.5"). */
int er_parse_duration(const char *text, bool bare_seconds, uint64_t *ret_us, struct er_error *err);
/* `512B 64KiB 8MiB 2GiB 1TiB`, `64kB 8MB 2GB 1TB`; `none` = UINT64_MAX. No bare number. */
int er_parse_size(const char *text, uint64_t *ret_bytes, struct er_error *err);
/* `4`, `4:6`, with 0 < min <= max <= limit. */
int er_parse_range(const char *text, uint32_t limit, uint32_t *ret_min, uint32_t *ret_max,
                   struct er_error *err);
/* `TERM`, `SIGTERM`; case-sensitive. */
int er_parse_signal(const char *text, int *ret, struct er_error *err);
const char *er_signal_name(int sig); /* "SIGTERM"; "SIG?" when unknown */

/* Inverse forms, for --print-config and messages: what they write reads back as the same value. */
#define ER_UNIT_TEXT_MAX 64
void er_format_duration(uint64_t us, char ret_text[ER_UNIT_TEXT_MAX]);
void er_format_size(uint64_t bytes, char ret_text[ER_UNIT_TEXT_MAX]);

/* Calls `fn` for each item of a list separated by `sep`; an empty item is an error; stops at fn's
 * first non-zero. */
typedef int (*er_parse_item_fn)(void *user, const char *item, size_t n, struct er_error *err);
int er_parse_list(const char *text, char sep, er_parse_item_fn fn, void *user,
                  struct er_error *err);

/* Levenshtein distance (of words up to 64 bytes, else the longer length), and the candidate nearest
 * to `word` (NULL when none is near: more than a third differs). */
size_t er_edit_distance(const char *a, const char *b);
const char *er_nearest(const char *word, const char *const *candidates, size_t n);
