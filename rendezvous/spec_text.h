#pragma once
/*
 * The settings that must agree on all nodes, as text: a line KEY=VALUE for each, in the order of
 * the program's table. Pure.
 */
#include <stdbool.h>
#include <stddef.h>

/*
 * Says in which keys this node's spec (`mine`) differs from the job's (`theirs`, `theirs_n` bytes,
 * from the store: anything), with the job's value where it is short; as many as there is room for,
 * then how many more. `cap`: of `ret`, at least 128; it is NUL-terminated.
 */
void er_spec_difference(const char *mine, const void *theirs, size_t theirs_n, char *ret,
                        size_t cap);

/* The value of `key` in such a text of n bytes; its length in *ret_n. NULL: there is no such line.
 */
const char *er_spec_value(const void *text, size_t n, const char *key, size_t *ret_n);
/*
 * Is `mine` the job's spec (`theirs`), as far as that has not been overridden while the job runs?
 * Where they differ, the override (`overrides`, such a text) must have this node's value: its file
 * was brought up to date with what the job does.
 */
bool er_spec_agrees(const char *mine, const void *theirs, size_t theirs_n, const char *overrides);
