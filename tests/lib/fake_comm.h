#pragma once
/*
 * A communicator that only remembers: the calls of runtime/comm.h for one rank in a world of
 * identical ranks. Operations stay under way until the test completes them or they are waited for;
 * a sum over `size` ranks is `size` times this rank's values. Link it instead of runtime/.
 */
#include <stdbool.h>

#include "runtime/comm.h"

#define ER_FAKE_CALLS_MAX 1024

enum er_fake_kind { ER_FAKE_REDUCE, ER_FAKE_BROADCAST, ER_FAKE_GATHER, ER_FAKE_VOTE };

struct er_fake_call {
    enum er_fake_kind kind;
    void *buf;
    size_t n;
    enum er_dtype dtype;
    bool done;
};

/* `rank` in a world of `size`. The communicator is the caller's until er_comm_abort(). */
struct er_comm *er_fake_comm_new(int rank, int size);
/* From now on it is this rank's. */
void er_fake_be(struct er_comm *comm, int rank);
/* Begun so far, oldest first. */
size_t er_fake_calls(const struct er_comm *comm, const struct er_fake_call **ret);
/* The oldest operation that is under way completes; false when there is none. */
bool er_fake_complete_one(struct er_comm *comm);
/* At most `n` operations fit: one more is -EAGAIN. */
void er_fake_ring(struct er_comm *comm, size_t n);
/* Call number `call` (from 0) fails with `code` when it is waited for or tested. */
void er_fake_fail(struct er_comm *comm, size_t call, int code);
/* Gathers come back with this rank's bytes changed; -1: none. */
void er_fake_spoil_gather(struct er_comm *comm, int rank);
/* This many ranks vote not ok. */
void er_fake_refusals(struct er_comm *comm, uint32_t n);
