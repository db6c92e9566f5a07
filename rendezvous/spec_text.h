#pragma once
/*
 * The settings that must agree on all nodes, as text: a line KEY=VALUE for each, in the order of
 * the program's table. Pure.
 */
#include <stddef.h>

/*
 * Says in which keys this node's spec (`mine`) differs from the job's (`theirs`, `theirs_n` bytes,
 * from the store: anything), with the job's value where it is short; as many as there is room for,
 * then how many more. `cap`: of `ret`, at least 128; it is NUL-terminated.
 */
void er_spec_difference(const char *mine, const void *theirs, size_t theirs_n, char *ret,
                        size_t cap);
