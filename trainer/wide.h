#pragma once
/*
 * Operations whose loops are of float32, on tensors that are stored in 16 bits: inputs are widened,
 * the operation runs on the copies, and what it writes is rounded once. So every sum is made in
 * float32, and a new operation works with both forms of storage. One operation's copies at a time.
 * The CPU's way; a GPU's kernels read and write 16 bits themselves. Internal to trainer/.
 */
#include "trainer/tape.h"

struct er_wide; /* opaque; one for a tape */

int er_wide_new(struct er_wide **ret, struct er_error *err);
void er_wide_free(struct er_wide *wide);
/* Some tensor of `node`, or its gradient, is not float32. */
bool er_wide_wanted(const struct er_node *node);
int er_wide_forward(struct er_wide *wide, const struct er_node *node, struct er_error *err);
/* As er_tape_op.backward[input]. The calls of one node come one after another. */
int er_wide_backward(struct er_wide *wide, const struct er_node *node, uint32_t input, float beta,
                     struct er_error *err);
/* The step's nodes are gone. */
void er_wide_forget(struct er_wide *wide);
size_t er_wide_growths(const struct er_wide *wide);
