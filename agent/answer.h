#pragma once
/*
 * What a node answers when it is asked through the store (rendezvous/codec.h, `query`): a line of
 * JSON, then what it knows of its ranks, as nodes tell each other of hangs (agent/hang_judge.h).
 *
 *   {"v", "host", "generation", "node_rank", "nnodes", "findings": the diagnosis of its status}
 *
 * node_rank and the facts are of `generation`; 0: it has had none.
 */
#define ER_ANSWER_VERSION 1
